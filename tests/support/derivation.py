"""The key derivation of csrc/keys.h once more, with hashlib: what tests hold the core against.

Written after the text, not after the C code, and as plainly as possible.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

GOLDEN_STREAM = b"kvstore golden data"

Extra = tuple[bytes, int, bytes]


def sized(text: bytes) -> bytes:
    return struct.pack("<I", len(text)) + text


def chain_keys(
    tokens: Sequence[int], block_tokens: int, salt: bytes, extras: Sequence[Extra]
) -> list[bytes]:
    key = hashlib.sha256(b"kvstore.chain.v1" + sized(salt)).digest()
    keys = []
    for start in range(0, len(tokens) - block_tokens + 1, block_tokens):
        end = start + block_tokens
        text = b"kvstore.block.v1" + struct.pack("<I", block_tokens) + key
        text += struct.pack(f"<{block_tokens}i", *tokens[start:end])
        inside = [(offset, tag, value) for tag, offset, value in extras if start <= offset < end]
        for offset, tag, value in sorted(inside):
            text += sized(tag) + struct.pack("<Q", offset) + sized(value)
        key = hashlib.sha256(text).digest()
        keys.append(key)
    return keys


def wrap_key(foreign: bytes, salt: bytes) -> bytes:
    return hashlib.sha256(b"kvstore.alien.v1" + sized(salt) + sized(foreign)).digest()


def golden_bytes(count: int) -> bytes:
    """The first bytes of the stream that the golden files are made from."""
    return hashlib.shake_256(GOLDEN_STREAM).digest(count)


def golden_tokens(count: int) -> list[int]:
    return list(struct.unpack(f"<{count}i", golden_bytes(4 * count)))
