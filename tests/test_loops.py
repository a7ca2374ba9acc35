"""The asyncio side: cancelling, several waiters, several loops, loops that end, timeouts.

A stalled device (the fault engine) holds loads back, so that nothing here depends on timing.
"""

import asyncio
import gc
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from kvstore import Cache, Chain, Load, Pages, Store, StoreClosed, alloc
from kvstore.testing import Fault, FaultDevice, Injection, Io, VirtualClock
from tests.support.stores import (
    LAYERS,
    PART_BYTES,
    Cells,
    cells_of,
    layout,
    opened,
    prompt,
    reads_in_flight,
    run,
    until,
    write,
)

BLOCKS = 5


class Held:
    """A store whose device holds back the reads of a load until `let_go`."""

    def __init__(self, store: Store, device: FaultDevice) -> None:
        self.store = store
        self.device = device
        self.kv: Cache = store.cache(layout())
        self.chain: Chain = self.kv.keys(prompt(BLOCKS))
        self.cells: Cells = cells_of(self.kv.layout, BLOCKS)
        assert write(self.kv, self.chain, self.cells) == BLOCKS
        store.drop_ram()

    def load(self, into: Pages | None = None) -> Load:
        self.device.add(Fault.STALL, io=Io.READ, count=0)
        return self.kv.load(self.kv.match(self.chain), into=into, deadline="1000d")

    def let_go(self) -> None:
        self.device.clear()
        self.device.release_stalled()


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Held]:
    clock = VirtualClock()
    device = FaultDevice(clock)
    with opened(tmp_path, _testing=Injection(clock=clock, devices=[device])) as store:
        ready = Held(store, device)
        yield ready
        ready.let_go()


def test_a_cancelled_waiter_leaves_the_load_running(held: Held) -> None:
    async def scenario() -> None:
        load = held.load()
        waiter = asyncio.ensure_future(load.layer(0))
        other = asyncio.ensure_future(load.layer(0))
        await asyncio.sleep(0)
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
        held.let_go()
        assert (await other).blocks == BLOCKS
        assert (await load.layer(LAYERS - 1)).blocks == BLOCKS
        load.close()

    run(scenario())


def test_a_waiter_that_gives_up_gets_a_timeout_and_may_ask_again(held: Held) -> None:
    async def scenario() -> None:
        load = held.load()
        with pytest.raises(TimeoutError):
            await load.layer(0, timeout="1ms")
        with pytest.raises(TimeoutError):
            load.wait(0, timeout=0)
        assert load.failed_blocks == range(BLOCKS, BLOCKS)
        held.let_go()
        assert (await load.layer(0)).blocks == BLOCKS
        load.close()

    run(scenario())


def test_several_loops_wait_on_one_store(held: Held) -> None:
    async def scenario() -> np.ndarray:  # type: ignore[type-arg]
        async with held.kv.load(held.kv.match(held.chain), deadline="1000d") as load:
            layers = [layer.gather("latent") async for layer in load]
        return np.stack(layers)

    results: list[object] = [None] * 3

    def work(number: int) -> None:
        for _ in range(5):
            held.store.drop_ram()
            results[number] = run(scenario())

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    expected = np.stack([parts["latent"] for parts in held.cells])
    assert all(np.array_equal(result, expected) for result in results)  # type: ignore[arg-type]


def test_a_loop_that_ends_with_waiters_harms_nobody(held: Held) -> None:
    load = held.load()

    async def give_up() -> None:
        task = asyncio.ensure_future(load.layer(0))
        await asyncio.sleep(0)
        task.cancel()

    run(give_up())
    gc.collect()
    held.let_go()
    assert load.wait(LAYERS - 1).blocks == BLOCKS
    run(_layers(load))
    load.close()


async def _layers(load: Load) -> None:
    assert [layer.index async for layer in load] == list(range(LAYERS))


def test_one_layer_cannot_be_awaited_in_two_loops_at_a_time(held: Held) -> None:
    load = held.load()
    waiting, done = threading.Event(), threading.Event()

    async def first() -> int:
        task = asyncio.ensure_future(load.layer(0))
        await asyncio.sleep(0)
        waiting.set()
        return (await task).blocks

    def in_thread() -> None:
        assert run(first()) == BLOCKS
        done.set()

    thread = threading.Thread(target=in_thread)
    thread.start()
    assert waiting.wait(30)
    with pytest.raises(RuntimeError, match="another event loop"):
        run(load.layer(0))
    held.let_go()
    assert done.wait(30)
    thread.join()
    load.close()


def test_drained_waits_for_the_last_read_in_every_loop_and_by_fd(held: Held) -> None:
    # Aligned memory, so that the device itself writes it.
    arrays = [alloc(BLOCKS * PART_BYTES).reshape(BLOCKS, -1) for _ in range(LAYERS)]

    async def scenario() -> None:
        load = held.load(into=Pages.contiguous({"latent": arrays}))
        until(lambda: reads_in_flight(held.device))
        waiters = [asyncio.ensure_future(_drained(load)) for _ in range(3)]
        load.cancel()
        assert (await load.layer(LAYERS - 1)).reason == "cancelled"
        await asyncio.sleep(0)
        assert not any(waiter.done() for waiter in waiters)
        assert not load.wait_drained(0)
        fd_readable = asyncio.Event()
        asyncio.get_running_loop().add_reader(load.drained_fd(), fd_readable.set)
        held.let_go()
        await asyncio.gather(*waiters)
        await fd_readable.wait()
        asyncio.get_running_loop().remove_reader(load.drained_fd())
        assert load.wait_drained(0)
        await load.drained
        load.close()
        await load.drained

    run(scenario())


async def _drained(load: Load) -> None:
    await load.drained


def test_closing_the_store_ends_every_wait(tmp_path: Path) -> None:
    clock = VirtualClock()
    device = FaultDevice(clock)
    outcomes: list[object] = []

    async def wait_in_other_loop(load: Load, waiting: threading.Event) -> None:
        task = asyncio.ensure_future(load.layer(1))
        await asyncio.sleep(0)
        waiting.set()
        outcomes.append((await task).reason)

    async def scenario() -> None:
        with opened(tmp_path, _testing=Injection(clock=clock, devices=[device])) as store:
            held = Held(store, device)
            load = held.load()
            mine = asyncio.ensure_future(load.layer(0))
            await asyncio.sleep(0)
            waiting = threading.Event()
            thread = threading.Thread(target=lambda: run(wait_in_other_loop(load, waiting)))
            thread.start()
            assert waiting.wait(30)
            closing = asyncio.ensure_future(store.close())
            try:
                assert (await mine).reason == "closed"
                await asyncio.to_thread(thread.join, 30)
            finally:
                held.let_go()
            await closing
            assert outcomes == ["closed"]
            with pytest.raises(StoreClosed):
                held.kv.match(held.chain)

    run(scenario())


def test_a_put_handle_can_be_awaited_twice_and_waited_for(held: Held) -> None:
    chain = held.kv.keys(prompt(2, seed=9))

    async def scenario() -> None:
        async with held.kv.writer(chain) as writer:
            handle = writer.put(0, (0, 2), [np.zeros((2, PART_BYTES), np.uint8)])
            assert await asyncio.gather(handle, handle, handle) == [0, 0, 0]
            assert await handle == handle.wait() == 0
            assert handle.done

    run(scenario())
