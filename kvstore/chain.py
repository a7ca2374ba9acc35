"""Chains of block keys: what names a prompt's blocks.

key[i] hashes key[i-1] and the tokens of block i (in C, see csrc/keys.h), so a key stands for the
whole prefix up to its block. Only whole blocks have keys; tokens left over have none. Extras
(LoRA name, image hash, prompt embeddings) go into the block that holds their token offset: two
images behind the same placeholder ids must not collide.

Pure: no store is needed to make a chain. Cost: about 0.4 ms of hashing per 131,072 tokens, without
the GIL; token ids in an int32 buffer are read in place, anything else is converted first.
"""

import array
import hashlib
import struct
from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from kvstore import _core

KEY_BYTES = 32
TOKEN_MAX = 2**31 - 1

Extra = tuple[str | bytes, int, bytes]  # (tag, absolute token offset, value)


class Chain:
    """Keys of consecutive blocks from block 0. Immutable; compares by its keys.

    len(chain) is the number of whole blocks, chain[i] the 32-byte key of block i, chain[:n] the
    first n blocks. A chain always begins at block 0: other slices are a ValueError. token_ids: the
    whole blocks' tokens, where the store keeps them; they are never part of what is compared.
    """

    __slots__ = ("block_tokens", "extra_digests", "keys", "token_ids")

    def __init__(
        self,
        keys: bytes,
        block_tokens: int,
        extra_digests: bytes | None = None,
        token_ids: npt.NDArray[np.int32] | None = None,
    ) -> None:
        if len(keys) % KEY_BYTES:
            raise ValueError(f"keys are {KEY_BYTES} bytes each, {len(keys)} is not a multiple")
        self.keys = keys
        self.block_tokens = block_tokens
        self.extra_digests = extra_digests  # 32 bytes a block, zeros for none; None: no extras
        self.token_ids = token_ids

    def __len__(self) -> int:
        return len(self.keys) // KEY_BYTES

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> "Chain": ...
    def __getitem__(self, index: int | slice) -> "bytes | Chain":
        if isinstance(index, slice):
            start, end, step = index.indices(len(self))
            if start != 0 or step != 1:
                raise ValueError("a chain begins at block 0: only chain[:n] is a chain")
            digests = self.extra_digests and self.extra_digests[: end * KEY_BYTES]
            ids = None if self.token_ids is None else self.token_ids[: end * self.block_tokens]
            return Chain(self.keys[: end * KEY_BYTES], self.block_tokens, digests, ids)
        if not -len(self) <= index < len(self):
            raise IndexError(f"the chain has {len(self)} blocks, no block {index}")
        at = index % len(self) * KEY_BYTES
        return self.keys[at : at + KEY_BYTES]

    def __iter__(self) -> Iterator[bytes]:
        return (self[number] for number in range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Chain):
            return NotImplemented
        return self.keys == other.keys and self.block_tokens == other.block_tokens

    def __hash__(self) -> int:
        return hash((self.keys[-KEY_BYTES:], self.block_tokens))

    def __repr__(self) -> str:
        last = self.keys[-KEY_BYTES:].hex()[:12]
        return f"<Chain of {len(self)} blocks of {self.block_tokens} tokens, last key {last}...>"

    @property
    def tokens(self) -> int:
        """Tokens that the whole blocks cover."""
        return len(self) * self.block_tokens

    def starts_with(self, other: "Chain") -> bool:
        """True when `other` is a prefix of this chain. Compares one key: keys name prefixes."""
        count = len(other)
        if self.block_tokens != other.block_tokens or count > len(self):
            return False
        return count == 0 or self[count - 1] == other[count - 1]


