"""Blocks of the sizes that engines use, in the pages that engines have, without an engine.

As vLLM lays them out on a CPU: one allocation, a layer's pages layer_stride apart, the whole of it
64 bytes past a multiple of 4096, so that no page can be read into directly. A page is one opaque
run of bytes. Loads write through a block table whose pages are out of order, and which says -1 for
blocks that the engine has already.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from kvstore import Cache, Chain, Layout, Load, Pages, alloc
from tests.support.stores import opened

GQA_HEADS, HEAD_DIM, LATENT = 2, 64, 576
BFLOAT, FLOAT = 2, 4
PAGES = 24  # of the engine, in each layer
BLOCKS = 17  # of the prompt
PAST_A_PAGE = 64
UNTOUCHED, AFTERWARDS = 0x5A, 0xA5
# Small layers make small blocks; the sizes of a page are what counts here.
pytestmark = pytest.mark.filterwarnings("ignore::kvstore.LayoutWarning")
TABLE = [21, 4, 5, -1, 0, 23, 12, 11, -1, -1, 20, 7, 8, 9, 2, 22, 1]


@dataclass(frozen=True)
class Engine:
    """What a model's pages are: layers, tokens of a block, bytes of a block in one layer."""

    kind: str
    layers: int
    block_tokens: int
    page_bytes: int

    def __str__(self) -> str:
        return f"{self.kind}-{self.block_tokens}-{self.page_bytes}"

    @property
    def layout(self) -> Layout:
        parts = ((("kv", self.page_bytes),),) * self.layers
        return Layout(parts_by_layer=parts, model=str(self), block_tokens=self.block_tokens)


def engines() -> list[Engine]:
    grouped = [
        Engine("gqa", 3, tokens, tokens * 2 * GQA_HEADS * HEAD_DIM * BFLOAT)
        for tokens in (16, 32, 64, 128, 256)
    ]
    latent = [
        Engine("mla", 3, tokens, tokens * LATENT * item)
        for tokens in (16, 64, 128)
        for item in (BFLOAT, FLOAT)
    ]
    return grouped + latent


class EnginePages:
    """The engine's allocation: uint8 [layers, pages, page_bytes], filled with one value."""

    def __init__(self, engine: Engine) -> None:
        layer_stride = PAGES * engine.page_bytes
        self.memory = alloc(engine.layers * layer_stride + 2 * PAST_A_PAGE)
        inside = self.memory[PAST_A_PAGE : PAST_A_PAGE + engine.layers * layer_stride]
        self.pages = inside.reshape(engine.layers, PAGES, engine.page_bytes)
        assert self.pages.ctypes.data % 4096 == PAST_A_PAGE
        self.memory[:] = UNTOUCHED

    def into(self, table: list[int]) -> Pages:
        return Pages([{"kv": layer} for layer in self.pages], block_table=table)

    def expected(self, cells: npt.NDArray[np.uint8], start: int, table: list[int]) -> Any:
        """All of the allocation after a load of whole blocks from `start`."""
        wanted = np.full_like(self.memory, UNTOUCHED)
        inside = wanted[PAST_A_PAGE : PAST_A_PAGE + self.pages.size].reshape(self.pages.shape)
        for local, page in enumerate(table):
            if page >= 0:
                inside[:, page] = cells[:, start + local]
        return wanted


@pytest.fixture(params=engines(), ids=str)
def engine(request: pytest.FixtureRequest) -> Engine:
    return request.param


def random_cells(engine: Engine) -> npt.NDArray[np.uint8]:
    """[layers, blocks, page_bytes]"""
    rng = np.random.default_rng(engine.page_bytes)
    return rng.integers(0, 256, (engine.layers, BLOCKS, engine.page_bytes), dtype=np.uint8)


