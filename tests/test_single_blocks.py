"""put and get of one block whose cells are no multiples of a page: layers that lie one behind the
other in the file are one operation of at most 1 MiB; each is verified, kept and evicted alone."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from kvstore import Block, Cache, Chain, Hit, Layout, Miss, Store, _core
from kvstore.testing import Fault, FaultDevice, FaultFiles, FileCall, Injection, Io, VirtualClock
from tests.support.stores import cells_of, opened, reads_in_flight, until, write

LAYERS = 61
CELL = 64 * 656  # an MLA model in fp8
REGION = 11 * 4096  # its cell in whole pages
TOGETHER = (1 << 20) // REGION  # layers in an operation
OPERATIONS = -(-LAYERS // TOGETHER)
BLOCKS = 3
MIDDLE = 30


Layers = tuple[tuple[tuple[str, int], ...], ...]


class Blocks:
    """Random blocks for a store on a device that counts, and fails on request."""

    def __init__(self, root: Path, *, pool: str = "64MiB", layers: Layers = ()) -> None:
        self.root = root
        clock = VirtualClock()
        self.device = FaultDevice(clock)
        self.files = FaultFiles()
        injection = Injection(clock=clock, files=self.files, devices=[self.device])
        self.opened = opened(root, pool=pool, _testing=injection)
        self.store: Store = self.opened.__enter__()
        parts = layers or ((("latent", CELL),),) * LAYERS
        layout = Layout(parts_by_layer=parts, model="single", block_tokens=64)
        self.kv: Cache = self.store.cache(layout)
        self.chain: Chain = self.kv.keys(range(BLOCKS * layout.block_tokens))
        self.bytes = np.random.default_rng(7).integers(
            0, 256, (BLOCKS, layout.block_bytes), dtype=np.uint8
        )

    def put(self, block: int) -> bool:
        return self.kv.put_blocking(self.chain[block], self.bytes[block])

    def put_all(self) -> None:
        assert all(self.put(block) for block in range(BLOCKS))
        self.store.drop_ram()

    def hit(self, block: int) -> Hit:
        return self.kv.match(self.chain)[block : block + 1]

    def get(self, block: int) -> npt.NDArray[np.uint8] | str:
        found = self.kv.get_blocking(self.chain[block])
        if isinstance(found, Miss):
            return found.reason
        assert isinstance(found, Block)
        with found:
            data: npt.NDArray[np.uint8] = np.frombuffer(found.data, dtype=np.uint8).copy()
            return data

    def operations(self, io: Io) -> int:
        """That the device was asked for."""
        return sum(record.io_kind == io for record in self.device.log())

    def reads_of(self, block: int) -> tuple[npt.NDArray[np.uint8] | str, int]:
        before = self.operations(Io.READ)
        found = self.get(block)
        return found, self.operations(Io.READ) - before

    def check_nothing_is_held(self) -> None:

        def nothing_left() -> bool:
            self.store.drop_ram()  # also what was read for nobody, and has only now come back
            return self.store.stats().regions == 0

        until(nothing_left)
        assert self.store.stats().pool_free_bytes == self.store.stats().pool_bytes

    def close(self) -> None:
        self.device.clear()
        self.opened.__exit__(None, None, None)


@pytest.fixture
def blocks(tmp_path: Path) -> Iterator[Blocks]:
    blocks = Blocks(tmp_path)
    yield blocks
    blocks.close()


# ---- get -----------------------------------------------------------------------------------------


def test_a_get_is_few_reads_and_the_next_is_none(blocks: Blocks) -> None:
    blocks.put_all()
    for block in (1, 0, 2):
        found, reads = blocks.reads_of(block)
        assert np.array_equal(found, blocks.bytes[block])
        assert reads == OPERATIONS
    found, reads = blocks.reads_of(1)
    assert np.array_equal(found, blocks.bytes[1])
    assert reads == 0
    blocks.check_nothing_is_held()


def test_layers_in_the_ram_tier_are_not_read(blocks: Blocks) -> None:
    """A load that lost a layer in the middle has left at least those before it in the pool."""
    blocks.put_all()
    blocks.device.add(Fault.ERRNO, errno.EIO, io=Io.READ, skip=MIDDLE)
    with blocks.kv.load(blocks.hit(1)) as load:
        assert load.wait(MIDDLE - 1).blocks == 1
        assert load.wait(LAYERS - 1).reason == "io_error"
    found, reads = blocks.reads_of(1)
    assert np.array_equal(found, blocks.bytes[1])
    assert 1 <= reads <= -(-(LAYERS - MIDDLE) // TOGETHER)


@pytest.mark.parametrize("operation", range(OPERATIONS))
def test_a_cell_that_came_wrong_once_costs_one_more_read(blocks: Blocks, operation: int) -> None:
    blocks.put_all()
    blocks.device.add(Fault.BIT_FLIP, 8 * 100_000 + 3, io=Io.READ, skip=operation)
    found, reads = blocks.reads_of(1)
    assert np.array_equal(found, blocks.bytes[1])
    assert reads == OPERATIONS + 1
    assert blocks.store.stats().quarantined_extents == 0


def test_an_error_of_the_device_costs_one_more_read(blocks: Blocks) -> None:
    blocks.put_all()
    blocks.device.add(Fault.ERRNO, errno.EIO, io=Io.READ, skip=1)
    found, reads = blocks.reads_of(1)
    assert np.array_equal(found, blocks.bytes[1])
    assert reads == OPERATIONS + 1
    assert blocks.store.stats().quarantined_extents == 0


def test_a_device_that_refuses_twice_is_a_miss(blocks: Blocks) -> None:
    blocks.put_all()
    blocks.device.add(Fault.ERRNO, errno.EIO, io=Io.READ, count=0)
    assert blocks.get(1) == "io_error"
    blocks.device.clear()
    assert np.array_equal(blocks.get(1), blocks.bytes[1])
    blocks.check_nothing_is_held()


def file_of(blocks: Blocks, block: int) -> Path:
    (path,) = blocks.root.rglob(f"{blocks.chain[block].hex()}.kv")
    return path


def test_a_damaged_cell_in_the_middle_is_a_miss_and_leaves(blocks: Blocks) -> None:
    blocks.put_all()
    path = file_of(blocks, 1)
    with path.open("r+b") as file:
        at = path.stat().st_size - (LAYERS - MIDDLE) * REGION + CELL - 1
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))
    assert blocks.get(1) == "damaged"
    assert blocks.store.stats().quarantined_extents == 1
    assert blocks.reads_of(1) == ("damaged", 0)  # why it left, without a read
    assert np.array_equal(blocks.get(0), blocks.bytes[0])
    blocks.check_nothing_is_held()


def test_layers_before_a_damaged_cell_are_served_to_a_load_that_joined(blocks: Blocks) -> None:
    """A load waits for the reads of a get: of the read with the damage it gets what is good."""
    blocks.put_all()
    path = file_of(blocks, 1)
    with path.open("r+b") as file:
        file.seek(path.stat().st_size - (LAYERS - MIDDLE) * REGION)
        file.write(b"not what was written")
    blocks.device.add(Fault.STALL, io=Io.READ, count=0)
    got = blocks.kv._get(blocks.chain[1], "30s")
    assert not isinstance(got, Miss)
    until(lambda: reads_in_flight(blocks.device))
    with blocks.kv.load(blocks.hit(1)) as load:
        blocks.device.clear()
        blocks.device.release_stalled()
        good = load.wait(MIDDLE - 1)
        bad = load.wait(LAYERS - 1)
        assert (good.blocks, good.reason) == (1, None)
        assert (bad.blocks, bad.reason) == (0, "damaged")
        cells = blocks.bytes[1].reshape(LAYERS, CELL)
        assert np.array_equal(good.gather("latent")[0], cells[MIDDLE - 1])
    assert got.wait(LAYERS - 1).reason == "damaged"
    got.close()
    blocks.check_nothing_is_held()


def test_a_get_that_is_given_up_lets_go_of_everything(blocks: Blocks) -> None:
    """Its reads are still the device's: they come back to nobody, and their memory to the pool."""
    blocks.put_all()
    blocks.device.add(Fault.STALL, io=Io.READ, count=0)
    got = blocks.kv._get(blocks.chain[1], "30s")
    assert not isinstance(got, Miss)
    until(lambda: reads_in_flight(blocks.device))
    got.close()
    blocks.device.clear()
    blocks.device.release_stalled()
    blocks.check_nothing_is_held()
    assert np.array_equal(blocks.get(1), blocks.bytes[1])