def chain_of_tokens(
    token_ids: Any,
    *,
    block_tokens: int,
    salt: bytes = b"",
    extras: Sequence[Extra] = (),
    keep_token_ids: bool = False,
) -> Chain:
    """The chain of floor(len(token_ids) / block_tokens) keys.

    token_ids: a sequence of ints, an array, or an integer numpy or torch (CPU) tensor, 1-d.
    salt: isolates tenants. extras: (tag, token offset, bytes), in any order. keep_token_ids: the
    chain holds a copy of its tokens (a caller may use his buffer again).
    ValueError: an id is negative or above 2**31 - 1, an offset is not within the tokens.
    """
    tokens = int32_tokens(token_ids)
    ordered = _ordered(extras, len(tokens))
    keys = _core.chain_keys(tokens, block_tokens, _salt(salt), ordered)
    digests = _extra_digests(ordered, block_tokens, len(keys) // KEY_BYTES) if ordered else None
    whole = len(keys) // KEY_BYTES * block_tokens
    kept = tokens[:whole].copy() if keep_token_ids else None
    return Chain(keys, block_tokens, digests, kept)


def chain_of_foreign(keys: Sequence[bytes], *, block_tokens: int, salt: bytes = b"") -> Chain:
    """The chain of an engine's own block hashes (16 to 32 bytes, all alike), from block 0."""
    sizes = {len(key) for key in keys}
    if not sizes:
        return Chain(b"", block_tokens)
    if len(sizes) > 1 or not 16 <= min(sizes) <= 32:
        raise ValueError(f"foreign keys must all have one size of 16 to 32 bytes, not {sizes}")
    wrapped = _core.wrap_keys(b"".join(keys), sizes.pop(), _salt(salt))
    return Chain(wrapped, block_tokens)


def int32_tokens(token_ids: Any) -> npt.NDArray[np.int32]:
    """Token ids as a contiguous int32 array; the same memory when they are one already."""
    if isinstance(token_ids, (str, bytes, bytearray)):
        raise TypeError(f"token ids are integers, not {type(token_ids).__name__}")
    if isinstance(token_ids, (list, tuple, range)):
        ids = _from_sequence(token_ids)
    else:
        ids = np.asarray(token_ids)
    if ids.size == 0:
        return np.empty(0, dtype=np.int32)
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise TypeError(f"token ids must be 1-dimensional integers, not {ids.ndim}-d {ids.dtype}")
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high > TOKEN_MAX:
        raise ValueError(f"token ids must be 0 to {TOKEN_MAX}; found {low if low < 0 else high}")
    return np.ascontiguousarray(ids, dtype=np.int32)


def _from_sequence(ids: Sequence[int]) -> npt.NDArray[Any]:
    """array.array is the fast way from a list, and refuses floats and huge ids by itself."""
    try:
        return np.asarray(array.array("q", ids))
    except OverflowError:
        raise ValueError(f"token ids must be 0 to {TOKEN_MAX}") from None


def _salt(salt: bytes) -> bytes:
    if not isinstance(salt, bytes):
        raise TypeError(f"salt must be bytes, not {type(salt).__name__}")
    return salt


def _ordered(extras: Sequence[Extra], tokens: int) -> list[tuple[bytes, int, bytes]]:
    """Sorted by (offset, tag, value), as the keys hash them."""
    plain = []
    for tag, offset, value in extras:
        if not 0 <= offset < tokens:
            raise ValueError(f"extra {tag!r} is at token {offset}, the prompt has {tokens} tokens")
        plain.append((tag.encode() if isinstance(tag, str) else bytes(tag), offset, bytes(value)))
    return sorted(plain, key=lambda extra: (extra[1], extra[0], extra[2]))


def _extra_digests(
    extras: Sequence[tuple[bytes, int, bytes]], block_tokens: int, blocks: int
) -> bytes:
    """SHA-256 of each block's extras for the extent's header; zeros for blocks without.

    The bytes are those that enter the block's key (csrc/keys.h)."""
    digests = bytearray(blocks * KEY_BYTES)
    by_block: dict[int, Any] = {}
    for tag, offset, value in extras:
        block = offset // block_tokens
        if block < blocks:
            digest = by_block.setdefault(block, hashlib.sha256())
            digest.update(struct.pack("<I", len(tag)) + tag)
            digest.update(struct.pack("<QI", offset, len(value)) + value)
    for block, digest in by_block.items():
        digests[block * KEY_BYTES : (block + 1) * KEY_BYTES] = digest.digest()
    return bytes(digests)
