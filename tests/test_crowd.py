"""Everybody at once: loops of both kinds in threads of their own, threads on the blocking face, on
one store that is too small for them. Bounded by counts; every byte that comes is judged by its key.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvstore import Block, Cache, Chain, Store, StoreClosed
from kvstore.store import open_blocking
from tests.support.census import assert_nothing_held, nothing_left
from tests.support.prompts import (
    block_bytes,
    layer_cells,
    load,
    load_into,
    put,
    small_layout,
    tokens,
)
from tests.support.stepping import LOOPS, new_loop, run_in
from tests.support.stores import until

CHAINS = 6
BLOCKS = 20  # an extent of 16 and one of 4
TURNS = 100
BLOCKING = 3
LAYOUT = small_layout()
SEED = 20_241_129


def chain_of(kv: Cache, rng: random.Random) -> Chain:
    """Pairs begin alike."""
    number = rng.randrange(CHAINS)
    shared = tokens(number // 2, 10)
    return kv.keys(shared + tokens(("own", number), rng.randrange(1, BLOCKS - 10)))


# ---- the async face ------------------------------------------------------------------------------


async def load_some(kv: Cache, rng: random.Random) -> None:
    hit = await kv.find(chain_of(kv, rng))
    if not hit:
        return
    keys = [hit.keys[i * 32 : i * 32 + 32] for i in range(hit.blocks)]
    async with kv.load(hit) as running:
        async for layer in running:
            wanted = layer_cells(LAYOUT, layer.index, keys[: layer.blocks])
            for span in layer.spans:
                part = wanted[span.first_block : span.first_block + span.blocks]
                assert np.array_equal(span.cells, part), "wrong bytes"
            if rng.random() < 0.1:
                break
        if rng.random() < 0.3:
            await running.drained if rng.random() < 0.5 else running.cancel()


async def write_some(kv: Cache, rng: random.Random) -> None:
    chain = chain_of(kv, rng)
    async with kv.writer(chain) as writer:
        handles = []
        for index, parts in enumerate(LAYOUT.parts_by_layer):
            if parts:
                cells = layer_cells(LAYOUT, index, list(chain))
                ends = np.cumsum([size for _, size in parts])[:-1]
                handles.append(writer.put(index, (0, len(chain)), np.split(cells, ends, axis=1)))
        if rng.random() < 0.8:
            await asyncio.gather(*handles)
            assert 0 <= await writer.commit() <= len(chain)


async def get_some(kv: Cache, rng: random.Random) -> None:
    key = chain_of(kv, rng)[0]
    block = await kv.get(key)
    if isinstance(block, Block):
        with block:
            assert bytes(block) == block_bytes(LAYOUT, key), "wrong bytes"


async def put_one(kv: Cache, rng: random.Random) -> None:
    key = chain_of(kv, rng)[0]
    await kv.put(key, block_bytes(LAYOUT, key))


async def prefetch_some(kv: Cache, rng: random.Random) -> None:
    hit = kv.match(chain_of(kv, rng))
    if hit:
        await kv.prefetch(hit)


async def forget_some(kv: Cache, rng: random.Random) -> None:
    await kv.delete(chain_of(kv, rng)[rng.randrange(5)])


async def housekeep(kv: Cache, rng: random.Random) -> None:
    kv.store.drop_ram()
    kv.store.tick()
    await kv.store.flush()


Act = Callable[[Cache, random.Random], Coroutine[Any, Any, None]]
ACTS: list[Act] = [
    load_some, load_some, load_some, write_some, write_some, get_some, put_one, prefetch_some,
    forget_some, housekeep,
]  # fmt: skip


async def request(kv: Cache, rng: random.Random) -> None:
    """One act; some are cancelled after a few turns of the loop."""
    task = asyncio.ensure_future(rng.choice(ACTS)(kv, rng))
    if rng.random() < 0.3:
        for _ in range(rng.randrange(4)):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
        if not task.cancelled():
            task.result()
    else:
        await task


async def requests(kv: Cache, seed: object) -> None:
    rng = random.Random(repr(seed))
    for _ in range(TURNS // 4):
        await asyncio.gather(*(request(kv, random.Random(rng.random())) for _ in range(4)))


# ---- the blocking face ---------------------------------------------------------------------------


def blocking_turn(kv: Cache, rng: random.Random) -> None:
    chain = chain_of(kv, rng)
    what = rng.randrange(8)
    if what < 2:
        assert 0 <= put(kv, chain) <= len(chain)
    elif what < 4:
        load(kv, kv.find_blocking(chain))
    elif what == 4:
        load_into(kv, kv.match(chain))
    elif what == 5:
        block = kv.get_blocking(chain[0])
        if isinstance(block, Block):
            with block:
                assert bytes(block) == block_bytes(LAYOUT, chain[0]), "wrong bytes"
    elif what == 6:
        kv.delete_blocking(chain[rng.randrange(5)])
    else:
        kv.store.stats()
        kv.put_blocking(chain[0], block_bytes(LAYOUT, chain[0]))


def blocking_turns(kv: Cache, seed: object) -> None:
    rng = random.Random(repr(seed))
    for _ in range(TURNS):
        blocking_turn(kv, rng)


# ---- together ------------------------------------------------------------------------------------


def crowd(kv: Cache, seed: int, *, until_closed: bool = False) -> list[threading.Thread]:
    """Starts everybody; errors of theirs go to the list that `finish` reads."""
    jobs: list[Callable[[], object]] = [
        lambda number=number, kind=kind: run_in(kind, requests(kv, (seed, kind, number)))
        for kind in LOOPS
        for number in range(2)
    ]
    jobs += [lambda n=n: blocking_turns(kv, (seed, n)) for n in range(BLOCKING)]
    barrier = threading.Barrier(len(jobs))

    def work(job: Callable[[], object]) -> None:
        barrier.wait(60)
        try:
            while True:
                job()
                if not until_closed:
                    return
        except StoreClosed:
            if not until_closed:
                raise
        except ValueError as error:  # of a handle that the close has ended
            if not (until_closed and "closed" in str(error)):
                raise

    threads = [Worker(work, job) for job in jobs]
    for thread in threads:
        thread.start()
    return list(threads)


class Worker(threading.Thread):
    """A thread whose error can be asked for."""

    def __init__(self, work: Callable[[Callable[[], object]], None], job: Callable[[], object]):
        super().__init__()
        self.work, self.job = work, job
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.work(self.job)
        except BaseException as error:
            self.error = error


def finish(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join(100)
        assert not thread.is_alive(), "a thread hangs"
        assert isinstance(thread, Worker)
        if thread.error is not None:
            raise thread.error


def small_store(root: Path, **words: Any) -> Store:
    """Room for a third of what the crowd puts; the pool holds a few loads."""
    return open_blocking(root, capacity="400KB", pool="2MB", **words)


def needs_both_loops() -> None:
    for kind in LOOPS:
        new_loop(kind).close()


def test_a_crowd_gets_exact_bytes_and_leaves_nothing_behind(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    needs_both_loops()
    seed = request.config.getoption("--seed") or SEED
    print(f"replay with --seed {seed}")
    with nothing_left(), small_store(tmp_path) as store:
        kv = store.cache(LAYOUT)
        finish(crowd(kv, seed))
        stats = store.stats()
        assert stats.hit_blocks and stats.published_extents and stats.evicted_extents
        assert not stats.quarantined_extents
        assert_nothing_held(store)


def test_a_store_closed_under_a_crowd_ends_every_wait(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    needs_both_loops()
    seed = request.config.getoption("--seed") or SEED
    print(f"replay with --seed {seed}")
    with nothing_left():
        for turn in range(3):
            store = small_store(tmp_path)
            kv = store.cache(LAYOUT)
            threads = crowd(kv, seed + turn, until_closed=True)
            until(lambda store=store: store.stats().published_extents >= 4)  # type: ignore[misc]
            store.close_blocking()
            finish(threads)
            del kv, store, threads
