"""`drained` is the moment from which a load into caller memory never writes a byte again, and not
a moment earlier is promised: cancel and deadline end the waiting, the reads in flight go on.

The device completes one operation at a time, on demand. The proof in every test: once drained the
memory is refilled, everything that is still in flight completes, and no byte has changed.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from kvstore import Layout, Load, Pages, alloc
from kvstore.testing import Fault, Io
from tests.support.simulation import Simulated, fill, finish_device, is_ready, move_to, simulated
from tests.support.stores import BLOCK_TOKENS, cells_of, prompt, run, until

LAYERS = 3
BLOCKS = 4
CELL = 44 * 4096
BEFORE, AFTER = 0x5A, 0xA5
READS = LAYERS * BLOCKS  # an extent per block: one read per cell, direct or not
KINDS = ["direct", "bounced"]


def layout() -> Layout:
    return Layout(
        parts_by_layer=((("latent", CELL),),) * LAYERS,
        model="drained",
        block_tokens=BLOCK_TOKENS,
        extent_blocks=1,
    )


@dataclass
class Target:
    """Caller memory that the device writes itself ("direct") or that is copied to ("bounced")."""

    simulation: Simulated
    kind: str

    def __post_init__(self) -> None:
        self.memory = alloc(LAYERS * BLOCKS * CELL + 4096)
        first = 0 if self.kind == "direct" else 64
        size = BLOCKS * CELL
        self.layers: list[npt.NDArray[np.uint8]] = [
            self.memory[first + i * size : first + (i + 1) * size] for i in range(LAYERS)
        ]

    def refill(self, value: int) -> None:
        self.memory[:] = value

    def unchanged(self, value: int) -> bool:
        return bool((self.memory == value).all())

    def load(self, deadline: str = "1000d") -> Load:
        """Starts with nothing in RAM and fills the device."""
        self.simulation.store.drop_ram()
        self.refill(BEFORE)
        kv = self.simulation.store.cache(self.simulation.layout)
        into = Pages.contiguous({"latent": self.layers})
        load = kv.load(kv.match(kv.keys(prompt(BLOCKS))), into=into, deadline=deadline)
        self.simulation.settle()
        return load

    def written_by_device(self) -> bool:
        """Whether a read in flight goes to this memory."""
        start = self.memory.ctypes.data
        return any(
            start <= record.buffer < start + self.memory.nbytes
            for record in self.simulation.reads()
            if record.completed_ns < 0
        )


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("drained")
    fill(path, layout(), BLOCKS)
    return path


@pytest.fixture(params=KINDS)
def target(root: Path, request: pytest.FixtureRequest) -> Iterator[Target]:
    with simulated(root, layout(), BLOCKS, depth=6, pool="64MiB") as simulation:
        simulation.open_files()
        yield Target(simulation, request.param)


def complete_one(simulation: Simulated) -> bool:
    """The next operation of the device; False when there is none."""
    next_ns = simulation.device.next_ns()
    if next_ns >= 0:
        move_to(simulation, next_ns)
    return next_ns >= 0


def fd_readable(load: Load) -> bool:
    return bool(select.select([load.drained_fd()], [], [], 0)[0])


def refill_and_let_everything_complete(target: Target) -> None:
    target.refill(AFTER)
    finish_device(target.simulation)
    assert target.unchanged(AFTER), "memory was written after drained"


@pytest.mark.parametrize("how", ["cancel", "close"])
def test_ended_at_every_completion_no_byte_changes_after_drained(target: Target, how: str) -> None:
    simulation = target.simulation
    changed_after_end = 0
    for completions in range(READS + 1):
        load = target.load()
        for _ in range(completions):
            assert complete_one(simulation)
        (load.cancel if how == "cancel" else load.close)()
        simulation.settle()
        if how == "cancel":
            last = load.wait(LAYERS - 1, timeout=0)
            assert last.reason == (None if completions == READS else "cancelled")
        waiting = target.written_by_device()
        assert load.wait_drained(0) != waiting
        if waiting:
            target.refill(BEFORE)
        while not load.wait_drained(0):
            assert how == "close" or not fd_readable(load)
            assert complete_one(simulation), "nothing is in flight and the load is not drained"
        assert how == "close" or fd_readable(load)
        changed_after_end += waiting and not target.unchanged(BEFORE)
        refill_and_let_everything_complete(target)
        load.close()
    # Without the rule there would be something to see: reads do write after the end.
    assert changed_after_end == (READS if target.kind == "direct" else 0)


def test_a_load_that_ends_by_itself_is_drained_and_whole(target: Target) -> None:
    load = target.load()
    while not is_ready(load, LAYERS - 1):
        assert not load.wait_drained(0)
        assert complete_one(target.simulation)
    assert load.wait_drained(0)
    assert fd_readable(load)
    stats = load.stats()
    moved = stats.direct_bytes if target.kind == "direct" else stats.bounced_bytes
    assert moved == LAYERS * BLOCKS * CELL
    cells = cells_of(layout(), BLOCKS)
    for layer in range(LAYERS):
        assert np.array_equal(target.layers[layer].reshape(BLOCKS, CELL), cells[layer]["latent"])
    refill_and_let_everything_complete(target)
    load.close()


def test_a_deadline_returns_at_once_and_drained_comes_when_the_device_lets_go(
    target: Target,
) -> None:
    simulation = target.simulation
    simulation.device.add(Fault.STALL, io=Io.READ, count=0)
    load = target.load(deadline="5s")
    assert simulation.device.next_ns() == -1, "the device has stalled"
    simulation.clock.advance(6)
    simulation.store.tick()
    for layer in range(LAYERS):
        answer = load.wait(layer, timeout=0)
        assert (answer.blocks, answer.reason) == (0, "deadline")
    assert load.failed_blocks == range(BLOCKS)
    simulation.settle()
    assert load.wait_drained(0) == (target.kind == "bounced")
    simulation.device.release_stalled()
    finish_device(simulation)
    assert load.wait_drained(0)
    refill_and_let_everything_complete(target)
    load.close()


def test_a_stalled_read_into_the_pool_ends_by_its_deadline_and_its_memory_is_kept(
    target: Target,
) -> None:
    """The views' memory goes back to the pool only when the device is done with it."""
    simulation = target.simulation
    simulation.store.drop_ram()
    free = simulation.store.stats().pool_free_bytes
    simulation.device.add(Fault.STALL, io=Io.READ, count=0)
    kv = simulation.store.cache(simulation.layout)
    with kv.load(kv.match(kv.keys(prompt(BLOCKS))), deadline="5s") as load:
        simulation.settle()
        simulation.clock.advance(6)
        simulation.store.tick()
        assert load.wait(0, timeout=0).reason == "deadline"
    simulation.settle()
    in_flight = sum(record.completed_ns < 0 for record in simulation.reads())
    assert simulation.store.stats().pool_free_bytes == free - in_flight * CELL
    simulation.device.release_stalled()
    finish_device(simulation)
    simulation.store.drop_ram()
    assert simulation.store.stats().pool_free_bytes == free


