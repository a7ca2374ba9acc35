"""Every coroutine of the API, stopped at each of its awaits in turn: cancelled, or left behind by a
loop that is closed under it. Afterwards the store serves exact bytes and holds nothing.

On both kinds of loop, on a real device and on one that completes an operation a time.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvstore
from kvstore import Block, Cache, Chain, OpenError, Pages, Store, alloc
from kvstore.testing import FaultDevice, Injection, VirtualClock
from tests.support.census import Held, assert_no_more_than, assert_nothing_held, nothing_left
from tests.support.stepping import LOOPS, cancelled_at, left_at, run_in
from tests.support.stores import (
    LAYERS,
    PART_BYTES,
    Cells,
    cells_of,
    layout,
    opened,
    prompt,
    until,
    write,
)

BLOCKS = 3
POOL = "16MiB"
STEPS_MAX = 60  # no coroutine here has as many awaits
Call = Coroutine[Any, Any, Any]


@dataclass
class Place:
    """A store, a peer of it on the same root, and a prompt that must survive everything."""

    store: Store
    peer: Store
    device: FaultDevice | None
    clock: VirtualClock
    chain: Chain
    cells: Cells
    seeds: Iterator[int]

    @property
    def kv(self) -> Cache:
        return self.store.cache(layout())

    def fresh(self) -> Chain:
        """Of a prompt that nobody has put."""
        return self.kv.keys(prompt(1, seed=next(self.seeds)))

    async def pump(self) -> None:
        """The device completes one operation after the other while this runs."""
        while self.device is not None:
            if (next_ns := self.device.next_ns()) >= 0:
                self.clock.core.advance(next_ns - self.clock.now_ns)
            await asyncio.sleep(0.0005)

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        pumping = asyncio.ensure_future(self.pump())
        try:
            yield
        finally:
            pumping.cancel()
            await asyncio.wait({pumping})


@pytest.fixture(params=["real", "virtual"])
def place(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Place]:
    with opened(tmp_path, pool=POOL) as store:
        kv = store.cache(layout())
        chain, cells = kv.keys(prompt(BLOCKS)), cells_of(layout(), BLOCKS)
        assert write(kv, chain, cells) == BLOCKS
    clock = VirtualClock()
    device = None
    with ExitStack() as stack:
        words: dict[str, Any] = {"pool": POOL}
        if request.param == "virtual":
            device = FaultDevice(clock, bytes_per_second=10**9, auto_advance=False)
            words["_testing"] = Injection(clock=clock, devices=[device])
        store = stack.enter_context(opened(tmp_path, **words))
        peer = stack.enter_context(opened(tmp_path, pool=POOL, role="peer"))
        until(lambda: not store.info().roots[0].warming)
        yield Place(store, peer, device, clock, chain, cells, itertools.count(1))


# ---- what is stopped -----------------------------------------------------------------------------


async def find(place: Place) -> None:
    await place.peer.cache(layout()).find(place.fresh())


async def one_layer(place: Place) -> None:
    with place.kv.load(place.kv.match(place.chain)) as load:
        await load.layer(LAYERS - 1)


async def all_layers(place: Place) -> None:
    async with place.kv.load(place.kv.match(place.chain)) as load:
        async for layer in load:
            assert np.array_equal(layer.gather("latent"), place.cells[layer.index]["latent"])
            await asyncio.sleep(0)


async def drained(place: Place) -> None:
    memory = [alloc(BLOCKS * PART_BYTES) for _ in range(LAYERS)]
    into = Pages.contiguous({"latent": memory})
    async with place.kv.load(place.kv.match(place.chain), into=into) as load:
        await load.layer(0)
        load.cancel()
        await load.drained


async def put_and_commit(place: Place) -> None:
    async with place.kv.writer(place.fresh()) as writer:
        for index, parts in enumerate(place.cells):
            await writer.put(index, (0, 1), [parts["latent"][:1]])
        await writer.commit()


def whole_block(place: Place) -> bytes:
    return b"".join(parts["latent"][0].tobytes() for parts in place.cells)


async def put(place: Place) -> None:
    await place.kv.put(place.fresh()[0], whole_block(place))


async def get(place: Place) -> None:
    block = await place.kv.get(place.chain[0])
    assert isinstance(block, Block) and bytes(block.data) == whole_block(place)
    block.release()


async def prefetch(place: Place) -> None:
    assert await place.kv.prefetch(place.kv.match(place.chain)) == BLOCKS


async def delete(place: Place) -> None:
    await place.kv.delete(place.fresh()[0])


async def flush(place: Place) -> None:
    await place.store.flush()


async def everything_at_once(place: Place) -> None:
    await asyncio.gather(one_layer(place), put_and_commit(place), get(place), flush(place))


CALLS = [
    find, one_layer, all_layers, drained, put_and_commit, put, get, prefetch, delete, flush,
    everything_at_once,
]  # fmt: skip
OF_THE_DEVICE = {one_layer, all_layers, drained, put_and_commit, put, get, prefetch}


async def check(place: Place) -> None:
    """The store is as good as before: the prompt comes back exactly, a new one can be put."""
    place.store.drop_ram()
    await all_layers(place)
    await put_and_commit(place)


def check_stops(place: Place, call: Callable[[Place], Call], stops: int) -> None:
    assert stops < STEPS_MAX
    if place.device is not None and call in OF_THE_DEVICE:
        assert stops > 0, "it never waited, so nothing was tested"


# ---- tests ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", LOOPS)
@pytest.mark.parametrize("call", CALLS)
def test_cancelled_at_every_await_nothing_is_held_and_the_store_works(
    place: Place, kind: str, call: Callable[[Place], Call]
) -> None:
    async def scenario() -> int:
        async with place.working():
            for n in range(STEPS_MAX):
                place.store.drop_ram()
                if not await cancelled_at(call(place), n):
                    return n
                await check(place)
                await asyncio.to_thread(assert_nothing_held, place.store)
        return STEPS_MAX

    run_in(kind, check(place) if place.device is None else working(place, check(place)))
    with nothing_left():
        check_stops(place, call, run_in(kind, scenario()))
    assert_nothing_held(place.store)
    run_in(kind, working(place, asyncio.sleep(0)))


async def working(place: Place, call: Call) -> None:
    async with place.working():
        await call


@pytest.mark.parametrize("kind", LOOPS)
@pytest.mark.parametrize("call", CALLS)
def test_a_loop_closed_at_every_await_leaves_the_store_to_the_next_loop(
    place: Place, kind: str, call: Callable[[Place], Call]
) -> None:
    run_in(kind, working(place, check(place)))
    with nothing_left():
        n = 0
        while n < STEPS_MAX:
            place.store.drop_ram()
            if not left_at(kind, lambda: call(place), n, place.pump):
                break
            run_in(kind, working(place, check(place)))
            n += 1
        check_stops(place, call, n)
        run_in(kind, working(place, asyncio.to_thread(assert_nothing_held, place.store)))


@pytest.mark.parametrize("kind", LOOPS)
@pytest.mark.parametrize("how", ["cancelled", "left"])
def test_an_open_that_is_stopped_leaves_the_directory_free(
    tmp_path: Path, kind: str, how: str
) -> None:
    async def opening() -> None:
        async with kvstore.open(tmp_path, pool=POOL):
            pass

    def free() -> bool:
        gc.collect()  # what a closed loop leaves behind refers to itself
        try:
            with opened(tmp_path, pool=POOL):
                return True
        except OpenError:
            return False

    with nothing_left():
        for n in range(STEPS_MAX):
            if how == "cancelled":
                stopped = run_in(kind, cancelled_at(opening(), n))
            else:
                stopped = left_at(kind, opening, n)
            until(free)
            if not stopped:
                break
        assert 1 <= n < STEPS_MAX


@pytest.mark.parametrize("kind", LOOPS)
def test_a_close_that_is_cancelled_at_once_goes_on_by_itself(tmp_path: Path, kind: str) -> None:
    before = Held.now()
    for n in range(STEPS_MAX):
        store = kvstore.open_blocking(tmp_path, pool=POOL)
        stopped = run_in(kind, cancelled_at(store.close(), n))
        until(lambda: store.core.closed)
        assert_no_more_than(before)
        if not stopped:
            break
    assert 1 <= n < STEPS_MAX
