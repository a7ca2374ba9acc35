"""Cells of every awkward size land exactly where the caller wants them, and nowhere else.

Each load takes some blocks of stored extents into memory full of canaries: an image of that memory
is worked out here, byte by byte, from what was put, and must be equal afterwards. Sizes that are no
multiples of 4096 make every read start and end inside a page of the file.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pytest

from kvstore import Cache, Layout, LayoutWarning, Load, Pages, Pointer
from tests.support.stores import Cells, cells_of, opened, write

Bytes = npt.NDArray[np.uint8]

BLOCK_TOKENS = 64
EXTENT = 16
BLOCKS = EXTENT + 5  # a whole extent and a short one
LAYERS = 2
CANARY = 0xC7
SHAPES = {
    "fp8": (("latent", 64 * 656),),  # 41,984
    "fp8_with_index": (("latent", 64 * 656), ("index", 64 * 132)),  # 50,432
    "index_only": (("index", 64 * 132),),  # 8,448
    "aligned": (("latent", 64 * 1152),),  # 73,728: read straight into aligned memory
    "three_parts": (("k", 64 * 100), ("v", 64 * 36), ("scale", 64 * 4)),
}


def layout_of(shape: str) -> Layout:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LayoutWarning)  # small blocks on purpose
        return Layout(
            parts_by_layer=(SHAPES[shape],) * LAYERS,
            model=shape,
            block_tokens=BLOCK_TOKENS,
            extent_blocks=EXTENT,
        )


@dataclass
class Stored:
    """One prompt of BLOCKS blocks of a layout, in a store."""

    kv: Cache
    cells: Cells

    def load(self, start: int, stop: int, into: Pages) -> Load:
        hit = self.kv.match(self.kv.keys(tokens()))
        assert hit.blocks == BLOCKS
        load = self.kv.load(hit[start:stop], into=into)
        last = load.wait(LAYERS - 1)
        assert (last.blocks, last.reason) == (stop - start, None)
        assert load.wait_drained("30s")
        return load


def tokens() -> list[int]:
    return [7 * i % 50_000 for i in range(BLOCKS * BLOCK_TOKENS)]


@pytest.fixture(scope="module", params=SHAPES)
def stored(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stored]:
    with opened(tmp_path_factory.mktemp(request.param)) as store:
        kv = store.cache(layout_of(request.param))
        cells = cells_of(kv.layout, BLOCKS)
        assert write(kv, kv.keys(tokens()), cells) == BLOCKS
        yield Stored(kv, cells)


def aligned(size: int) -> Bytes:
    """Canaries from a multiple of 4096 on."""
    memory = np.full(size + 4096, CANARY, np.uint8)
    first = -memory.ctypes.data % 4096
    return memory[first : first + size]


@dataclass
class Memory:
    """Canary-filled memory of pages for each part of each layer, and its expected image.

    Pages are `stride` bytes apart; the first lies `offset` bytes past a multiple of 4096.
    """

    layout: Layout
    pages: int
    page_tokens: int
    gap: int = 0  # canaries between pages
    offset: int = 0
    actual: dict[tuple[int, str], Bytes] = field(default_factory=dict)
    expected: dict[tuple[int, str], Bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for layer, parts in enumerate(self.layout.parts_by_layer):
            for name, _ in parts:
                size = self.offset + self.pages * self.stride(name) + 4096
                self.actual[layer, name] = aligned(size)
                self.expected[layer, name] = np.full(size, CANARY, np.uint8)

    def token_bytes(self, name: str) -> int:
        return self.layout.part(0, name)[1] // self.layout.block_tokens

    def stride(self, name: str) -> int:
        return self.page_tokens * self.token_bytes(name) + self.gap

    def pages_for(self, table: npt.NDArray[np.int32] | None) -> Pages:
        parts = [
            {
                name: Pointer(
                    memory.ctypes.data + self.offset, self.stride(name), self.pages, memory
                )
                for (at, name), memory in self.actual.items()
                if at == layer
            }
            for layer in range(self.layout.layers)
        ]
        return Pages(parts, page_tokens=self.page_tokens, block_table=table)

    def expect(
        self, cells: Cells, start: int, stop: int, table: npt.NDArray[np.int32] | None
    ) -> None:
        """Draws blocks [start, stop) into the image, token run by token run."""
        for (layer, name), image in self.expected.items():
            per_token = self.token_bytes(name)
            source = cells[layer][name][start:stop].reshape(-1)
            page_bytes = self.page_tokens * per_token
            for page in range(-(-source.size // page_bytes)):
                entry = page if table is None else int(table[page])
                if entry >= 0:
                    piece = source[page * page_bytes : (page + 1) * page_bytes]
                    at = self.offset + entry * self.stride(name)
                    image[at : at + piece.size] = piece

    def check(self) -> None:
        for place, image in self.expected.items():
            actual = self.actual[place]
            if not np.array_equal(actual, image):
                wrong = np.flatnonzero(actual != image)
                raise AssertionError(f"{place}: {wrong.size} bytes, first at {wrong[0]}")


def load_and_check(
    stored: Stored, memory: Memory, start: int, stop: int, table: npt.NDArray[np.int32] | None
) -> Load:
    load = stored.load(start, stop, memory.pages_for(table))
    memory.expect(stored.cells, start, stop, table)
    memory.check()
    load.close()
    return load


@pytest.mark.parametrize("cold", [True, False], ids=["disk", "ram"])
def test_every_start_and_stop_within_an_extent_is_exact(stored: Stored, cold: bool) -> None:
    """Of the first extent, and across its end."""
    for start in range(EXTENT if cold else 3):
        for stop in [*range(start + 1, EXTENT + 2), BLOCKS]:
            if cold:
                stored.kv.store.drop_ram()
            memory = Memory(stored.kv.layout, stop - start, BLOCK_TOKENS, gap=64)
            load_and_check(stored, memory, start, stop, None)


@pytest.mark.parametrize("offset", [0, 1, 64])
@pytest.mark.parametrize("gap", [0, 4096, 96])
def test_any_base_and_page_stride_is_exact(stored: Stored, offset: int, gap: int) -> None:
    for start, stop in [(0, BLOCKS), (3, EXTENT + 2), (EXTENT, BLOCKS), (7, 8)]:
        stored.kv.store.drop_ram()
        memory = Memory(stored.kv.layout, stop - start, BLOCK_TOKENS, gap=gap, offset=offset)
        load_and_check(stored, memory, start, stop, None)


@pytest.mark.parametrize("page_tokens", [16, 64, 128])
@pytest.mark.parametrize("offset", [0, 64])
def test_a_block_table_scatters_pages_and_skips_those_below_zero(
    stored: Stored, page_tokens: int, offset: int
) -> None:
    rng = np.random.default_rng(page_tokens + offset)
    step = max(1, page_tokens // BLOCK_TOKENS)
    for start in range(0, EXTENT + 1, 2 * step if page_tokens == 64 else step * 3):
        start -= start % step
        for stop in [start + 1, EXTENT, BLOCKS]:
            if stop <= start:
                continue
            stored.kv.store.drop_ram()
            needed = -(-(stop - start) * BLOCK_TOKENS // page_tokens)
            table = rng.permutation(needed + 4)[:needed].astype(np.int32)
            table[rng.random(needed) < 0.25] = -1
            memory = Memory(stored.kv.layout, needed + 4, page_tokens, gap=0, offset=offset)
            load_and_check(stored, memory, start, stop, table)


def test_a_table_of_skipped_pages_only_writes_nothing(stored: Stored) -> None:
    stored.kv.store.drop_ram()
    memory = Memory(stored.kv.layout, BLOCKS, BLOCK_TOKENS)
    table = np.full(BLOCKS, -1, np.int32)
    load_and_check(stored, memory, 0, BLOCKS, table)


def test_parts_that_are_not_wanted_are_left_out(stored: Stored) -> None:
    stored.kv.store.drop_ram()
    memory = Memory(stored.kv.layout, BLOCKS, BLOCK_TOKENS, offset=64)
    wanted = memory.pages_for(None)
    name = stored.kv.layout.parts_by_layer[1][0][0]
    parts = [dict(part or {}) for part in wanted.parts]
    parts[1].pop(name)
    load = stored.load(0, BLOCKS, Pages([None, parts[1]], page_tokens=BLOCK_TOKENS))
    memory.expect(stored.cells, 0, BLOCKS, None)
    for place, image in memory.expected.items():
        if place[0] == 0 or place[1] == name:
            image[:] = CANARY
    memory.check()
    load.close()


def test_only_reads_aligned_on_both_sides_go_straight_to_the_caller(stored: Stored) -> None:
    """Elsewhere a whole page of the file would spill over the cells' ends."""
    total = LAYERS * BLOCKS * stored.kv.layout.cell_bytes(0)
    shape = stored.kv.layout.model
    for offset, direct in [(0, shape == "aligned"), (64, False)]:
        stored.kv.store.drop_ram()
        memory = Memory(stored.kv.layout, BLOCKS, BLOCK_TOKENS, offset=offset)
        load = stored.load(0, BLOCKS, memory.pages_for(None))
        stats = load.stats()
        if direct:
            assert (stats.direct_bytes, stats.bounced_bytes) == (total, 0)
        elif offset:
            assert (stats.direct_bytes, stats.bounced_bytes) == (0, total)
        assert stats.disk_bytes == total
        load.close()
