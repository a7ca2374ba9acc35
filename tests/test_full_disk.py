"""A full disk heals by eviction: blocks, inodes, quota, wherever it shows, with a bounded number of
tries per put; budget and reserve hold while many write at once; descriptors that run out.

The budget itself, and the reserve with one writer: test_budget.py.
"""

from __future__ import annotations

import os
import resource
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from errno import EDQUOT, EMFILE, ENFILE, ENOSPC
from pathlib import Path

import pytest

from kvstore.store import Store, open_blocking
from kvstore.testing import Fault, FileCall, Io
from tests.support.mounted import mounted
from tests.support.prompts import GRID, assert_whole, eventually, load, put, put_all
from tests.support.tight import LAYOUT, chain_named, fill, measure_full_extent, resident
from tests.support.troubled import troubled

TRIES = 8  # evictions for one put that met a full disk
MIB = 1 << 20

full_calls = pytest.mark.parametrize(
    "call", [FileCall.MAKE_DIRECTORY, FileCall.OPEN_TEMP, FileCall.ALLOCATE, FileCall.LINK]
)


@pytest.fixture(scope="session")
def full_extent_bytes(tmp_path_factory: pytest.TempPathFactory) -> int:
    """What one extent of GRID blocks takes on this disk."""
    return measure_full_extent(tmp_path_factory.mktemp("measure"))


# ---- pretended ----------------------------------------------------------------------------------


@full_calls
@pytest.mark.parametrize("number", [ENOSPC, EDQUOT])
def test_a_full_disk_heals_by_eviction_wherever_it_shows(
    call: FileCall, number: int, tmp_path: Path
) -> None:
    with troubled(tmp_path) as it:
        chains = fill(it.kv, range(6), it.clock)
        it.files.add(call, number, count=2)
        new = fill(it.kv, ["new"], it.clock)
        assert resident(it.kv, chains + new) == [2, 3, 4, 5, 6]
        assert it.root().state == "up"
        assert_whole(it.kv, new[0])


@full_calls
def test_a_disk_that_stays_full_ends_each_put_after_a_few_evictions(
    call: FileCall, tmp_path: Path
) -> None:
    with troubled(tmp_path) as it:
        kept = 3 * TRIES
        chains = fill(it.kv, range(kept), it.clock)
        it.files.add(call, ENOSPC, count=0)
        for turn in range(5):
            calls = it.files.calls(call)
            assert put(it.kv, chain_named(it.kv, ("hopeless", turn))) == 0
            assert it.files.calls(call) - calls <= TRIES + 1
            before, kept = kept, len(resident(it.kv, chains))
            # What the put before had begun, and is given back, counts as a try as well.
            assert max(0, before - TRIES) <= kept <= max(0, before - TRIES + 1)
        assert it.store.stats().dropped_blocks == 5 * GRID
        assert it.root().state == "up"
        it.files.clear()
        new = fill(it.kv, ["healed"], it.clock)
        assert_whole(it.kv, new[0])


def test_a_quota_on_inodes_takes_empty_buckets_and_nothing_else(tmp_path: Path) -> None:
    """The tries of one put go once round all buckets; what is removed is made again when needed."""
    with troubled(tmp_path) as it:
        chains = fill(it.kv, range(40), it.clock)
        gone, kept = chains[:12], chains[12:]
        buckets = [tmp_path / it.kv.namespace / chain[0].hex()[:3] for chain in gone]
        others = [tmp_path / it.kv.namespace / chain[0].hex()[:3] for chain in kept]
        for chain in gone:
            it.kv.delete_blocking(chain[0])
        eventually(lambda: not any(any(b.iterdir()) for b in buckets), "their files are gone")
        (buckets[0] / "note").write_text("of a person")
        it.files.add(FileCall.OPEN_TEMP, EDQUOT, count=0)
        assert put(it.kv, chain_named(it.kv, "hopeless")) == 0
        it.files.clear()
        assert (buckets[0] / "note").read_text() == "of a person"
        assert [b for b in {*buckets[1:]} - {*others} if b.exists()] == []
        assert resident(it.kv, kept) == list(range(TRIES, len(kept)))
        for chain in [*gone, *kept[:TRIES]]:
            assert put(it.kv, chain) == GRID
            assert_whole(it.kv, chain)


