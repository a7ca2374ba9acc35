"""A store with a prompt in it whose files can be harmed, and what a load of it gives. For tests."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import numpy as np

from kvstore import Cache, Chain, Layout, LayoutWarning, Store
from tests.support.stores import Cells, cells_of, check_load, prompt, until, write

BLOCKS = 20  # an extent of 16 and one of 4
TOKENS = 16
POOL = "4MiB"
QUARANTINE_MAX = 64


def plain(model: str, *layers: tuple[tuple[str, int], ...]) -> Layout:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LayoutWarning)  # small on purpose
        return Layout(parts_by_layer=layers, model=model, block_tokens=TOKENS, extent_blocks=16)


SMALL = plain("small", (("k", 512), ("v", 512)), (), (("k", 512), ("v", 512)))


class Kept:
    """A store with one prompt in it, and the files it lies in."""

    def __init__(self, store: Store, layout: Layout, root: Path, *, seed: int = 0) -> None:
        self.store, self.root = store, root
        self.kv: Cache = store.cache(layout)
        self.chain: Chain = self.kv.keys(prompt(BLOCKS, seed))
        self.cells: Cells = cells_of(layout, BLOCKS, abs(seed) + 1)

    def put(self) -> None:
        assert self.try_put() == BLOCKS

    def try_put(self) -> int:
        return write(self.kv, self.chain, self.cells)

    def path(self, block: int) -> Path:
        name = self.chain[block // 16 * 16].hex()
        return self.root / self.kv.namespace / name[:3] / f"{name}.kv"

    def load(self) -> tuple[int, str | None]:
        """(blocks, reason) of a cold load of all blocks, what came held against what was put."""
        self.store.drop_ram()
        hit = self.kv.find_blocking(self.chain)
        if hit.blocks == 0:
            return 0, hit.reason
        with self.kv.load(hit, deadline="20s") as load:
            for layer in load:
                for name, array in self.cells[layer.index].items():
                    assert np.array_equal(layer.gather(name), array[: layer.blocks])
                last = layer
        return last.blocks, last.reason or hit.reason

    def check_whole(self) -> None:
        """Put again, it hits at once and loads whole."""
        self.put()
        hit = self.kv.match(self.chain)
        assert (hit.blocks, hit.reason) == (BLOCKS, None)
        self.store.drop_ram()
        with self.kv.load(hit) as load:
            check_load(load, self.cells, BLOCKS)

    def moved(self) -> list[Path]:
        found = sorted((self.root / "quarantine").glob("*"))
        assert len(found) <= QUARANTINE_MAX
        return found


def unlike(store: Store, layout: Layout, root: Path, count: int) -> list[Kept]:
    """So many prompts of whose files no two share a bucket, the same at every call."""
    found: list[Kept] = []
    taken: set[str] = set()
    seed = 0
    while len(found) < count:
        kept = Kept(store, layout, root, seed=seed)
        buckets = {kept.path(block).parent.name for block in (0, BLOCKS - 1)}
        if len(buckets) == 2 and not buckets & taken:
            found.append(kept)
            taken |= buckets
        seed += 1
    return found


def warm(store: Store) -> None:
    until(lambda: not any(root.warming for root in store.info().roots))


def descriptors() -> set[str]:
    """What this process has open, by what it is, not by number."""
    found = set()
    for path in Path("/proc/self/fd").iterdir():
        try:
            found.add(f"{path.name} {os.readlink(path)}")
        except FileNotFoundError:  # the one that lists
            continue
    return found


def contents(directory: Path) -> dict[str, tuple[object, ...]]:
    """All there is to see of what lies there, to hold it against later."""
    found: dict[str, tuple[object, ...]] = {}
    for path in sorted(directory.rglob("*")):
        about = path.lstat()
        data = path.read_bytes() if path.is_file() else b""
        name = str(path.relative_to(directory))
        found[name] = (about.st_mode, about.st_nlink, about.st_mtime_ns, data)
    return found
