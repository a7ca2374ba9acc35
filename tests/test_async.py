"""The asyncio face as a whole: every awaitable cancelled and used again, loops of other kinds and
in other threads, a store that closes or forks under running loads.

Waiting itself (one waiter, many, none) is tested in test_loops.py.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvstore
from kvstore import Block, Cache, Chain, Pages, Store, StoreClosed, StoreForked, alloc
from kvstore.testing import Fault, FaultDevice, Injection, Io, VirtualClock
from tests.support.stores import (
    LAYERS,
    PART_BYTES,
    POOL,
    Cells,
    cells_of,
    check_load,
    fork,
    layout,
    opened,
    prompt,
    reads_in_flight,
    run,
    until,
    write,
)

BLOCKS = 5


@dataclass
class Filled:
    """A store with one prompt."""

    store: Store
    kv: Cache
    chain: Chain
    cells: Cells


@pytest.fixture
def filled(tmp_path: Path) -> Iterator[Filled]:
    with opened(tmp_path) as store:
        yield fill(store)


def fill(store: Store) -> Filled:
    kv = store.cache(layout())
    chain = kv.keys(prompt(BLOCKS))
    cells = cells_of(kv.layout, BLOCKS)
    assert write(kv, chain, cells) == BLOCKS
    store.drop_ram()
    return Filled(store, kv, chain, cells)


async def session(filled: Filled, seed: int) -> None:
    """What an engine does for one request: look up, load, compute, write back, look up again."""
    kv = filled.kv
    hit = await kv.find(filled.chain)
    assert hit.blocks == BLOCKS
    async with kv.load(hit) as load:
        async for layer in load:
            assert (layer.blocks, layer.reason) == (BLOCKS, None)
            assert np.array_equal(layer.gather("latent"), filled.cells[layer.index]["latent"])
        await load.drained
    chain = kv.keys(prompt(2, seed))
    assert not await kv.find(chain)
    async with kv.writer(chain) as writer:
        handles = [
            writer.put(i, (0, 2), [parts["latent"][:2]]) for i, parts in enumerate(filled.cells)
        ]
        assert await asyncio.gather(*handles) == [0] * LAYERS
        assert await writer.commit() == 2
    assert (await kv.find(chain)).blocks == 2
    assert await kv.prefetch(kv.match(chain)) == 2
    block = await kv.get(chain[0])
    assert isinstance(block, Block)
    assert bytes(block.data) == b"".join(p["latent"][0].tobytes() for p in filled.cells)
    block.release()
    assert await kv.delete(chain[0]) == 1
    await filled.store.flush()


# ---- loops ---------------------------------------------------------------------------------------


def test_many_requests_share_one_loop(filled: Filled) -> None:
    async def scenario() -> None:
        await asyncio.gather(*(session(filled, seed) for seed in range(1, 9)))

    run(scenario())


def test_loops_in_several_threads_share_one_store(filled: Filled) -> None:
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            run(session(filled, seed))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures


def test_a_loop_of_another_kind_works_as_well(filled: Filled) -> None:
    uvloop = pytest.importorskip("uvloop", reason="uvloop is not installed")
    loop = uvloop.new_event_loop()
    try:
        loop.run_until_complete(asyncio.wait_for(session(filled, 1), 60))
    finally:
        loop.close()


# ---- cancelling ----------------------------------------------------------------------------------


async def cancelled(waiting: Coroutine[Any, Any, Any], steps: int) -> None:
    """Lets it run for some turns of the loop, then cancels it. It may have finished before."""
    task = asyncio.ensure_future(waiting)
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        pass


@pytest.mark.parametrize("steps", [0, 1, 2, 5])
def test_every_await_can_be_cancelled_and_the_store_is_as_good_as_before(
    filled: Filled, steps: int
) -> None:
    kv, store = filled.kv, filled.store
    other = kv.keys(prompt(1, seed=77))
    whole = b"".join(parts["latent"][0].tobytes() for parts in filled.cells)

    async def put() -> None:
        async with kv.writer(other) as writer:
            for index, parts in enumerate(filled.cells):
                await writer.put(index, (0, 1), [parts["latent"][:1]])
            await writer.commit()

    async def read() -> None:
        async with kv.load(kv.match(filled.chain)) as load:
            async for _ in load:
                pass

    async def get() -> None:
        block = await kv.get(filled.chain[0])
        assert isinstance(block, Block)
        block.release()

    async def scenario() -> None:
        calls: list[Callable[[], Coroutine[Any, Any, Any]]] = [
            lambda: kv.find(other),
            put,
            read,
            get,
            lambda: kv.put(other[0], whole),
            lambda: kv.prefetch(kv.match(filled.chain)),
            lambda: kv.delete(other[0]),
            store.flush,
        ]
        for call in calls:
            store.drop_ram()
            await cancelled(call(), steps)
        await asyncio.gather(*(cancelled(call(), steps) for call in calls))
        async with kv.load(kv.match(filled.chain)) as load:
            assert (await load.layer(LAYERS - 1)).blocks == BLOCKS
        check_load(kv.load(kv.match(filled.chain)), filled.cells, BLOCKS)

    run(scenario())


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_a_cancelled_open_leaves_the_directory_free(tmp_path: Path, steps: int) -> None:
    async def scenario() -> None:
        async def opening() -> None:
            await kvstore.open(tmp_path, pool=POOL)

        await cancelled(opening(), steps)

        def free() -> bool:
            try:
                with opened(tmp_path):
                    return True
            except kvstore.OpenError:
                return False

        await asyncio.to_thread(until, free)

    run(scenario())


def test_a_cancelled_close_goes_on_by_itself(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = await kvstore.open(tmp_path, pool=POOL)
        await cancelled(store.close(), 1)
        await store.close()
        assert store.core.closed
        with opened(tmp_path):
            pass

    run(scenario())


# ---- closed and forked stores --------------------------------------------------------------------


def test_a_closed_store_says_so_to_every_await(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with kvstore.open(tmp_path, pool=POOL) as store:
            filled = await asyncio.to_thread(fill, store)
        kv, chain = filled.kv, filled.chain
        calls: list[Callable[[], Any]] = [
            lambda: kv.find(chain),
            lambda: kv.get(chain[0]),
            lambda: kv.put(chain[0], bytes(kv.layout.block_bytes)),
            lambda: kv.delete(chain[0]),
            lambda: store.flush(),
        ]
        for call in calls:
            with pytest.raises(StoreClosed):
                await call()
        for refused in (lambda: kv.match(chain), lambda: kv.writer(chain), store.drop_ram):
            with pytest.raises(StoreClosed):
                refused()

    run(scenario())


def test_close_with_many_loads_in_flight_ends_them_all(tmp_path: Path) -> None:
    """Some into the pool, some into caller memory, all stalled in the device."""
    clock = VirtualClock()
    device = FaultDevice(clock)
    memory = [alloc(BLOCKS * PART_BYTES) for _ in range(LAYERS)]

    async def scenario() -> None:
        store = await kvstore.open(
            tmp_path, pool=POOL, _testing=Injection(clock=clock, devices=[device])
        )
        filled = await asyncio.to_thread(fill, store)
        device.add(Fault.STALL, io=Io.READ, count=0)
        hit = filled.kv.match(filled.chain)
        into = Pages.contiguous({"latent": memory})
        direct = filled.kv.load(hit, into=into, deadline="1000d")
        loads = [direct, *(filled.kv.load(hit, deadline="1000d") for _ in range(5))]
        await asyncio.to_thread(until, lambda: reads_in_flight(device))
        waiters = [asyncio.ensure_future(load.layer(LAYERS - 1)) for load in loads]
        await asyncio.sleep(0)
        closing = asyncio.ensure_future(store.close())
        assert {(await waiter).reason for waiter in waiters} == {"closed"}
        assert not direct.wait_drained(0)
        assert not closing.done(), "close waits for the device"
        device.clear()
        device.release_stalled()
        await closing
        for load in loads:
            await load.drained
            load.close()

    run(scenario())
    # The directory is whole: a new store serves what was published.
    with opened(tmp_path) as store:
        assert store.stats().quarantined_extents == 0


def test_a_forked_child_is_refused_by_every_call(filled: Filled) -> None:
    kv, store, chain = filled.kv, filled.store, filled.chain
    load = kv.load(kv.match(chain))
    writer = kv.writer(kv.keys(prompt(1, seed=3)))
    calls: list[Callable[[], Any]] = [
        lambda: kv.match(chain),
        lambda: run(kv.find(chain)),
        lambda: run(kv.get(chain[0])),
        lambda: kv.writer(chain),
        lambda: writer.put(0, (0, 1), [filled.cells[0]["latent"][:1]]),
        lambda: load.wait(0),
        lambda: run(load.layer(LAYERS - 1)),
        store.stats,
        store.drop_ram,
        store.flush_blocking,
    ]
    pid = fork()
    if pid == 0:
        refused = 0
        for call in calls:
            try:
                call()
            except StoreForked:
                refused += 1
            except BaseException:
                pass
        os._exit(refused)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == len(calls)
    check_load(load, filled.cells, BLOCKS)
    load.close()
    writer.abort()


def test_a_load_that_is_closed_while_it_is_awaited_gives_no_blocks(tmp_path: Path) -> None:
    clock = VirtualClock()
    device = FaultDevice(clock)

    async def scenario(filled: Filled) -> None:
        device.add(Fault.STALL, io=Io.READ, count=0)
        load = filled.kv.load(filled.kv.match(filled.chain), deadline="1000d")
        waiters = [asyncio.ensure_future(load.layer(index)) for index in (0, 1, 1)]
        await asyncio.to_thread(until, lambda: reads_in_flight(device))
        load.close()
        for layer in await asyncio.gather(*waiters):
            assert (layer.blocks, layer.reason, layer.spans) == (0, "cancelled", [])
        with pytest.raises(ValueError, match="closed"):
            await load.layer(0)

    with opened(tmp_path, _testing=Injection(clock=clock, devices=[device])) as store:
        try:
            run(scenario(fill(store)))
        finally:
            device.clear()
            device.release_stalled()
