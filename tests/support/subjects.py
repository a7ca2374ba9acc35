"""The fake store and the real one behind one face, with the same troubles, for tests/test_fake.py.

What the fake has a word for, the real one suffers from its device, its files or its budget.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kvstore import Cache, Chain, Layout, Store
from kvstore.store import open_blocking
from kvstore.testing import (
    FakeDisk,
    Fault,
    FaultDevice,
    FaultFiles,
    FileCall,
    Injection,
    VirtualClock,
    open_fake_blocking,
)
from tests.support import extent_bytes
from tests.support.extent_reader import read_root
from tests.support.stores import BLOCK_TOKENS, Cells, cells_of, prompt, until, write

EXTENT_BLOCKS = 16
K, V = 4096, 2 * BLOCK_TOKENS  # v is no multiple of 4096
POOL = 8 << 20
CAPACITY = 3 << 20  # fourteen full extents
DEADLINE_S = 30


def layout(model: str = "fake") -> Layout:
    """Two parts; layer 1 has none. A block is 12 KiB and a little."""
    pair = (("k", K), ("v", V))
    return Layout(
        parts_by_layer=(pair, (), pair, pair),
        model=model,
        block_tokens=BLOCK_TOKENS,
        extent_blocks=EXTENT_BLOCKS,
    )


class Fake:
    """Over a FakeDisk."""

    def __init__(self) -> None:
        self.disk = FakeDisk()

    def open(self, **words: Any) -> Store:
        return open_fake_blocking(self.disk, **{"pool": POOL} | words)

    def damage(self, kv: Cache, chain: Chain, block: int, layer: int) -> None:
        self.disk.damage(chain[block], layer)

    def evict(self, kv: Cache, chain: Chain) -> None:
        self.disk.evict(chain[0])

    def hold_reads(self, store: Store) -> None:
        self.disk.hold_layer(0)

    def hold_names(self, store: Store) -> Store:
        self.disk.hold_names()
        return store

    def hold_commits(self) -> None:
        self.disk.hold_commits()

    def refuse_puts(self) -> None:
        self.disk.refuse_puts = True

    def heal(self) -> None:
        self.disk.heal()

    def release(self) -> None:
        self.disk.release()

    def pass_deadlines(self) -> None:
        self.disk.pass_deadlines()


class Real:
    """Over a directory, a simulated device and faults of the file system."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.clock = VirtualClock()
        self.files = FaultFiles()

    def open(self, **words: Any) -> Store:
        self.device = FaultDevice(self.clock)
        injection = Injection(clock=self.clock, files=self.files, devices=[self.device])
        settings: dict[str, Any] = {"pool": POOL, "capacity": CAPACITY, "io_timeout": "3650d"}
        return open_blocking(self.root, _testing=injection, **settings | words)

    def damage(self, kv: Cache, chain: Chain, block: int, layer: int) -> None:
        kv.store.drop_ram()
        for path, extent in read_root(self.root).items():
            if chain[block] in extent.keys:
                at, cell = extent_bytes.regions(path.read_bytes())[layer]
                extent_bytes.flip(path, 8 * (at + extent.keys.index(chain[block]) * cell))

    def evict(self, kv: Cache, chain: Chain) -> None:
        """Puts others until the budget asks for it, or twice the budget was put."""
        for seed in range(1000, 1030):
            self.clock.advance(1)
            other = kv.keys(prompt(EXTENT_BLOCKS, seed))
            write(kv, other, cells_of(kv.layout, EXTENT_BLOCKS))
            if not kv.contains(chain[0]):
                return

    def hold_reads(self, store: Store) -> None:
        store.drop_ram()
        self.device.add(Fault.STALL, count=0)

    def hold_names(self, store: Store) -> Store:
        """A peer knows nothing until it has walked the names."""
        store.close_blocking()
        return self.open(role="peer")

    def hold_commits(self) -> None:
        self.files.stall(FileCall.LINK)

    def refuse_puts(self) -> None:
        self.files.add(FileCall.OPEN_TEMP, errno.EACCES, count=0)

    def heal(self) -> None:
        self.files.clear()

    def release(self) -> None:
        self.device.clear()
        self.device.release_stalled()
        self.files.clear()
        self.files.release_stalled()

    def pass_deadlines(self) -> None:
        self.clock.advance(DEADLINE_S + 1)


Subject = Fake | Real


def filled(store: Store, blocks: int = 21, seed: int = 0) -> tuple[Cache, Chain, Cells]:
    """(cache, chain, cells) of a prompt that is stored."""
    kv = store.cache(layout())
    chain, cells = kv.keys(prompt(blocks, seed)), cells_of(layout(), blocks)
    assert write(kv, chain, cells) == blocks
    return kv, chain, cells


@contextmanager
def opened(subject: Subject, **words: Any) -> Iterator[Store]:
    store = subject.open(**words)
    try:
        until(lambda: not store.info().roots[0].warming)
        yield store
    finally:
        if not store.core.closed:
            subject.release()  # closing waits for what is in flight
            store.close_blocking()
