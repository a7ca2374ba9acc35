"""One check of a root under way: what it knows so far, listing, and the repairs.

Paths are relative to the root and all of them go through its descriptor; what is a link is never
followed, and only what was listed as a directory is entered.
"""

import json
import mmap
import os
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from kvstore import quarantine
from kvstore.extent_check import last_use_kept, open_quietly
from kvstore.fsck_report import KINDS, Finding, Report
from kvstore.quarantine import printable

Fix = Callable[[str], None]
FRESH_S = 3600  # a temporary name younger than this may be a living writer's
_SMALL_FILE = 1 << 20
_TEMPORARY = re.compile(r"kv-.*\.tmp", re.DOTALL)


@dataclass(frozen=True)
class Entry:
    """A name below the root and what lies under it (a link itself, not its target)."""

    path: str
    name: str
    stat: os.stat_result

    @property
    def is_directory(self) -> bool:
        return stat.S_ISDIR(self.stat.st_mode)

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.stat.st_mode)

    @property
    def physical_bytes(self) -> int:
        return 0 if self.is_directory else self.stat.st_blocks * 512


def entries(root_fd: int, path: str) -> list[Entry]:
    """What a directory holds, by name; nothing when it is gone or no directory. OSError."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    found = []
    try:
        fd = os.open(path, flags, dir_fd=root_fd)
    except (FileNotFoundError, NotADirectoryError):
        return []
    try:
        for name in sorted(os.listdir(fd)):
            try:
                status = os.stat(name, dir_fd=fd, follow_symlinks=False)
            except FileNotFoundError:
                continue
            found.append(Entry(name if path == "." else f"{path}/{name}", name, status))
    finally:
        os.close(fd)
    return found


@dataclass
class Run:
    """late: files whose times may be wrong and when they were read, judged at the end."""

    root: Path
    root_fd: int
    report: Report
    now_s: Callable[[], float]  # a check takes hours, and a live owner goes on writing times
    progress: Callable[[int, int], None]
    longest_ttl_s: int = 0
    owner_uid: int = 0
    extents: int = 0
    late: list[tuple[str, os.stat_result, float]] = field(default_factory=list)

    def found(self, kind: str, path: str, detail: str = "", fix: Fix | None = None) -> bool:
        """Notes it, and with --repair does `fix` now; whether that was done."""
        known = KINDS[kind]
        corrected = False
        if fix and self.report.repair:
            try:
                fix(path)
                corrected = True
            except OSError as error:
                detail = f"{detail}; " if detail else ""
                detail += f"not repaired: {error.strerror}"
        self.report.findings.append(
            Finding(
                path=printable(path),
                kind=kind,
                error=known.error,
                meaning=known.meaning,
                detail=detail,
                repair=known.repair,
                corrected=corrected,
            )
        )
        return corrected

    def entries(self, path: str) -> list[Entry]:
        """As `entries`; a directory that may not be read is a finding."""
        try:
            return entries(self.root_fd, path)
        except OSError as error:
            self.found("unreadable", path, error.strerror or "")
            return []

    def read(self, read_bytes: int) -> None:
        """So many bytes of cells were read."""
        self.report.read_bytes += read_bytes
        self.progress(self.extents, self.report.read_bytes)

    def other(self, entry: Entry) -> None:
        """It takes space that no budget knows of."""
        self.report.other_bytes += entry.physical_bytes

    # ---- checks that several places share ----

    def check_mode(self, entry: Entry) -> None:
        wanted = 0o700 if entry.is_directory else 0o600
        if not entry.is_directory and not entry.is_file:
            return
        if stat.S_IMODE(entry.stat.st_mode) & 0o777 != wanted:
            detail = f"{stat.S_IMODE(entry.stat.st_mode):04o}"
            self.found("mode", entry.path, detail, self.set_mode(wanted))
        if entry.stat.st_uid != self.owner_uid:
            self.found("owner", entry.path, f"uid {entry.stat.st_uid}, not {self.owner_uid}")

    def check_temporaries(self, directory: str) -> None:
        for entry in self.entries(directory):
            age_s = self.now_s() - entry.stat.st_mtime
            removed = False
            if entry.is_directory or not _TEMPORARY.fullmatch(entry.name):
                self.found("foreign", entry.path)
            elif age_s > FRESH_S:
                age = f"{age_s / 3600:.0f} h old"
                removed = self.found("temporary", entry.path, age, self.remove)
            else:
                self.found("fresh-temporary", entry.path)
            if not removed:
                self.other(entry)

    def bytes_of(self, entry: Entry) -> bytes | None:
        """The content of a small file; None when it is none or cannot be read."""
        if not entry.is_file or entry.stat.st_size > _SMALL_FILE:
            return None
        try:
            fd, noatime = open_quietly(entry.path, self.root_fd)
        except OSError:
            return None
        try:
            before = os.fstat(fd)
            os.set_blocking(fd, True)
            data = _read_small(fd)
            if not noatime:
                last_use_kept(fd, before)
            return data
        except OSError:
            return None
        finally:
            os.close(fd)

    def json_of(self, entry: Entry) -> object:
        """What a JSON file says; None when it says nothing."""
        try:
            return json.loads(self.bytes_of(entry) or b"")
        except ValueError:
            return None

    # ---- repairs ----

    def move_aside(self, path: str) -> None:
        quarantine.move(self.root, path, now_s=int(self.now_s()))

    def remove(self, path: str) -> None:
        os.unlink(path, dir_fd=self.root_fd)

    def remove_directory(self, path: str) -> None:
        os.rmdir(path, dir_fd=self.root_fd)

    def set_mode(self, mode: int) -> Fix:
        def fix(path: str) -> None:
            fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.root_fd)
            try:
                os.chmod(
                    f"/proc/self/fd/{fd}", mode
                )  # of what was opened, never of a link's target
            finally:
                os.close(fd)

        return fix

    def set_times(self, used_s: float, until_s: float) -> Fix:
        times = (int(used_s), int(until_s))
        return lambda path: os.utime(path, times, dir_fd=self.root_fd, follow_symlinks=False)


def _read_small(fd: int) -> bytes:
    """All of it; the descriptor may want whole pages."""
    with mmap.mmap(-1, _SMALL_FILE + mmap.PAGESIZE) as buffer:
        size = os.preadv(fd, [buffer], 0)
        return buffer[:size]
