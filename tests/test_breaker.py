"""A device in trouble costs misses, never waits: its root goes down, the others go on, and it is
tried again until it answers.

Time is a virtual clock, devices and calls of the file system fail by plan. What a load or a writer
sees is asserted, and what `info()` says; real disks that go and come back: test_root_comes_back.py.
"""

from __future__ import annotations

import logging
from errno import EDQUOT, EIO, EMFILE, ENOMEM, ENOSPC
from pathlib import Path

import pytest

from kvstore import Chain, Miss
from kvstore.report import render
from kvstore.store import open_blocking
from kvstore.testing import Fault, FaultFiles, FileCall, Injection, Io, VirtualClock
from tests.support.prompts import (
    GRID,
    assert_whole,
    eventually,
    load,
    load_into,
    put,
    put_all,
)
from tests.support.tight import LAYOUT, chain_named
from tests.support.troubled import ROOMY, Troubled, in_flight, troubled

EXTENTS = 16  # of one prompt: both roots get some, but for one in 2^15


# ---- a single operation that does not come back --------------------------------------------------


@pytest.mark.parametrize("how", ["pool", "caller memory", "get", "prefetch"])
def test_a_stalled_read_ends_its_waiters_as_misses_long_before_their_deadline(
    how: str, tmp_path: Path
) -> None:
    with troubled(tmp_path) as it:
        chain = it.stored()
        it.device.add(Fault.STALL, io=Io.READ, count=0)
        hit = it.kv.match(chain)
        running = it.kv.load(hit, deadline="1d")
        eventually(lambda: in_flight(it.device) > 0, "a read is in flight")
        it.tick(9)
        assert it.root().state == "up"
        it.tick(2)
        assert it.root().state == "down"
        layer = running.wait(LAYOUT.layers - 1, timeout="30s")
        assert (layer.blocks, layer.reason) == (0, "root_down")
        running.close()
        # Whoever comes now is told at once; nothing is asked of the device.
        asked = len(it.device.log())
        assert (it.kv.match(chain).blocks, it.kv.match(chain).reason) == (0, "root_down")
        assert it.kv.find_blocking(chain).reason == "root_down"
        if how == "pool":
            assert load(it.kv, hit) == (0, "root_down")
        elif how == "caller memory":
            assert load_into(it.kv, hit) == (0, "root_down")
        elif how == "get":
            assert it.kv.get_blocking(chain[0]) == Miss("root_down")
        else:
            assert it.kv.prefetch_blocking(hit) == 0
        assert len(it.device.log()) == asked
        it.heal()
        it.until_up()
        assert_whole(it.kv, chain)


def test_memory_of_a_stalled_read_stays_the_engines_until_it_is_back(tmp_path: Path) -> None:
    with troubled(tmp_path) as it:
        chain = it.stored()
        free = it.store.stats().pool_free_bytes
        it.device.add(Fault.STALL, io=Io.READ, count=0)
        running = it.kv.load(it.kv.match(chain))
        eventually(lambda: in_flight(it.device) > 0, "a read is in flight")
        it.tick(11)
        assert running.wait(0, timeout="30s").reason == "root_down"
        running.close()
        it.store.drop_ram()
        assert it.store.stats().pool_free_bytes < free
        it.heal()
        eventually(lambda: it.store.stats().pool_free_bytes == free, "the memory came back")


def test_a_stalled_write_drops_its_blocks_and_the_commit_answers(tmp_path: Path) -> None:
    with troubled(tmp_path) as it:
        it.device.add(Fault.STALL, io=Io.WRITE, count=0)
        chain = chain_named(it.kv, "new")
        with it.kv.writer(chain) as writer:
            put_all(it.kv, writer)
            commit = writer._commit()
            eventually(lambda: in_flight(it.device) > 0, "a write is in flight")
            it.tick(11)
            assert commit.wait("30s") == 0
        assert it.store.stats().dropped_blocks == GRID
        # While it is down a put is dropped and counted at once.
        assert put(it.kv, chain_named(it.kv, "another")) == 0
        assert it.store.stats().dropped_blocks == 2 * GRID
        it.heal()
        it.until_up()
        assert put(it.kv, chain) == GRID
        assert_whole(it.kv, chain)


# ---- errors --------------------------------------------------------------------------------------


def fail_until_down(it: Troubled, chain: Chain) -> None:
    """Loads that end at once, until the device is left alone."""
    for _ in range(100):
        if it.root().state != "up":
            return
        blocks, reason = load(it.kv, it.kv.match(chain))
        assert (blocks, reason) in [(0, "io_error"), (0, "root_down")]
    raise AssertionError("a device that only fails is still being asked")


