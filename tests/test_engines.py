"""One contract for every I/O engine, for a latent and a two-part layout; and what a store makes of
a device that fails: an error is a short load, never wrong bytes, never an exception.

Errors need a device that fails on request, so that half runs on the fault engine alone.
"""

from __future__ import annotations

import errno
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from kvstore import Cache, Chain, Layout, Load, Pages, Store, alloc
from kvstore.testing import Fault, FaultDevice, Injection, Io, VirtualClock
from tests.support.stores import BLOCK_TOKENS, Cells, cells_of, check_load, opened, prompt, until

ENGINES = ["io_uring", "io_uring_plain", "aio", "threads", "fault"]
LAYERS = 3
BLOCKS = 21  # one whole extent and a short one


def mla() -> Layout:
    """16 x 656 x 20 bytes a cell: no multiple of 4096."""
    parts = (("latent", 16 * 13_120),)
    return Layout(
        parts_by_layer=(parts,) * LAYERS, model="mla", block_tokens=BLOCK_TOKENS, extent_blocks=16
    )


def gqa() -> Layout:
    parts = (("k", 24 * 4096), ("v", 24 * 4096))
    return Layout(
        parts_by_layer=(parts,) * LAYERS, model="gqa", block_tokens=BLOCK_TOKENS, extent_blocks=16
    )


LAYOUTS = {"mla": mla, "gqa": gqa}


@contextmanager
def store_on(engine: str, root: Path) -> Iterator[Store]:
    """The engine asked for and no other; a "fault" engine without faults is a slow pread."""
    if engine != "fault":
        with opened(root, engine=engine) as store:
            name = engine.removesuffix("_plain")
            assert store.info().roots[0].engine == name, "a test must not run on a fallback"
            yield store
        return
    clock = VirtualClock(int(time.time()))  # what it writes is read under the real clock too
    device = FaultDevice(clock, bytes_per_second=10**9, latency_ns=1000)
    with opened(root, _testing=Injection(clock=clock, devices=[device])) as store:
        yield store


@pytest.fixture(params=LAYOUTS)
def layout(request: pytest.FixtureRequest) -> Layout:
    return LAYOUTS[request.param]()


def put_in_any_order(kv: Cache, chain: Chain, cells: Cells, seed: int = 5) -> None:
    """Chunk by chunk through the layers, as engines prefill; the order is drawn from the seed."""
    edges = [0, 1, 7, 16, 20, len(chain)]
    pieces = [
        (layer, first, end)
        for first, end in zip(edges, edges[1:], strict=False)
        for layer in range(LAYERS)
    ]
    random.Random(seed).shuffle(pieces)
    with kv.writer(chain) as writer:
        handles = [
            writer.put(
                layer,
                (first, end),
                {name: array[first:end] for name, array in cells[layer].items()},
            )
            for layer, first, end in pieces
        ]
        assert [handle.wait("30s") for handle in handles] == [0] * len(pieces)
        assert writer.commit_blocking() == len(chain)
        assert writer.stats().bytes_written == kv.layout.block_bytes * len(chain)


def caller_memory(of: Layout) -> list[dict[str, np.ndarray]]:
    return [
        {name: alloc(BLOCKS * size).reshape(BLOCKS, size) for name, size in parts}
        for parts in of.parts_by_layer
    ]


# ---- every engine --------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
def test_what_is_put_in_any_order_is_loaded_by_every_way(
    engine: str, layout: Layout, tmp_path: Path
) -> None:
    cells = cells_of(layout, BLOCKS)
    with store_on(engine, tmp_path) as store:
        kv = store.cache(layout)
        chain = kv.keys(prompt(BLOCKS))
        put_in_any_order(kv, chain, cells)
        for what in (slice(None), slice(0, 1), slice(3, 17), slice(16, None)):
            store.drop_ram()
            hit = kv.match(chain)[what]
            with kv.load(hit) as load:
                check_load(load, cells, hit.blocks)
                assert load.stats().disk_bytes == layout.block_bytes * hit.blocks
        store.drop_ram()
        memory = caller_memory(layout)
        with kv.load(kv.match(chain), into=Pages(memory)) as load:
            assert load.wait(LAYERS - 1).blocks == BLOCKS
            assert load.wait_drained("30s")
        for layer, parts in enumerate(cells):
            for name, array in parts.items():
                assert np.array_equal(memory[layer][name], array), f"layer {layer} {name}"