def test_nothing_is_lost_to_a_disk_that_refuses_to_unlink(tmp_path: Path) -> None:
    """Evicting gains nothing there: a few tries, and the rest of the index is left alone."""
    with troubled(tmp_path) as it:
        chains = fill(it.kv, range(32), it.clock)
        it.files.add(FileCall.UNLINK, ENOSPC, count=0)
        it.files.add(FileCall.ALLOCATE, ENOSPC, count=0)
        assert put(it.kv, chain_named(it.kv, "hopeless")) == 0
        assert len(resident(it.kv, chains)) >= 32 - 4


def test_a_write_that_meets_a_full_disk_makes_the_next_put_evict(tmp_path: Path) -> None:
    """Where space is not reserved up front (no fallocate, or a quota counted late)."""
    with troubled(tmp_path) as it:
        chains = fill(it.kv, range(4), it.clock)
        used = it.root().used_bytes
        it.device.add(Fault.ERRNO, EDQUOT, io=Io.WRITE, count=1)
        assert put(it.kv, chain_named(it.kv, "met it")) == 0
        # Else that file's own room would be enough for the next.
        eventually(lambda: it.root().used_bytes == used, "the file that met it is closed")
        assert resident(it.kv, chains) == [0, 1, 2, 3]
        new = fill(it.kv, ["next"], it.clock)
        assert resident(it.kv, chains + new) == [1, 2, 3, 4]
        fill(it.kv, ["after"], it.clock)
        assert resident(it.kv, chains) == [1, 2, 3], "once is enough"


