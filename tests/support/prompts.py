"""Small layouts and prompts whose bytes follow from their keys, so that any block can be judged.

Not here: opening stores (each test file says how its own are opened).
"""

from __future__ import annotations

import hashlib
import os
import random
import time
import warnings
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from kvstore import Hit, Layout, LayoutWarning, Pages
from kvstore.cache import Cache
from kvstore.chain import Chain
from kvstore.writer import Writer

BLOCK_TOKENS = 4
GRID = 16  # blocks of one extent at most
LATENT_BYTES, ROPE_BYTES = 512, 64


def small_layout(model: str = "small") -> Layout:
    """Four layers: two parts, one part, none, two parts. No region is a multiple of 4096 bytes."""
    both = (("latent", LATENT_BYTES), ("rope", ROPE_BYTES))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LayoutWarning)
        return Layout(
            parts_by_layer=(both, (("latent", LATENT_BYTES),), (), both),
            model=model,
            block_tokens=BLOCK_TOKENS,
            extent_blocks=GRID,
        )


def tokens(seed: object, blocks: int) -> list[int]:
    """A prompt of whole blocks; a longer one of the same seed begins with the shorter."""
    rng = random.Random(repr(seed))
    return [rng.randrange(1 << 20) for _ in range(blocks * BLOCK_TOKENS)]


@lru_cache(maxsize=1 << 16)
def cell(model: str, layer: int, key: bytes, size: int) -> bytes:
    return hashlib.shake_128(b"%b %d %b" % (model.encode(), layer, key)).digest(size)


def layer_cells(layout: Layout, layer: int, keys: Sequence[bytes]) -> np.ndarray:
    """[blocks, cell bytes]: what the layer of these blocks holds."""
    size = layout.cell_bytes(layer)
    data = b"".join(cell(layout.model, layer, key, size) for key in keys)
    return np.frombuffer(data, dtype=np.uint8).reshape(len(keys), size)


def block_bytes(layout: Layout, key: bytes) -> bytes:
    """A whole block as `put` takes it and `get` gives it."""
    layers = range(layout.layers)
    return b"".join(cell(layout.model, i, key, layout.cell_bytes(i)) for i in layers)


def put_layer(kv: Cache, writer: Writer, layer: int, first: int, end: int) -> None:
    """Blocks [first, end) of one layer, and waits until the source may be reused."""
    if not kv.layout.parts_by_layer[layer] or first >= end:
        return
    cells = layer_cells(kv.layout, layer, [writer.chain[i] for i in range(first, end)])
    parts, at = [], 0
    for _, size in kv.layout.parts_by_layer[layer]:
        parts.append(cells[:, at : at + size])
        at += size
    writer.put(layer, (first, end), parts).wait("30s")


def put_all(kv: Cache, writer: Writer) -> None:
    for layer in range(kv.layout.layers):
        put_layer(kv, writer, layer, writer.start, len(writer.chain))


def put(kv: Cache, chain: Chain, *, start: int = 0, retain: str | None = None) -> int:
    """Writes and commits the chain's blocks from `start`; the number resident then."""
    with kv.writer(chain, start=start, retain=retain) as writer:
        put_all(kv, writer)
        return writer.commit_blocking("30s")


def load(kv: Cache, hit: Hit, *, retain: str | None = None) -> tuple[int, str | None]:
    """Loads through the pool; every byte delivered must be right. (good blocks, reason)."""
    if hit.blocks == 0:
        return 0, hit.reason
    blocks, reason = hit.blocks, None
    with kv.lease(hit, retain=retain) as lease, kv.load(lease) as running:
        for layer in running:
            assert layer.blocks <= blocks, "the good prefix grew from one layer to the next"
            blocks, reason = layer.blocks, layer.reason
            wanted = layer_cells(kv.layout, layer.index, keys_of(hit)[:blocks])
            seen = 0
            for span in layer.spans:
                at = span.first_block - hit.start
                assert np.array_equal(span.cells, wanted[at : at + span.blocks]), "wrong bytes"
                seen += span.blocks
            assert seen == (blocks if kv.layout.cell_bytes(layer.index) else 0)
    return blocks, reason


def load_into(kv: Cache, hit: Hit) -> tuple[int, str | None]:
    """The same into caller memory."""
    if hit.blocks == 0:
        return 0, hit.reason
    memory = [
        {name: np.zeros((hit.blocks, size), dtype=np.uint8) for name, size in parts}
        for parts in kv.layout.parts_by_layer
    ]
    with kv.load(hit, into=Pages(memory)) as running:
        last = running.wait(kv.layout.layers - 1)
        assert running.wait_drained("30s")
    for layer, parts in enumerate(memory):
        wanted = layer_cells(kv.layout, layer, keys_of(hit)[: last.blocks])
        at = 0
        for array in parts.values():
            size = array.shape[1]
            assert np.array_equal(array[: last.blocks], wanted[:, at : at + size]), "wrong bytes"
            at += size
    return last.blocks, last.reason


def keys_of(hit: Hit) -> list[bytes]:
    return [hit.keys[32 * i : 32 * i + 32] for i in range(hit.start, hit.end)]


def assert_whole(kv: Cache, chain: Chain, *, cold: bool = True) -> None:
    """The chain matches whole and loads byte-exact, from disk and into caller memory too."""
    hit = kv.find_blocking(chain)
    assert (hit.blocks, hit.reason) == (len(chain), None)
    assert load(kv, hit) == (len(chain), None)
    if cold:
        kv.store.drop_ram()
        assert load(kv, hit) == (len(chain), None)
        kv.store.drop_ram()
        assert load_into(kv, hit) == (len(chain), None)


# ------------------------------------------------------------------------------------- on disk


def extent_files(root: Path) -> list[Path]:
    return sorted(root.glob("*/[0-9a-f][0-9a-f][0-9a-f]/*.kv"))


def file_named(root: Path, key: bytes) -> Path:
    """The one extent of any namespace that is named by this key."""
    (path,) = [path for path in extent_files(root) if path.stem == key.hex()]
    return path


def physical_bytes(root: Path) -> int:
    """Of extents, and of files of this root that this process holds open without a name (being
    written, or unlinked and not closed yet). Never more than there was at one instant: the one
    when the names were all listed. What is counted was there before and is there after."""
    nameless = _nameless(root)
    names = extent_files(root)
    by_inode = {}
    for path in (*map(str, names), *nameless):
        try:
            stat = os.stat(path)
        except OSError:
            continue  # gone in between
        if nameless.get(str(path), stat.st_ino) == stat.st_ino:
            by_inode[stat.st_ino] = stat.st_blocks * 512
    return sum(by_inode.values())


def _nameless(root: Path) -> dict[str, int]:
    """Path of the open descriptor -> inode."""
    mark = f"{root.resolve()}/"
    found = {}
    for fd in os.listdir("/proc/self/fd"):
        path = f"/proc/self/fd/{fd}"
        try:
            target = os.readlink(path)
            if target.startswith(mark) and target.endswith(" (deleted)"):
                found[path] = os.stat(path).st_ino
        except OSError:
            continue
    return found


def eventually(true: Callable[[], object], what: str, seconds: float = 30.0) -> None:
    """Polls until it holds; fails after a deadline that only a hang reaches."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.002)
