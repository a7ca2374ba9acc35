"""Block keys through the binding: equal to an independent derivation, and free of collisions."""

from __future__ import annotations

import array
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kvstore import _core
from tests.support.derivation import Extra, chain_keys, golden_tokens, wrap_key

GOLDEN: dict[str, Any] = json.loads(
    (Path(__file__).parent / "data" / "keys_golden.json").read_text()
)
BLOCK = 16


def core_chain(
    tokens: Sequence[int],
    block_tokens: int = BLOCK,
    salt: bytes = b"",
    extras: Sequence[Extra] = (),
) -> list[bytes]:
    joined: bytes = _core.chain_keys(array.array("i", tokens), block_tokens, salt, extras)
    return [joined[i : i + 32] for i in range(0, len(joined), 32)]


def core_wrap(foreign: bytes, key_bytes: int, salt: bytes = b"") -> list[bytes]:
    joined: bytes = _core.wrap_keys(foreign, key_bytes, salt)
    return [joined[i : i + 32] for i in range(0, len(joined), 32)]


def random_extras(rng: random.Random, token_count: int) -> list[Extra]:
    """Few tags, offsets and values, so that ties and shared prefixes are common."""
    return [
        (
            rng.choice([b"a", b"ab", b"image", b"lora", b"\xff"]),
            rng.randrange(token_count),
            rng.randbytes(rng.choice([0, 1, 2, 32, 300])),
        )
        for _ in range(rng.randrange(12))
    ]


@pytest.fixture
def rng() -> random.Random:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    return random.Random(seed)


@pytest.mark.parametrize("case", GOLDEN["chains"], ids=lambda case: case["name"])
def test_a_golden_chain_never_changes(case: dict[str, Any]) -> None:
    extras = [(bytes.fromhex(tag), at, bytes.fromhex(value)) for tag, at, value in case["extras"]]
    tokens = golden_tokens(case["token_count"])
    keys = core_chain(tokens, case["block_tokens"], bytes.fromhex(case["salt"]), extras)
    assert [key.hex() for key in keys] == case["keys"]


@pytest.mark.parametrize(
    "case", GOLDEN["wraps"], ids=lambda case: f"{case['key_bytes']} bytes, salt {case['salt']!r}"
)
def test_a_golden_wrapped_key_never_changes(case: dict[str, Any]) -> None:
    salt = bytes.fromhex(case["salt"])
    keys = core_wrap(bytes.fromhex(case["foreign"]), case["key_bytes"], salt)
    assert [key.hex() for key in keys] == case["keys"]


def test_random_chains_equal_the_independent_derivation(rng: random.Random) -> None:
    for _ in range(200):
        tokens = [rng.randrange(-(2**31), 2**31) for _ in range(rng.randrange(1, 400))]
        block_tokens = rng.choice([1, 3, 16, 64, 128, 401])
        salt = rng.randbytes(rng.choice([0, 1, 8, 64, 100]))
        extras = random_extras(rng, len(tokens))
        assert core_chain(tokens, block_tokens, salt, extras) == chain_keys(
            tokens, block_tokens, salt, extras
        )


def test_random_wrapped_keys_equal_the_independent_derivation(rng: random.Random) -> None:
    for key_bytes in range(16, 33):
        foreign = [rng.randbytes(key_bytes) for _ in range(rng.randrange(5))]
        salt = rng.randbytes(rng.randrange(70))
        assert core_wrap(b"".join(foreign), key_bytes, salt) == [
            wrap_key(key, salt) for key in foreign
        ]


def test_tokens_left_over_after_the_last_whole_block_have_no_key() -> None:
    tokens = list(range(3 * BLOCK))
    whole = core_chain(tokens)
    assert len(whole) == 3
    for left_over in (1, BLOCK - 1):
        assert core_chain(tokens + [7] * left_over) == whole
    assert core_chain(tokens[: BLOCK - 1]) == []
    assert core_chain([]) == []


