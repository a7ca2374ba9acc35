"""Refused features, one by one: the store opens, what was put is loaded exactly, and info() and the
log name what was lost. The table in docs/TESTING.md lists every refusal with its test.

What a process gives up it cannot have back: those lives are children (tests/support/refusals.py).
"""

from __future__ import annotations

import errno
import fcntl
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import kvstore
from kvstore.testing import FaultFiles, Injection, Poor, VirtualClock
from tests.support.loops import have, mounted, read_only
from tests.support.refusals import BLOCKS, NOBODY, POOL, URING, life, live
from tests.support.stores import cells_of, check_load, layout, opened, prompt, until, write

EPERM, ENOSYS = errno.EPERM, errno.ENOSYS
MEMLOCK = 8 << 20  # what most systems give an ordinary user
SYSCTL = Path("/proc/sys/kernel/io_uring_disabled")


def engine(found: dict[str, Any]) -> str:
    name: str = found["info"]["roots"][0]["engine"]
    return name


def notes(found: dict[str, Any], *words: str) -> list[str]:
    """The fallbacks with all of these words; each was logged when the store opened."""
    all_of_them: list[str] = found["info"]["fallbacks"]
    hits = [note for note in all_of_them if all(word in note for word in words)]
    assert hits, f"{words} in none of {all_of_them}"
    assert set(hits) <= set(found["log"]), f"not logged: {hits}"
    return hits


# ---- io_uring ------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [EPERM, ENOSYS], ids=["EPERM", "ENOSYS"])
def test_where_seccomp_blocks_io_uring_linux_aio_serves(error: int, tmp_path: Path) -> None:
    found = live(tmp_path, {"calls": list(URING), "error": error})
    assert engine(found) == "aio"
    notes(found, "io_uring refused", "seccomp", os.strerror(error))


@pytest.mark.parametrize("call", ["io_uring_enter", "io_uring_register"])
def test_a_sandbox_that_lets_rings_be_made_but_not_used_is_seen_through(
    call: str, tmp_path: Path
) -> None:
    found = live(tmp_path, {"calls": [call]})
    assert engine(found) == "aio"
    notes(found, "io_uring refused", os.strerror(EPERM))


@pytest.mark.parametrize("call", ["io_setup", "io_submit", "io_getevents"])
def test_where_linux_aio_is_blocked_too_threads_serve(call: str, tmp_path: Path) -> None:
    found = live(tmp_path, {"calls": [*URING, call]})
    assert engine(found) == "threads"
    notes(found, "io_uring refused", "Linux AIO refused", "fs.aio-max-nr")


@pytest.mark.parametrize("name", ["io_uring", "io_uring_plain", "aio"])
def test_an_engine_that_is_asked_for_and_refused_is_an_error_that_says_why(
    name: str, tmp_path: Path
) -> None:
    found = live(tmp_path, {"calls": [*URING, "io_submit"], "engine": name})
    assert "refused" in found["refused"] and 'engine="auto"' in found["refused"]


@contextmanager
def io_uring_disabled_for_users() -> Iterator[None]:
    """The sysctl at 1: refused to whoever has no privileges, so other programs of root go on. Two
    runs of this test on one machine wait for each other."""
    with SYSCTL.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        before = file.read()
        try:
            SYSCTL.write_text("1")
            yield
        finally:
            SYSCTL.write_text(before)


