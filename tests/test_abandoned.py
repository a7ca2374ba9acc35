"""What is given up on: timeouts at every await, objects that are dropped without a word, stores that
are collected, loops that take over from closed ones. Nothing hangs, nothing stays held.

The device stalls every operation until the test lets go, so that all of it happens in flight.
"""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import warnings
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvstore import Cache, Chain, Miss, Pages, Store, alloc
from kvstore.store import open_blocking
from kvstore.testing import Fault, FaultDevice, FaultFiles, FileCall, Injection, VirtualClock
from tests.support.census import Held, assert_no_more_than, assert_nothing_held, nothing_left
from tests.support.stepping import LOOPS, left_at, new_loop, run_in
from tests.support.stores import (
    LAYERS,
    PART_BYTES,
    Cells,
    cells_of,
    check_load,
    fork,
    layout,
    opened,
    prompt,
    reads_in_flight,
    until,
    write,
)

BLOCKS = 3
POOL = "16MiB"


@dataclass
class Stalled:
    """A store whose device completes nothing until `let_go`; one prompt is stored."""

    store: Store
    device: FaultDevice
    clock: VirtualClock
    chain: Chain
    cells: Cells

    @property
    def kv(self) -> Cache:
        return self.store.cache(layout())

    @property
    def block(self) -> bytes:
        return b"".join(parts["latent"][0].tobytes() for parts in self.cells)

    def fresh(self, seed: int) -> Chain:
        return self.kv.keys(prompt(1, seed))

    def hold(self) -> None:
        self.store.drop_ram()
        self.device.add(Fault.STALL, count=0)

    def let_go(self) -> None:
        self.device.clear()
        self.device.release_stalled()

    def works(self) -> None:
        """Exact bytes, and nothing held but by us."""
        self.let_go()
        self.store.drop_ram()
        check_load_closed(self)
        assert_nothing_held(self.store)


def check_load_closed(place: Stalled) -> None:
    with place.kv.load(place.kv.match(place.chain)) as load:
        check_load(load, place.cells, BLOCKS)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Stalled]:
    clock = VirtualClock()
    device = FaultDevice(clock)
    with opened(tmp_path, pool=POOL, _testing=Injection(clock=clock, devices=[device])) as store:
        yield stall(store, device, clock)
        if not store.core.closed:
            device.clear()
            device.release_stalled()


def stall(store: Store, device: FaultDevice, clock: VirtualClock) -> Stalled:
    kv = store.cache(layout())
    ready = Stalled(store, device, clock, kv.keys(prompt(BLOCKS)), cells_of(layout(), BLOCKS))
    assert write(kv, ready.chain, ready.cells) == BLOCKS
    ready.hold()
    return ready


# ---- timeouts ------------------------------------------------------------------------------------


async def late(awaitable: Awaitable[object]) -> None:
    with pytest.raises((TimeoutError, asyncio.TimeoutError)):
        await awaitable


@pytest.mark.parametrize("kind", LOOPS)
@pytest.mark.parametrize("whose", ["asyncio's", "ours"])
def test_every_wait_for_the_device_ends_by_its_timeout(
    place: Stalled, kind: str, whose: str
) -> None:
    kv = place.kv
    ours = whose == "ours"

    def limited(awaitable: Any) -> Awaitable[object]:
        return asyncio.wait_for(awaitable, None if ours else 0.01)

    def words(seconds: float = 0.01) -> dict[str, Any]:
        return {"timeout": seconds} if ours else {}

    async def scenario() -> None:
        memory = [alloc(BLOCKS * PART_BYTES) for _ in range(LAYERS)]
        into = Pages.contiguous({"latent": memory})
        async with kv.load(kv.match(place.chain), into=into, deadline="1000d") as load:
            until(lambda: reads_in_flight(place.device))
            load.cancel()
            if ours:
                assert not load.wait_drained(0.01)
            else:
                await late(limited(awaited(load.drained)))
        async with kv.load(kv.match(place.chain), deadline="1000d") as load:
            await late(limited(load.layer(0, **words())))
        async with kv.writer(place.fresh(1)) as writer:
            for index, parts in enumerate(place.cells):
                await writer.put(index, (0, 1), [parts["latent"][:1]])
            await late(limited(writer.commit(**words())))
        if ours:
            assert await kv.put(place.fresh(2)[0], place.block, timeout=0.01) is False
        else:
            await late(limited(kv.put(place.fresh(2)[0], place.block)))
            await late(limited(kv.get(place.chain[0], deadline="1000d")))
            await late(limited(kv.prefetch(kv.match(place.chain), deadline="1000d")))

    with nothing_left():
        run_in(kind, scenario())
        place.works()
    # What was late went on all the same.
    for seed in (1, 2):
        until(lambda seed=seed: kv.match(place.fresh(seed)).blocks == 1)  # type: ignore[misc]


