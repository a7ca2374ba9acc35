"""The budget of physical bytes and the reserve of free space hold at every moment."""

import errno
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from msgspec.structs import replace

from kvstore.store import open_blocking
from kvstore.testing import Fault, FaultDevice, FaultFiles, FileCall, Injection, Io, VirtualClock
from tests.support.prompts import (
    BLOCK_TOKENS,
    GRID,
    assert_whole,
    eventually,
    extent_files,
    load,
    physical_bytes,
    put,
    put_all,
    put_layer,
    small_layout,
)
from tests.support.stores import layout
from tests.support.tight import LAYOUT, chain_named, fill, measure_full_extent, opened, resident


@pytest.fixture(scope="session")
def full_extent_bytes(tmp_path_factory: pytest.TempPathFactory) -> int:
    """What one extent of GRID blocks takes on this disk."""
    return measure_full_extent(tmp_path_factory.mktemp("measure"))


class Watch:
    """Samples what a root takes on disk, as fast as it can, on a thread of its own."""

    def __init__(self, root: Path) -> None:
        self.root, self.most, self.samples = root, 0, 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def sample(self) -> None:
        self.most = max(self.most, physical_bytes(self.root))
        self.samples += 1

    def _run(self) -> None:
        while not self._stop.is_set():
            self.sample()

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()


def test_the_budget_of_physical_bytes_is_never_exceeded(
    tmp_path: Path, full_extent_bytes: int
) -> None:
    capacity = 10 * full_extent_bytes + 8192
    with opened(tmp_path, capacity) as store, Watch(tmp_path) as watch:
        kv = store.cache(LAYOUT)
        for turn in range(32):
            chain = chain_named(kv, turn, 2 * GRID + turn % GRID)
            assert put(kv, chain) == len(chain)
            watch.sample()
            assert store.info().roots[0].used_bytes <= capacity
            load(kv, kv.match(chain))
        stats = store.stats()
        assert stats.written_bytes >= 5 * capacity
        assert stats.evicted_extents > 40
        assert stats.dropped_blocks == 0
        eventually(
            lambda: physical_bytes(tmp_path) == store.info().roots[0].used_bytes,
            "used bytes are on disk",
        )
    assert watch.samples > 32
    assert 0.7 * capacity < watch.most <= capacity


