"""docs/FORMAT.md is what the core does: its tables, the golden extents, an independent reader.

The core's own decoding is tested in tests/c/test_format*.c, on the same golden files.
"""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from kvstore import _core
from tests.support.extent_reader import BadExtent, read_extent, read_root
from tests.support.make_corpus import CORPUS, corpus
from tests.support.make_extents import DATA, encode, goldens

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "docs" / "FORMAT.md").read_text()
HEADER = (ROOT / "csrc" / "format.h").read_text()
STRUCT_HEADING = re.compile(r"^### .*\(`(kvs_disk_\w+)`\)$")
STRUCT_ROW = re.compile(r"^\| (\d+) \| (\d+) \| `(\w+)` \|")
SECTION_ROW = re.compile(r"^\| (\d+) \| `(\w+)` \| (yes|no) \|", re.MULTILINE)

Offsets = dict[str, tuple[int, int]]
"""(offset, bytes) by field."""


def tables() -> dict[str, Offsets]:
    """The offset tables of the text, by struct."""
    found: dict[str, Offsets] = {}
    fields: Offsets = {}
    for line in TEXT.splitlines():
        if line.startswith("#"):
            fields = {}
            if heading := STRUCT_HEADING.match(line):
                found[heading[1]] = fields
        elif row := STRUCT_ROW.match(line):
            fields[row[3]] = (int(row[1]), int(row[2]))
    return found


def test_the_offset_tables_are_those_of_the_core() -> None:
    assert tables() == _core.format_constants()


@pytest.mark.parametrize("name", sorted(tables()))
def test_the_offset_tables_have_no_gaps(name: str) -> None:
    end = 0
    for offset, size in tables()[name].values():
        assert offset == end
        end += size


def test_the_section_types_are_those_of_the_core() -> None:
    declared = re.findall(r"KVS_SECTION_(\w+) = (\d+),? *\s/\* (.*) \*/", HEADER)
    core = [(number, name, "required" in comment) for name, number, comment in declared]
    assert core and core == [
        (number, name, required == "yes") for number, name, required in SECTION_ROW.findall(TEXT)
    ]


def test_the_version_of_the_text_is_the_one_the_core_writes() -> None:
    version = re.search(r"#define KVS_FORMAT_VERSION (\d+)u", HEADER)
    assert version and re.findall(r"^\| (\d+) \| [\d.]+ \|", TEXT, re.MULTILINE)[-1] == version[1]


@pytest.mark.parametrize("name", sorted(goldens()))
def test_a_golden_extent_is_read_as_it_was_made(name: str) -> None:
    made, read = goldens()[name], read_extent(DATA / name)
    assert encode(made) == (DATA / name).read_bytes()
    assert [b"".join(row) for row in read.cells] == list(made.cells)
    assert read.keys == list(made.keys)
    assert read.extras == (None if made.extras is None else list(made.extras))
    assert read.token_ids == (None if made.token_ids is None else list(made.token_ids))
    assert (read.fingerprint, read.parent, read.start, read.block_tokens) == (
        made.fingerprint, made.parent, made.start, made.block_tokens,
    )  # fmt: skip
    assert (read.class_name.encode(), read.created_s, read.ttl_s) == (
        made.class_name, made.created_s, made.ttl_s,
    )  # fmt: skip


def test_the_text_alone_lets_no_flipped_bit_pass(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    good = encode(goldens()["gqa.kv"])
    path = tmp_path / "flipped.kv"
    for _ in range(300):
        bad = bytearray(good)
        bad[rng.randrange(len(bad))] ^= 1 << rng.randrange(8)
        path.write_bytes(bad)
        with pytest.raises(BadExtent):
            read_extent(path)


def test_a_file_under_a_wrong_name_is_found_out(tmp_path: Path) -> None:
    extent = goldens()["mla.kv"]
    space = tmp_path / extent.fingerprint.hex()[:32]
    name = extent.keys[2].hex()  # any of its keys will do
    (space / name[:3]).mkdir(parents=True)
    (space / name[:3] / f"{name}.kv").write_bytes(encode(extent))
    assert [found.start for found in read_root(tmp_path).values()] == [extent.start]
    wrong = "0" * 64
    (space / "000").mkdir(exist_ok=True)
    (space / "000" / f"{wrong}.kv").write_bytes(encode(extent))
    with pytest.raises(BadExtent, match="named by a key"):
        read_root(tmp_path)


def test_the_fuzzers_seeds_are_those_of_their_maker_and_the_corpus_stays_small() -> None:
    """What is in it is held against the core by tests/c/test_corpus.c."""
    kept = {path: path.read_bytes() for path in CORPUS.rglob("*") if path.is_file()}
    assert corpus().items() <= kept.items()
    found = [path for path in kept if path not in corpus()]
    assert found and all(re.fullmatch(r"[0-9a-f]{40}", path.name) for path in found)
    assert sum(map(len, kept.values())) < 300_000
