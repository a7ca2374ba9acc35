"""Bits and lengths one by one: every field of the header, of each entry of its table, every
section, part and region. A load gives the bytes put, or ends the prefix exactly there with reason
"damaged".

Harms of whole files are in test_damage.py.
"""

import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace as changed
from functools import partial
from pathlib import Path

import pytest

from kvstore import Layout, Store
from tests.support import extent_bytes
from tests.support.extent_reader import read_extent
from tests.support.kept import BLOCKS, POOL, QUARANTINE_MAX, SMALL, TOKENS, Kept, plain, warm
from tests.support.make_extents import as_made, encode
from tests.support.stores import opened

MLA = plain("mla", *[(("latent", TOKENS * 1152),)] * 3)
GQA = plain("gqa", (("k", 4096), ("v", 4096)), (), (("k", 4096), ("v", 4096)))
FP8 = plain("fp8 with index", *[(("latent", TOKENS * 656), ("index", TOKENS * 132))] * 2)
DEEP = plain("deep", *[(("latent", 256),)] * 24)  # its checksums need a second page
LAYOUTS = [MLA, GQA, FP8]
ENTRY_FIELDS = {"type": 0, "flags": 2, "offset": 4, "bytes": 8, "zero": 12, "xxh3": 16}
VERSION_BITS = range(8 * 8, 8 * 10)
SEED = 20_251


def names_of(layouts: list[Layout]) -> list[str]:
    return [layout.model for layout in layouts]


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


# ---- a file for each harm, so that one store meets them all ----

Harm = Callable[[Path], None]


def flips(data: bytes, rng: random.Random) -> Iterator[tuple[str, Harm]]:
    """The lowest, the highest and a random bit of every field and section."""
    fields = [*extent_bytes.HEADER_FIELDS.items(), ("table", 48)]
    places = [
        (name, at, end - at) for (name, at), (_, end) in zip(fields, fields[1:], strict=False)
    ]
    entries = [*ENTRY_FIELDS.items(), ("next", 24)]
    for entry, kind, offset, size in extent_bytes.table(data):
        for (name, at), (_, end) in zip(entries, entries[1:], strict=False):
            places.append((f"{name} of section {kind}", entry + at, end - at))
        places.append((f"section {kind}", offset, size))
    (header_bytes,) = struct.unpack_from("<I", data, 12)
    places.append(("padding", header_bytes - 1, 1))
    for name, at, size in places:
        for bit in {0, 8 * size - 1, rng.randrange(8 * size)}:
            yield f"bit {bit} of {name}", partial(extent_bytes.flip, bit=8 * at + bit)


def cuts(data: bytes, rng: random.Random) -> Iterator[tuple[str, Harm]]:
    (header_bytes,) = struct.unpack_from("<I", data, 12)
    starts = [at for at, _ in extent_bytes.regions(data)]
    starts = [*starts[:2], *starts[-2:]]
    lengths = {0, 1, 511, 512, 4095, 4096, header_bytes - 1, header_bytes + 1, len(data) - 1}
    lengths |= {at + more for at in starts for more in (-1, 0, 1)}
    lengths |= {rng.randrange(len(data)) for _ in range(20)}
    for length in sorted(lengths - {len(data)}):
        yield f"cut to {length}", partial(extent_bytes.cut, length=length)


def all_harms(store: Store, layout: Layout, root: Path) -> list[tuple[str, Harm]]:
    """Of an extent as it is put into a store with this layout."""
    kept = Kept(store, layout, root, seed=-1)
    kept.put()
    data = kept.path(0).read_bytes()
    rng = random.Random(SEED)
    return [*flips(data, rng), *cuts(data, rng)]


@pytest.mark.parametrize("situation", ["closed", "indexed", "a peer"])
@pytest.mark.parametrize("layout", [SMALL, DEEP], ids=names_of([SMALL, DEEP]))
def test_any_bit_of_a_header_and_any_length_is_a_miss(
    layout: Layout, situation: str, tmp_path: Path
) -> None:
    with opened(tmp_path, pool=POOL) as store:
        harms = all_harms(store, layout, tmp_path)
        for seed in range(len(harms)):
            Kept(store, layout, tmp_path, seed=seed).put()
        paths = [Kept(store, layout, tmp_path, seed=i).path(0) for i in range(len(harms))]

    def harm_all() -> None:
        for (_, harm), path in zip(harms, paths, strict=True):
            harm(path)

    if situation != "indexed":
        harm_all()
    role = "peer" if situation == "a peer" else "owner"
    with opened(tmp_path, pool=POOL, role=role) as store:
        if role == "owner":
            warm(store)
        if situation == "indexed":
            harm_all()
        foreign = 0
        for seed, (name, _) in enumerate(harms):
            kept = Kept(store, layout, tmp_path, seed=seed)
            blocks, reason = kept.load()
            assert blocks == 0 or reason is not None, f"{name} was not noticed"
            assert reason in ("damaged", "foreign") and blocks < 16, name
            foreign += reason == "foreign"
            assert (reason == "foreign") == ("of version" in name), name
            if role == "owner":
                kept.check_whole()
        assert Kept(store, layout, tmp_path, seed=-1).load() == (BLOCKS, None)
        assert foreign == len({name for name, _ in harms if "of version" in name})
        if role == "owner":
            assert store.stats().quarantined_extents == len(harms) - foreign
            assert len(kept.moved()) == QUARANTINE_MAX
        else:
            assert not kept.moved()


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
