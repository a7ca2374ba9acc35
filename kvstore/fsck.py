"""Checks a root by docs/FORMAT.md alone, without a store; repairs it when nobody owns it.

Everything in the directory is looked at once: names, headers, lengths, times, modes, and with
`deep` every cell. Beside a live owner it only reads. A file that goes while it is looked at was
evicted: that is no finding. Recency (atime, mtime) of what is not repaired stays as it is.

Repairs remove or move names and set modes and times; no file's content is ever written.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from kvstore import _core, quarantine
from kvstore.extent_check import Checker
from kvstore.fsck_namespace import check_namespace, is_namespace
from kvstore.fsck_report import Report
from kvstore.fsck_run import Entry, Run, entries
from kvstore.options import RETENTION
from kvstore.units import parse_duration

_LATE_S = 60  # clocks of two hosts may differ by so much
_OURS = {"root.json", "removed.ring", "removed.ring.new", "owner.lock", "lost+found"}


class NotAStore(OSError):
    """The directory is not a root of a store."""


def check(
    root: Path,
    *,
    deep: bool = False,
    repair: bool = False,
    longest_ttl_s: int = 0,
    now_s: Callable[[], float] = time.time,
    progress: Callable[[int, int], None] = lambda extents, read_bytes: None,
) -> Report:
    """Looks at everything below `root`.

    repair: takes the owner's lock first. longest_ttl_s: of any class in use, where that is longer
    than those of the files and the default ones. progress: called after each extent, and each read
    of cells, with the extents and bytes so far.
    Raises NotAStore, BlockingIOError (repair, and the root has an owner: the message names it) and
    OSError. Ctrl-C ends it early; the report says so.
    Costs a read of 64 KiB per extent, with `deep` all of them.
    """
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _need_store(root, fd)
        with _lock(root, repair) as owner, _low_priority():
            run = Run(
                root=root,
                root_fd=fd,
                report=Report(root=str(root), owner=owner, deep=deep, repair=repair),
                now_s=now_s,
                progress=progress,
                longest_ttl_s=max(longest_ttl_s, _default_ttl_s()),
            )
            try:
                _look(run)
            except KeyboardInterrupt:
                run.report.cancelled = True
    finally:
        os.close(fd)
    run.report.close()
    return run.report


@contextmanager
def _lock(root: Path, repair: bool) -> Iterator[str]:
    """The owner, in words; with `repair` nobody can become it meanwhile."""
    if not repair:
        yield _core.owner_of(os.fsencode(root))
        return
    lock = _core.OwnerLock(os.fsencode(root))
    try:
        yield ""
    finally:
        lock.close()


@contextmanager
def _low_priority() -> Iterator[None]:
    """Of this thread's I/O."""
    before = _core.io_priority(_core.IO_PRIORITY_LOW)
    try:
        yield
    finally:
        _core.io_priority(before)


def _default_ttl_s() -> int:
    return max(parse_duration(ttl) // 10**9 for ttl in RETENTION.values())


def _look(run: Run) -> None:
    found = run.entries(".")
    checker = Checker(run.read)
    spaces = [entry for entry in found if is_namespace(entry)]
    run.owner_uid = next(
        (entry.stat.st_uid for entry in found if entry.name == "root.json"),
        os.fstat(run.root_fd).st_uid,
    )
    for entry in found:
        if entry not in spaces:
            _look_at_top(run, entry)
    if not any(entry.name == "root.json" for entry in found):
        run.found("no-identity", "root.json")
    for entry in spaces:
        check_namespace(run, checker, entry)
    _check_times(run)
    _count_quarantine(run)


def need_store(root: Path) -> None:
    """NotAStore when nothing in the directory says that it is a root; OSError."""
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _need_store(root, fd)
    finally:
        os.close(fd)


def _need_store(root: Path, fd: int) -> None:
    """Before anything is made: an empty directory may be one. Others have a tmp/ and a quarantine/
    too, so those say nothing by themselves."""
    found = entries(fd, ".")
    names = {entry.name for entry in found}
    ours = _OURS | {"tmp", quarantine.DIRECTORY} if "owner.lock" in names else _OURS
    if names - ours and "root.json" not in names and not any(map(is_namespace, found)):
        raise NotAStore(f"{root} is no store: it has neither root.json nor a namespace")


def _look_at_top(run: Run, entry: Entry) -> None:
    if entry.name == quarantine.DIRECTORY and entry.is_directory:
        run.check_mode(entry)
    elif entry.name == "tmp" and entry.is_directory:
        run.check_mode(entry)
        run.check_temporaries("tmp")
    elif entry.name in _OURS:
        if entry.name != "lost+found":
            run.other(entry)
            run.check_mode(entry)
        _check_content(run, entry)
    else:
        run.other(entry)
        run.found("foreign", entry.path)


def _count_quarantine(run: Run) -> None:
    for entry in run.entries(quarantine.DIRECTORY):
        run.report.quarantine_files += 1
        run.report.quarantine_bytes += entry.physical_bytes
    if run.report.quarantine_files:
        run.found("quarantined", quarantine.DIRECTORY, f"{run.report.quarantine_files} files")


def _check_content(run: Run, entry: Entry) -> None:
    if entry.name == "root.json":
        told = run.json_of(entry)
        if not isinstance(told, dict) or not _is_hex(told.get("uuid"), 32):
            run.found("identity", entry.path, fix=run.remove)
        elif told.get("format") != 1:
            run.found("later-version", entry.path, f"format {told.get('format')}")
    elif entry.name == "removed.ring" and not _ring_is_whole(run.bytes_of(entry)):
        run.found("ring", entry.path, fix=run.remove)


def _is_hex(text: object, digits: int) -> bool:
    return isinstance(text, str) and len(text) == digits and not set(text) - set("0123456789abcdef")


def _ring_is_whole(data: bytes | None) -> bool:
    if data is None or len(data) != 1 << 17 or data[:8] != b"KVSREMOV":
        return False
    count, xxh3 = (int.from_bytes(data[at : at + 8], "little") for at in (8, 16))
    end = 24 + 24 * count
    return end <= len(data) and _core.xxh3(data[24:end]) == xxh3


def _check_times(run: Run) -> None:
    """At the end: only now the longest time to live of all files is known."""
    for path, seen, now_s in run.late:
        used_s, until_s = seen.st_atime, seen.st_mtime
        if used_s > now_s + _LATE_S:
            used_s = now_s
            run.found("last-use", path, _when(seen.st_atime), run.set_times(used_s, until_s))
        if until_s > now_s + run.longest_ttl_s + _LATE_S:
            until_s = now_s + run.longest_ttl_s
            run.found("valid-until", path, _when(seen.st_mtime), run.set_times(used_s, until_s))


def _when(seconds: float) -> str:
    try:
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
    except (OverflowError, ValueError):
        return f"{seconds:.0f} s"