def test_two_writers_at_once_stay_within_the_budget(tmp_path: Path, full_extent_bytes: int) -> None:
    capacity = 6 * full_extent_bytes
    with opened(tmp_path, capacity) as store, Watch(tmp_path) as watch:
        kv = store.cache(LAYOUT)

        def write(who: int) -> None:
            for turn in range(15):
                put(kv, chain_named(kv, (who, turn), GRID + 3))

        threads = [threading.Thread(target=write, args=(who,)) for who in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert watch.most <= capacity


def test_two_layouts_share_one_budget(tmp_path: Path, full_extent_bytes: int) -> None:
    clock = VirtualClock()
    capacity = 6 * full_extent_bytes
    with opened(tmp_path, capacity, clock=clock) as store:
        one, two = store.cache(LAYOUT), store.cache(small_layout("another"))
        old = fill(one, range(6), clock)
        assert resident(one, old) == list(range(6))
        new = fill(two, range(4), clock)
        assert resident(one, old) == [4, 5], "the other layout's oldest made room"
        assert resident(two, new) == list(range(4))
        assert physical_bytes(tmp_path) <= capacity
        assert {path.parents[1].name for path in extent_files(tmp_path)} == {
            one.namespace,
            two.namespace,
        }


def test_extents_of_a_layout_that_nobody_opened_are_evicted_too(
    tmp_path: Path, full_extent_bytes: int
) -> None:
    clock = VirtualClock()
    capacity = 6 * full_extent_bytes
    with opened(tmp_path, capacity, clock=clock) as store:
        fill(store.cache(small_layout("forgotten")), range(6), clock)
    with opened(tmp_path, capacity, clock=clock) as store:
        eventually(lambda: not store.info().roots[0].warming, "the scan ended")
        kv = store.cache(LAYOUT)
        chains = fill(kv, range(6), clock)
        assert resident(kv, chains) == list(range(6))
        assert {path.parents[1].name for path in extent_files(tmp_path)} == {kv.namespace}


def test_a_prompt_larger_than_the_budget_is_not_stored_and_harms_nothing(
    tmp_path: Path, full_extent_bytes: int
) -> None:
    with opened(tmp_path, full_extent_bytes // 2) as store:
        kv = store.cache(LAYOUT)
        small = chain_named(kv, "small", 2)
        assert put(kv, small) == 2
        large = chain_named(kv, "large", GRID)
        assert put(kv, large) == 0
        assert store.stats().dropped_blocks == GRID
        assert_whole(kv, small)


def test_the_last_room_goes_to_the_block_that_comes_first(
    tmp_path: Path, full_extent_bytes: int
) -> None:
    """The files of a prompt were made four at a time. While the first one's look at the disk took
    long, those behind took the room, for nothing: without the first none of them is published."""
    files = FaultFiles()
    clock = VirtualClock()
    with opened(tmp_path, 3 * full_extent_bytes + 4096, clock=clock, files=files) as store:
        kv = store.cache(LAYOUT)
        eventually(lambda: not store.info().roots[0].warming, "the scan ended")
        clock.advance(2)  # what is known of the free space is old
        files.stall(FileCall.SPACE, count=1)
        with kv.writer(chain_named(kv, "long", 5 * GRID)) as writer:
            put_all(kv, writer)
            eventually(lambda: files.stalled == 1, "the first file waits for the disk")
            files.release_stalled()
            assert writer.commit_blocking("30s") == 3 * GRID
        assert store.stats().dropped_blocks == 2 * GRID
        assert_whole(kv, chain_named(kv, "long", 5 * GRID)[: 3 * GRID])


def test_writers_that_need_room_at_once_evict_what_they_need_and_no_more(tmp_path: Path) -> None:
    """While the first one's victim was being unlinked, the second evicted another one. Blocks of
    512 KiB, so that what a file takes beside its cells does not matter."""
    large, some = replace(layout(), block_tokens=BLOCK_TOKENS), 4
    files, clock = FaultFiles(), VirtualClock()
    with opened(tmp_path, 3 * GRID * large.block_bytes + 2**20, clock=clock, files=files) as store:
        kv = store.cache(large)
        eventually(lambda: not store.info().roots[0].warming, "the scan ended")
        chains = fill(kv, ["oldest", "older", "old"], clock)
        files.stall(FileCall.UNLINK, count=1)
        first, second = (kv.writer(chain_named(kv, name, some)) for name in ("one", "two"))
        put_all(kv, first)
        eventually(lambda: files.stalled == 1, "the oldest is being unlinked")
        clock.advance(2)
        looks = files.calls(FileCall.SPACE)
        put_all(kv, second)
        eventually(lambda: files.calls(FileCall.SPACE) > looks, "the second looks for room")
        files.release_stalled()
        assert [writer.commit_blocking("30s") for writer in (first, second)] == [some, some]
        assert resident(kv, chains) == [1, 2]
        assert store.stats().evicted_extents == 1


def test_a_root_that_goes_down_ends_writers_whose_files_wait_for_one_another(
    tmp_path: Path,
) -> None:
    """The first file is being made by a call that the device keeps; the others wait for it."""
    files = FaultFiles()
    clock = VirtualClock()
    injected = Injection(clock=clock, files=files, manual_ticks=True)
    with open_blocking(tmp_path, capacity="1GB", pool="16MB", _testing=injected) as store:
        kv = store.cache(LAYOUT)
        eventually(lambda: not store.info().roots[0].warming, "the scan ended")
        files.stall(FileCall.ALLOCATE)
        with kv.writer(chain_named(kv, "long", 5 * GRID)) as writer, ThreadPoolExecutor() as pool:
            put_all(kv, writer)
            eventually(lambda: files.stalled == 1, "the first file is being made")
            commit = pool.submit(writer.commit_blocking, "60s")

            def given_up() -> bool:
                clock.advance(6)
                store.tick()
                return commit.done()

            eventually(given_up, "the commit ended")
            assert commit.result() == 0
            assert store.info().roots[0].trips > 0
        files.clear()
        files.release_stalled()
        eventually(lambda: files.stalled == 0, "the call came back")


def test_unlinked_bytes_stay_charged_until_the_last_reader_is_done(
    tmp_path: Path, full_extent_bytes: int
) -> None:
    clock = VirtualClock()
    device = FaultDevice(clock)
    capacity = 3 * full_extent_bytes
    with opened(tmp_path, capacity, clock=clock, device=device) as store:
        kv = store.cache(LAYOUT)
        old = fill(kv, range(3), clock)
        store.drop_ram()
        device.add(Fault.STALL, io=Io.READ, count=0)
        running = kv.load(kv.match(old[0]))
        eventually(lambda: any(r.completed_ns < 0 for r in device.log()), "a read is in flight")
        running.close()
        most = 0
        for turn in range(6):
            put(kv, chain_named(kv, ("new", turn)))
            most = max(most, physical_bytes(tmp_path))
        reason, used = kv.match(old[0]).reason, store.info().roots[0].used_bytes
        device.release_stalled()  # before the asserts: closing waits for the read
        assert (reason, used, most) == ("evicted", capacity, capacity)
        assert len(extent_files(tmp_path)) == 2, "the third was open, without a name"
        eventually(lambda: store.info().roots[0].used_bytes == 2 * full_extent_bytes, "given back")
        assert physical_bytes(tmp_path) == 2 * full_extent_bytes


def test_the_extents_of_an_open_writer_stay_within_the_budget_and_are_given_back(
    tmp_path: Path, full_extent_bytes: int
) -> None:
    clock = VirtualClock()
    with opened(tmp_path, 3 * full_extent_bytes, clock=clock) as store:
        kv = store.cache(LAYOUT)
        old = fill(kv, range(3), clock)
        writer = kv.writer(chain_named(kv, "aborted"))
        put_layer(kv, writer, 0, 0, GRID)
        eventually(lambda: resident(kv, old) == [1, 2], "room was made for what is being written")
        assert physical_bytes(tmp_path) <= 3 * full_extent_bytes
        writer.abort()
        eventually(
            lambda: (
                physical_bytes(tmp_path) == store.info().roots[0].used_bytes
                and len(extent_files(tmp_path)) * full_extent_bytes == physical_bytes(tmp_path)
            ),
            "the aborted file's bytes are given back",
        )


def test_the_reserve_of_free_space_is_honoured(tmp_path: Path, full_extent_bytes: int) -> None:
    clock, files = VirtualClock(), FaultFiles()
    total, reserve = 1 << 30, 1 << 20
    files.set_space(total, reserve + 3 * full_extent_bytes)
    with opened(tmp_path, 1 << 29, clock=clock, files=files, reserve=reserve) as store:
        kv = store.cache(LAYOUT)
        chains = fill(kv, range(3), clock)
        files.set_space(total, reserve + full_extent_bytes // 2)
        clock.advance(2)
        chains += fill(kv, [3], clock)
        assert resident(kv, chains) == [1, 2, 3], "evicted down to the reserve, not to the budget"
        files.set_space(total, 0)
        clock.advance(2)
        assert put(kv, chain_named(kv, "hopeless")) == 0
        assert store.stats().dropped_blocks == GRID


def test_a_full_disk_evicts_while_that_helps_and_then_drops_the_put(
    tmp_path: Path, full_extent_bytes: int
) -> None:
    clock, files = VirtualClock(), FaultFiles()
    with opened(tmp_path, 1 << 29, clock=clock, files=files) as store:
        kv = store.cache(LAYOUT)
        chains = fill(kv, range(6), clock)
        files.add(FileCall.ALLOCATE, errno.ENOSPC, count=2)
        chains += fill(kv, [6], clock)
        assert resident(kv, chains) == [2, 3, 4, 5, 6]
        files.add(FileCall.ALLOCATE, errno.ENOSPC, count=0)
        assert put(kv, chain_named(kv, "none")) == 0
        files.clear()
        assert put(kv, chain_named(kv, "again")) == GRID
        eventually(
            lambda: physical_bytes(tmp_path) == store.info().roots[0].used_bytes,
            "used bytes are on disk",
        )
