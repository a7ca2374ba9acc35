"""The seeds of tests/fuzz/corpus: headers and small files of a root, good ones and some that are
nearly good, so that a fuzzer starts behind the first checks.

Run it by hand when the format changes: `python -m tests.support.make_corpus`. What the fuzzers
found themselves lies beside the seeds, under names of hex digits.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import replace
from pathlib import Path

import xxhash

from tests.support.derivation import chain_keys, golden_bytes, golden_tokens
from tests.support.extent_bytes import sealed
from tests.support.make_extents import Extent, encode, goldens, mla_like

CORPUS = Path(__file__).resolve().parent.parent / "fuzz" / "corpus"
NAME, ROOT_JSON, REMOVED_RING = b"\0", b"\1", b"\2"


def one_block(*cells: bytes) -> Extent:
    return replace(mla_like(), keys=mla_like().keys[:1], cells=cells)


def header_of(extent: Extent) -> bytes:
    """Regions are no part of a header, and trailing zeros are put back by the check."""
    data = encode(extent)
    return data[: struct.unpack_from("<I", data, 12)[0]].rstrip(b"\0")


def edited(data: bytes, at: int, form: str, value: int) -> bytes:
    page = bytearray(data.ljust(4096, b"\0"))
    struct.pack_into(form, page, at, value)
    return sealed(page).rstrip(b"\0")


def headers() -> dict[str, bytes]:
    keys = chain_keys(golden_tokens(64 * 16), 16, b"full", [])
    full = replace(mla_like(), keys=keys, cells=[golden_bytes(64 * 8)] * 2)
    extras = replace(mla_like(), extras=[bytes(32)] * 4)
    small = header_of(one_block(b"1", b""))
    made = {name.removesuffix(".kv"): header_of(extent) for name, extent in goldens().items()}
    return made | {
        "one block": small,
        "64 blocks": header_of(full),
        "1024 layers": header_of(one_block(b"a", *[b""] * 1023)),
        "a block put alone": header_of(replace(mla_like(), parent=None, start=None)),
        "extras": header_of(extras),
        "unknown, optional": header_of(replace(mla_like(), more_sections=[(40_000, 0, b"new")])),
        "unknown, required": header_of(replace(mla_like(), more_sections=[(40_000, 1, b"new")])),
        "version 2": edited(small, 8, "<H", 2),
        "no section": edited(small, 10, "<H", 0),
        "17 sections": edited(small, 10, "<H", 17),
        "header of 1 MiB": edited(small, 12, "<I", 1 << 20),
        "file of 2 to the 63": edited(small, 16, "<Q", 1 << 63),
        "65 blocks": edited(small, 36, "<I", 65),
        "section at its end": edited(small, 48 + 4, "<I", 4096),
        "section of 4 GiB": edited(small, 48 + 8, "<I", 2**32 - 8),
        "wrong checksum of a section": edited(small, 520, "<B", 1),
        "nothing": b"",
    }


def ring(count: int, entries: list[tuple[int, int, int]]) -> bytes:
    body = b"".join(struct.pack("<QqII", *entry, 0) for entry in entries)
    sum_ = xxhash.xxh3_64_intdigest(body.ljust(24 * min(count, 5461), b"\0"))
    return REMOVED_RING + b"KVSREMOV" + struct.pack("<QQ", count, sum_) + body


def root_files() -> dict[str, bytes]:
    name = hashlib.sha256(b"name").hexdigest()
    uuid = name[:32].encode()
    entries = [(7, 1_750_000_000, 3), (2**64 - 1, -1, 99)]
    return {
        "a name": NAME + f"{name}.kv".encode(),
        "a name in capitals": NAME + f"{name.upper()}.kv".encode(),
        "a name and more": NAME + f"{name}.kv.tmp".encode(),
        "a short name": NAME + f"{name[1:]}.kv".encode(),
        "root.json": ROOT_JSON + b'{"format": 1, "uuid": "' + uuid + b'"}' + b" " * 40 + b"\n",
        "half a uuid": ROOT_JSON + b'{"format": 1, "uuid": "' + uuid[:15],
        "no hex digits": ROOT_JSON + b'{"format": 1, "uuid": "' + b" +0x" * 8 + b'"}',
        "no uuid": ROOT_JSON + b'{"format": 1}',
        "removals": ring(2, entries),
        "no removal": ring(0, []),
        "more than there are": ring(2**61, entries),
        "5461 removals": ring(5461, entries),
        "5462 removals": ring(5462, entries),
    }


def corpus() -> dict[Path, bytes]:
    """By path."""
    kinds = {"header": headers(), "root_files": root_files()}
    return {
        CORPUS / kind / name.replace(" ", "-").replace(",", ""): data
        for kind, inputs in kinds.items()
        for name, data in inputs.items()
    }


if __name__ == "__main__":
    for path, data in corpus().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