def test_a_get_makes_do_with_the_room_there_is(tmp_path: Path) -> None:
    """What is promised to others, or held by them, is not taken: a read is then of fewer layers."""
    blocks = Blocks(tmp_path, pool="6MiB")
    blocks.put_all()
    held = blocks.kv.get_blocking(blocks.chain[0])
    assert isinstance(held, Block)
    with held:
        found, reads = blocks.reads_of(1)
        assert np.array_equal(found, blocks.bytes[1])
        assert reads > OPERATIONS
    blocks.check_nothing_is_held()
    blocks.close()


def test_a_get_leaves_what_another_load_was_promised(tmp_path: Path) -> None:
    """A load whose file is still being opened has its layer's room kept, however slow the device is
    with the reads of a get that came later."""
    blocks = Blocks(tmp_path, pool="8MiB")
    blocks.put_all()
    blocks.get(1)  # its file stays open
    layout = Layout(
        parts_by_layer=((("latent", 1_150_000),),), model="large", block_tokens=64, extent_blocks=1
    )
    large, cells = blocks.store.cache(layout), cells_of(layout, 4)
    chain = large.keys(range(4 * 64))
    assert write(large, chain, cells) == 4
    blocks.store.drop_ram()
    blocks.files.stall(FileCall.OPEN_READ)
    blocks.device.add(Fault.STALL, io=Io.READ, count=0)
    with large.load(large.match(chain)) as load:
        until(lambda: blocks.files.stalled)
        got = blocks.kv._get(blocks.chain[1], "30s")
        assert not isinstance(got, Miss)
        until(lambda: reads_in_flight(blocks.device))
        blocks.device.clear()
        blocks.files.clear()
        blocks.files.release_stalled()
        assert np.array_equal(load.wait(0, "30s").gather("latent"), cells[0]["latent"])
    blocks.device.release_stalled()
    assert got.wait(LAYERS - 1).blocks == 1
    got.close()
    blocks.check_nothing_is_held()
    blocks.close()


