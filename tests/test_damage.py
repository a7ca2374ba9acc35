"""Verification is real: whatever happens to a file, a load gives the bytes put, or fewer blocks
with a reason. It never gives other bytes, never raises, never hangs, and the next put hits again.

Files are harmed on the real disk, below an open store or before it opens. Trouble of the device is
tested in test_load_faults.py, names and their winners in test_names.py.
"""

import os
import random
import struct
import warnings
from dataclasses import replace as changed
from pathlib import Path

import numpy as np
import pytest

from kvstore import Cache, Chain, Layout, LayoutWarning, Store
from tests.support import extent_bytes
from tests.support.extent_reader import read_extent
from tests.support.harms import IN_PLACE, REPLACED
from tests.support.make_extents import as_made, encode
from tests.support.stores import Cells, cells_of, check_load, opened, prompt, until, write

BLOCKS = 20  # an extent of 16 and one of 4
TOKENS = 16
POOL = "16MiB"
QUARANTINE_MAX = 64


def plain(model: str, *layers: tuple[tuple[str, int], ...]) -> Layout:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LayoutWarning)  # small on purpose
        return Layout(parts_by_layer=layers, model=model, block_tokens=TOKENS, extent_blocks=16)


MLA = plain("mla", *[(("latent", TOKENS * 1152),)] * 3)
GQA = plain("gqa", (("k", 4096), ("v", 4096)), (), (("k", 4096), ("v", 4096)))
FP8 = plain("fp8 with index", *[(("latent", TOKENS * 656), ("index", TOKENS * 132))] * 2)
DEEP = plain("deep", *[(("latent", 1024),)] * 40)  # its checksums need a second page
LAYOUTS = [MLA, GQA, FP8]


def names_of(layouts: list[Layout]) -> list[str]:
    return [layout.model for layout in layouts]