@pytest.mark.parametrize("writer_engine", ENGINES)
def test_what_one_engine_wrote_every_other_reads(
    writer_engine: str, layout: Layout, tmp_path: Path
) -> None:
    cells = cells_of(layout, BLOCKS)
    with store_on(writer_engine, tmp_path) as store:
        kv = store.cache(layout)
        put_in_any_order(kv, kv.keys(prompt(BLOCKS)), cells)
    for engine in ENGINES:
        with store_on(engine, tmp_path) as store:
            kv = store.cache(layout)
            hit = kv.find_blocking(kv.keys(prompt(BLOCKS)))
            with kv.load(hit) as load:
                check_load(load, cells, BLOCKS)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_file_that_was_cut_short_is_a_miss_and_goes_to_quarantine(
    engine: str, layout: Layout, tmp_path: Path
) -> None:
    cells = cells_of(layout, BLOCKS)
    with store_on(engine, tmp_path) as store:
        kv = store.cache(layout)
        chain = kv.keys(prompt(BLOCKS))
        put_in_any_order(kv, chain, cells)
        store.drop_ram()
        first = tmp_path / kv.namespace / chain[0].hex()[:3] / f"{chain[0].hex()}.kv"
        with kv.load(kv.match(chain)[:1]) as load:
            check_load(load, cells, 1)  # the file is open from here on
        store.drop_ram()
        with first.open("r+b") as file:
            file.truncate(first.stat().st_size - 3 * 4096)
        with kv.load(kv.match(chain)) as load:
            last = load.wait(LAYERS - 1)
            assert (last.blocks, last.reason) == (0, "damaged")
            for good in (load.wait(0), load.wait(1)):
                assert (good.blocks, good.reason) == (BLOCKS, None)
        until(lambda: store.stats().quarantined_extents == 1)
        until(lambda: not first.exists())
        assert kv.match(chain).blocks == 0


# ---- a device that fails -------------------------------------------------------------------------


@dataclass
class Failing:
    """A stored prompt whose reads go wrong as the test asks, into the pool or caller memory."""

    store: Store
    device: FaultDevice
    cells: Cells
    into_caller: bool

    def __post_init__(self) -> None:
        self.kv = self.store.cache(mla() if not self.into_caller else aligned_mla())
        self.chain = self.kv.keys(prompt(BLOCKS))
        self.cells = cells_of(self.kv.layout, BLOCKS)
        self.memory = caller_memory(self.kv.layout)
        put_in_any_order(self.kv, self.chain, self.cells)
        with self.load() as load:  # opens the files
            assert load.wait(LAYERS - 1).blocks == BLOCKS
        self.store.drop_ram()

    def load(self) -> Load:
        into = Pages(self.memory) if self.into_caller else None
        self.store.drop_ram()
        return self.kv.load(self.kv.match(self.chain), into=into)

    def check(self, load: Load) -> None:
        """Whole and exact."""
        if not self.into_caller:
            return check_load(load, self.cells, BLOCKS)
        for layer in load:
            assert (layer.blocks, layer.reason) == (BLOCKS, None)
            expected = self.cells[layer.index]["latent"]
            assert np.array_equal(self.memory[layer.index]["latent"], expected)
        return None

    def reads(self, start: int) -> int:
        return len(self.device.log()) - start


def aligned_mla() -> Layout:
    """Cells of whole pages: with aligned memory the device itself writes to the caller."""
    parts = (("latent", 48 * 4096),)
    return Layout(
        parts_by_layer=(parts,) * LAYERS, model="pages", block_tokens=BLOCK_TOKENS, extent_blocks=16
    )


@pytest.fixture(params=["pool", "caller"])
def failing(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Failing]:
    clock = VirtualClock()
    device = FaultDevice(clock)
    with opened(tmp_path, _testing=Injection(clock=clock, devices=[device])) as store:
        failing = Failing(store, device, [], request.param == "caller")
        yield failing
        device.clear()


@pytest.mark.parametrize(
    ("error", "reason"), [(errno.EIO, "io_error"), (errno.EAGAIN, "busy")], ids=["EIO", "EAGAIN"]
)
def test_an_error_of_the_device_is_a_short_load_with_its_reason(
    failing: Failing, error: int, reason: str
) -> None:
    failing.device.add(Fault.ERRNO, error, io=Io.READ, count=0)
    with failing.load() as load:
        for index in range(LAYERS):
            layer = load.wait(index)
            assert (layer.blocks, layer.reason, layer.reasons) == (0, reason, {0: reason})
        assert load.failed_blocks == range(BLOCKS)
    assert failing.store.stats().quarantined_extents == 0, "the data may be good"
    failing.device.clear()
    with failing.load() as load:
        failing.check(load)