# ---- put -----------------------------------------------------------------------------------------


def test_a_put_is_few_writes_and_what_lies_between_cells_is_zero(blocks: Blocks) -> None:
    assert blocks.put(0)
    blocks.store.drop_ram()
    blocks.get(0)
    blocks.store.drop_ram()
    before = blocks.operations(Io.WRITE)
    assert blocks.put(1)  # in memory that held the other without gaps
    assert blocks.operations(Io.WRITE) - before == OPERATIONS
    regions = np.fromfile(file_of(blocks, 1), dtype=np.uint8)[-LAYERS * REGION :]
    regions = regions.reshape(LAYERS, REGION)
    assert np.array_equal(regions[:, :CELL].reshape(-1), blocks.bytes[1])
    assert not regions[:, CELL:].any()
    with blocks.kv.load(blocks.hit(1)) as load:
        cells = blocks.bytes[1].reshape(LAYERS, CELL)
        for layer in load:
            assert np.array_equal(layer.gather("latent")[0], cells[layer.index])
        assert load.stats().disk_bytes == 0  # what was written is in the RAM tier, layer by layer


def test_a_pool_that_views_cut_up_keeps_what_it_has_in_ram(tmp_path: Path) -> None:
    """A piece as long as an operation is nowhere to be had between kept views: it is not looked for
    until the RAM tier is empty."""
    blocks = Blocks(tmp_path, pool="8MiB")
    blocks.put_all()
    loads = []
    for block in range(BLOCKS):
        load = blocks.kv.load(blocks.hit(block))
        load.wait(LAYERS - 1)
        loads.append(load)
    for load in loads:
        for layer in set(range(LAYERS)) - {0, 15, 30, 45, 60}:
            load.release(layer)
    before = BLOCKS * (LAYERS - 5) * REGION
    until(lambda: blocks.store.stats().pool_cached_bytes == before)
    parts = ((("latent", CELL),),) * TOGETHER
    kv = blocks.store.cache(Layout(parts_by_layer=parts, model="less", block_tokens=64))
    value = blocks.bytes[0][: kv.layout.block_bytes]
    assert kv.put_blocking(blocks.chain[0], value)
    assert blocks.store.stats().pool_cached_bytes > before // 2
    for load in loads:
        load.close()
    blocks.close()