def test_a_device_that_only_fails_goes_down_and_its_blocks_stay(tmp_path: Path) -> None:
    """No read went well in between, so it is the device and not the extents."""
    with troubled(tmp_path) as it:
        chains = [it.stored(name=f"{i}") for i in range(3)]
        it.device.add(Fault.ERRNO, EIO, count=0)
        for chain in chains:
            fail_until_down(it, chain)
        assert "Input/output error" in it.root().trouble
        assert it.root().trips == 1
        assert it.store.stats().quarantined_extents == 0
        it.heal()
        it.until_up()
        for chain in chains:
            assert_whole(it.kv, chain)


@pytest.mark.parametrize("number", [EMFILE, ENOMEM, ENOSPC, EDQUOT])
def test_being_short_of_something_never_takes_a_root_down_nor_condemns_a_block(
    number: int, tmp_path: Path
) -> None:
    with troubled(tmp_path) as it:
        chain = it.stored()
        it.device.add(Fault.ERRNO, number, count=0)
        for _ in range(10):
            assert load(it.kv, it.kv.match(chain)) == (0, "busy")
        assert it.root().state == "up"
        it.device.clear()
        assert load(it.kv, it.kv.match(chain)) == (GRID, None)
        assert it.store.stats().quarantined_extents == 0


def test_an_extent_that_cannot_be_read_is_tried_once_more_and_then_leaves(tmp_path: Path) -> None:
    """Its key is not retried for ever: a new put takes the name, the file is kept aside."""
    with troubled(tmp_path) as it:
        bad, good = it.stored(name="bad"), it.stored(name="good")
        reads = 0
        for attempt in range(2):
            assert load(it.kv, it.kv.match(good)) == (GRID, None)
            it.store.drop_ram()
            before = len(it.device.log())
            it.device.add(Fault.ERRNO, EIO, io=Io.READ, count=0)
            assert load(it.kv, it.kv.match(bad)) == (0, "io_error"), attempt
            it.device.clear()
            reads += len(it.device.log()) - before
        assert reads <= 2 * LAYOUT.layers
        hit = it.kv.match(bad)
        assert (hit.blocks, hit.reason) == (0, "io_error")
        assert it.store.stats().quarantined_extents == 1
        assert it.root().state == "up"
        assert put(it.kv, bad) == GRID
        assert_whole(it.kv, bad)
        assert_whole(it.kv, good)
        assert len(list((tmp_path / "quarantine").iterdir())) == 1


def test_one_failed_read_costs_one_miss_and_no_block(tmp_path: Path) -> None:
    with troubled(tmp_path) as it:
        chain = it.stored()
        it.device.add(Fault.ERRNO, EIO, io=Io.READ, count=1)
        assert load(it.kv, it.kv.match(chain)) == (0, "io_error")
        for _ in range(3):
            assert load(it.kv, it.kv.match(chain)) == (GRID, None)
            it.store.drop_ram()
        assert it.store.stats().quarantined_extents == 0


def test_a_header_that_cannot_be_read_is_tried_once_more_and_then_leaves(tmp_path: Path) -> None:
    with troubled(tmp_path) as it:
        bad, good = chain_named(it.kv, "bad"), it.stored(name="good")
        assert put(it.kv, bad) == GRID
        it.store.drop_ram()
        for _ in range(2):
            it.files.add(FileCall.READ_AT, EIO, count=0)
            assert load(it.kv, it.kv.match(bad)) == (0, "io_error")
            it.files.clear()
            it.store.drop_ram()
            assert load(it.kv, it.kv.match(good)) == (GRID, None)
        assert it.kv.match(bad).blocks == 0
        eventually(lambda: it.store.stats().quarantined_extents == 1, "it left")
        assert put(it.kv, bad) == GRID
        assert_whole(it.kv, bad)


def test_a_put_over_a_file_whose_header_cannot_be_read_takes_its_name(tmp_path: Path) -> None:
    """The index never knew it: an earlier life wrote it, and the scan could not read it."""
    with troubled(tmp_path) as it:
        chain = it.stored()
    with troubled(tmp_path) as it:
        chain = chain_named(it.kv, "stored")
        assert it.kv.match(chain).blocks == GRID
    files = FaultFiles()
    files.add(FileCall.READ_AT, EIO, skip=2, count=0)  # after root.json and removed.ring
    clock = VirtualClock()
    injected = Injection(clock=clock, files=files, manual_ticks=True)
    with open_blocking(tmp_path, capacity=ROOMY, pool="32MB", _testing=injected) as store:
        eventually(lambda: not store.info().roots[0].warming, "the scan ended")
        kv = store.cache(LAYOUT)
        assert kv.match(chain).blocks == 0
        files.clear()
        files.add(FileCall.READ_AT, EIO, count=2)  # the winner of the name, twice
        assert put(kv, chain) == GRID
        assert_whole(kv, chain)
        assert len(list((tmp_path / "quarantine").iterdir())) == 1