async def awaited(awaitable: Awaitable[object]) -> None:
    await awaitable


@pytest.mark.parametrize("kind", LOOPS)
def test_a_deadline_of_the_store_is_a_miss_at_every_call_that_takes_one(
    place: Stalled, kind: str
) -> None:
    kv = place.kv

    async def scenario() -> None:
        waiting = [
            asyncio.ensure_future(kv.get(place.chain[0], deadline="5s")),
            asyncio.ensure_future(kv.prefetch(kv.match(place.chain), deadline="5s")),
        ]
        async with kv.load(kv.match(place.chain), deadline="5s") as load:
            layer = asyncio.ensure_future(load.layer(0))
            await asyncio.sleep(0)
            place.clock.advance(6)
            place.store.tick()
            assert (await layer).reason == "deadline"
            assert [each.reason async for each in load] == ["deadline"] * LAYERS
        assert await asyncio.gather(*waiting) == [Miss("deadline"), 0]

    run_in(kind, scenario())
    place.works()


@pytest.mark.parametrize("kind", LOOPS)
def test_waits_for_files_end_by_their_timeout(tmp_path: Path, kind: str) -> None:
    """Names and directories: a fault that takes until the test ends it is not to be had there, so
    timeouts of 0 stand for it."""
    with opened(tmp_path, pool=POOL) as store, opened(tmp_path, pool=POOL, role="peer") as peer:

        async def scenario() -> None:
            kv = store.cache(layout())
            unknown = kv.keys(prompt(2))
            assert (await peer.cache(layout()).find(unknown, timeout=0)).blocks == 0
            for call in (lambda: kv.delete(unknown[0], timeout=0), lambda: store.flush(timeout=0)):
                try:
                    await call()
                except TimeoutError:
                    pass

        run_in(kind, scenario())
        assert_nothing_held(store)


# ---- dropped -------------------------------------------------------------------------------------


def drop_load(place: Stalled) -> None:
    place.kv.load(place.kv.match(place.chain), deadline="1000d")


def drop_load_into(place: Stalled) -> None:
    memory = [alloc(BLOCKS * PART_BYTES) for _ in range(LAYERS)]
    into = Pages.contiguous({"latent": memory})
    load = place.kv.load(place.kv.match(place.chain), into=into, deadline="1000d")
    until(lambda: reads_in_flight(place.device))
    load.drained_fd()


def drop_lease_and_hit(place: Stalled) -> None:
    hit = place.kv.match(place.chain)
    place.kv.lease(hit, owner="one", timeout="1000d")
    place.kv.lease(hit, owner="one", timeout="1000d")
    place.kv.load(place.kv.lease(hit[1:]), deadline="1000d")


def drop_writer(place: Stalled) -> None:
    place.kv.writer(place.fresh(3))
    writer = place.kv.writer(place.fresh(3))
    for index, parts in enumerate(place.cells):
        writer.put(index, (0, 1), [parts["latent"][:1].copy()])


def drop_half_a_writer(place: Stalled) -> None:
    writer = place.kv.writer(place.fresh(4))
    writer.put(0, (0, 1), [place.cells[0]["latent"][:1].copy()])


def drop_commit(place: Stalled) -> None:
    writer = place.kv.writer(place.fresh(5))
    for index, parts in enumerate(place.cells):
        writer.put(index, (0, 1), [parts["latent"][:1].copy()])
    writer._commit()