def test_layers_without_parts_are_no_gap(tmp_path: Path) -> None:
    """Linear attention has none: the file goes on as if they were not there."""
    layers = ((("k", 131_000), ("v", 700)), (), (), (("k", 100),), ()) * 4
    blocks = Blocks(tmp_path, layers=layers)
    for block in range(BLOCKS):
        before = blocks.operations(Io.WRITE)
        assert blocks.put(block)
        assert blocks.operations(Io.WRITE) - before == 1
    blocks.store.drop_ram()
    for block in range(BLOCKS):
        found, reads = blocks.reads_of(block)
        assert np.array_equal(found, blocks.bytes[block])
        assert reads == 1
    blocks.check_nothing_is_held()
    blocks.close()


def test_a_put_that_the_device_refuses_is_not_stored(blocks: Blocks) -> None:
    blocks.device.add(Fault.ERRNO, errno.EIO, io=Io.WRITE, skip=1)
    assert not blocks.put(0)
    blocks.check_nothing_is_held()
    assert blocks.put(0)
    blocks.store.drop_ram()
    assert np.array_equal(blocks.get(0), blocks.bytes[0])


def test_a_chain_of_one_block_sends_each_layer_when_it_is_put(blocks: Blocks) -> None:
    """A prefill puts one layer after the other: none waits for the next."""
    cells = blocks.bytes[0].reshape(LAYERS, 1, CELL)
    with blocks.kv.writer(blocks.chain[:1]) as writer:
        for layer in range(LAYERS):
            assert writer.put(layer, (0, 1), [cells[layer]]).wait("30s") == 0
            until(lambda: blocks.operations(Io.WRITE) == layer + 1)
        assert writer.commit_blocking() == 1


def test_puts_that_wait_for_their_other_layers_leave_room_for_others(tmp_path: Path) -> None:
    """Two that were begun and not gone on with fill the half of the pool that is for puts: what is
    whole of them goes to the disk, and a third put finds room. It was dropped."""
    blocks = Blocks(tmp_path, pool="4MiB")
    row = blocks.bytes[0]
    begun = []
    for block in range(2):
        writer = blocks.kv.core.writer(blocks.chain[block], 0, -1, _core.WRITER_SINGLE, None, None)
        begun.append(writer)
        for layer in range(TOGETHER - 1):
            source = np.array([row.ctypes.data + layer * CELL, CELL], dtype=np.uint64)
            assert writer.put(layer, 0, 1, source.tobytes(), row).wait(30 * 10**9)
    assert blocks.operations(Io.WRITE) == 0
    assert blocks.put(2)
    for writer in begun:
        writer.close()
    blocks.store.drop_ram()
    assert np.array_equal(blocks.get(2), blocks.bytes[2])
    assert blocks.get(0) == "absent"
    blocks.check_nothing_is_held()
    blocks.close()
