"""Chains: every kind of token ids gives the same keys; wrong ones are refused."""

import array
import hashlib
import struct
from typing import Any

import numpy as np
import pytest

from kvstore.chain import Chain, chain_of_foreign, chain_of_tokens, int32_tokens
from tests.support.derivation import chain_keys, wrap_key

BLOCK = 16
IDS = [(7 * i) % 129_280 for i in range(5 * BLOCK + 3)]


def chain(ids: Any = IDS, **words: Any) -> Chain:
    return chain_of_tokens(ids, block_tokens=BLOCK, **words)


@pytest.mark.parametrize(
    "ids",
    [
        tuple(IDS),
        array.array("i", IDS),
        np.array(IDS, dtype=np.int32),
        np.array(IDS, dtype=np.int64),
        np.array(IDS, dtype=np.uint32),
        np.array([IDS, IDS], dtype=np.int32).T[:, 0],
        memoryview(array.array("q", IDS)),
    ],
    ids=["tuple", "array", "int32", "int64", "uint32", "strided", "memoryview"],
)
def test_every_kind_of_token_ids_gives_the_same_chain(ids: Any) -> None:
    assert chain(ids) == chain()
    assert len(chain(ids)) == 5


def test_the_keys_are_those_of_the_derivation() -> None:
    extras = [(b"image", 20, b"cat"), (b"a", 20, b""), (b"lora", 3, b"x")]
    made = chain(salt=b"tenant", extras=extras)
    assert [made[i] for i in range(len(made))] == chain_keys(IDS, BLOCK, b"tenant", extras)


def test_int32_ids_are_read_in_place() -> None:
    ids = np.array(IDS, dtype=np.int32)
    assert np.shares_memory(int32_tokens(ids), ids)


@pytest.mark.parametrize(
    "ids", [[1, -1], [1, 2**31], [1, 2**63], np.array([1, -1]), np.array([2**31, 1])]
)
def test_ids_out_of_range_are_value_errors(ids: Any) -> None:
    with pytest.raises(ValueError, match="token ids"):
        chain(ids)


@pytest.mark.parametrize("wrong", ["12", b"12", [1.5], np.ones(4), np.ones((2, 2), dtype=np.int32)])
def test_what_is_no_list_of_integers_is_a_type_error(wrong: Any) -> None:
    with pytest.raises(TypeError):
        chain(wrong)


@pytest.mark.parametrize("ids", [[], range(BLOCK - 1), np.empty(0)])
def test_a_prompt_without_a_whole_block_has_an_empty_chain(ids: Any) -> None:
    assert len(chain(ids)) == 0
    assert chain(ids).keys == b""


def test_a_chain_slices_from_its_beginning_only() -> None:
    made = chain()
    assert made[:2] == chain(IDS[: 2 * BLOCK])
    assert made[:99] == made
    assert made[-1] == made[4]
    assert made.starts_with(made[:3])
    assert not made[:3].starts_with(made)
    with pytest.raises(ValueError, match="begins at block 0"):
        made[1:]
    with pytest.raises(IndexError):
        made[5]


def test_a_chain_of_other_block_size_is_another_chain() -> None:
    assert chain() != chain_of_tokens(IDS, block_tokens=BLOCK * 2)
    assert chain() != "chain"
    assert len({chain(), chain(), chain()[:2]}) == 2


def test_extras_are_digested_for_the_block_that_holds_them() -> None:
    made = chain(extras=[("image", 2 * BLOCK, b"cat"), ("tail", 5 * BLOCK + 1, b"x")])
    entry = struct.pack("<I", 5) + b"image" + struct.pack("<QI", 2 * BLOCK, 3) + b"cat"
    digests = made.extra_digests
    assert digests is not None
    assert len(digests) == len(made.keys)
    assert digests[64:96] == hashlib.sha256(entry).digest()
    assert digests[:64] + digests[96:] == bytes(4 * 32)
    assert made[:2].extra_digests == bytes(64)
    assert chain().extra_digests is None


@pytest.mark.parametrize(
    "extras", [[("image", -1, b"x")], [("image", len(IDS), b"x")], [("", 0, b"x")]]
)
def test_an_extra_outside_the_prompt_or_without_a_tag_is_refused(extras: Any) -> None:
    with pytest.raises(ValueError, match="extra"):
        chain(extras=extras)


def test_foreign_keys_are_wrapped_in_order() -> None:
    foreign = [bytes([i]) * 16 for i in range(4)]
    made = chain_of_foreign(foreign, block_tokens=BLOCK, salt=b"s")
    assert [made[i] for i in range(4)] == [wrap_key(key, b"s") for key in foreign]
    assert len(chain_of_foreign([], block_tokens=BLOCK)) == 0


@pytest.mark.parametrize("keys", [[b"x" * 15], [b"x" * 33], [b"x" * 16, b"x" * 17]])
def test_foreign_keys_of_odd_or_mixed_sizes_are_refused(keys: list[bytes]) -> None:
    with pytest.raises(ValueError, match="16 to 32"):
        chain_of_foreign(keys, block_tokens=BLOCK)


def test_a_salt_is_bytes() -> None:
    with pytest.raises(TypeError, match="salt"):
        chain(salt="tenant")


def test_an_extra_lies_within_the_prompt() -> None:
    tokens = list(range(20))
    assert len(chain_of_tokens(tokens, block_tokens=16, extras=[("image", 19, b"x")])) == 1
    for offset in (-1, 20):
        with pytest.raises(ValueError, match=f"'image' is at token {offset}, .* 20 tokens"):
            chain_of_tokens(tokens, block_tokens=16, extras=[("image", offset, b"x")])
