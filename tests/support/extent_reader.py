"""An independent reader of extent files: docs/FORMAT.md in Python, to hold the core against.

Knows one file at a time, checks everything the text promises, and shares no code with the core.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

import xxhash

PAGE = 4096
PAGE_XXH3_OFFSET = 24
START_UNKNOWN = 2**64 - 1
LAST_KNOWN_TYPE = 9


class BadExtent(ValueError):
    """The file breaks the format; the message says where."""


@dataclass(frozen=True)
class ReadExtent:
    """A verified extent. `cells[layer][block]`; an empty layer has empty cells."""

    fingerprint: bytes
    parent: bytes | None
    start: int | None
    keys: list[bytes]
    block_tokens: int
    class_name: str
    created_s: int
    ttl_s: int
    extras: list[bytes] | None
    token_ids: list[int] | None
    cells: list[list[bytes]]


def need(condition: bool, what: str) -> None:
    if not condition:
        raise BadExtent(what)


def read_sections(data: bytes, count: int, header_bytes: int) -> dict[int, bytes]:
    """The known sections by type."""
    known: dict[int, bytes] = {}
    end = 48 + 24 * count
    for number in range(count):
        kind, flags, offset, size, zero, xxh3 = struct.unpack_from(
            "<HHIIIQ", data, 48 + 24 * number
        )
        need(offset >= max(end, 512) and offset % 8 == 0 and not zero, f"section {kind}: place")
        need(offset + size <= header_bytes, f"section {kind}: past the header")
        need(not any(data[end:offset]), f"padding before section {kind}")
        body, end = data[offset : offset + size], offset + size
        need(xxhash.xxh3_64_intdigest(body) == xxh3, f"section {kind}: checksum")
        need(kind <= LAST_KNOWN_TYPE or not flags & 1, f"section {kind}: required and unknown")
        need(kind > 5 or end <= PAGE, f"section {kind}: not in the first page")
        known[kind] = body
    need(not any(data[end:header_bytes]), "padding at the end of the header")
    return known


def read_cells(
    data: bytes, at: int, sizes: tuple[int, ...], sums: tuple[int, ...], blocks: int
) -> list[list[bytes]]:
    cells = []
    for layer, size in enumerate(sizes):
        row = [data[at + block * size : at + (block + 1) * size] for block in range(blocks)]
        for block, cell in enumerate(row):
            good = not size or xxhash.xxh3_64_intdigest(cell) == sums[layer * blocks + block]
            need(good, f"layer {layer} block {block}: checksum")
        used, end = at + size * blocks, at + -(-size * blocks // PAGE) * PAGE
        need(not any(data[used:end]), f"layer {layer}: padding")
        cells.append(row)
        at = end
    need(at == len(data), "regions and file length disagree")
    return cells


def read_extent(path: Path) -> ReadExtent:
    """Reads and verifies a whole file; raises BadExtent."""
    data = path.read_bytes()
    need(len(data) >= PAGE and data[:8] == b"KVSEXTNT", "magic")
    version, count, header_bytes, file_bytes, page_xxh3, layers, blocks, tokens, zero = (
        struct.unpack_from("<HHIQQIIII", data, 8)
    )
    need(version == 1 and zero == 0 and file_bytes == len(data), "version or length")
    page = data[:PAGE_XXH3_OFFSET] + bytes(8) + data[PAGE_XXH3_OFFSET + 8 : PAGE]
    need(xxhash.xxh3_64_intdigest(page) == page_xxh3, "checksum of the first page")
    known = read_sections(data, count, header_bytes)
    need({1, 2, 3, 6, 7} <= known.keys(), "a required section is missing")
    parent, start, parent_known, _ = struct.unpack("<32sQII", known[2])
    class_name, created_s, ttl_s = struct.unpack("<16sqq", known.get(5, bytes(32)))
    sizes = struct.unpack(f"<{layers}I", known[6])
    sums = struct.unpack(f"<{layers * blocks}Q", known[7])
    split = [known[3][32 * block : 32 * block + 32] for block in range(blocks)]
    extras, ids = known.get(8), known.get(9)
    need(ids is None or len(ids) == 4 * blocks * tokens, "token ids: length")
    return ReadExtent(
        fingerprint=known[1],
        parent=parent if parent_known else None,
        start=None if start == START_UNKNOWN else start,
        keys=split,
        block_tokens=tokens,
        class_name=class_name.rstrip(b"\0").decode(),
        created_s=created_s,
        ttl_s=ttl_s,
        extras=None if extras is None else [extras[32 * i : 32 * i + 32] for i in range(blocks)],
        token_ids=None if ids is None else list(struct.unpack(f"<{blocks * tokens}i", ids)),
        cells=read_cells(data, header_bytes, sizes, sums, blocks),
    )


def read_root(root: Path) -> dict[Path, ReadExtent]:
    """Every extent below a root, verified, its name held against its content."""
    found = {}
    for path in sorted(root.glob("*/[0-9a-f][0-9a-f][0-9a-f]/*.kv")):
        extent = read_extent(path)
        need(bytes.fromhex(path.stem) in extent.keys, f"{path}: named by a key it does not hold")
        need(path.parent.name == path.stem[:3], f"{path}: wrong bucket")
        need(path.parents[1].name == extent.fingerprint.hex()[:32], f"{path}: wrong namespace")
        found[path] = extent
    return found
