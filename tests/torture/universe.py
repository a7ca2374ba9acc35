"""All prompts that can be met, and their bytes: a function of (space, layer, key), so that any
process can judge what it reads without having written it.

Numbers name prompts. Three kinds, told by their range:
  kept     anybody writes them, nobody deletes them. Three neighbours share their first blocks and
           branch inside an extent.
  brief    the same, put with a time to live of seconds.
  private  written and deleted by one process at a time, the one whose slot is in the number.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from kvstore import Chain, Layout, LayoutWarning
from kvstore.chain import chain_of_tokens
from tests.support.prompts import BLOCK_TOKENS, GRID, small_layout, tokens

BRIEF, PRIVATE = 1_000_000, 2_000_000
BLOCKS_MAX = 2 * GRID + 6
CLASSES = {"kept": "3d", "brief": "2s"}
KEY_BYTES = 32
PAGE = 4096

Bytes = npt.NDArray[np.uint8]


def _paged_layout() -> Layout:
    """Cells that can be read straight into pages; an extent of 16 blocks has 512 KiB."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LayoutWarning)
        return Layout(
            parts_by_layer=((("latent", 2 * PAGE),),) * 4,
            model="paged",
            block_tokens=BLOCK_TOKENS,
            extent_blocks=GRID,
        )


LAYOUTS = (small_layout("uneven"), _paged_layout())  # a space is a number of these


def kind_of(number: int) -> str:
    return "private" if number >= PRIVATE else "brief" if number >= BRIEF else "kept"


def private_number(slot: int, turn: int) -> int:
    return PRIVATE + 100 * slot + turn


@lru_cache(maxsize=4096)
def chain_of(number: int, blocks: int) -> Chain:
    """The first blocks of a prompt."""
    ids = tokens(("own", number), BLOCKS_MAX)
    if kind_of(number) == "kept":
        shared = BLOCK_TOKENS * (8 + 5 * (number % 3))
        ids = tokens(("family", number // 3), BLOCKS_MAX)[:shared] + ids[shared:]
    return chain_of_tokens(ids[: blocks * BLOCK_TOKENS], block_tokens=BLOCK_TOKENS)


def split(keys: bytes) -> list[bytes]:
    return [keys[i : i + KEY_BYTES] for i in range(0, len(keys), KEY_BYTES)]


@lru_cache
def _salt(space: int, layer: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{space} {layer}".encode()).digest()[:8], "little")


def cells_of(space: int, layer: int, keys: Sequence[bytes]) -> Bytes:
    """[blocks, cell bytes]: every 8 bytes differ, from those of other cells too (splitmix64)."""
    size = LAYOUTS[space].cell_bytes(layer)
    words = -(-size // 8)
    seeds = np.frombuffer(b"".join(key[:8] for key in keys), dtype=np.uint64)
    steps = np.arange(1, words + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (seeds ^ np.uint64(_salt(space, layer)))[:, None] + steps[None, :]
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return np.ascontiguousarray(mixed).view(np.uint8)[:, :size]


def block_of(space: int, key: bytes) -> bytes:
    """A whole block, as `put` takes it and `get` gives it."""
    return b"".join(
        cells_of(space, layer, [key]).tobytes() for layer in range(LAYOUTS[space].layers)
    )


def parts_of(space: int, layer: int, keys: Sequence[bytes]) -> list[Bytes]:
    """What `writer.put` takes: one strided array per part."""
    cells, parts, at = cells_of(space, layer, keys), [], 0
    for _, size in LAYOUTS[space].parts_by_layer[layer]:
        parts.append(cells[:, at : at + size])
        at += size
    return parts