def test_one_stalled_read_holds_drained_back_until_it_is_released(target: Target) -> None:
    simulation = target.simulation
    simulation.device.add(Fault.STALL, io=Io.READ, skip=5, count=1)
    load = target.load(deadline="5s")
    while complete_one(simulation):
        pass
    assert is_ready(load, 0), "the first reads were let through"
    assert not is_ready(load, LAYERS - 1)
    simulation.clock.advance(6)
    simulation.store.tick()
    assert load.wait(LAYERS - 1, timeout=0).reason == "deadline"
    assert load.wait(0, timeout=0).blocks == BLOCKS, "what was delivered stays"
    simulation.settle()
    assert load.wait_drained(0) == (target.kind == "bounced")
    simulation.device.release_stalled()
    finish_device(simulation)
    assert load.wait_drained(0)
    refill_and_let_everything_complete(target)
    load.close()


def test_drained_can_be_awaited_and_waited_for_by_a_thread(target: Target) -> None:
    simulation = target.simulation

    async def scenario() -> None:
        load = target.load()
        load.cancel()
        by_thread = asyncio.create_task(asyncio.to_thread(load.wait_drained, "30s"))
        by_loop = asyncio.ensure_future(awaited(load))
        await asyncio.sleep(0)
        assert by_loop.done() == (target.kind == "bounced")
        finish_device(simulation)
        await by_loop
        assert await by_thread
        load.close()
        await load.drained

    run(scenario())
    refill_and_let_everything_complete(target)


async def awaited(load: Load) -> None:
    await load.drained


def test_closing_the_store_waits_for_reads_into_caller_memory(root: Path) -> None:
    """close returns when nothing is in flight: afterwards the memory is the caller's."""
    with simulated(root, layout(), BLOCKS, depth=6, pool="64MiB") as simulation:
        simulation.open_files()
        target = Target(simulation, "direct")
        simulation.device.add(Fault.STALL, io=Io.READ, count=0)
        load = target.load()

        async def scenario() -> None:
            closing = asyncio.create_task(simulation.store.close())
            await asyncio.to_thread(until, lambda: load.wait(0).reason == "closed")
            assert not closing.done()
            assert not load.wait_drained(0)
            simulation.device.release_stalled()
            while not load.wait_drained(0):
                simulation.clock.advance(1)
                await asyncio.sleep(0)
            target.refill(AFTER)
            await closing

        run(scenario())
        assert target.unchanged(AFTER)


def test_a_load_that_meets_the_reads_of_a_cancelled_one_is_whole(tmp_path: Path) -> None:
    """A region of three operations, two of them in flight when its only reader leaves."""
    of = Layout(
        parts_by_layer=((("latent", 72 * 4096),),) * 2, model="meets", block_tokens=BLOCK_TOKENS
    )
    blocks = 10
    fill(tmp_path, of, blocks)
    with simulated(tmp_path, of, blocks, depth=2, pool="64MiB") as simulation:
        simulation.open_files()
        for completions in range(3):
            simulation.store.drop_ram()
            first = simulation.load()
            simulation.settle()
            first.cancel()
            for _ in range(completions):
                assert complete_one(simulation)
            second = simulation.load()
            simulation.settle()
            while not is_ready(second, 1):
                assert complete_one(simulation)
            last = second.wait(1, timeout=0)
            assert (last.blocks, last.reason) == (blocks, None)
            first.close()
            second.close()
