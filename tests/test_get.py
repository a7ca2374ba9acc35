"""get: a block whose layers lie back to back in its file is a few large reads, not one a layer; and
what goes wrong with one cell of such a read costs that cell a second one, and nothing else."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from kvstore import Block, Cache, Chain, Layout, Miss, Store
from kvstore.testing import Fault, FaultDevice, Injection, Io, VirtualClock
from tests.support.stores import opened

LAYERS = 61
CELL = 18 * 4096  # 64 tokens of an MLA model
PIECES = -(-LAYERS * CELL // (1 << 20))  # the largest operation is 1 MiB
BLOCKS = 3


class Blocks:
    """BLOCKS blocks in a store on a device that fails on request."""

    def __init__(self, root: Path, *, single: bool) -> None:
        clock = VirtualClock()
        self.device = FaultDevice(clock)
        injection = Injection(clock=clock, devices=[self.device])
        self.opened = opened(root, pool="64MiB", _testing=injection)
        self.store: Store = self.opened.__enter__()
        layout = Layout(parts_by_layer=((("latent", CELL),),) * LAYERS, model="get")
        self.kv: Cache = self.store.cache(layout)
        self.chain: Chain = self.kv.keys(range(BLOCKS * layout.block_tokens))
        self.cells = np.random.default_rng(7).integers(
            0, 256, (BLOCKS, LAYERS, CELL), dtype=np.uint8
        )
        (self.put_single if single else self.put_chain)()
        self.store.drop_ram()

    def put_single(self) -> None:
        for block in range(BLOCKS):
            assert self.kv.put_blocking(self.chain[block], self.cells[block])

    def put_chain(self) -> None:
        with self.kv.writer(self.chain) as writer:
            for layer in range(LAYERS):
                writer.put(layer, (0, BLOCKS), [np.ascontiguousarray(self.cells[:, layer])])
            assert writer.commit_blocking() == BLOCKS

    def get(self, block: int) -> tuple[npt.NDArray[np.uint8] | str, int]:
        """(Bytes [layers, cell], or why there are none; reads that the device was asked for)."""
        before = self.store.stats().reads
        found = self.kv.get_blocking(self.chain[block])
        if isinstance(found, Miss):
            return found.reason, self.store.stats().reads - before
        assert isinstance(found, Block)
        with found:
            cells = np.frombuffer(found.data, dtype=np.uint8).reshape(LAYERS, CELL).copy()
        return cells, self.store.stats().reads - before

    def close(self) -> None:
        self.device.clear()
        self.opened.__exit__(None, None, None)


@pytest.fixture
def single(tmp_path: Path) -> Iterator[Blocks]:
    blocks = Blocks(tmp_path, single=True)
    yield blocks
    blocks.close()


def test_a_block_that_was_put_alone_is_read_in_pieces_of_a_mebibyte(single: Blocks) -> None:
    for block in (1, 0, 2):
        found, reads = single.get(block)
        assert np.array_equal(found, single.cells[block])
        assert reads == PIECES


def test_a_block_among_others_is_read_a_layer_at_a_time(tmp_path: Path) -> None:
    blocks = Blocks(tmp_path, single=False)
    for block in range(BLOCKS):
        found, reads = blocks.get(block)
        assert np.array_equal(found, blocks.cells[block])
        assert reads == LAYERS
    blocks.close()


@pytest.mark.parametrize("piece", range(PIECES))
def test_a_cell_that_came_wrong_once_is_read_again_alone(single: Blocks, piece: int) -> None:
    single.device.add(Fault.BIT_FLIP, 8 * 100_000 + 3, io=Io.READ, skip=piece)
    found, reads = single.get(1)
    assert np.array_equal(found, single.cells[1])
    assert reads == PIECES + 1
    assert single.store.stats().quarantined_extents == 0


def test_after_an_error_of_the_device_every_cell_is_read_again(single: Blocks) -> None:
    single.device.add(Fault.ERRNO, errno.EIO, io=Io.READ, skip=2)
    found, reads = single.get(1)
    assert np.array_equal(found, single.cells[1])
    assert reads <= PIECES + LAYERS


def test_a_cell_that_stays_wrong_is_a_miss_and_leaves(single: Blocks) -> None:
    single.device.add(Fault.BIT_FLIP, 77, io=Io.READ, count=0)
    assert single.get(1)[0] == "damaged"
    single.device.clear()
    assert single.store.stats().quarantined_extents == 1
    assert single.get(1) == ("damaged", 0)  # why it left, without a read
    assert np.array_equal(single.get(0)[0], single.cells[0])
