"""Caller memory: found where it lies, refused where a load could write outside of it."""

import struct
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from kvstore import Layout, Pages, Pointer, alloc
from kvstore.writer import pack_sources

TOKEN = 1024
BLOCK = 64
LAYOUT = Layout(
    parts_by_layer=((("k", BLOCK * TOKEN * 8), ("v", BLOCK * TOKEN)), (("k", BLOCK * TOKEN * 8),)),
    model="m",
)


def memory(pages: int, page_tokens: int = BLOCK) -> list[dict[str, npt.NDArray[np.uint8]]]:
    return [
        {
            name: np.zeros((pages, page_tokens, size // BLOCK), dtype=np.uint8)
            for name, size in parts
        }
        for parts in LAYOUT.parts_by_layer
    ]


def targets(pages: Pages, start: int = 0, blocks: int = 3) -> tuple[list[tuple[int, ...]], int]:
    packed, page_tokens, _ = pages.targets(LAYOUT, start, blocks)
    return list(struct.iter_unpack("=QQ", packed)), page_tokens


def test_each_part_of_each_layer_is_found_in_order() -> None:
    parts = memory(3)
    found, page_tokens = targets(Pages(parts))
    arrays = [parts[0]["k"], parts[0]["v"], parts[1]["k"]]
    assert found == [(a.ctypes.data, a.strides[0]) for a in arrays]
    assert page_tokens == BLOCK


def test_one_list_per_part_means_the_same() -> None:
    parts = memory(3)
    by_part: dict[str, list[Any]] = {
        "k": [layer["k"] for layer in parts],
        "v": [parts[0]["v"], None],
    }
    assert targets(Pages(by_part)) == targets(Pages(parts))
    assert targets(Pages.contiguous(by_part)) == targets(Pages(parts))


def test_pages_may_lie_apart() -> None:
    whole = np.zeros((3, 2, BLOCK, TOKEN), dtype=np.uint8)
    parts = memory(3)
    parts[0]["v"] = whole[:, 1]
    found, _ = targets(Pages(parts))
    assert found[1] == (whole[:, 1].ctypes.data, 2 * BLOCK * TOKEN)


def test_parts_and_layers_that_are_not_wanted_have_no_address() -> None:
    parts = memory(3)
    found, _ = targets(Pages([{"v": parts[0]["v"]}, None]))
    assert [address for address, _ in found] == [0, parts[0]["v"].ctypes.data, 0]


def test_flat_tokens_are_blocks_and_may_have_a_rest() -> None:
    flat = np.zeros((3 * BLOCK + 5, TOKEN), dtype=np.uint8)
    found, _ = targets(Pages([{"v": flat}, None]))
    assert found[1] == (flat.ctypes.data, BLOCK * TOKEN)
    with pytest.raises(ValueError, match="load needs 4"):
        targets(Pages([{"v": flat}, None]), blocks=4)


@pytest.mark.parametrize("page_tokens", [16, 32, 128, 192])
def test_pages_smaller_and_larger_than_blocks_are_counted_in_tokens(page_tokens: int) -> None:
    needed = -(-5 * BLOCK // page_tokens)
    exact = Pages(memory(needed, page_tokens), page_tokens=page_tokens)
    short = Pages(memory(needed - 1, page_tokens), page_tokens=page_tokens)
    assert targets(exact, blocks=5)[1] == page_tokens
    with pytest.raises(ValueError, match=f"load needs {needed}"):
        targets(short, blocks=5)


@pytest.mark.parametrize("page_tokens", [0, 48, 96])
def test_page_sizes_that_do_not_fit_blocks_are_refused(page_tokens: int) -> None:
    with pytest.raises(ValueError, match="page_tokens"):
        targets(Pages(memory(9), page_tokens=page_tokens))


def test_a_load_that_begins_inside_a_large_page_is_refused() -> None:
    pages = Pages(memory(2, 128), page_tokens=128)
    targets(pages, start=2)
    with pytest.raises(ValueError, match="does not begin a page"):
        targets(pages, start=1)


def test_a_block_table_may_not_point_outside_the_memory() -> None:
    targets(Pages(memory(8), block_table=[7, -1, 0]))
    with pytest.raises(ValueError, match="load needs 9"):
        targets(Pages(memory(8), block_table=[7, 8, 0]))
    with pytest.raises(ValueError, match="below -1"):
        targets(Pages(memory(8), block_table=[7, -2, 0]))
    with pytest.raises(ValueError, match="2 entries"):
        targets(Pages(memory(8), block_table=[1, 2]))
    with pytest.raises(ValueError, match="1-d integers"):
        targets(Pages(memory(8), block_table=[1.0, 2.0, 3.0]))


def test_raw_memory_is_taken_by_its_address() -> None:
    room = alloc(3 * BLOCK * TOKEN)
    pointer = Pointer(room.ctypes.data, BLOCK * TOKEN, 3, owner=room)
    packed, _, owners = Pages([{"v": pointer}, None]).targets(LAYOUT, 0, 3)
    assert struct.unpack_from("=QQ", packed, 16) == (room.ctypes.data, BLOCK * TOKEN)
    assert any(owner is room for owner in owners)
    with pytest.raises(ValueError, match="stride"):
        targets(Pages([{"v": Pointer(room.ctypes.data, TOKEN, 3)}, None]))


@pytest.mark.parametrize(
    "wrong",
    [
        np.zeros((3, BLOCK, TOKEN + 1), dtype=np.uint8),
        np.zeros((3, TOKEN, BLOCK), dtype=np.uint8).transpose(0, 2, 1),
        np.zeros((6, BLOCK, TOKEN), dtype=np.uint8)[::-2],
        np.broadcast_to(np.zeros((1, BLOCK, TOKEN), dtype=np.uint8), (3, BLOCK, TOKEN)),
        bytes(3 * BLOCK * TOKEN),
    ],
    ids=["wide", "transposed", "backwards", "repeated", "read-only"],
)
def test_memory_that_a_load_cannot_fill_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match="part 'v' of layer 0"):
        targets(Pages([{"v": wrong}, None]))


def test_sources_must_hold_exactly_the_blocks_of_their_range() -> None:
    k = np.zeros((2, BLOCK, TOKEN * 8), dtype=np.uint8)
    v = np.zeros((2, BLOCK, TOKEN // 2), dtype=np.uint16)
    expected = struct.pack("=4Q", k.ctypes.data, k.strides[0], v.ctypes.data, v.strides[0])
    assert pack_sources(LAYOUT, 0, 2, {"v": v, "k": k})[0] == expected
    assert pack_sources(LAYOUT, 0, 2, [k, v])[0] == expected
    with pytest.raises(ValueError, match="2 blocks, the range has 3"):
        pack_sources(LAYOUT, 0, 3, [k, v])
    with pytest.raises(ValueError, match="has the parts"):
        pack_sources(LAYOUT, 0, 2, {"k": k})
    with pytest.raises(ValueError, match="has 2 parts"):
        pack_sources(LAYOUT, 0, 2, [k])
    with pytest.raises(ValueError, match="not rows"):
        pack_sources(LAYOUT, 0, 2, [k, v.reshape(-1)[1:]])


def test_huge_page_memory_is_zeroed_writable_and_outlives_its_array() -> None:
    part = alloc(3 * 2**20 + 1)[5:10]
    assert not part.any()
    part[:] = 7
    assert part.sum() == 35
    with pytest.raises(ValueError, match="at least one byte"):
        alloc(0)


@pytest.mark.parametrize(
    "pages",
    [
        Pages.contiguous({"k": [None] * 2, "key": [None] * 2}),
        Pages([None, {"k": None, "key": None}]),
    ],
    ids=["contiguous", "by layer"],
)
def test_a_misspelt_part_is_refused_and_not_left_out(pages: Pages) -> None:
    with pytest.raises(ValueError, match=r"parts \['k', 'v'\], not \['key'\]"):
        pages.targets(LAYOUT, 0, 1)


def test_a_part_that_only_other_layers_have_is_no_mistake() -> None:
    pages = Pages.contiguous({"k": [None] * 2, "v": [None] * 2})
    assert pages.targets(LAYOUT, 0, 1)[2] == [None] * 3