def drop_coroutines(place: Stalled) -> None:
    """Made and never awaited: nothing has begun."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        place.kv.find(place.chain)
        place.kv.get(place.chain[0])
        place.kv.put(place.chain[0], place.block)
        place.kv.prefetch(place.kv.match(place.chain))
        place.kv.delete(place.chain[0])
        place.store.flush()
        gc.collect()


def drop_iterators(place: Stalled) -> None:
    load = place.kv.load(place.kv.match(place.chain), deadline="1000d")
    iter(load)
    load.__aiter__()


def drop_views(place: Stalled) -> None:
    """A layer, its spans and a block, kept and then dropped unreleased."""
    place.let_go()
    load = place.kv.load(place.kv.match(place.chain))
    kept = [load.wait(0), load.wait(1).spans]
    block = place.kv.get_blocking(place.chain[0])
    place.store.drop_ram()
    assert place.store.stats().pool_free_bytes < place.store.stats().pool_bytes
    del load, kept, block
    place.hold()


@pytest.mark.parametrize(
    "drop",
    [
        drop_load, drop_load_into, drop_lease_and_hit, drop_writer, drop_half_a_writer, drop_commit,
        drop_coroutines, drop_iterators, drop_views,
    ],
)  # fmt: skip
def test_what_is_dropped_in_flight_gives_everything_back(
    place: Stalled, drop: Callable[[Stalled], None]
) -> None:
    place.let_go()
    check_load_closed(place)
    place.hold()
    with nothing_left():
        for _ in range(3):
            drop(place)
            gc.collect()
        place.works()


def test_a_lease_that_runs_out_while_it_is_held_gives_its_pins_back(place: Stalled) -> None:
    lease = place.kv.lease(place.kv.match(place.chain), timeout="5s")
    load = place.kv.load(lease, deadline="1000d")
    place.clock.advance(6)
    place.store.tick()
    assert lease.alive, "a load uses it"
    load.close()
    place.clock.advance(6)
    place.store.tick()
    assert not lease.alive
    assert place.store.stats().leases == 0
    lease.release()
    place.works()


# ---- loops that end ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", LOOPS)
@pytest.mark.parametrize("collected", [False, True])
def test_a_wait_of_a_closed_loop_can_be_taken_over_by_another(
    place: Stalled, kind: str, collected: bool
) -> None:
    """By one that has waited before, too: it has no reason to look round for closed loops."""
    load = place.kv.load(place.kv.match(place.chain), deadline="1000d")
    second = new_loop(kind)
    second.run_until_complete(late(load.layer(1, timeout=0.001)))
    first = new_loop(kind)
    first.run_until_complete(late(load.layer(0, timeout=0.001)))
    first.close()
    if collected:
        del first
        gc.collect()
    waiter = second.create_task(load.layer(0))
    second.call_soon(place.let_go)
    layer = second.run_until_complete(asyncio.wait_for(waiter, 60))
    assert layer.blocks == BLOCKS
    load.close()
    second.close()


@pytest.mark.parametrize("kind", LOOPS)
def test_a_store_closes_beside_closed_idle_and_running_loops(tmp_path: Path, kind: str) -> None:
    clock = VirtualClock()
    device = FaultDevice(clock)
    before = Held.now()
    idle = new_loop(kind)
    store = open_blocking(tmp_path, pool=POOL, _testing=Injection(clock=clock, devices=[device]))
    place = stall(store, device, clock)
    load = place.kv.load(place.kv.match(place.chain), deadline="1000d")
    closed = new_loop(kind)
    for loop, layer in ((closed, 0), (idle, 1)):
        loop.run_until_complete(late(load.layer(layer, timeout=0.001)))
    closed.close()  # it is referred to: its futures are there, and can tell nobody

    async def scenario() -> None:
        waiting = asyncio.ensure_future(load.layer(2))
        await asyncio.sleep(0)
        closing = asyncio.ensure_future(store.close())
        assert (await waiting).reason == "closed"
        place.let_go()
        await closing

    run_in(kind, scenario())
    idle.run_until_complete(asyncio.sleep(0))
    idle.close()
    del load, idle, closed, loop
    assert_no_more_than(before)


# ---- stores that are dropped ---------------------------------------------------------------------


@pytest.mark.parametrize("kind", LOOPS)
@pytest.mark.filterwarnings("ignore:a kvstore.Store was not closed:ResourceWarning")
def test_a_store_that_is_collected_while_loads_run_ends_them_and_gives_everything_back(
    tmp_path: Path, kind: str
) -> None:
    """The loop goes on: it must not keep the dropped store's queue and pool."""

    async def scenario() -> None:
        await asyncio.to_thread(int)
        before = Held.now()
        for _ in range(3):
            clock = VirtualClock()
            device = FaultDevice(clock)
            injection = Injection(clock=clock, devices=[device])
            place = stall(open_blocking(tmp_path, pool=POOL, _testing=injection), device, clock)
            load = place.kv.load(place.kv.match(place.chain), deadline="1000d")
            writer = place.kv.writer(place.fresh(1))
            put = writer.put(0, (0, 1), [np.zeros((1, PART_BYTES), np.uint8)])
            waiting = asyncio.ensure_future(load.layer(0))
            await asyncio.sleep(0)
            del place
            gc.collect()
            assert (await waiting).reason == "closed"
            assert await put in (0, 1)
            device.clear()
            device.release_stalled()
            del load, writer, put, waiting
            await asyncio.to_thread(open_when_free, tmp_path)
        del clock, device, injection
        await asyncio.sleep(0)
        assert_no_more_than(before)

    run_in(kind, scenario())


