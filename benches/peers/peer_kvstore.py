"""kvstore, verified as always, in two ways: a chain put at once (extents, as an engine does), and
single blocks put by key (what a key-value peer does).

Generation g is a prompt with its own salt; block b of it holds the source's value b.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

import kvstore
from benches.peers.work import KEYS_IN_FLIGHT, Facts, Setup, memory

LACKS = "nothing of the three: checks every cell, has a budget, survives kill -9; fsync by flush()"


def plain_layout(setup: Setup) -> kvstore.Layout:
    work = setup.work
    return kvstore.Layout(
        parts_by_layer=((("latent", work.cell_bytes),),) * work.layers, model="bench/peers"
    )


class Base:
    """What both ways share: the store, keys of a generation, getting single blocks."""

    def __init__(self, setup: Setup) -> None:
        self.setup, self.work = setup, setup.work
        nbytes = self.work.nbytes
        pool = 2 * nbytes + (1 << 28) if setup.huge else "1GB"
        self.store = kvstore.open_blocking(setup.folder, capacity=8 * nbytes + (1 << 30), pool=pool)
        self.kv = self.store.cache(plain_layout(setup))
        self.loop = asyncio.new_event_loop()
        self.blocks: dict[int, kvstore.Block] = {}
        info = self.store.info()
        root = info.roots[0]
        self.facts = Facts(
            {
                "engine": root.engine,
                "registered": root.registered,
                "depth": root.io_depth,
                "pool": info.pool.bytes,
                "huge pages": f"{info.pool.huge_coverage:.0%}",
            },
            LACKS,
        )

    def forget(self) -> None:
        self._release()
        self.store.drop_ram()

    def close(self) -> None:
        self._release()
        self.store.close_blocking()

    def _keys(self, generation: int, count: int) -> kvstore.Chain:
        tokens = np.arange(count * self.kv.layout.block_tokens, dtype=np.int32)
        return self.kv.keys(tokens, salt=str(generation).encode())

    def _run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self.loop.run_until_complete(coroutine)

    def _release(self) -> None:
        for block in self.blocks.values():
            block.release()
        self.blocks.clear()

    async def _get(self, chain: kvstore.Chain, order: Sequence[int]) -> None:
        """Each block by its key, KEYS_IN_FLIGHT at a time; they stay as views until forget()."""
        todo = iter(order)

        async def worker() -> None:
            for index in todo:
                found = await self.kv.get(chain[index])
                if not found:
                    raise ValueError(f"block {index}: {found}")
                self.blocks[index] = found

        await asyncio.gather(*(worker() for _ in range(KEYS_IN_FLIGHT)))

    def _cells(self, generation: int, layer: int, first: int, end: int) -> npt.NDArray[np.uint8]:
        """[blocks, cell bytes] of one layer, strided over the source."""
        source, work = self.setup.source, self.work
        start = source.cell_offset(generation, layer, first)
        return np.lib.stride_tricks.as_strided(
            source.bytes[start:], (end - first, work.cell_bytes), (source.step, 1)
        )


class ChainOfBlocks(Base):
    """bulk goes into caller memory [layers, blocks, cell], as shipped into views of the pool;
    layers come as views in the store's order; keys are blocks within extents of several."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        work = self.work
        self.memory: npt.NDArray[np.uint8] | None = None
        if setup.huge and not work.by_layer:
            room = memory(work.nbytes, huge=True)
            self.memory = room[: work.nbytes].reshape(work.layers, work.blocks, work.cell_bytes)
        self.views: list[list[kvstore.Span]] = []
        self.running: kvstore.Load | None = None

    def put(self, generation: int, count: int) -> None:
        """With by_layer, count is all cells."""
        self._run(self._put(generation, min(count, self.work.blocks)))

    def load(
        self, generation: int, batches: Sequence[Sequence[int]], ready: Callable[[int], None]
    ) -> None:
        chain = self._keys(generation, self.work.blocks)
        if not self.work.by_layer and len(batches) > 1:
            self._run(self._get(chain, [index for batch in batches for index in batch]))
            ready(0)
        elif self.memory is not None:
            self._run(self._load_bulk(chain, self.memory, ready))
        else:
            self._run(self._load_layers(chain, ready))

    def value(self, index: int) -> Any:
        if index in self.blocks:
            return self.blocks[index].data
        if self.work.by_layer:
            layer, block = divmod(index, self.work.blocks)
            return self._cell(layer, block)
        return np.concatenate([self._cell(layer, index) for layer in range(self.work.layers)])

    def forget(self) -> None:
        self.views.clear()
        if self.running is not None:
            self.running.close()
            self.running = None
        super().forget()

    def delete(self, generation: int, count: int) -> None:
        for key in self._keys(generation, count):
            self.kv.delete_blocking(key)

    async def _put(self, generation: int, count: int) -> None:
        async with self.kv.writer(self._keys(generation, count)) as writer:
            for layer in range(self.work.layers):
                writer.put(layer, (0, count), [self._cells(generation, layer, 0, count)])
            stored = await writer.commit()
        if stored != count:
            raise ValueError(f"only {stored} of {count} blocks were stored")

    def _hit(self, chain: kvstore.Chain) -> kvstore.Hit:
        hit = self.kv.match(chain)
        if hit.blocks != len(chain):
            raise ValueError(f"{hit.blocks} of {len(chain)} blocks are resident: {hit.reason}")
        return hit

    def _check(self, load: kvstore.Load) -> None:
        stats = load.stats()
        if stats.failed_blocks or stats.disk_bytes != self.work.nbytes:
            raise ValueError(f"the load was short, or not cold: {stats}")

    async def _load_bulk(
        self, chain: kvstore.Chain, memory: npt.NDArray[np.uint8], ready: Callable[[int], None]
    ) -> None:
        into = kvstore.Pages([{"latent": layer} for layer in memory])
        async with self.kv.load(self._hit(chain), into=into) as load:
            await load.layer(self.work.layers - 1)
            ready(0)
            self._check(load)
            await load.drained

    async def _load_layers(self, chain: kvstore.Chain, ready: Callable[[int], None]) -> None:
        self.running = load = self.kv.load(self._hit(chain))
        for index in range(self.work.layers):
            self.views.append((await load.layer(index)).spans)
            ready(index)
        self._check(load)

    def _cell(self, layer: int, block: int) -> npt.NDArray[np.uint8]:
        if self.memory is not None:
            return self.memory[layer, block]
        for span in self.views[layer]:
            if span.first_block <= block < span.first_block + span.blocks:
                return span.cells[block - span.first_block]
        raise ValueError(f"block {block} of layer {layer} did not come")


class SingleBlocks(Base):
    """put and get of one block by its key, KEYS_IN_FLIGHT at a time."""

    def put(self, generation: int, count: int) -> None:
        self._run(self._put(generation, count))

    def load(
        self, generation: int, batches: Sequence[Sequence[int]], ready: Callable[[int], None]
    ) -> None:
        chain = self._keys(generation, self.work.blocks)
        self._run(self._get(chain, [index for batch in batches for index in batch]))
        ready(0)

    def value(self, index: int) -> Any:
        return self.blocks[index].data

    def delete(self, generation: int, count: int) -> None:
        for key in self._keys(generation, count):
            self.kv.delete_blocking(key)

    async def _put(self, generation: int, count: int) -> None:
        chain = self._keys(generation, count)
        todo = iter(range(count))

        async def worker() -> None:
            for index in todo:
                value = self.setup.source.value(generation, index)
                if not await self.kv.put(chain[index], value):
                    raise ValueError(f"block {index} was not stored")

        await asyncio.gather(*(worker() for _ in range(KEYS_IN_FLIGHT)))


open_peer = ChainOfBlocks
