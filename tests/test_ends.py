"""Who ends first: loops that are closed under a load, a store that closes beside loops of all kinds
or is collected while loads run, processes that fork. Everything is in flight.
"""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from kvstore import Pages, alloc
from kvstore.store import open_blocking
from kvstore.testing import FaultDevice, Injection, VirtualClock
from tests.support.census import Held, assert_no_more_than, nothing_left
from tests.support.stalled import BLOCKS, POOL, Stalled, stall, stalled
from tests.support.stepping import LOOPS, late, new_loop, run_in
from tests.support.stores import (
    LAYERS,
    PART_BYTES,
    check_load,
    fork,
    layout,
    opened,
    reads_in_flight,
    until,
)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Stalled]:
    with stalled(tmp_path) as place:
        yield place


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
    with nothing_left():
        close_beside_loops(tmp_path, kind)


def close_beside_loops(root: Path, kind: str) -> None:
    clock = VirtualClock()
    device = FaultDevice(clock)
    idle = new_loop(kind)
    store = open_blocking(root, pool=POOL, _testing=Injection(clock=clock, devices=[device]))
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


def test_everyone_who_closes_a_store_returns_only_when_it_is_closed(tmp_path: Path) -> None:
    clock = VirtualClock()
    device = FaultDevice(clock)
    injection = Injection(clock=clock, devices=[device])
    store = open_blocking(tmp_path, pool=POOL, io_timeout="100s", _testing=injection)
    place = stall(store, device, clock)
    load = place.kv.load(place.kv.match(place.chain), deadline="1000d")
    until(lambda: reads_in_flight(device))
    begun: list[int] = []
    answered: list[bool] = []  # by the device, when a close returned
    has_answered = threading.Event()

    def close() -> None:
        begun.append(1)
        store.close_blocking()
        answered.append(has_answered.is_set())

    closers = [threading.Thread(target=close) for _ in range(4)]
    closers[0].start()
    until(lambda: store.core.closed)
    for closer in closers[1:]:
        closer.start()
    until(lambda: len(begun) == len(closers))
    load.close()
    has_answered.set()
    place.let_go()
    for closer in closers:
        closer.join(60)
    assert answered == [True] * len(closers)


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