class Kept:
    """A store with one prompt in it, and the files it lies in."""

    def __init__(self, store: Store, layout: Layout, root: Path, *, seed: int = 0) -> None:
        self.store, self.root = store, root
        self.kv: Cache = store.cache(layout)
        self.chain: Chain = self.kv.keys(prompt(BLOCKS, seed))
        self.cells: Cells = cells_of(layout, BLOCKS)

    def put(self) -> None:
        assert write(self.kv, self.chain, self.cells) == BLOCKS

    def path(self, block: int) -> Path:
        name = self.chain[block // 16 * 16].hex()
        return self.root / self.kv.namespace / name[:3] / f"{name}.kv"

    def load(self) -> tuple[int, str | None]:
        """(blocks, reason) of a cold load of all blocks, what came held against what was put."""
        self.store.drop_ram()
        hit = self.kv.find_blocking(self.chain)
        if hit.blocks == 0:
            return 0, hit.reason
        with self.kv.load(hit, deadline="20s") as load:
            for layer in load:
                for name, array in self.cells[layer.index].items():
                    assert np.array_equal(layer.gather(name), array[: layer.blocks])
                last = layer
        return last.blocks, last.reason or hit.reason

    def check_whole(self) -> None:
        """Put again, it hits at once and loads whole."""
        self.put()
        hit = self.kv.match(self.chain)
        assert (hit.blocks, hit.reason) == (BLOCKS, None)
        self.store.drop_ram()
        with self.kv.load(hit) as load:
            check_load(load, self.cells, BLOCKS)

    def moved(self) -> list[Path]:
        found = sorted((self.root / "quarantine").glob("*"))
        assert len(found) <= QUARANTINE_MAX
        return found


def warm(store: Store) -> None:
    until(lambda: not any(root.warming for root in store.info().roots))


# ------------------------------------------------------------------------------- flipped bits


@pytest.mark.parametrize("layout", LAYOUTS, ids=names_of(LAYOUTS))
def test_one_flipped_bit_in_any_cell_ends_the_prefix_exactly_there(
    layout: Layout, tmp_path: Path
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    with opened(tmp_path, pool=POOL) as store:
        kept = Kept(store, layout, tmp_path)
        kept.put()
        flips = 0
        for layer, parts in enumerate(layout.parts_by_layer):
            for block in range(BLOCKS):
                for name, part_bytes in parts:
                    path = kept.path(block)
                    at, cell = extent_bytes.regions(path.read_bytes())[layer]
                    at += block % 16 * cell + layout.part(layer, name)[0]
                    extent_bytes.flip(path, 8 * at + rng.randrange(8 * part_bytes))
                    flips += 1
                    assert kept.load() == (block, "damaged")
                    assert store.stats().quarantined_extents == flips
                    kept.put()
        kept.check_whole()
        assert 1 <= len(kept.moved()) <= QUARANTINE_MAX
        assert store.stats().loads_short == flips


def header_bits(data: bytes, rng: random.Random) -> list[int]:
    """One bit of every field of the header and the table, and of every section."""
    places = [(at, 1) for at in extent_bytes.HEADER_FIELDS.values()]
    for entry, _, offset, size in extent_bytes.table(data):
        places += [(entry + at, 1) for at in (0, 2, 4, 8, 12, 16)] + [(offset, size)]
    (header_bytes,) = struct.unpack_from("<I", data, 12)
    places.append((header_bytes - 1, 1))  # padding
    return [8 * at + rng.randrange(8 * size) for at, size in places]


@pytest.mark.parametrize("layout", [MLA, DEEP], ids=names_of([MLA, DEEP]))
def test_one_flipped_bit_in_any_part_of_the_header_is_a_miss(
    layout: Layout, tmp_path: Path
) -> None:
    """A file for each bit, so that one store meets them all."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    with opened(tmp_path, pool=POOL) as store:
        first = Kept(store, layout, tmp_path)
        first.put()
        bits = header_bits(first.path(0).read_bytes(), random.Random(seed))
        harmed = [Kept(store, layout, tmp_path, seed=1 + i) for i in range(len(bits))]
        for kept in harmed:
            kept.put()
    for kept, bit in zip(harmed, bits, strict=True):
        extent_bytes.flip(kept.path(0), bit)
    version = range(8 * 8, 8 * 10)
    with opened(tmp_path, pool=POOL) as store:
        assert Kept(store, layout, tmp_path).load() == (BLOCKS, None)
        for i, bit in enumerate(bits):
            kept = Kept(store, layout, tmp_path, seed=1 + i)
            blocks, reason = kept.load()
            assert (blocks, bool(reason)) == (0, True), f"bit {bit} was not noticed"
            if bit not in version:  # another version is someone else's: a miss, left alone
                assert reason == "damaged", f"bit {bit}"
            kept.check_whole()
        assert store.stats().quarantined_extents == sum(bit not in version for bit in bits)


def test_a_flipped_bit_between_the_regions_harms_nobody(tmp_path: Path) -> None:
    with opened(tmp_path, pool=POOL) as store:
        kept = Kept(store, FP8, tmp_path)
        kept.put()
        path = kept.path(BLOCKS - 1)
        (at, cell), (next_region, _) = extent_bytes.regions(path.read_bytes())
        assert at + 4 * cell < next_region
        extent_bytes.flip(path, 8 * next_region - 1)
        assert kept.load() == (BLOCKS, None)
        assert store.stats().quarantined_extents == 0


# ------------------------------------------------------------------------- whole files harmed

REASONS = {"damaged", "foreign", "absent", "evicted"}


@pytest.mark.parametrize("name", [*IN_PLACE, *REPLACED])
def test_a_file_harmed_before_the_store_opens_is_a_miss(name: str, tmp_path: Path) -> None:
    with opened(tmp_path, pool=POOL) as store:
        kept = Kept(store, MLA, tmp_path)
        kept.put()
    (IN_PLACE | REPLACED)[name](kept.path(0), kept.path(BLOCKS - 1))
    with opened(tmp_path, pool=POOL) as store:
        kept = Kept(store, MLA, tmp_path)
        warm(store)
        blocks, reason = kept.load()
        assert reason in REASONS
        assert blocks < 16
        kept.check_whole()


@pytest.mark.parametrize("name", [*IN_PLACE, *REPLACED])
def test_a_file_harmed_after_it_was_indexed_is_a_miss(name: str, tmp_path: Path) -> None:
    with opened(tmp_path, pool=POOL) as store:
        kept = Kept(store, MLA, tmp_path)
        kept.put()
    with opened(tmp_path, pool=POOL) as store:
        kept = Kept(store, MLA, tmp_path)
        warm(store)  # indexed, not open
        (IN_PLACE | REPLACED)[name](kept.path(0), kept.path(BLOCKS - 1))
        blocks, reason = kept.load()
        assert reason in REASONS
        assert blocks < 16
        kept.load()
        kept.check_whole()


@pytest.mark.parametrize("name", IN_PLACE)
def test_a_file_harmed_while_it_is_open_is_never_delivered_harmed(
    name: str, tmp_path: Path
) -> None:
    with opened(tmp_path, pool=POOL) as store:
        kept = Kept(store, MLA, tmp_path)
        kept.put()
        assert kept.load() == (BLOCKS, None)  # open from here on
        IN_PLACE[name](kept.path(0), kept.path(BLOCKS - 1))
        blocks, reason = kept.load()
        assert (blocks, reason) == (BLOCKS, None) or reason == "damaged"
        if reason:
            kept.check_whole()


def test_a_file_that_may_not_be_read_is_a_miss_and_stays(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("needs an ordinary user: root may read every file")
    with opened(tmp_path, pool=POOL) as store:
        kept = Kept(store, MLA, tmp_path)
        kept.put()
    kept.path(0).chmod(0)
    with opened(tmp_path, pool=POOL) as store:
        kept = Kept(store, MLA, tmp_path)
        warm(store)
        blocks, reason = kept.load()
        assert blocks == 0 and reason is not None
        assert kept.path(0).exists() and not kept.moved()


# ------------------------------------------------------------------ what the check is, and is not


def test_a_value_altered_with_its_checksum_is_delivered_altered(tmp_path: Path) -> None:
    """So what is loaded is what lies on disk, and the checksum is what guards it."""
    with opened(tmp_path, pool=POOL) as store:
        kept = Kept(store, MLA, tmp_path)
        kept.put()
    made = as_made(read_extent(kept.path(0)))
    cells = [bytearray(layer) for layer in made.cells]
    cells[1][5 * len(cells[1]) // 16 + 7] ^= 0x10  # layer 1, block 5, byte 7
    kept.cells[1]["latent"][5, 7] ^= 0x10
    extent_bytes.replace(kept.path(0), encode(changed(made, cells=[bytes(one) for one in cells])))
    with opened(tmp_path, pool=POOL) as store:
        again = Kept(store, MLA, tmp_path)
        again.cells = kept.cells
        assert again.load() == (BLOCKS, None)
        assert store.stats().quarantined_extents == 0


def test_quarantine_is_bounded_and_survives_a_restart(tmp_path: Path) -> None:
    harmed = QUARANTINE_MAX + 6
    for _ in range(2):
        with opened(tmp_path, pool=POOL) as store:
            kept = Kept(store, MLA, tmp_path)
            for _ in range(harmed // 2):
                kept.put()
                at, _ = extent_bytes.regions(kept.path(0).read_bytes())[0]
                extent_bytes.flip(kept.path(0), 8 * at)
                assert kept.load() == (0, "damaged")
            kept.put()
    until(lambda: len(kept.moved()) == QUARANTINE_MAX)
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in kept.moved())