# ---- slow but alive ------------------------------------------------------------------------------


def test_a_slow_device_that_still_answers_goes_down_too(tmp_path: Path) -> None:
    with troubled(tmp_path) as it:
        chains = [it.stored(name=f"{i}") for i in range(4)]
        it.device.add(Fault.DELAY, 4 * 10**9, count=0)
        for _ in range(20):
            for chain in chains:
                if it.root().state == "up":
                    load(it.kv, it.kv.match(chain))
            it.store.drop_ram()
        assert it.root().state == "down"
        assert "longer than 2.5 s" in it.root().trouble
        it.tick(1)  # the probe is as slow: it stays down, and is tried less often
        eventually(lambda: it.root().state == "down", "the probe ended")
        assert "read of one page took 4 s" in it.root().trouble
        it.heal()
        it.until_up()
        for chain in chains:
            assert_whole(it.kv, chain)


# ---- coming back ---------------------------------------------------------------------------------


def test_it_is_tried_again_after_1_2_4_seconds_and_at_most_60(tmp_path: Path) -> None:
    with troubled(tmp_path) as it:
        chain = it.stored()
        it.device.add(Fault.ERRNO, EIO, count=0)
        fail_until_down(it, chain)
        waits = []
        for _ in range(9):
            waits.append(round(it.root().probe_in_s))
            asked = len(it.device.log())
            it.tick(it.root().probe_in_s - 0.001)
            assert (it.root().state, len(it.device.log())) == ("down", asked)
            it.tick(0.001)
            eventually(lambda: it.root().state == "down", "the probe ended")
            assert len(it.device.log()) == asked + 1, "a probe is one small read"
            assert it.device.log()[-1].bytes == 4096
        assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]
        assert it.root().trips == 1
        it.heal()
        it.until_up()
        assert_whole(it.kv, chain)


def test_what_is_down_shows_in_info_and_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="kvstore")
    with troubled(tmp_path) as it:
        chain = it.stored()
        assert (it.root().state, it.root().trouble, it.root().down_s) == ("up", "", 0)
        it.device.add(Fault.ERRNO, EIO, count=0)
        fail_until_down(it, chain)
        it.clock.advance(0.5)
        info = it.store.info()
        assert info.roots[0].down_s == 0.5
        (note,) = [note for note in info.fallbacks if "down for" in note]
        assert "Input/output error" in note and str(tmp_path) in note
        assert "DOWN" in render(info)
        assert any("is down and left alone" in record.message for record in caplog.records)
        it.heal()
        it.until_up()
        assert any("is back" in record.message for record in caplog.records)
        assert not [note for note in it.store.info().fallbacks if "down for" in note]
        assert it.root().trips == 1


# ---- other roots ---------------------------------------------------------------------------------


def lies_on(it: Troubled, roots: list[Path], chain: Chain) -> list[int]:
    """Which root each extent of the prompt is on."""
    return [
        next(i for i, root in enumerate(roots) if list(root.rglob(f"{chain[first].hex()}.kv")))
        for first in range(0, len(chain), GRID)
    ]


def test_other_roots_go_on_and_take_the_new_extents(tmp_path: Path) -> None:
    roots = [tmp_path / "a", tmp_path / "b"]
    with troubled(*roots) as it:
        chain = it.stored(EXTENTS * GRID)
        lies = lies_on(it, roots, chain)
        assert set(lies) == {0, 1}
        # A prompt whose first extent lies on the healthy root.
        names = (f"other {i}" for i in range(100))
        healthy = next(
            c for c in (it.stored(name=name) for name in names) if lies_on(it, roots, c) == [1]
        )
        it.device.add(Fault.STALL, count=0)
        running = it.kv.load(it.kv.match(chain), deadline="1d")
        eventually(lambda: in_flight(it.device) > 0, "a read is in flight")
        it.devices[1].settle()
        it.tick(11)
        good = lies.index(0) * GRID
        assert it.kv.match(chain).blocks == good
        last = running.wait(LAYOUT.layers - 1, timeout="30s")
        assert (last.blocks, last.reason) == (good, "root_down")
        running.close()
        assert [root.state for root in it.store.info().roots] == ["down", "up"]
        assert_whole(it.kv, healthy)
        # Written again, on the root that works.
        assert put(it.kv, chain) == len(chain)
        assert_whole(it.kv, chain)
        fresh = chain_named(it.kv, "fresh", EXTENTS * GRID)
        assert put(it.kv, fresh) == len(fresh)
        assert set(lies_on(it, roots, fresh)) == {1}
        it.heal()
        it.until_up()
        for one in (chain, fresh, healthy):
            assert_whole(it.kv, one)