def test_where_the_sysctl_disables_io_uring_linux_aio_serves(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: a sysctl")
    os.chown(tmp_path, NOBODY, NOBODY)
    refused: dict[str, Any] = {"user": True, "memlock": MEMLOCK}
    try:
        with io_uring_disabled_for_users():
            found = live(tmp_path, refused)
    except OSError as why:
        warnings.warn(f"{SYSCTL} cannot be set here ({why}): seccomp stands in", stacklevel=1)
        found = live(tmp_path, refused | {"calls": ["io_uring_setup"]})
    assert engine(found) == "aio"
    notes(found, "kernel.io_uring_disabled", os.strerror(EPERM))


# ---- memory --------------------------------------------------------------------------------------


def test_an_ordinary_user_with_little_locked_memory_reads_without_registration(
    tmp_path: Path,
) -> None:
    user = os.geteuid() == 0
    if user:
        os.chown(tmp_path, NOBODY, NOBODY)
    found = live(tmp_path, {"user": user, "memlock": MEMLOCK})
    assert engine(found) == "io_uring" and not found["info"]["roots"][0]["registered"]
    notes(found, "not registered", os.strerror(errno.ENOMEM), "ulimit -l")


def test_without_huge_pages_the_pool_says_so(tmp_path: Path) -> None:
    found = live(tmp_path, {"huge_pages": True})
    pool = found["info"]["pool"]
    if pool["pages"] == "hugetlb":
        pytest.skip("needs a machine without reserved huge pages")
    assert (pool["pages"], pool["huge_coverage"]) == ("small", 0)
    notes(found, "pool", "0% of it on huge pages")


# ---- direct I/O ----------------------------------------------------------------------------------


def test_without_o_direct_the_page_cache_is_used(tmp_path: Path) -> None:
    found = live(tmp_path, {"open_flags": os.O_DIRECT})
    assert engine(found) == "io_uring"
    notes(found, "no O_DIRECT")


def test_without_o_direct_linux_aio_would_wait_so_threads_serve(tmp_path: Path) -> None:
    found = live(tmp_path, {"open_flags": os.O_DIRECT, "calls": list(URING)})
    assert engine(found) == "threads"
    notes(found, "io_uring refused", "Linux AIO waits")
    notes(found, "no O_DIRECT")
    asked = live(tmp_path, {"open_flags": os.O_DIRECT, "engine": "aio"})
    assert engine(asked) == "aio"
    notes(asked, "Linux AIO waits")


def test_a_file_system_that_answers_einval_to_o_direct_is_served(tmp_path: Path) -> None:
    files = FaultFiles()
    files.set_poor(Poor.DIRECT)
    found = life(tmp_path, _testing=Injection(files=files))
    notes(found, "no O_DIRECT")


@pytest.mark.root
def test_a_file_system_that_takes_o_direct_and_means_nothing_by_it_is_told(tmp_path: Path) -> None:
    with mounted(tmp_path, options="data=journal") as point:
        notes(life(point / "kv"), "no O_DIRECT")


@pytest.mark.root
@pytest.mark.parametrize("sector_bytes", [512, 4096])
def test_sectors_of_both_sizes_are_read_directly(sector_bytes: int, tmp_path: Path) -> None:
    with mounted(tmp_path, sector_bytes=sector_bytes) as point:
        found = life(point / "kv")
    assert engine(found) == "io_uring"
    assert found["info"]["roots"][0]["lost"] == []


def test_a_direct_unit_above_4096_is_refused_with_its_size(tmp_path: Path) -> None:
    files = FaultFiles()
    files.set_direct_unit(16384)
    with pytest.raises(kvstore.OpenError, match="multiples of 16384.*smaller sectors"):
        kvstore.open_blocking(tmp_path, pool=POOL, _testing=Injection(files=files))


@pytest.mark.root
def test_sectors_above_4096_are_refused(tmp_path: Path) -> None:
    """In truth: xfs on a loop device with sectors of 16 KiB, from Linux 6.15 on."""
    if not have("mkfs.xfs"):
        pytest.skip("needs sectors larger than 4096: no mkfs.xfs")
    make = ("mkfs.xfs", "-q", "-b", "size=16384", "-s", "size=16384")
    try:
        with mounted(tmp_path, sector_bytes=16384, make=make, image_bytes=400 << 20) as point:
            with pytest.raises(kvstore.OpenError, match="multiples of 16384"):
                kvstore.open_blocking(point / "kv", pool=POOL)
    except AssertionError as why:
        if "losetup" in str(why) or "mount" in str(why):
            pytest.skip("needs sectors larger than 4096: this kernel has none")
        raise


# ---- access --------------------------------------------------------------------------------------


def stored(root: Path) -> None:
    with opened(root, pool=POOL) as store:
        kv = store.cache(layout())
        assert write(kv, kv.keys(prompt(BLOCKS)), cells_of(kv.layout, BLOCKS)) == BLOCKS


@contextmanager
def only_to_be_read(root: Path, where: Path) -> Iterator[Path]:
    if os.geteuid() == 0:
        with read_only(root, where) as point:
            yield point
        return
    for path in (root, *(path for path in root.rglob("*") if path.is_dir())):
        path.chmod(0o500)
    (root / "owner.lock").chmod(0o400)
    try:
        yield root
    finally:
        for path in (root, *root.rglob("*")):
            path.chmod(0o700)


@pytest.mark.parametrize("role", ["peer", "auto"])
def test_a_directory_that_can_only_be_read_is_refused_to_an_owner_and_read_by_others(
    role: str, tmp_path: Path
) -> None:
    stored(tmp_path / "kv")
    with only_to_be_read(tmp_path / "kv", tmp_path) as root:
        with pytest.raises(kvstore.OpenError, match='needs to write.*role="peer"'):
            kvstore.open_blocking(root, pool=POOL)
        with opened(root, pool=POOL, role=role) as store:
            info = store.info()
            assert not info.roots[0].is_owner
            assert any("read-only" in note for note in info.fallbacks)
            kv = store.cache(layout())
            chain, cells = kv.keys(prompt(BLOCKS)), cells_of(layout(), BLOCKS)
            with kv.load(kv.find_blocking(chain)) as load:
                check_load(load, cells, BLOCKS)
            assert write(kv, kv.keys(prompt(BLOCKS, seed=1)), cells) == 0


def test_a_directory_in_which_only_the_lock_can_be_written_is_refused_too(tmp_path: Path) -> None:
    """The lock alone makes nobody an owner: without room for files it could only forget."""
    if os.geteuid() == 0:
        pytest.skip("needs an ordinary user: root may write everywhere")
    stored(tmp_path / "kv")
    (tmp_path / "kv").chmod(0o500)
    try:
        with pytest.raises(kvstore.OpenError, match='cannot write.*role="peer"'):
            kvstore.open_blocking(tmp_path / "kv", pool=POOL)
    finally:
        (tmp_path / "kv").chmod(0o700)


def test_without_o_tmpfile_names_are_used(tmp_path: Path) -> None:
    only_tmpfile = os.O_TMPFILE & ~os.O_DIRECTORY
    refused = {"open_flags": only_tmpfile, "open_error": errno.EOPNOTSUPP}
    notes(live(tmp_path, refused), "no O_TMPFILE")
    assert not list(tmp_path.rglob("*.tmp"))


@pytest.mark.root
def test_files_of_another_user_are_read_without_o_noatime(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: files of two users")
    stored(tmp_path)
    for path in (tmp_path, *tmp_path.rglob("*")):
        path.chmod(0o777 if path.is_dir() else 0o666)
    found = live(tmp_path, {"user": True})
    assert found["info"]["roots"][0]["lost"] == ["noatime"]
    assert any("another user" in note for note in found["info"]["fallbacks"])


# ---- times ---------------------------------------------------------------------------------------


GRID = 16  # one extent: what makes room, does so for one file


def three_prompts(root: Path, **injected: Any) -> tuple[VirtualClock, list[kvstore.Chain], int]:
    """The first is used again last, the others in the order they were put. Bytes of one."""
    clock = VirtualClock()
    with opened(root, _testing=Injection(clock=clock, **injected), pool=POOL) as store:
        kv = store.cache(layout())
        chains = [kv.keys(prompt(GRID, seed=seed)) for seed in range(3)]
        for chain in chains:
            clock.advance(10)
            assert write(kv, chain, cells_of(layout(), GRID)) == GRID
        nbytes = store.info().roots[0].used_bytes // 3
        clock.advance(10_000)
        with kv.load(kv.match(chains[0])) as load:
            check_load(load, cells_of(layout(), GRID), GRID)
    clock.advance(10)
    return clock, chains, nbytes


def check_first_out(root: Path, clock: VirtualClock, chains: list[kvstore.Chain], nbytes: int,
                    **injected: Any) -> kvstore.Info:  # fmt: skip
    """After a restart a fourth prompt takes the room of the second, the least recently used."""
    injection = Injection(clock=clock, **injected)
    with opened(root, _testing=injection, pool=POOL, capacity=3 * nbytes, min_age=0) as store:
        kv = store.cache(layout())
        for chain in chains:  # whether the scan was there or not
            assert kv.find_blocking(chain).blocks == GRID
        until(lambda: not store.info().roots[0].warming)
        cells = cells_of(layout(), GRID, seed=9)
        assert write(kv, kv.keys(prompt(GRID, seed=9)), cells) == GRID
        assert not kv.match(chains[1])
        for chain in (chains[0], chains[2]):
            with kv.load(kv.match(chain)) as load:
                check_load(load, cells_of(layout(), GRID), GRID)
        return store.info()


@pytest.mark.parametrize("poor", [Poor.ATIME_ZERO, Poor.ATIME_MTIME], ids=lambda poor: poor.name)
def test_where_last_use_is_not_kept_the_renewal_stands_for_it(poor: Poor, tmp_path: Path) -> None:
    files = FaultFiles()
    files.set_poor(poor)
    clock, chains, nbytes = three_prompts(tmp_path, files=files)
    info = check_first_out(tmp_path, clock, chains, nbytes, files=files)
    assert info.roots[0].lost == ["atime"]
    assert any("last use is not kept" in note for note in info.fallbacks)


def test_a_last_use_that_cannot_be_is_not_believed(tmp_path: Path) -> None:
    """The file system keeps times, but somebody's copy did not."""
    clock, chains, nbytes = three_prompts(tmp_path)
    for path in tmp_path.glob("*/*/*.kv"):
        valid_until = path.stat().st_mtime
        used = valid_until if path.stat().st_ino % 2 else 1_000_000
        os.utime(path, (used, valid_until))
    info = check_first_out(tmp_path, clock, chains, nbytes)
    assert info.roots[0].lost == []


@pytest.mark.root
def test_noatime_mounts_keep_last_use_because_it_is_written(tmp_path: Path) -> None:
    with mounted(tmp_path, options="noatime") as point:
        root = point / "kv"
        clock, chains, nbytes = three_prompts(root)
        info = check_first_out(root, clock, chains, nbytes)
    assert info.roots[0].lost == []


# ---- descriptors ---------------------------------------------------------------------------------


@pytest.mark.parametrize("files", [24, 32])
def test_with_few_descriptors_long_loads_are_slower_not_short(files: int, tmp_path: Path) -> None:
    found = live(tmp_path, {"files": files, "many": True})
    held = found["info"]["files"]
    assert held["descriptor_limit"] == files
    assert held["open_max"] < BLOCKS, "the limit must be felt"
    assert found["open_files"] <= held["open_max"]
    told = [note for note in found["info"]["fallbacks"] if note.startswith("files:")]
    assert len(told) == 1 and f"is {files}" in told[0] and "ulimit -n" in told[0]


def test_with_no_descriptors_to_speak_of_open_says_what_to_raise(tmp_path: Path) -> None:
    assert "ulimit -n" in live(tmp_path, {"files": 12})["refused"]
