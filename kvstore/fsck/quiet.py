"""Listing and reading below a root without a trace: no link is followed, nobody is waited for, and
last uses stay as they are, also where O_NOATIME is not permitted.

Paths are relative to the root's descriptor.
"""

import errno
import mmap
import os
import stat
from dataclasses import dataclass

SMALL_FILE = 1 << 20


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


def read_small(root_fd: int, path: str) -> bytes | None:
    """The content of a regular file of at most 1 MiB; None when it is none or cannot be read."""
    try:
        fd, noatime = open_quietly(path, root_fd)
    except OSError:
        return None
    try:
        before = os.fstat(fd)
        if not stat.S_ISREG(before.st_mode) or before.st_size > SMALL_FILE:
            return None
        os.set_blocking(fd, True)
        with mmap.mmap(-1, SMALL_FILE + mmap.PAGESIZE) as buffer:  # it may want whole pages
            data = buffer[: os.preadv(fd, [buffer], 0)]
        if not noatime:
            last_use_kept(fd, before)
        return data
    except OSError:
        return None
    finally:
        os.close(fd)


def open_quietly(path: str, dir_fd: int) -> tuple[int, bool]:
    """(fd for reading, whether reads leave atime alone). Follows no link, waits for nobody."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    extra = os.O_DIRECT | os.O_NOATIME
    while True:
        try:
            return os.open(path, flags | extra, dir_fd=dir_fd), bool(extra & os.O_NOATIME)
        except PermissionError:
            if not extra & os.O_NOATIME:
                raise
            extra &= ~os.O_NOATIME
        except OSError as error:
            if error.errno != errno.EINVAL or not extra & os.O_DIRECT:
                raise
            extra &= ~os.O_DIRECT


def last_use_kept(fd: int, before: os.stat_result) -> bool:
    """Sets atime back to what it was before our reads. A change of ctime is somebody else's doing
    (reads do not change it): then nothing is touched. False: not permitted."""
    after = os.fstat(fd)
    if after.st_atime_ns == before.st_atime_ns or after.st_ctime_ns != before.st_ctime_ns:
        return True
    try:
        os.utime(fd, ns=(before.st_atime_ns, before.st_mtime_ns))
    except OSError:
        return False
    return True
