"""Makes the golden files in tests/data and prints the vectors embedded in the C tests.

Keys come from derivation.py, checksums from the `xxhash` package, which only this file needs. Run
it by hand when the derivation changes: `python -m tests.support.make_goldens`. Golden data is
never random: bytes and tokens are the start of one SHAKE-256 stream, named in the files.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import xxhash

from tests.support.derivation import (
    GOLDEN_STREAM,
    Extra,
    chain_keys,
    golden_bytes,
    golden_tokens,
    wrap_key,
)

DATA = Path(__file__).resolve().parent.parent / "data"
BIG_SIZES = (41_984, 50_432, 73_727, 73_728, 73_729, 1_179_648, 5_000_011)


def chain_case(
    name: str, token_count: int, block_tokens: int, salt: bytes, extras: Sequence[Extra]
) -> dict[str, object]:
    keys = chain_keys(golden_tokens(token_count), block_tokens, salt, extras)
    return {
        "name": name,
        "token_count": token_count,
        "block_tokens": block_tokens,
        "salt": salt.hex(),
        "extras": [[tag.hex(), offset, value.hex()] for tag, offset, value in extras],
        "keys": [key.hex() for key in keys],
    }


def keys_golden() -> dict[str, object]:
    image = (b"image", 70, bytes(range(32)))
    lora = (b"lora", 0, b"adapter-3")
    chains = [
        chain_case("no tokens", 0, 64, b"", []),
        chain_case("less than a block", 63, 64, b"", []),
        chain_case("one block", 64, 64, b"", []),
        chain_case("leftover tokens", 200, 64, b"", []),
        chain_case("salted", 200, 64, b"tenant-7", []),
        chain_case("one token per block", 3, 1, b"", []),
        chain_case("largest block", 65_536, 65_536, b"", []),
        chain_case("extras out of order", 200, 64, b"", [image, lora]),
        chain_case("tags of one offset", 64, 64, b"", [(b"b", 5, b"1"), (b"a", 5, b"2")]),
        chain_case("tag and its prefix", 64, 64, b"", [(b"ab", 5, b""), (b"a", 5, b"z")]),
        chain_case("values of one tag", 64, 64, b"", [(b"a", 5, b"\xff"), (b"a", 5, b"\x01")]),
        chain_case("extra given twice", 64, 64, b"", [lora, lora]),
        chain_case("extra in the leftover tokens", 200, 64, b"", [(b"image", 199, b"x")]),
    ]
    wraps = []
    for key_bytes in (16, 20, 31, 32):
        for salt in (b"", b"tenant-7"):
            foreign = golden_bytes(3 * key_bytes)
            parts = [foreign[i : i + key_bytes] for i in range(0, len(foreign), key_bytes)]
            keys = [wrap_key(part, salt).hex() for part in parts]
            wraps.append(
                {"key_bytes": key_bytes, "salt": salt.hex(), "foreign": foreign.hex(), "keys": keys}
            )
    return {"stream": GOLDEN_STREAM.decode(), "chains": chains, "wraps": wraps}


def xxh3_golden() -> dict[str, object]:
    data = golden_bytes(max(BIG_SIZES))
    sizes = [*range(300), *(1024 * k + d for k in range(1, 9) for d in (-1, 0, 1, 64)), *BIG_SIZES]
    sums = [[size, f"{xxhash.xxh3_64_intdigest(data[:size]):016x}"] for size in sizes]
    return {"stream": GOLDEN_STREAM.decode(), "sums": sums}


def c_bytes(text: bytes) -> str:
    return "\n".join(
        "    " + " ".join(f"0x{byte:02x}," for byte in text[i : i + 16])
        for i in range(0, len(text), 16)
    )


def print_c_vectors() -> None:
    """The inputs here are the simple formulas that the C tests can repeat."""
    pattern = bytes((i * 2_654_435_761 >> 24) & 0xFF for i in range(1_179_649))
    print("tests/c/test_xxh3.c")
    for size in (0, 1, 3, 4, 8, 9, 16, 17, 128, 129, 240, 241, 1024, 1025, 73_728, 1_179_649):
        print(f"    {{{size}, 0x{xxhash.xxh3_64_intdigest(pattern[:size]):016x}}},")
    print("tests/c/test_keys.c")
    tokens = [i * 7919 - 3 for i in range(130)]
    extras = [(b"image", 64, b"\x01\x02"), (b"lora", 0, b"a")]
    for name, key in [
        ("plain", chain_keys(tokens, 64, b"", [])[1]),
        ("salted", chain_keys(tokens, 64, b"tenant-7", [])[1]),
        ("extras", chain_keys(tokens, 64, b"", extras)[1]),
        ("wrapped", wrap_key(bytes(range(20)), b"tenant-7")),
    ]:
        print(f"{name}\n{c_bytes(key)}")


def write(name: str, golden: dict[str, object]) -> None:
    """One row per line, so that a changed row is a changed line in a review."""
    parts = []
    for part, rows in golden.items():
        lines = [json.dumps(row) for row in rows] if isinstance(rows, list) else []
        value = "[\n  " + ",\n  ".join(lines) + "\n]" if lines else json.dumps(rows)
        parts.append(f"{json.dumps(part)}: {value}")
    (DATA / name).write_text("{\n" + ",\n".join(parts) + "\n}\n")


if __name__ == "__main__":
    write("keys_golden.json", keys_golden())
    write("xxh3_golden.json", xxh3_golden())
    print_c_vectors()