def open_when_free(root: Path) -> None:
    for thread in threading.enumerate():
        if thread.name == "kvstore-close":
            thread.join(60)
    open_blocking(root, pool=POOL).close_blocking()


# ---- fork ----------------------------------------------------------------------------------------


def test_a_child_forked_while_another_thread_closes_does_not_hang(tmp_path: Path) -> None:
    """The locks that the thread held are held for ever in the child."""
    clock = VirtualClock()
    device = FaultDevice(clock)
    store = open_blocking(tmp_path, pool=POOL, _testing=Injection(clock=clock, devices=[device]))
    place = stall(store, device, clock)
    kv, chain = place.kv, place.chain
    load = kv.load(kv.match(chain), deadline="1000d")
    until(lambda: reads_in_flight(device))
    closing = threading.Thread(target=store.close_blocking)
    closing.start()
    until(lambda: store.core.closed)
    pid = fork()
    if pid == 0:
        try:
            store.close_blocking()
            run_in("asyncio", store.close())
            store.cache(layout())
            load.close()
            del load, kv, place
            gc.collect()
            os._exit(0)
        finally:
            os._exit(1)
    until(lambda: os.waitpid(pid, os.WNOHANG) == (pid, 0), 60)
    place.let_go()
    closing.join(60)
    assert not closing.is_alive()
    assert load.wait(0).reason == "closed"
    load.close()
    with opened(tmp_path, pool=POOL, _testing=Injection(clock=clock)) as again:
        kv = again.cache(layout())
        with kv.load(kv.find_blocking(chain)) as whole:
            check_load(whole, place.cells, BLOCKS)


def test_a_fork_with_everything_in_flight_changes_nothing_for_the_parent(place: Stalled) -> None:
    kv = place.kv
    memory = [alloc(BLOCKS * PART_BYTES) for _ in range(LAYERS)]
    into = Pages.contiguous({"latent": memory})
    loads = [kv.load(kv.match(place.chain), deadline="1000d") for _ in range(3)]
    direct = kv.load(kv.match(place.chain), into=into, deadline="1000d")
    writer = kv.writer(place.fresh(1))
    for index, parts in enumerate(place.cells):
        writer.put(index, (0, 1), [parts["latent"][:1]])
    commit = writer._commit()
    until(lambda: reads_in_flight(place.device))
    pid = fork()
    if pid == 0:
        del loads, direct, writer, commit
        gc.collect()
        place.store.close_blocking()
        os._exit(0)
    until(lambda: os.waitpid(pid, os.WNOHANG) == (pid, 0), 60)
    place.let_go()
    assert commit.wait("60s") == 1
    for load in loads:
        check_load(load, place.cells, BLOCKS)
        load.close()
    assert direct.wait(LAYERS - 1).blocks == BLOCKS
    assert direct.wait_drained("60s")
    for layer, target in enumerate(memory):
        assert np.array_equal(target.reshape(BLOCKS, -1), place.cells[layer]["latent"])
    direct.close()
    place.works()
