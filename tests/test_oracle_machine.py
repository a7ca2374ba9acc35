"""The life of test_oracle.py, its steps drawn by hypothesis: what fails is shrunk to a short life
that fails, and is tried again first in the next run.

Hypothesis draws the steps and one seed for each. It must not draw what a step does with its seed:
in a tight store that depends on what the store's threads have evicted so far, and hypothesis takes
draws that differ between two runs of one life for an error of the test.

What is known of the store, and what each step asserts, is in support/oracle.py.
"""

from __future__ import annotations

import random
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    rule,
    run_state_machine_as_test,
)

from tests.support.oracle import Oracle

ROOMY, TIGHT = 1 << 30, 400_000  # bytes; tight: some eleven full extents
PRESS = 3  # whole prompts in a row, of two to three extents each
choices = st.integers(0, 2**32 - 1).map(random.Random)
LOOSE = settings(
    derandomize=False,
    print_blob=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
QUICK = settings(LOOSE, max_examples=30, stateful_step_count=30)
THOROUGH = settings(LOOSE, max_examples=100, stateful_step_count=60)


class Life(RuleBasedStateMachine):
    """One store; each rule is a step of the oracle."""

    def __init__(self, root: Path, *, roomy: bool) -> None:
        super().__init__()
        root.mkdir()
        self.root, self.roomy = root, roomy
        self.oracle: Oracle | None = None

    def with_choices(self, rng: random.Random) -> Oracle:
        assert self.oracle is not None
        self.oracle.rng = rng
        return self.oracle

    @initialize(rng=choices)
    def open(self, rng: random.Random) -> None:
        capacity = ROOMY if self.roomy else TIGHT
        self.oracle = Oracle(self.root, rng, capacity=capacity, roomy=self.roomy)

    @rule(rng=choices)
    def put(self, rng: random.Random) -> None:
        self.with_choices(rng).put()

    @rule(rng=choices)
    def put_one_block(self, rng: random.Random) -> None:
        self.with_choices(rng).put_single()

    @rule(rng=choices)
    def press_others_out(self, rng: random.Random) -> None:
        for _ in range(PRESS):
            self.with_choices(rng).put()

    @rule(rng=choices)
    def open_writer(self, rng: random.Random) -> None:
        self.with_choices(rng).open_writer()

    @rule(rng=choices)
    def put_part_of_a_prompt(self, rng: random.Random) -> None:
        oracle = self.with_choices(rng)
        if oracle.writers:
            oracle.feed_writer()

    @rule(rng=choices)
    def commit_or_abort(self, rng: random.Random) -> None:
        oracle = self.with_choices(rng)
        if oracle.writers:
            oracle.end_writer()

    @rule(rng=choices)
    def match(self, rng: random.Random) -> None:
        self.with_choices(rng).match()

    @rule(rng=choices)
    def load(self, rng: random.Random) -> None:
        self.with_choices(rng).load()

    @rule(rng=choices)
    def get(self, rng: random.Random) -> None:
        self.with_choices(rng).get()

    @rule(rng=choices)
    def delete(self, rng: random.Random) -> None:
        self.with_choices(rng).delete()

    @rule(rng=choices, tick=st.booleans())
    def let_time_pass(self, rng: random.Random, tick: bool) -> None:
        """Some of it beyond a time to live; housekeeping may notice late."""
        self.with_choices(rng).advance()
        if tick:
            self.with_choices(rng).tick()

    @rule(rng=choices)
    def drop_ram(self, rng: random.Random) -> None:
        self.with_choices(rng).drop_ram()

    @rule(rng=choices)
    def reopen(self, rng: random.Random) -> None:
        self.with_choices(rng).reopen()

    def teardown(self) -> None:
        if self.oracle is not None:
            note("the last steps:\n" + "\n".join(self.oracle.trail))
            self.oracle.store.close_blocking()


def live(parent: Path, how: settings, *, roomy: bool) -> None:
    numbers = count()

    class LifeHere(Life):
        """Every one in a directory of its own."""

        def __init__(self) -> None:
            super().__init__(parent / str(next(numbers)), roomy=roomy)

    run_state_machine_as_test(LifeHere, settings=how)


@pytest.mark.timeout(600)  # to shrink a failure takes its time
@pytest.mark.parametrize("roomy", [True, False], ids=["roomy", "tight"])
def test_no_life_that_hypothesis_thinks_of_lies(roomy: bool, tmp_path: Path) -> None:
    live(tmp_path, QUICK, roomy=roomy)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("roomy", [True, False], ids=["roomy", "tight"])
def test_none_of_many_longer_lives_lies(roomy: bool, tmp_path: Path) -> None:
    live(tmp_path, THOROUGH, roomy=roomy)
