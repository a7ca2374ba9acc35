"""An independent encoder of extents, and the golden ones in tests/data that it makes.

Written after docs/FORMAT.md, not after the C code. Run it by hand when the format changes:
`python -m tests.support.make_extents`. Nothing is random: bytes come from a SHAKE-256 stream, keys
from derivation.py.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import xxhash

from tests.support.derivation import chain_keys, golden_bytes, golden_tokens
from tests.support.extent_reader import ReadExtent

DATA = Path(__file__).resolve().parent.parent / "data"
PAGE = 4096
REQUIRED = 1
START_UNKNOWN = 2**64 - 1

Section = tuple[int, int, bytes]
"""Type, flags, bytes."""


@dataclass(frozen=True)
class Extent:
    """What a file says. `cells[layer]` holds the layer's cells, block after block; empty: none."""

    fingerprint: bytes
    parent: bytes | None  # None: not known
    start: int | None
    keys: Sequence[bytes]
    block_tokens: int
    class_name: bytes
    created_s: int
    ttl_s: int
    cells: Sequence[bytes]
    extras: Sequence[bytes] | None = None
    token_ids: Sequence[int] | None = None
    more_sections: Sequence[Section] = ()


def padded(data: bytes, step: int) -> bytes:
    return data + bytes(-len(data) % step)


def sections(extent: Extent) -> list[Section]:
    count = len(extent.keys)
    cell_bytes = [len(layer) // count for layer in extent.cells]
    sums = [
        xxhash.xxh3_64_intdigest(layer[block * size : (block + 1) * size]) if size else 0
        for layer, size in zip(extent.cells, cell_bytes, strict=True)
        for block in range(count)
    ]
    start = START_UNKNOWN if extent.start is None else extent.start
    known = extent.parent is not None
    chain = struct.pack("<32sQII", extent.parent or b"", start, known, 0)
    found = [
        (1, REQUIRED, extent.fingerprint),
        (2, REQUIRED, chain),
        (3, REQUIRED, b"".join(extent.keys)),
        (4, 0, struct.pack("<I", extent.block_tokens) * count),
        (5, 0, struct.pack("<16sqq", extent.class_name, extent.created_s, extent.ttl_s)),
        (6, REQUIRED, struct.pack(f"<{len(cell_bytes)}I", *cell_bytes)),
        (7, REQUIRED, struct.pack(f"<{len(sums)}Q", *sums)),
    ]
    if extent.extras is not None:
        found.append((8, 0, b"".join(extent.extras)))
    if extent.token_ids is not None:
        found.append((9, 0, struct.pack(f"<{len(extent.token_ids)}i", *extent.token_ids)))
    return [*found, *extent.more_sections]


def encode(extent: Extent) -> bytes:
    """The whole file."""
    table, body, offset = b"", b"", 512
    found = sections(extent)
    for kind, flags, data in found:
        table += struct.pack("<HHIIIQ", kind, flags, offset + len(body), len(data), 0,
                             xxhash.xxh3_64_intdigest(data))  # fmt: skip
        body += padded(data, 8)
    regions = b"".join(padded(layer, PAGE) for layer in extent.cells)
    header_bytes = len(padded(bytes(offset) + body, PAGE))

    def header(page_xxh3: int) -> bytes:
        fixed = struct.pack(
            "<8sHHIQQIIII", b"KVSEXTNT", 1, len(found), header_bytes, header_bytes + len(regions),
            page_xxh3, len(extent.cells), len(extent.keys), extent.block_tokens, 0,
        )  # fmt: skip
        return padded((fixed + table).ljust(offset, b"\0") + body, PAGE)

    return header(xxhash.xxh3_64_intdigest(header(0)[:PAGE])) + regions


def as_made(found: ReadExtent) -> Extent:
    """What the independent reader found in a file, to be encoded again."""
    return Extent(
        fingerprint=found.fingerprint,
        parent=found.parent,
        start=found.start,
        keys=found.keys,
        block_tokens=found.block_tokens,
        class_name=found.class_name.encode(),
        created_s=found.created_s,
        ttl_s=found.ttl_s,
        cells=[b"".join(row) for row in found.cells],
        extras=found.extras,
        token_ids=found.token_ids,
    )


def mla_like() -> Extent:
    """Three layers of latent and rope in bf16, 16 tokens a block: blocks 4..7 of a chain."""
    keys = chain_keys(golden_tokens(8 * 16), 16, b"mla", [])
    data = golden_bytes(3 * 4 * 16 * 144)
    return Extent(
        fingerprint=hashlib.sha256(b"golden mla").digest(),
        parent=keys[3],
        start=4,
        keys=keys[4:],
        block_tokens=16,
        class_name=b"agent",
        created_s=1_750_000_000,
        ttl_s=3 * 86_400,
        cells=[data[i * 9216 : (i + 1) * 9216] for i in range(3)],
    )


def gqa_like() -> Extent:
    """Forty layers of which every seventh has k and v; extras; checksums need a second page."""
    tag, value = b"lora", b"adapter-1"
    keys = chain_keys(golden_tokens(16 * 16), 16, b"", [(tag, 20, value)])
    data = golden_bytes(5 * 16 * 250)
    extra = struct.pack("<I", 4) + tag + struct.pack("<QI", 20, len(value)) + value
    none = bytes(32)
    return Extent(
        fingerprint=hashlib.sha256(b"golden gqa").digest(),
        parent=none,
        start=0,
        keys=keys,
        block_tokens=16,
        class_name=b"chat",
        created_s=1_750_000_001,
        ttl_s=7 * 86_400,
        cells=[data[i // 7 * 4000 : (i // 7 + 1) * 4000] if i % 7 == 6 else b"" for i in range(40)],
        extras=[none, hashlib.sha256(extra).digest(), *[none] * 14],
    )


def goldens() -> dict[str, Extent]:
    """By file name. later: with a section that version 1 does not know and may skip. token_ids:
    of a store that was opened to keep them."""
    later = replace(mla_like(), more_sections=[(900, 0, golden_bytes(5000))])
    kept = replace(gqa_like(), token_ids=golden_tokens(16 * 16))
    return {"mla.kv": mla_like(), "gqa.kv": gqa_like(), "later.kv": later, "token_ids.kv": kept}


if __name__ == "__main__":
    for name, extent in goldens().items():
        (DATA / name).write_bytes(encode(extent))
