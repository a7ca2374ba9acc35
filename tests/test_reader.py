"""Files written by the store are what docs/FORMAT.md says, and files made after it are served.

The other side is independent: tests/support/extent_reader.py and make_extents.py share no code with
the core.
"""

import os
import struct
import time
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kvstore import Layout, LayoutWarning, Store, _core
from tests.support.derivation import chain_keys, golden_tokens
from tests.support.extent_bytes import replace as replace_file
from tests.support.extent_reader import ReadExtent, read_extent, read_root
from tests.support.make_extents import DATA, Extent, as_made, encode, goldens
from tests.support.stores import BLOCK_TOKENS, cells_of, check_load, opened, prompt, until, write

BLOCKS = 21  # an extent of 16 and one of 5
POOL = "16MiB"


def plain(model: str, *layers: tuple[tuple[str, int], ...]) -> Layout:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LayoutWarning)  # small on purpose
        return Layout(
            parts_by_layer=layers, model=model, block_tokens=BLOCK_TOKENS, extent_blocks=16
        )


LAYOUTS = [
    plain("mla", *[(("latent", 16 * 1152),)] * 3),
    plain("gqa", (("k", 4096), ("v", 2048)), (), (("k", 4096), ("v", 2048))),
    plain("fp8 with index", *[(("latent", 16 * 656), ("index", 16 * 132))] * 2),
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=[layout.model for layout in LAYOUTS])
def test_what_the_store_writes_is_read_by_the_plain_reader(layout: Layout, tmp_path: Path) -> None:
    cells = cells_of(layout, BLOCKS)
    extra = ("image", 17 * BLOCK_TOKENS, b"pixels")
    before = int(time.time())
    with opened(tmp_path, pool=POOL, retention={"agent": "3d"}, default_class="agent") as store:
        kv = store.cache(layout)
        chain = kv.keys(prompt(BLOCKS), extras=[extra])
        assert write(kv, chain, cells) == BLOCKS
    found = sorted(read_root(tmp_path).values(), key=lambda extent: extent.start or 0)
    assert [extent.start for extent in found] == [0, 16]
    assert [key for extent in found for key in extent.keys] == [chain[i] for i in range(BLOCKS)]
    assert found[0].parent is None and found[1].parent == chain[15]
    for extent in found:
        assert extent.fingerprint == layout.fingerprint
        assert extent.block_tokens == BLOCK_TOKENS
        assert (extent.class_name, extent.ttl_s) == ("agent", 3 * 86_400)
        assert before <= extent.created_s <= time.time()
        check_cells(extent, layout, cells)
    assert found[0].extras is None
    assert found[1].extras is not None
    assert [bool(any(digest)) for digest in found[1].extras] == [False, True, False, False, False]


def check_cells(extent: ReadExtent, layout: Layout, cells: list[dict[str, np.ndarray]]) -> None:
    for layer, parts in enumerate(layout.parts_by_layer):
        for position, cell in enumerate(extent.cells[layer]):
            block = (extent.start or 0) + position
            assert cell == b"".join(cells[layer][name][block].tobytes() for name, _ in parts)


def test_a_block_that_was_put_alone_says_that_its_place_is_not_known(tmp_path: Path) -> None:
    layout = LAYOUTS[1]
    data = os.urandom(layout.block_bytes)
    with opened(tmp_path, pool=POOL) as store:
        assert store.cache(layout).put_blocking(b"\7" * 32, data)
    (extent,) = read_root(tmp_path).values()
    assert (extent.start, extent.parent, extent.keys) == (None, None, [b"\7" * 32])
    assert b"".join(layer[0] for layer in extent.cells) == data


@pytest.mark.parametrize("size", [40, 5000])
def test_an_unknown_optional_section_changes_nothing(size: int, tmp_path: Path) -> None:
    """5000 bytes do not fit the first page: every region lies further back."""
    layout = LAYOUTS[0]
    cells = cells_of(layout, BLOCKS)
    with opened(tmp_path, pool=POOL) as store:
        kv = store.cache(layout)
        chain = kv.keys(prompt(BLOCKS))
        assert write(kv, chain, cells) == BLOCKS
    for path, found in read_root(tmp_path).items():
        longer = replace(as_made(found), more_sections=[(40_000, 0, os.urandom(size))])
        replace_file(path, encode(longer))
        assert read_extent(path) == found
    with opened(tmp_path, pool=POOL) as store:
        kv = store.cache(layout)
        hit = kv.find_blocking(chain)
        assert hit.blocks == BLOCKS
        with kv.load(hit) as load:
            check_load(load, cells, BLOCKS)
            assert load.stats().ram_bytes == 0


# ------------------------------------------------------------------------------------- goldens


def adopt(root: Path, golden: Extent, data: bytes) -> None:
    """A golden file under its name, valid for an hour (a copy loses the times it was made with)."""
    name = golden.keys[0].hex()
    path = root / golden.fingerprint.hex()[:32] / name[:3] / f"{name}.kv"
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    now = time.time()
    os.utime(path, (now, now + 3600))


def core_cache(store: Store, golden: Extent) -> _core.Cache:
    """A golden fingerprint is that of no Layout, so the cache is opened below the public API."""
    sizes = [len(layer) // len(golden.keys) for layer in golden.cells]
    return _core.Cache(
        store.core,
        fingerprint=golden.fingerprint,
        block_tokens=golden.block_tokens,
        extent_blocks=16,
        part_counts=struct.pack(f"={len(sizes)}I", *[bool(size) for size in sizes]),
        part_bytes=b"".join(struct.pack("=I", size) for size in sizes if size),
        description=b"{}",
    )


def keys_to_the_end(golden: Extent) -> bytes:
    """The golden's chain from block 0 on."""
    start = golden.start or 0
    before = chain_keys(golden_tokens(8 * 16), 16, b"mla", [])[:start] if start else []
    return b"".join([*before, *golden.keys])


@pytest.mark.parametrize("name", sorted(goldens()))
def test_a_golden_file_copied_into_a_root_is_served(name: str, tmp_path: Path) -> None:
    golden = goldens()[name]
    adopt(tmp_path, golden, (DATA / name).read_bytes())
    keys, start, count = keys_to_the_end(golden), golden.start or 0, len(golden.keys)
    with opened(tmp_path, pool=POOL) as store:
        until(lambda: not store.info().roots[0].warming)
        cache = core_cache(store, golden)
        assert all(cache.contains(key) for key in golden.keys)
        lease = _core.Lease(cache, keys, start, start + count, b"test", -1, 60 * 10**9)
        load = _core.Load(
            lease,
            targets=None,
            page_tokens=0,
            table=None,
            owners=[],
            flags=0,
            deadline_ns=20 * 10**9,
        )
        for layer, cells in enumerate(golden.cells):
            assert load.layer_ticket(layer).wait(20 * 10**9)
            answer = load.layer(layer)
            assert answer is not None and answer[:2] == (count, None)
            if cells:
                span = load.span(layer, 0, len(cells) // count)
                assert span is not None and span[:2] == (start, count)
                assert bytes(memoryview(span[2])) == cells
        load.close()
        lease.release()
        assert store.stats().quarantined_extents == 0
