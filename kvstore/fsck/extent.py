"""One extent file held against docs/FORMAT.md, without a store. Reads; changes nothing.

Headers are decoded by the core's own decoder. Reads go past the page cache (O_DIRECT where the file
system takes it) and keep the last use (O_NOATIME where permitted, else it is set back).

Invariants
  1. Nothing is followed, and nothing but a regular file is opened: a FIFO or a device cannot block.
  2. atime and mtime of a file are the same before and after, unless somebody else changed them
     meanwhile; then they stay as he left them. `Checked.kept` says when that was not permitted.
"""

import os
import stat
from collections.abc import Callable
from typing import Any

import msgspec

from kvstore import _core
from kvstore.fsck.quiet import last_use_kept, open_quietly

PAGE = 4096
_PIECE = 8 * 2**20  # of one read; a larger cell is read whole
_FRONT = 64 * 2**10  # holds most headers
_FOREIGN = ("version", "unknown")


class Checked(msgspec.Struct, kw_only=True):
    """What a file turned out to be. trouble: a kind of `report.KINDS`, "" when it is good.

    header: as `_core.decode_header` gives it, as far as it was sound. read_bytes: of cells.
    """

    trouble: str = ""
    detail: str = ""
    header: dict[str, Any] | None = None
    read_bytes: int = 0
    kept: bool = True


class Checker:
    """Checks files one after another with one buffer. on_read: called with the bytes of each read
    of cells."""

    def __init__(self, on_read: Callable[[int], None] = lambda _: None) -> None:
        self._buffer = memoryview(_core.HugeMemory(_PIECE + 2 * PAGE))
        self._on_read = on_read

    def check(self, root_fd: int, path: str, *, deep: bool) -> Checked:
        """The file at `path` below the directory root_fd. deep: every cell is read, too.

        Raises OSError when it cannot be opened or read; FileNotFoundError when it is gone.
        """
        if not stat.S_ISREG(os.stat(path, dir_fd=root_fd, follow_symlinks=False).st_mode):
            return Checked(trouble="not-a-file")
        fd, noatime = open_quietly(path, root_fd)
        try:
            before = os.fstat(fd)
            if not stat.S_ISREG(before.st_mode):
                return Checked(trouble="not-a-file")
            try:
                found = self._check_open(fd, before.st_size, deep)
            finally:
                kept = noatime or last_use_kept(fd, before)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            found.kept = kept
            return found
        finally:
            os.close(fd)

    def _check_open(self, fd: int, size: int, deep: bool) -> Checked:
        front = self._read(fd, 0, min(_FRONT, size))
        found = _core.decode_header(front)
        if isinstance(found, dict) and not found["cell_bytes"]:
            front = self._read(fd, 0, min(found["header_bytes"], size))
            found = _core.decode_header(front)
        if isinstance(found, str):
            return Checked(trouble="later-version" if found in _FOREIGN else "header", detail=found)
        if size != found["file_bytes"]:
            detail = f"{size} bytes, the header says {found['file_bytes']}"
            return Checked(trouble="length", detail=detail, header=found)
        result = Checked(header=found)
        if deep:
            self._check_cells(fd, found, result)
        return result

    def _check_cells(self, fd: int, header: dict[str, Any], result: Checked) -> None:
        blocks, at = len(header["keys"]), header["header_bytes"]
        for layer, cell in enumerate(header["cell_bytes"]):
            sums = header["checksums"][layer * blocks : (layer + 1) * blocks]
            bad = self._bad_cell(fd, at, cell, sums, result)
            if bad is not None:
                result.trouble, result.detail = "cell", f"layer {layer}, block {bad}"
                return
            at += -(-cell * blocks // PAGE) * PAGE

    def _bad_cell(
        self, fd: int, region: int, cell: int, sums: tuple[int, ...], result: Checked
    ) -> int | None:
        """The first block of the region whose cell is not what its checksum says."""
        at_once = max(1, _PIECE // cell) if cell else 0
        for first in range(0, len(sums) if cell else 0, at_once or 1):
            count = min(at_once, len(sums) - first)
            start = region + first * cell
            skipped = start % PAGE
            data = self._read(fd, start - skipped, skipped + count * cell)
            result.read_bytes += len(data)
            self._on_read(len(data))
            for i in range(count):
                one = data[skipped + i * cell : skipped + (i + 1) * cell]
                if len(one) < cell or _core.xxh3(one) != sums[first + i]:
                    return first + i
        return None

    def _read(self, fd: int, at: int, size: int) -> memoryview:
        """`size` bytes from `at` (whole pages) on; fewer at the end of the file."""
        whole = -(-size // PAGE) * PAGE
        if whole > len(self._buffer):
            self._buffer = memoryview(_core.HugeMemory(whole))
        done = 0
        while done < size:
            got = os.preadv(fd, [self._buffer[done:whole]], at + done)
            if got <= 0:
                break
            done += got
            if got % PAGE and done < size:  # the end of the file: a direct read cannot go on there
                break
        return self._buffer[: min(done, size)]
