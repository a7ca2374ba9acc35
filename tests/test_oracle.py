"""Random life against a plain model: every byte served is right, nothing deleted or expired is.

`--seed N` replays a run; the seed and the last steps are printed when one fails.
"""

import random
from pathlib import Path

import pytest

from tests.support.oracle import Oracle

STEPS = 1000  # of one life
ROOMY, TIGHT = 1 << 30, 400_000  # bytes; tight: some eleven full extents


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    given = request.config.getoption("--seed")
    return random.SystemRandom().randrange(1 << 32) if given is None else int(given)


def live(root: Path, seed: int, *, roomy: bool) -> None:
    root.mkdir()
    oracle = Oracle(root, random.Random(seed), capacity=ROOMY if roomy else TIGHT, roomy=roomy)
    try:
        oracle.run(STEPS)
    except BaseException:
        print(f"replay with --seed {seed} ({'roomy' if roomy else 'tight'}); the last steps:")
        print("\n".join(oracle.trail))
        oracle.store.close_blocking()
        raise
    assert oracle.hits > STEPS // 2, "the run exercised hits"


@pytest.mark.parametrize("roomy", [True, False], ids=["roomy", "tight"])
def test_a_random_life_never_lies(roomy: bool, seed: int, tmp_path: Path) -> None:
    live(tmp_path / "root", seed, roomy=roomy)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_a_hundred_thousand_steps_never_lie(part: int, seed: int, tmp_path: Path) -> None:
    """Ten lives a part, each with a seed of its own, which is the one to replay."""
    for turn in range(10):
        live(tmp_path / str(turn), seed + turn, roomy=(part + turn) % 2 == 0)
