"""Where the demo may put its files: on a real disk with room. Also counts pages in the page cache.

A tmpfs has no device to stream from, so a figure from there would mean nothing: it is refused.
"""

import ctypes
import mmap
import os
from dataclasses import dataclass
from pathlib import Path

GB = 10**9
MEMORY_FILE_SYSTEMS = frozenset({"tmpfs", "ramfs", "devtmpfs", "hugetlbfs"})


class Unsuitable(Exception):
    """The directory cannot hold the demo; the message says what to do instead."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """A directory, its file system's type and its free bytes."""

    path: Path
    file_system: str
    free_bytes: int


def file_system_of(path: Path, mountinfo: str) -> str:
    """The type of the file system that holds `path`, from the text of /proc/self/mountinfo.

    The longest mount point above `path` decides; of two mounts on one point the later one.
    """
    best, kind = "", "unknown"
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        point = left.split()[4].replace("\\040", " ")
        if path.is_relative_to(point) and len(point) >= len(best):
            best, kind = point, right.split()[0]
    return kind


def inspect(directory: Path) -> Place:
    """Say what `directory` lies on, or would lie on: it need not exist and is not made."""
    path = directory.resolve()
    room = os.statvfs(next(above for above in (path, *path.parents) if above.exists()))
    return Place(
        path=path,
        file_system=file_system_of(path, Path("/proc/self/mountinfo").read_text()),
        free_bytes=room.f_bavail * room.f_frsize,
    )


def refuse_unless_suitable(place: Place, *, need_bytes: int) -> None:
    """Raises Unsuitable for a file system in memory, or one with less than `need_bytes` free."""
    if place.file_system in MEMORY_FILE_SYSTEMS:
        raise Unsuitable(
            f"{place.path} is {place.file_system}, which is memory and not a disk: there is "
            "nothing to stream from. Choose a directory on an SSD with --out DIR."
        )
    if place.free_bytes < need_bytes:
        raise Unsuitable(
            f"{place.path} has {place.free_bytes / GB:.1f} GB free and the demo needs "
            f"{need_bytes / GB:.1f} GB. Free some room, choose another disk with --out DIR, "
            "or a shorter prompt with --prompt-tokens N."
        )


def bytes_in_page_cache(paths: list[Path]) -> int:
    """How many bytes of these files the kernel holds in its page cache (mincore)."""
    return sum(_pages_cached(path) for path in paths) * mmap.PAGESIZE


def _pages_cached(path: Path) -> int:
    size = path.stat().st_size
    if size == 0:
        return 0
    libc = ctypes.CDLL(None, use_errno=True)
    present = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
    # A private writable map, because ctypes takes addresses only from writable buffers.
    with (
        path.open("rb") as file,
        mmap.mmap(
            file.fileno(), size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE
        ) as mapped,
    ):
        start = ctypes.c_char.from_buffer(mapped)
        failed = libc.mincore(ctypes.byref(start), ctypes.c_size_t(size), present)
        del start  # the map cannot close while something points into it
    if failed:
        raise OSError(ctypes.get_errno(), "mincore", str(path))
    return sum(page & 1 for page in present)
