"""Several devices at once, in virtual time: their bandwidth adds up, layer by layer, and a slow one
delays only what lies on it.

Each root has a virtual device of its own, all on one clock; a device moves one byte per nanosecond,
a slow one SLOWDOWN times less, so every time below is exact.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import pytest

from kvstore import Layout, LayoutWarning, Load, Store
from kvstore.testing import FaultDevice, Injection, Io, VirtualClock
from tests.support.simulation import BYTES_PER_SECOND, is_ready
from tests.support.stores import BLOCK_TOKENS, cells_of, check_load, opened, prompt, until, write

LAYERS = 8
GRID = 16
CELL = 4096
REGION = GRID * CELL  # one read
EXTENTS = 24  # of the long prompt
SHORT_PROMPTS = 16  # of one extent each
SLOWDOWN = 10
LONG = 0  # seed of the long prompt
POOL = "64MiB"  # holds all of it


def layout() -> Layout:
    """Small blocks on purpose: many extents of few bytes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LayoutWarning)
        return Layout(
            parts_by_layer=((("latent", CELL),),) * LAYERS,
            model="roots",
            block_tokens=BLOCK_TOKENS,
            extent_blocks=GRID,
        )


def blocks_of(seed: int) -> int:
    return EXTENTS * GRID if seed == LONG else GRID


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two roots with a long prompt over both, and short ones that lie on either."""
    paths = [tmp_path_factory.mktemp(name) for name in ("a", "b")]
    with opened(*paths, pool=POOL) as store:
        kv = store.cache(layout())
        for seed in range(1 + SHORT_PROMPTS):
            blocks = blocks_of(seed)
            cells = cells_of(layout(), blocks)
            assert write(kv, kv.keys(prompt(blocks, seed)), cells) == blocks
    return paths


@dataclass(frozen=True)
class Devices:
    """A store on two virtual devices, whose files are all open."""

    store: Store
    clock: VirtualClock
    devices: Sequence[FaultDevice]

    def load(self, seed: int) -> Load:
        kv = self.store.cache(layout())
        hit = kv.match(kv.keys(prompt(blocks_of(seed), seed)))
        assert hit.blocks == blocks_of(seed), hit.reason
        return kv.load(hit, deadline="1000d")

    def settle(self) -> None:
        """Until all sleep: what one does may wake another, so until a round changes nothing."""
        before = None
        while before != (before := [len(device.log()) for device in self.devices]):
            for device in self.devices:
                device.settle()

    def advance(self) -> bool:
        """On to the next completion of any device; False when nothing is in flight."""
        times = [at for device in self.devices if (at := device.next_ns()) >= 0]
        if times:
            self.clock.core.advance(min(times) - self.clock.now_ns)
        return bool(times)

    def step(self) -> bool:
        """The same, and until all that follows from it was done."""
        moved = self.advance()
        self.settle()
        return moved

    def ready_times(self, loads: Sequence[Load]) -> list[list[int]]:
        """When each layer of each load was there, in ns from now on."""
        start = self.clock.now_ns
        ready: list[list[int]] = [[] for _ in loads]
        self.settle()
        while True:
            for load, times in zip(loads, ready, strict=True):
                while len(times) < LAYERS and is_ready(load, len(times)):
                    times.append(self.clock.now_ns - start)
            if all(len(times) == LAYERS for times in ready):
                return ready
            assert self.step(), "layers are missing and no device has anything to do"

    def read_ends(self, root: int, start: int) -> list[int]:
        """When each read that the device got from record `start` on was done."""
        log = self.devices[root].log(start)
        return [record.completed_ns for record in log if record.io_kind == Io.READ]


@contextmanager
def on_devices(roots: Sequence[Path], slowdowns: Sequence[int]) -> Iterator[Devices]:
    clock = VirtualClock()
    devices = [
        FaultDevice(clock, bytes_per_second=BYTES_PER_SECOND // slowdown, auto_advance=False)
        for slowdown in slowdowns
    ]
    injection = Injection(clock=clock, devices=devices, manual_ticks=True)
    with opened(*roots, pool=POOL, _testing=injection) as store:
        until(lambda: not any(root.warming for root in store.info().roots))
        both = Devices(store, clock, devices)
        try:
            open_files(both)
            yield both
        finally:  # closing waits for what is in flight, also after a test that failed
            while both.step():
                pass


def open_files(both: Devices) -> None:
    """On threads, in real time, which a simulation must not see."""
    for seed in range(1 + SHORT_PROMPTS):
        with both.load(seed) as load:
            until(lambda: not both.advance() and is_ready(load, LAYERS - 1))
    both.store.drop_ram()


def extents_on(roots: Sequence[Path], seed: int) -> list[int]:
    """How many extents of the prompt each root holds."""
    with opened(*roots, pool=POOL) as store:
        chain = store.cache(layout()).keys(prompt(blocks_of(seed), seed))
    names = {chain[first].hex() for first in range(0, len(chain), GRID)}
    held = [sum(path.stem in names for path in root.glob("*/*/*.kv")) for root in roots]
    assert sum(held) == len(names)
    return held


def seed_on(roots: Sequence[Path], root: int) -> int:
    """Of a short prompt that lies there."""
    return next(s for s in range(1, 1 + SHORT_PROMPTS) if extents_on(roots, s)[root])


def expected_ns(held: Sequence[int], slowdowns: Sequence[int]) -> list[int]:
    """When layer 0, 1, .. is there: every device reads its own share, without a gap."""
    slowest = max(count * by for count, by in zip(held, slowdowns, strict=True))
    return list(accumulate([slowest * REGION] * LAYERS))


@pytest.mark.parametrize("slowdowns", [(1, 1), (1, SLOWDOWN), (SLOWDOWN, 1)])
def test_each_layer_is_there_when_the_root_with_most_to_read_of_it_is_done(
    roots: list[Path], slowdowns: tuple[int, int]
) -> None:
    """Two equal roots take as long as the larger share, not as long as the sum."""
    held = extents_on(roots, LONG)
    assert min(held) > 0
    with on_devices(roots, slowdowns) as both, both.load(LONG) as load:
        (ready,) = both.ready_times([load])
        check_load(load, cells_of(layout(), blocks_of(LONG)), blocks_of(LONG))
    assert ready == expected_ns(held, slowdowns)
    if slowdowns == (1, 1):
        assert ready[-1] < EXTENTS * REGION * LAYERS, "one device alone would need this"


def test_the_share_on_a_fast_root_does_not_wait_for_a_slow_one(roots: list[Path]) -> None:
    """The fast device reads through all layers at its own pace, far ahead of the slow one."""
    fast, _ = extents_on(roots, LONG)
    with on_devices(roots, (1, SLOWDOWN)) as both:
        start, at = both.clock.now_ns, len(both.devices[0].log())
        with both.load(LONG) as load:
            both.ready_times([load])
            ends = both.read_ends(0, at)
    assert [end - start for end in ends] == [REGION * (i + 1) for i in range(fast * LAYERS)]


def test_a_prompt_on_a_fast_root_is_not_delayed_by_loads_on_a_slow_one(roots: list[Path]) -> None:
    there, elsewhere = seed_on(roots, 0), seed_on(roots, 1)
    with on_devices(roots, (1, SLOWDOWN)) as both:
        with both.load(elsewhere) as slow, both.load(there) as quick:
            slow_ready, quick_ready = both.ready_times([slow, quick])
    assert quick_ready == expected_ns((1, 0), (1, SLOWDOWN))
    assert slow_ready == expected_ns((0, 1), (1, SLOWDOWN))