@pytest.mark.parametrize("skip", range(6))
def test_an_error_in_one_layer_leaves_the_layers_before_it_whole(
    failing: Failing, skip: int
) -> None:
    failing.device.add(Fault.ERRNO, errno.EIO, io=Io.READ, skip=skip, count=0)
    with failing.load() as load:
        layers = [load.wait(index) for index in range(LAYERS)]
        blocks = [layer.blocks for layer in layers]
        assert blocks == sorted(blocks, reverse=True)
        assert blocks[-1] < BLOCKS
        for layer in layers:
            assert layer.reason == (None if layer.blocks == BLOCKS else "io_error")
            got = (
                failing.memory[layer.index]["latent"][: layer.blocks]
                if failing.into_caller
                else layer.gather("latent")
            )
            assert np.array_equal(got, failing.cells[layer.index]["latent"][: layer.blocks])


def test_short_reads_are_repeated(failing: Failing) -> None:
    start = len(failing.device.log())
    for skip, moved in [(0, 4096), (1, 1), (3, 100_000)]:
        failing.device.add(Fault.SHORT, moved, io=Io.READ, skip=skip)
    with failing.load() as load:
        failing.check(load)
    assert sum(record.result < record.bytes for record in failing.device.log(start)) == 3


def test_reads_that_stay_short_are_a_damaged_file_not_a_loop(failing: Failing) -> None:
    start = len(failing.device.log())
    failing.device.add(Fault.SHORT, 4096, io=Io.READ, count=0)
    with failing.load() as load:
        layer = load.wait(LAYERS - 1)
        assert (layer.blocks, layer.reason) == (0, "damaged")
    assert failing.reads(start) < 200
    until(lambda: failing.store.stats().quarantined_extents == 2)


def test_a_bit_that_flipped_on_the_way_is_read_again(failing: Failing) -> None:
    """Once more is enough: nothing is condemned, nothing is short."""
    for skip in (0, 4):
        failing.device.add(Fault.BIT_FLIP, 8 * 9000 + 3, io=Io.READ, skip=skip)
    start = len(failing.device.log())
    with failing.load() as load:
        failing.check(load)
    records = failing.device.log(start)
    again = [(record.inode, record.offset) for record in records]
    assert len(again) > len(set(again)), "nothing was read twice"
    assert failing.store.stats().quarantined_extents == 0


def test_a_reread_goes_to_the_pool_not_to_the_caller(failing: Failing) -> None:
    """The caller may scribble in his own pages: that must not condemn good data."""
    failing.device.add(Fault.BIT_FLIP, 77, io=Io.READ)
    with failing.load() as load:
        failing.check(load)
        stats = load.stats()
    if failing.into_caller:
        assert stats.direct_bytes == LAYERS * BLOCKS * 48 * 4096
        assert stats.bounced_bytes > 0


def test_a_bit_that_is_wrong_every_time_is_damage_and_the_extent_is_quarantined(
    failing: Failing,
) -> None:
    failing.device.add(Fault.BIT_FLIP, 8 * 5000, io=Io.READ, count=0)
    with failing.load() as load:
        layer = load.wait(LAYERS - 1)
        assert (layer.blocks, layer.reason) == (0, "damaged")
    failing.device.clear()
    until(lambda: failing.store.stats().quarantined_extents == 2)
    hit = failing.kv.match(failing.chain)
    assert (hit.blocks, hit.reason) == (0, "damaged")
    put_in_any_order(failing.kv, failing.chain, failing.cells)
    with failing.load() as load:
        failing.check(load)


@pytest.mark.parametrize("kind", [Fault.ERRNO, Fault.SHORT, Fault.BIT_FLIP, Fault.CUT])
def test_a_write_that_failed_is_never_served_as_good(kind: Fault, tmp_path: Path) -> None:
    value = {Fault.ERRNO: errno.EIO, Fault.SHORT: 512, Fault.BIT_FLIP: 8 * 4096, Fault.CUT: 0}[kind]
    of, cells = mla(), cells_of(mla(), BLOCKS)
    clock = VirtualClock()
    device = FaultDevice(clock)
    device.add(kind, value, io=Io.WRITE, skip=1)
    with opened(tmp_path, _testing=Injection(clock=clock, devices=[device])) as store:
        kv = store.cache(of)
        chain = kv.keys(prompt(BLOCKS))
        with kv.writer(chain) as writer:
            for index, parts in enumerate(cells):
                writer.put(index, (0, BLOCKS), parts)
            stored = writer.commit_blocking()
        assert stored == kv.match(chain).blocks
        device.clear()
        store.drop_ram()
        if kind in (Fault.ERRNO, Fault.CUT):
            assert stored < BLOCKS
        if stored == 0:
            return
        with kv.load(kv.match(chain)) as load:
            for layer in load:
                assert layer.blocks == stored or layer.reason == "damaged"
                got = layer.gather("latent")
                assert np.array_equal(got, cells[layer.index]["latent"][: layer.blocks])
            assert bool(load.failed_blocks) == (kind == Fault.BIT_FLIP)