def save(kv: Cache, chain: Chain, cells: npt.NDArray[np.uint8]) -> None:
    """Block by block as a prefill in chunks saves them: each step one range, through all layers,
    out of pages of the engine in any order."""
    pages = EnginePages(Engine("source", len(cells), 1, cells.shape[2]))
    order = np.random.default_rng(5).permutation(PAGES)[:BLOCKS]
    pages.pages[:, order] = cells
    with kv.writer(chain) as writer:
        for first in range(0, BLOCKS, 5):
            blocks = range(first, min(first + 5, BLOCKS))
            for layer in range(len(cells)):
                gathered = pages.pages[layer][order[blocks.start : blocks.stop]]
                assert writer.put(layer, blocks, [gathered]).wait() == 0
        pages.memory[:] = AFTERWARDS  # the sources were read: their pages are someone else's
        assert writer.commit_blocking() == BLOCKS


def foreign(kv: Cache) -> Chain:
    """An engine's own block hashes."""
    return kv.wrap([bytes([number]) * 32 for number in range(BLOCKS)])


def wait_as_the_forward_pass_does(load: Load) -> None:
    for layer in range(load.layout.layers):
        ready = load.wait(layer, timeout=60)
        assert (ready.blocks, ready.reason) == (load.blocks, None)


def test_pages_come_back_through_a_table_and_nothing_else_is_touched(
    engine: Engine, tmp_path: Path
) -> None:
    cells = random_cells(engine)
    with opened(tmp_path, pool="256MiB") as store:
        kv = store.cache(engine.layout)
        chain = foreign(kv)
        save(kv, chain, cells)
        hit = kv.match(chain)
        assert hit.tokens == BLOCKS * engine.block_tokens
        for start in (0, 5):
            table = TABLE[start:]
            for cold in (True, False):
                if cold:
                    store.drop_ram()
                pages = EnginePages(engine)
                with kv.load(hit[start:], into=pages.into(table)) as load:
                    wait_as_the_forward_pass_does(load)
                    assert load.wait_drained(60)
                    moved = load.stats()
                assert np.array_equal(pages.memory, pages.expected(cells, start, table))
                assert moved.direct_bytes == 0, "a page 64 bytes off cannot be read into"


def test_another_process_lays_its_pages_out_anew(engine: Engine, tmp_path: Path) -> None:
    """What was saved before a restart goes to other pages, in the opposite order."""
    cells = random_cells(engine)
    with opened(tmp_path, pool="256MiB") as store:
        save(store.cache(engine.layout), foreign(store.cache(engine.layout)), cells)
    table = [PAGES - 1 - number for number in range(BLOCKS)]
    with opened(tmp_path, pool="256MiB") as store:
        kv = store.cache(engine.layout)
        pages = EnginePages(engine)
        hit = kv.find_blocking(foreign(kv))
        with kv.load(hit, into=pages.into(table)) as load:
            wait_as_the_forward_pass_does(load)
            assert load.wait_drained(60)
        assert np.array_equal(pages.memory, pages.expected(cells, 0, table))


def test_nothing_is_written_after_drained(engine: Engine, tmp_path: Path) -> None:
    """A request is aborted at any moment; once drained its pages belong to another one."""
    cells = random_cells(engine)
    with opened(tmp_path, pool="256MiB") as store:
        kv = store.cache(engine.layout)
        chain = foreign(kv)
        save(kv, chain, cells)
        hit = kv.match(chain)
        given_back = []
        for layer in range(-1, engine.layers):
            store.drop_ram()
            pages = EnginePages(engine)
            load = kv.load(hit, into=pages.into(TABLE))
            if layer >= 0:
                load.wait(layer, timeout=60)
            aborting = threading.Thread(target=load.cancel if layer % 2 else load.close)
            aborting.start()
            aborting.join()
            assert load.wait_drained(60)
            load.close()
            pages.memory[:] = AFTERWARDS
            given_back.append(pages)
        with kv.load(hit, into=EnginePages(engine).into(TABLE)) as load:
            wait_as_the_forward_pass_does(load)  # behind all that was in flight
        assert all((pages.memory == AFTERWARDS).all() for pages in given_back)
