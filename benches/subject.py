"""What a job measures: a store, the prefixes it holds, and how one of them is put and loaded.

Invariants
  1. Bytes are known without being kept: block b of any chain holds, in layer l, row b + l of
     `cells`, modulo its period; so every load can be compared with what was put.
  2. Every load is from the device (the RAM tier is emptied before it) and whole, or the run ends.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import kvstore
from kvstore import Cache, Chain, Layer, Layout, Miss, Pages, Store

SOURCE_BYTES = 1 << 27  # more than a processor's cache holds, as an engine's memory
PUT_BLOCKS = 64  # a chunk that a prefill computes before it puts
PAGE = 4096
ODD = 64
DEADLINE = "120s"
Bytes = npt.NDArray[np.uint8]


@dataclass
class Load:
    """One load as its caller saw it. ns from the call of `load`."""

    nbytes: int
    layer0_ns: int
    whole_ns: int
    layer_ns: list[int] = field(default_factory=list)


def odd(rows: int, row_bytes: int) -> Bytes:
    """Memory as anybody has it, at an address that no direct I/O takes."""
    memory = np.zeros(rows * row_bytes + 2 * ODD, dtype=np.uint8)
    at = ODD - memory.ctypes.data % ODD + 1
    return memory[at : at + rows * row_bytes].reshape(rows, row_bytes)


def huge(rows: int, row_bytes: int) -> Bytes:
    return kvstore.alloc(rows * row_bytes)[: rows * row_bytes].reshape(rows, row_bytes)


class Subject:
    """chains: the prefixes that are loaded. memory: of loads into caller memory, one at a time."""

    def __init__(self, store: Store, layout: Layout, *, into: str = "pool") -> None:
        self.store, self.layout = store, layout
        self.kv: Cache = store.cache(layout)
        self.chains: list[Chain] = []
        self.into = into
        self.memory: dict[int, list[Bytes]] = {}  # by blocks
        self.tables: dict[int, npt.NDArray[np.int32]] = {}
        self.cell_bytes = max(map(layout.cell_bytes, range(layout.layers)))
        self.period = max(64, SOURCE_BYTES // self.cell_bytes)
        self.cells = huge(self.period + PUT_BLOCKS, self.cell_bytes)
        random = np.random.default_rng(0)
        for row in self.cells[: self.period]:
            row[:] = random.integers(0, 256, self.cell_bytes, dtype=np.uint8)
        self.cells[self.period :] = self.cells[:PUT_BLOCKS]

    @property
    def regions(self) -> list[int]:
        """Bytes of each layer of a whole extent on disk."""
        cells = map(self.layout.cell_bytes, range(self.layout.layers))
        return [-(-self.layout.blocks_per_extent * cell // PAGE) * PAGE for cell in cells if cell]

    def chain(self, number: int, blocks: int, common_blocks: int = 0) -> Chain:
        """Chain `number` (from 0) of so many blocks; the first ones may be common to all chains."""
        tokens = np.arange(blocks * self.layout.block_tokens, dtype=np.int32)
        tokens[common_blocks * self.layout.block_tokens :] += number * 2**20
        return self.kv.keys(tokens, salt=b"" if common_blocks else b"%d" % number)

    def rows(self, layer: int, first: int, blocks: int) -> Bytes:
        """The cells of blocks [first, first + blocks), at most PUT_BLOCKS of them."""
        at = (first + layer) % self.period
        return self.cells[at : at + blocks, : self.layout.cell_bytes(layer)]

    async def put(self, chain: Chain, *, start: int = 0) -> int:
        """Blocks [start, end of chain) until they are published; bytes. Chunk after chunk, each
        through all layers, as a prefill does."""
        writer = self.kv.writer(chain, start=start)
        for first in range(start, len(chain), PUT_BLOCKS):
            end = min(first + PUT_BLOCKS, len(chain))
            for layer in range(self.layout.layers):
                cells = self.rows(layer, first, end - first)
                await writer.put(layer, (first, end), self.parts(layer, cells))
        published = await writer.commit()
        if published != len(chain) - start:
            raise SystemExit(
                f"only {published} of {len(chain) - start} blocks were put: {writer.stats()}"
            )
        return published * self.layout.block_bytes

    def parts(self, layer: int, cells: Bytes) -> list[Bytes]:
        found = []
        for name, _ in self.layout.parts_by_layer[layer]:
            offset, nbytes = self.layout.part(layer, name)
            found.append(cells[:, offset : offset + nbytes])
        return found

    async def load(self, chain: Chain, *, check: bool = False) -> Load:
        """A whole prefix. check: compares every byte, and the times mean nothing then."""
        hit = self.kv.match(chain)
        if hit.blocks != len(chain):
            raise SystemExit(f"{hit.blocks} of {len(chain)} blocks are resident: {hit.reason}")
        into = None if self.into == "pool" else self.pages(len(chain))
        began = time.perf_counter_ns()
        done = Load(len(chain) * self.layout.block_bytes, 0, 0)
        async with self.kv.load(hit, into=into, deadline=DEADLINE) as load:
            async for layer in load:
                done.layer_ns.append(time.perf_counter_ns() - began)
                if layer.blocks != len(chain):
                    raise SystemExit(f"a load ended short: {layer} {layer.reasons}")
                if check:
                    self.compare(layer, len(chain))
            await load.drained
        done.layer0_ns, done.whole_ns = done.layer_ns[0], done.layer_ns[-1]
        return done

    def pages(self, blocks: int) -> Pages:
        if blocks not in self.memory:
            take = odd if self.into == "ordinary" else huge
            self.memory[blocks] = [
                take(blocks, self.layout.cell_bytes(layer)) for layer in range(self.layout.layers)
            ]
            order = np.random.default_rng(blocks).permutation(blocks)
            self.tables[blocks] = order.astype(np.int32)
        views = [self.parts(layer, cells) for layer, cells in enumerate(self.memory[blocks])]
        names = [[name for name, _ in parts] for parts in self.layout.parts_by_layer]
        memory = [dict(zip(*pair, strict=True)) for pair in zip(names, views, strict=True)]
        return Pages(memory, block_table=self.tables[blocks] if self.into == "paged" else None)

    def loaded(self, layer: Layer, blocks: int) -> Sequence[tuple[int, Any]]:
        """(first block, cells) of what a load left."""
        if self.into == "pool":
            return [(span.first_block, span.cells) for span in layer.spans]
        cells = self.memory[blocks][layer.index]
        return [(0, cells[self.tables[blocks]] if self.into == "paged" else cells)]

    def compare(self, layer: Layer, blocks: int) -> None:
        for start, cells in self.loaded(layer, blocks):
            for first in range(0, len(cells), PUT_BLOCKS):
                some = cells[first : first + PUT_BLOCKS]
                put = self.rows(layer.index, start + first, len(some))
                if not np.array_equal(some, put):
                    raise SystemExit(f"layer {layer.index} holds other bytes than were put")

    async def get(self, chain: Chain, block: int, *, check: bool = False) -> Load:
        """A single block of it, by its key."""
        began = time.perf_counter_ns()
        got = await self.kv.get(chain[block], deadline=DEADLINE)
        if isinstance(got, Miss):
            raise SystemExit(f"block {block} was put and is a miss: {got.reason}")
        with got:
            took = time.perf_counter_ns() - began
            if check and not np.array_equal(np.frombuffer(got.data, np.uint8), self.block(block)):
                raise SystemExit(f"block {block} holds other bytes than were put")
        return Load(self.layout.block_bytes, took, took)

    def block(self, number: int) -> Bytes:
        return np.concatenate(
            [self.rows(layer, number, 1)[0] for layer in range(self.layout.layers)]
        )

    def extent_files(self) -> list[Path]:
        """Of the whole store, oldest name order; they may go when something is evicted."""
        roots = [Path(root.path) for root in self.store.info().roots]
        return sorted(path for root in roots for path in root.glob("*/*/*.kv"))
