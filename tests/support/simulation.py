"""Loads in simulated time: a virtual device under the real planner, a computing reader above it.

The device moves one byte per nanosecond and one operation after the other, so every time below is
a whole number of nanoseconds and nothing is rounded. Nothing here depends on real time: between two
events the store runs until it sleeps (`settle`), then the clock moves to the next event.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from kvstore import Layout, Load, Store
from kvstore.testing import FaultDevice, Injection, Io, Record, VirtualClock
from tests.support.extent_reader import read_root
from tests.support.stores import cells_of, opened, prompt, until, write

PAGE = 4096
BYTES_PER_SECOND = 10**9  # one byte per nanosecond


@dataclass(frozen=True)
class Simulated:
    """A store on a virtual device; one prompt of `blocks` blocks per seed is stored."""

    store: Store
    clock: VirtualClock
    device: FaultDevice
    layout: Layout
    blocks: int

    def open_files(self, seeds: Iterable[int] = (0,)) -> None:
        """Files are opened in real time, which a simulation must not see: all are opened here."""
        for seed in seeds:
            with self.load(seed) as load:
                finish(self, load)
        self.store.drop_ram()

    def load(self, seed: int = 0) -> Load:
        kv = self.store.cache(self.layout)
        hit = kv.match(kv.keys(prompt(self.blocks, seed)))
        assert hit.blocks == self.blocks, hit.reason
        return kv.load(hit, deadline="1000d")

    def settle(self) -> None:
        self.device.settle()

    def reads(self, start: int = 0) -> list[Record]:
        return [record for record in self.device.log(start) if record.io_kind == Io.READ]


def fill(root: Path, layout: Layout, blocks: int, seeds: Sequence[int] = (0,)) -> None:
    """Stores the prompts in real time."""
    cells = cells_of(layout, blocks)
    with opened(root, pool="256MiB") as store:
        kv = store.cache(layout)
        for seed in seeds:
            assert write(kv, kv.keys(prompt(blocks, seed)), cells) == blocks


@contextmanager
def simulated(
    root: Path, layout: Layout, blocks: int, *, depth: int = 64, pool: str = "256MiB"
) -> Iterator[Simulated]:
    clock = VirtualClock()
    device = FaultDevice(
        clock, bytes_per_second=BYTES_PER_SECOND, depth=max(depth, 1), auto_advance=False
    )
    injection = Injection(clock=clock, devices=[device], manual_ticks=True)
    with opened(root, pool=pool, io_depth=depth, _testing=injection) as store:
        until(lambda: not store.info().roots[0].warming)
        simulation = Simulated(store, clock, device, layout, blocks)
        try:
            yield simulation
        finally:  # closing waits for what is in flight, also after a test that failed
            if not store.core.closed:
                device.clear()
                device.release_stalled()
                finish_device(simulation)


def finish_device(simulation: Simulated) -> None:
    """Completes what is in flight, so that the store can close."""
    simulation.settle()
    while (next_ns := simulation.device.next_ns()) >= 0:
        move_to(simulation, next_ns)


def move_to(simulation: Simulated, at_ns: int) -> None:
    behind = at_ns - simulation.clock.now_ns
    assert behind >= 0
    simulation.clock.core.advance(behind)
    simulation.settle()


def is_ready(load: Load, layer: int) -> bool:
    return load.core.layer(layer) is not None


def finish(simulation: Simulated, load: Load) -> None:
    """Lets the device work until the last layer is ready. Files may have to be opened first."""
    last = load.layout.layers - 1
    until(lambda: simulation.device.next_ns() >= 0 or is_ready(load, last))
    while not is_ready(load, last):
        until(lambda: simulation.device.next_ns() >= 0 or is_ready(load, last))
        if (next_ns := simulation.device.next_ns()) >= 0:
            move_to(simulation, next_ns)


def run_prefill(simulation: Simulated, load: Load, compute_ns: Sequence[int]) -> int:
    """A reader that computes layer k for compute_ns[k] once it is there and layer k - 1 is done,
    and releases it then. The time from the start to the end of the last layer, in ns."""
    start = now = simulation.clock.now_ns
    simulation.settle()
    for layer, needed in enumerate(compute_ns):
        while not is_ready(load, layer):
            now = simulation.device.next_ns()
            assert now >= 0, f"layer {layer} is not ready and the device has nothing to do"
            move_to(simulation, now)
        now = simulation.clock.now_ns
        done = now + needed
        while 0 <= (next_ns := simulation.device.next_ns()) <= done:
            move_to(simulation, next_ns)
        move_to(simulation, done)
        assert load.wait(layer).blocks == load.blocks
        load.wait(layer).release()
    return simulation.clock.now_ns - start


def load_ns(layout: Layout, blocks: int) -> list[int]:
    """What the device needs per layer: whole pages of each extent's region, a byte per ns."""
    per_extent = layout.blocks_per_extent
    runs = [min(per_extent, blocks - first) for first in range(0, blocks, per_extent)]
    return [
        sum(-(-run * layout.cell_bytes(layer) // PAGE) * PAGE for run in runs)
        for layer in range(layout.layers)
    ]


def flow_shop_ns(load: Sequence[int], compute: Sequence[int]) -> int:
    """Two machines in a row: max over k of (sum load[0..k] + sum compute[k..])."""
    total = sum(compute)
    before = [0, *accumulate(compute)]
    return max(loaded + total - before[k] for k, loaded in enumerate(accumulate(load)))


class RegionMap:
    """Which layer a read belongs to, by file and offset."""

    def __init__(self, root: Path, layout: Layout) -> None:
        self._regions: dict[int, list[tuple[int, int]]] = {}
        for path, extent in read_root(root).items():
            sizes = [
                -(-layout.cell_bytes(layer) * len(extent.keys) // PAGE) * PAGE
                for layer in range(layout.layers)
            ]
            stat = path.stat()
            ends = list(accumulate(sizes, initial=stat.st_size - sum(sizes)))
            self._regions[stat.st_ino] = list(zip(ends, ends[1:], strict=False))

    def layer(self, record: Record) -> int:
        for layer, (start, end) in enumerate(self._regions[record.inode]):
            if start <= record.offset < end:
                assert record.offset + record.bytes <= end, "a read crosses regions"
                return layer
        raise AssertionError(f"a read outside every region: {record}")