def test_an_extra_of_the_left_over_tokens_changes_no_key() -> None:
    tokens = list(range(2 * BLOCK + 5))
    assert core_chain(tokens, extras=[(b"image", 2 * BLOCK, b"cat")]) == core_chain(tokens)


def test_a_changed_token_changes_its_block_and_all_after_it_only() -> None:
    tokens = list(range(4 * BLOCK))
    changed = tokens.copy()
    changed[2 * BLOCK - 1] += 1
    before, after = core_chain(tokens), core_chain(changed)
    assert before[:1] == after[:1]
    assert not set(before[1:]) & set(after[1:])


def test_the_block_size_is_part_of_every_key() -> None:
    tokens = [5] * 64
    assert not set(core_chain(tokens, 16)) & set(core_chain(tokens, 32))


def test_two_images_behind_the_same_placeholder_ids_do_not_collide() -> None:
    tokens = [32_000] * (3 * BLOCK)
    cat = core_chain(tokens, extras=[(b"image", BLOCK, b"cat")])
    dog = core_chain(tokens, extras=[(b"image", BLOCK, b"dog")])
    assert cat[0] == dog[0]
    assert not set(cat[1:]) & set(dog[1:])


def test_a_text_tag_is_its_utf8_bytes() -> None:
    tokens = array.array("i", range(BLOCK))
    text = _core.chain_keys(tokens, BLOCK, b"", [("lora", 0, b"a")])
    assert text == _core.chain_keys(tokens, BLOCK, b"", [(b"lora", 0, b"a")])


def test_the_order_in_which_extras_are_given_does_not_matter(rng: random.Random) -> None:
    tokens = list(range(6 * BLOCK))
    for _ in range(50):
        extras = random_extras(rng, len(tokens))
        shuffled = rng.sample(extras, len(extras))
        assert core_chain(tokens, extras=extras) == core_chain(tokens, extras=shuffled)


def test_bytes_moved_between_tag_value_and_salt_do_not_collide() -> None:
    tokens = list(range(BLOCK))
    variants: list[tuple[bytes, list[Extra]]] = [
        (b"", [(b"ab", 0, b"cd")]),
        (b"", [(b"abc", 0, b"d")]),
        (b"", [(b"a", 0, b"bcd")]),
        (b"", [(b"abcd", 0, b"")]),
        (b"", [(b"ab", 1, b"cd")]),
        (b"", [(b"ab", 0, b""), (b"cd", 0, b"")]),
        (b"", [(b"ab", 0, b"cd"), (b"ab", 0, b"cd")]),
        (b"a", [(b"b", 0, b"cd")]),
        (b"ab", [(b"cd", 0, b"")]),
        (b"abc", [(b"d", 0, b"")]),
        (b"abcd", []),
        (b"", []),
    ]
    keys = {core_chain(tokens, salt=salt, extras=extras)[0] for salt, extras in variants}
    assert len(keys) == len(variants)


def test_tokens_moved_into_an_extra_do_not_collide() -> None:
    tokens = array.array("i", range(BLOCK))
    tail = tokens[-1:].tobytes()
    assert core_chain(tokens)[0] != core_chain(tokens, extras=[(tail, 0, b"")])[0]


def test_salted_and_unsalted_chains_never_meet() -> None:
    tokens = list(range(4 * BLOCK))
    chains = [core_chain(tokens, salt=salt) for salt in (b"", b"\0", b"\0\0", b"tenant-7")]
    assert len({key for chain in chains for key in chain}) == 4 * len(chains)


def test_wrapped_keys_of_other_lengths_and_salts_never_meet() -> None:
    text = bytes(32)
    wrapped = {
        core_wrap(text[:key_bytes], key_bytes, salt)[0]
        for key_bytes in range(16, 33)
        for salt in (b"", b"\0", b"\0" * 16)
    }
    assert len(wrapped) == 17 * 3


def test_a_wrapped_key_is_neither_its_foreign_key_nor_a_block_key() -> None:
    block_keys = core_chain(list(range(BLOCK)))
    assert core_wrap(block_keys[0], 32) != block_keys