def at_once(count: int, work: Callable[[int], object]) -> None:
    threads = [threading.Thread(target=work, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_the_reserve_holds_among_writers_that_have_not_allocated_yet(
    tmp_path: Path, full_extent_bytes: int
) -> None:
    """The file system calls free what others were promised: its figures are old by the time of an
    allocation. Every one of these is held up between the promise and the allocation."""
    reserve = 64 * full_extent_bytes
    with troubled(tmp_path, reserve=reserve) as it:
        it.files.set_space(1 << 30, reserve + 3 * full_extent_bytes + 8192)
        it.clock.advance(2)
        it.files.stall(FileCall.ALLOCATE)
        chains = [chain_named(it.kv, i) for i in range(4)]
        writers = [it.kv.writer(chain) for chain in chains]
        for writer in writers:
            put_all(it.kv, writer)
            it.clock.advance(2)  # the file system is asked again, and knows nothing of them
        eventually(lambda: it.files.stalled == 3, "three of them hang at their allocation")
        commits = [writer._commit() for writer in writers]
        eventually(lambda: any(commit.done for commit in commits), "the fourth is refused")
        it.files.clear()
        it.files.release_stalled()
        assert sorted(commit.wait("30s") for commit in commits) == [0, GRID, GRID, GRID]


@pytest.mark.parametrize("number", [EMFILE, ENFILE])
def test_descriptors_that_run_out_close_cached_files_and_it_goes_on(
    number: int, tmp_path: Path
) -> None:
    with troubled(tmp_path) as it:
        chains = [it.stored(name=f"{i}") for i in range(8)]
        eventually(lambda: it.store.stats().open_files == 8, "their files are open")
        new = chain_named(it.kv, "new")
        assert put(it.kv, new) == GRID
        it.store.drop_ram()
        it.files.add(FileCall.OPEN_READ, number, count=1)
        assert load(it.kv, it.kv.match(new)) == (GRID, None)
        assert it.store.stats().open_files <= 5
        # When that does not help it is a miss, and no file is blamed.
        it.store.drop_ram()
        it.files.add(FileCall.OPEN_READ, number, count=0)
        for _ in range(3):
            before = it.files.calls(FileCall.OPEN_READ)
            assert it.kv.get_blocking(chains[0][0]).reason == "busy"  # type: ignore[union-attr]
            assert it.files.calls(FileCall.OPEN_READ) - before <= 3
        it.files.clear()
        assert it.root().state == "up"
        assert it.store.stats().quarantined_extents == 0
        for chain in chains:
            assert_whole(it.kv, chain)


def test_a_load_gives_back_the_files_it_keeps_when_descriptors_run_out(tmp_path: Path) -> None:
    """It kept open what its later layers need. When the limit then fell below that, those files
    filled every place, and the rest of layer 0 waited for one until the deadline."""
    kept, workers, more = 6, 16, 3
    with troubled(tmp_path, io_timeout="1h") as it:
        chain = chain_named(it.kv, "long", (kept + workers + more) * GRID)
        assert put(it.kv, chain) == len(chain)
        it.store.drop_ram()
        before = len(it.device.log())
        it.files.stall(FileCall.OPEN_READ, skip=kept, count=workers)
        with it.kv.lease(it.kv.match(chain)) as lease, it.kv.load(lease) as running:
            eventually(lambda: it.files.stalled == workers, "all workers are opening")
            eventually(lambda: len(it.device.log()) >= before + kept, "what is open is being read")
            it.files.add(FileCall.OPEN_READ, EMFILE, count=1)
            it.files.release_stalled()
            eventually(lambda: running.stats().finished_ns > 0, "the load ends")
            last = list(running)[-1]
        assert (last.blocks, last.reason) == (len(chain), None)
        assert it.store.info().files.open_max < kept


def test_a_process_with_few_descriptors_left_still_loads(tmp_path: Path) -> None:
    """The real limit: hundreds of extents through a handful of files."""
    with open_blocking(tmp_path, capacity="256MB", pool="32MB") as store:
        kv = store.cache(LAYOUT)
        chain = chain_named(kv, "long", 40 * GRID)
        assert put(kv, chain) == len(chain)
        store.drop_ram()
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        used = max(int(name) for name in os.listdir("/proc/self/fd"))
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (used + 12, limits[1]))
            blocks, reason = load(kv, kv.match(chain))
            assert (blocks, reason) == (len(chain), None) or reason == "busy"
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert store.stats().quarantined_extents == 0
        assert_whole(kv, chain)


# ---- real file systems --------------------------------------------------------------------------


@contextmanager
def small_disk(tmp_path: Path, kind: str, *options: str, mebibytes: int = 320) -> Iterator[Path]:
    spare = ("-m", "0") if kind == "ext4" else ()  # nothing kept for root, as whom this runs
    with mounted(tmp_path, kind, *spare, *options, mebibytes=mebibytes) as disk:
        root = disk.path / "kv"
        root.mkdir()
        yield root


def free_bytes(path: Path) -> int:
    space = os.statvfs(path)
    return space.f_bavail * space.f_frsize


def write_many(store: Store, writers: int, turns: int, blocks: int = 4 * GRID) -> int:
    """Prompts from many threads; how many blocks were stored of how many."""
    kv = store.cache(LAYOUT)
    stored: list[int] = []

    def write(who: int) -> None:
        for turn in range(turns):
            stored.append(put(kv, chain_named(kv, (who, turn), blocks)))

    at_once(writers, write)
    return sum(stored)


@pytest.mark.root
@pytest.mark.parametrize("kind", ["ext4", "xfs"])
def test_budget_and_reserve_hold_on_a_real_disk_under_many_writers(
    kind: str, tmp_path: Path
) -> None:
    """With direct I/O, and with foreign files on the same disk that leave less than the budget."""
    with small_disk(tmp_path, kind) as root:
        hog = root.parent / "hog"
        subprocess.run(["fallocate", "-l", str(free_bytes(root) - 40 * MIB), hog], check=True)
        reserve = 16 * MIB
        least = [free_bytes(root)]
        stop = threading.Event()

        def watch() -> None:
            while not stop.wait(0.001):
                least.append(free_bytes(root))

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            with open_blocking(
                root, capacity="300MB", reserve=reserve, pool="64MB", engine="auto"
            ) as store:
                assert "direct" not in store.info().roots[0].lost
                stored = write_many(store, writers=4, turns=80)
                stats = store.stats()
                assert stats.evicted_extents > 0
                assert stored > 0.9 * 4 * 80 * 4 * GRID
        finally:
            stop.set()
            watcher.join()
        assert len(least) > 10
        # Directories, inodes and the journal take blocks of their own between two looks at it.
        assert min(least) >= reserve - 2 * MIB


@pytest.mark.root
@pytest.mark.parametrize("kind", ["ext4", "xfs"])
def test_a_disk_filled_by_others_is_used_as_far_as_it_goes(kind: str, tmp_path: Path) -> None:
    with small_disk(tmp_path, kind) as root:
        with open_blocking(root, capacity="300MB", reserve=0, pool="64MB") as store:
            kv = store.cache(LAYOUT)
            old = chain_named(kv, "old", 16 * GRID)
            assert put(kv, old) == len(old)
            hog = root.parent / "hog"
            subprocess.run(["fallocate", "-l", str(free_bytes(root) - MIB), hog], check=True)
            for turn in range(20):
                chain = chain_named(kv, turn, 4 * GRID)
                assert put(kv, chain) == len(chain)
                assert_whole(kv, chain)
            assert store.stats().evicted_extents > 0
            assert store.info().roots[0].state == "up"
            # All of it: puts are dropped, what is there is served, and it heals afterwards.
            with open(hog, "ab") as file:
                with pytest.raises(OSError):
                    while True:
                        file.write(bytes(MIB))
                        file.flush()
            put(kv, chain_named(kv, "squeezed", 4 * GRID))
            hog.unlink()
            new = chain_named(kv, "after", 4 * GRID)
            eventually(lambda: put(kv, new) == len(new), "it healed")
            assert_whole(kv, new)


@pytest.mark.root
def test_a_disk_without_inodes_heals_by_eviction(tmp_path: Path) -> None:
    with small_disk(tmp_path, "ext4", "-N", "1024", mebibytes=64) as root:
        with open_blocking(root, capacity="50MB", reserve=0, pool="32MB") as store:
            kv = store.cache(LAYOUT)
            for turn in range(60):
                assert put(kv, chain_named(kv, turn, 1)) == 1
            others = root.parent / "others"
            others.mkdir()
            with pytest.raises(OSError, match="No space"):
                for number in range(1024):
                    (others / str(number)).touch()
            for turn in range(60, 75):
                chain = chain_named(kv, turn, 1)
                assert put(kv, chain) == 1
                assert_whole(kv, chain)
            assert 15 <= store.stats().evicted_extents <= 40


@pytest.mark.root
def test_a_disk_without_inodes_heals_though_every_prompt_needs_a_directory(tmp_path: Path) -> None:
    """Many more prompts than inodes: directories that eviction left empty have to go too. Over two
    lives, the second of which made none of the directories that it finds."""
    with small_disk(tmp_path, "ext4", "-N", "64", mebibytes=48) as root:
        for life in range(2):
            with open_blocking(root, capacity="40MB", reserve=0, pool="8MB") as store:
                kv = store.cache(LAYOUT)
                # Before, it knows of nothing that it could evict.
                eventually(lambda s=store: not s.info().roots[0].warming, "the scan ended")
                for turn in range(60):
                    chain = chain_named(kv, (life, turn), 1)
                    assert put(kv, chain) == 1, (life, turn)
                    assert kv.match(chain).blocks == 1
                assert_whole(kv, chain)
                assert store.stats().blocks > 10, "most of it still holds something"
                assert store.info().roots[0].state == "up"
