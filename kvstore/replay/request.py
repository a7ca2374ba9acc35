"""One request of a trace, whatever format it came in. Pure.

A block is known by a number: two blocks have the same number exactly when they and everything
before them are the same. Numbers count from 0, so that arrays can be indexed by them.
"""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]

# SplitMix64: a bijection, so that different numbers have different keys.
_STEP = np.uint64(0x9E3779B97F4A7C15)
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


@dataclass(frozen=True, slots=True)
class Request:
    """at_s: time in the trace's own clock. kind: "agent" or "chat", the class it belongs to unless
    told otherwise. blocks: numbers of its input's blocks, the last one may be partial. keys: 32
    bytes a block where the trace has tokens to hash, else None."""

    at_s: float
    input_tokens: int
    output_tokens: int
    block_tokens: int
    kind: str
    blocks: Numbers
    keys: bytes | None = None

    def tokens_of(self, blocks: int) -> int:
        """Input tokens in the first `blocks` blocks."""
        return min(blocks * self.block_tokens, self.input_tokens)

    def block_keys(self) -> bytes:
        """Its keys, or ones made from the numbers."""
        return keys_of_numbers(self.blocks) if self.keys is None else self.keys


class ChainNumbers:
    """Numbers for blocks by what they are and what came before them: no property of the ids is
    relied on. About 100 bytes a block."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, Hashable], int] = {}

    def of(self, ids: Iterable[Hashable], scope: int = -1) -> Numbers:
        """scope: chains of different scopes share nothing (negative, -1 for all)."""
        known, parent, found = self._known, scope, []
        for identity in ids:
            parent = known.setdefault((parent, identity), len(known))
            found.append(parent)
        return np.array(found, dtype=np.int64)


def keys_of_numbers(numbers: Numbers) -> bytes:
    """32 evenly spread bytes for each number, different for different numbers."""
    words = np.empty((len(numbers), 4), dtype=np.uint64)
    mixed = numbers.astype(np.uint64)
    for column in range(4):
        mixed = mixed + _STEP
        mixed = (mixed ^ (mixed >> np.uint64(30))) * _MIX_1
        mixed = (mixed ^ (mixed >> np.uint64(27))) * _MIX_2
        mixed ^= mixed >> np.uint64(31)
        words[:, column] = mixed
    return words.tobytes()
