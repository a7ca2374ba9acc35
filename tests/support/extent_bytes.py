"""Where things lie in an extent file, and how to harm one, after docs/FORMAT.md. For tests."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import xxhash

from tests.support.extent_reader import PAGE, PAGE_XXH3_OFFSET

CELLS, CHECKSUMS = 6, 7
HEADER_FIELDS = {
    "magic": 0, "version": 8, "section_count": 10, "header_bytes": 12, "file_bytes": 16,
    "page_xxh3": 24, "layer_count": 32, "block_count": 36, "block_tokens": 40, "zero": 44,
}  # fmt: skip


def table(data: bytes) -> list[tuple[int, int, int, int]]:
    """(place of the entry, type, offset, bytes) of each section."""
    (count,) = struct.unpack_from("<H", data, 10)
    entries = [(48 + 24 * i, *struct.unpack_from("<HHII", data, 48 + 24 * i)) for i in range(count)]
    return [(at, kind, offset, size) for at, kind, _, offset, size in entries]


def section(data: bytes, wanted: int) -> tuple[int, int]:
    """(offset, bytes) of a section."""
    return next((offset, size) for _, kind, offset, size in table(data) if kind == wanted)


def regions(data: bytes) -> list[tuple[int, int]]:
    """(offset, bytes of a cell) of each layer."""
    at, blocks = struct.unpack_from("<I", data, 12)[0], struct.unpack_from("<I", data, 36)[0]
    offset, size = section(data, CELLS)
    found = []
    for (cell,) in struct.iter_unpack("<I", data[offset : offset + size]):
        found.append((at, cell))
        at += -(-cell * blocks // PAGE) * PAGE
    return found


@contextmanager
def times_kept(path: Path) -> Iterator[None]:
    """Decay of a disk changes no times, and an extent's mtime says how long it is valid."""
    old = path.stat()
    yield
    os.utime(path, ns=(old.st_atime_ns, old.st_mtime_ns))


def flip(path: Path, bit: int) -> None:
    """Turns one bit of the file around, in place: whoever has it open sees it, too."""
    with times_kept(path), path.open("r+b", buffering=0) as file:
        file.seek(bit // 8)
        byte = file.read(1)[0]
        file.seek(bit // 8)
        file.write(bytes([byte ^ 1 << bit % 8]))


def cut(path: Path, length: int) -> None:
    with times_kept(path):
        os.truncate(path, length)


def sealed(data: bytearray) -> bytes:
    """The same with a right checksum of the first page."""
    data[PAGE_XXH3_OFFSET : PAGE_XXH3_OFFSET + 8] = bytes(8)
    sum_ = xxhash.xxh3_64_intdigest(bytes(data[:PAGE]))
    struct.pack_into("<Q", data, PAGE_XXH3_OFFSET, sum_)
    return bytes(data)


def replace(path: Path, data: bytes) -> None:
    """Another file under the same name, with the times of the old one."""
    with times_kept(path):
        path.unlink()
        path.write_bytes(data)
