"""Trouble with data as a caller sees it: shorter layers with a reason, never an exception.

Faults come from the fault engine, time from a virtual clock. What the core does inside is tested in
tests/c; here it is what `Load`, `Cache` and `Store` say.
"""

from collections.abc import Iterator
from errno import EIO
from pathlib import Path

import numpy as np
import pytest

from kvstore import Miss
from kvstore.testing import Fault, FaultDevice, Injection, Io, VirtualClock
from tests.support.stores import (
    BLOCK_TOKENS,
    LAYERS,
    cells_of,
    layout,
    opened,
    prompt,
    reads_in_flight,
    until,
    write,
)

BLOCKS = 20  # an extent of 16 and one of 4


class Faulty:
    def __init__(self, root: Path) -> None:
        self.clock = VirtualClock()
        self.device = FaultDevice(self.clock)
        self.open = opened(root, _testing=Injection(clock=self.clock, devices=[self.device]))
        self.store = self.open.__enter__()
        self.kv = self.store.cache(layout())
        self.chain = self.kv.keys(prompt(BLOCKS))
        self.cells = cells_of(self.kv.layout, BLOCKS)
        assert write(self.kv, self.chain, self.cells) == BLOCKS
        self.store.drop_ram()


@pytest.fixture
def faulty(tmp_path: Path) -> Iterator[Faulty]:
    made = Faulty(tmp_path)
    try:
        yield made
    finally:
        made.device.clear()
        made.device.release_stalled()
        made.open.__exit__(None, None, None)


@pytest.mark.parametrize(
    ("fault", "value", "reason"),
    [(Fault.BIT_FLIP, 12345, "damaged"), (Fault.ERRNO, EIO, "io_error")],
)
def test_blocks_that_cannot_be_read_are_failed_blocks(
    faulty: Faulty, fault: Fault, value: int, reason: str
) -> None:
    faulty.device.add(fault, value, io=Io.READ, count=0)
    with faulty.kv.load(faulty.kv.match(faulty.chain)) as load:
        last = load.wait(LAYERS - 1)
        assert (last.blocks, last.reason) == (0, reason)
        assert last.reasons == {0: reason}
        assert load.failed_blocks == range(BLOCKS)
        assert load.wait(0).spans == []
        assert load.wait(0).gather("latent").shape[0] == 0
        assert load.stats().failed_blocks == BLOCKS
    faulty.device.clear()
    stats = faulty.store.stats()
    assert stats.loads_short == 1
    assert stats.quarantined_extents == (2 if reason == "damaged" else 0)


def test_one_bad_cell_ends_the_prefix_and_keeps_what_is_below_it(faulty: Faulty) -> None:
    hit = faulty.kv.match(faulty.chain)
    with faulty.kv.load(hit[16:]) as second:  # the extent that will stay good is in RAM now
        assert second.wait(LAYERS - 1).blocks == 4
        bit = 8 * (5 * faulty.kv.layout.cell_bytes(0) + 77)
        faulty.device.add(Fault.BIT_FLIP, bit, io=Io.READ, count=0)
        with faulty.kv.load(hit) as load:
            last = load.wait(LAYERS - 1)
            assert 0 < last.blocks <= 5
            assert last.reason == "damaged"
            assert load.failed_blocks == range(last.blocks, BLOCKS)
            expected = faulty.cells[LAYERS - 1]["latent"][: last.blocks]
            assert np.array_equal(last.gather("latent"), expected)


def test_a_passed_deadline_ends_a_load_with_its_reason(faulty: Faulty) -> None:
    faulty.device.add(Fault.STALL, io=Io.READ, count=0)
    load = faulty.kv.load(faulty.kv.match(faulty.chain), deadline="5s")
    until(lambda: reads_in_flight(faulty.device))
    assert load.failed_blocks == range(BLOCKS, BLOCKS)
    faulty.clock.advance(6)
    faulty.store.tick()
    assert load.wait(0, timeout="30s").reason == "deadline"
    assert load.failed_blocks == range(BLOCKS)
    load.close()


def test_get_says_why_a_block_is_missing(faulty: Faulty) -> None:
    faulty.device.add(Fault.ERRNO, EIO, io=Io.READ, count=0)
    assert faulty.kv.get_blocking(faulty.chain[3]) == Miss("io_error")


def test_time_to_live_ends_a_hit_and_a_load_renews_it(faulty: Faulty) -> None:
    day = 86_400
    faulty.clock.advance(6 * day)
    faulty.store.tick()
    with faulty.kv.load(faulty.kv.match(faulty.chain)[:16]) as load:
        assert load.wait(LAYERS - 1).blocks == 16
    faulty.clock.advance(2 * day)
    faulty.store.tick()
    hit = faulty.kv.match(faulty.chain)
    assert (hit.blocks, hit.reason) == (16, "expired")
    assert hit.tokens == 16 * BLOCK_TOKENS
    until(lambda: faulty.store.stats().expired_extents == 1)


def test_writes_that_fail_are_dropped_blocks_not_errors(faulty: Faulty) -> None:
    faulty.device.add(Fault.ERRNO, EIO, io=Io.WRITE, count=0)
    chain = faulty.kv.keys(prompt(2, seed=3))
    assert write(faulty.kv, chain, cells_of(faulty.kv.layout, 2)) == 0
    assert faulty.kv.match(chain).blocks == 0
    assert faulty.store.stats().dropped_blocks == 2
