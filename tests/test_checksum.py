"""XXH3-64 through the binding: equal to the reference values, whatever the alignment."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from kvstore import _core
from tests.support.derivation import golden_bytes

SUMS: list[tuple[int, str]] = json.loads(
    (Path(__file__).parent / "data" / "xxh3_golden.json").read_text()
)["sums"]


@pytest.fixture(scope="module")
def data() -> bytes:
    return golden_bytes(max(size for size, _ in SUMS))


def test_every_golden_length_has_its_reference_checksum(data: bytes) -> None:
    view = memoryview(data)
    wrong = [size for size, expected in SUMS if f"{_core.xxh3(view[:size]):016x}" != expected]
    assert wrong == []


def test_alignment_does_not_change_a_checksum(data: bytes) -> None:
    for size, expected in [(size, expected) for size, expected in SUMS if size % 64 in (0, 1, 63)]:
        for shift in (1, 7, 33):
            moved = memoryview(bytes(shift) + data[:size])[shift:]
            assert f"{_core.xxh3(moved):016x}" == expected


def test_writable_and_read_only_buffers_have_the_same_checksum(data: bytes) -> None:
    text = data[:5000]
    assert _core.xxh3(bytearray(text)) == _core.xxh3(text)


def test_any_flipped_bit_changes_the_checksum(data: bytes) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for size in (1, 8, 16, 100, 240, 241, 4096, 73_728):
        good = _core.xxh3(data[:size])
        for _ in range(100):
            damaged = bytearray(data[:size])
            damaged[rng.randrange(size)] ^= 1 << rng.randrange(8)
            assert _core.xxh3(damaged) != good
