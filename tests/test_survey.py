"""A root seen from outside: its extents, their sums, where a block lies.

What changes while it is in use is in test_survey_live.py, the words of the command line that print
this in test_desk.py.
"""

import os
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstore import quarantine
from kvstore.fsck.check import NotAStore
from kvstore.survey.blocks import find_block
from kvstore.survey.extents import survey, with_headers
from kvstore.survey.sums import root_stat, usage, usage_by_class
from kvstore.survey.watch import Watch
from tests.support.desk_root import BRANCH_AT, LAYOUT, OTHER, POOL, fill
from tests.support.prompts import BLOCK_TOKENS, GRID, put, tokens
from tests.support.stores import opened


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "kv"


@pytest.fixture
def keys(root: Path) -> tuple[list[bytes], list[bytes]]:
    return fill(root)


def on_disk(paths: Iterator[Path]) -> int:
    found = [path.lstat() for path in paths]
    return sum(one.st_blocks * 512 for one in found if not stat.S_ISDIR(one.st_mode))


# ------------------------------------------------------------------------------------- extents


def test_extents_are_told_as_they_were_written(
    root: Path, keys: tuple[list[bytes], list[bytes]]
) -> None:
    long, other = keys
    before = int(time.time())
    found = {extent.key: extent for extent in with_headers(survey(root))}
    mine = {key: one for key, one in found.items() if one.namespace == LAYOUT.namespace}
    assert len(found) == 5 and len(mine) == 4
    for start, count, chain, retention in (
        (0, GRID, long, "agent"),
        (GRID, GRID, long, "agent"),
        (2 * GRID, 8, long, "agent"),
        (BRANCH_AT, 12, other, "chat"),
    ):
        (extent,) = (mine[key.hex()] for key in chain[start : start + count] if key.hex() in mine)
        seen = (root / extent.path).stat()
        assert (extent.start, extent.blocks, extent.retention) == (start, count, retention)
        assert (extent.tokens, extent.layers) == (count * BLOCK_TOKENS, LAYOUT.layers)
        assert extent.parent == (chain[start - 1].hex() if start else None)
        assert extent.bytes == seen.st_blocks * 512
        assert (extent.last_use_s, extent.valid_until_s) == (seen.st_atime, seen.st_mtime)
        assert extent.created_s is not None and 0 <= before - extent.created_s < 3600
        assert not extent.trouble and not extent.expired(before)
    plain = {extent.key: extent for extent in survey(root)}
    assert plain.keys() == found.keys()
    assert all(extent.blocks is None for extent in plain.values())


def test_a_name_inside_an_extent_counts_from_its_block(
    root: Path, keys: tuple[list[bytes], list[bytes]]
) -> None:
    (first,) = root.glob(f"{LAYOUT.namespace}/*/{keys[0][0].hex()}.kv")
    inner = keys[0][5]
    place = root / LAYOUT.namespace / inner.hex()[:3]
    place.mkdir(exist_ok=True)
    first.rename(place / f"{inner.hex()}.kv")
    (extent,) = (one for one in with_headers(survey(root)) if one.key == inner.hex())
    assert (extent.start, extent.blocks, extent.parent) == (5, GRID - 5, keys[0][4].hex())
    assert find_block([root], keys[0][4].hex()).blocks == []


def test_what_cannot_be_read_says_why_and_the_others_are_told(
    root: Path, keys: tuple[list[bytes], list[bytes]]
) -> None:
    paths = sorted(root.glob(f"{LAYOUT.namespace}/*/*.kv"))
    os.truncate(paths[0], 100)
    paths[1].rename(paths[1].with_name("f" * 64 + ".kv"))
    place = root / OTHER.namespace / paths[2].parent.name
    place.mkdir(exist_ok=True)
    paths[2].rename(place / paths[2].name)
    told = sorted(extent.trouble for extent in with_headers(survey(root)))
    assert told == ["", "", "header", "misnamed", "namespace"]
    assert root_stat(root).total.unreadable == 3


def test_what_goes_between_the_name_and_the_header_is_left_out(
    root: Path, keys: tuple[list[bytes], list[bytes]]
) -> None:
    names = list(survey(root))
    (root / names[2].path).unlink()
    assert len(list(with_headers(names))) == len(names) - 1


def test_a_last_use_that_was_lost_is_taken_from_the_renewal(
    root: Path, keys: tuple[list[bytes], list[bytes]]
) -> None:
    path = next(root.glob(f"{LAYOUT.namespace}/*/*.kv"))
    until_s = int(path.stat().st_mtime)
    os.utime(path, (until_s, until_s))
    (extent,) = (one for one in with_headers(survey(root)) if one.key == path.stem)
    assert extent.ttl_s is not None
    assert extent.last_use_s == until_s - extent.ttl_s


@pytest.mark.parametrize("content", [None, "empty", "letters"])
def test_what_is_no_store_is_refused_with_words(root: Path, content: str | None) -> None:
    if content:
        root.mkdir()
    if content == "letters":
        (root / "a.txt").write_text("dear")
    for look in (root_stat, usage, lambda at: list(survey(at)), lambda at: Watch(at).look()):
        with pytest.raises(NotAStore if content else FileNotFoundError, match="name") as refused:
            look(root)
        assert str(root) in str(refused.value)


# ---------------------------------------------------------------------------------------- sums


def test_sums_are_those_of_the_files(root: Path, keys: tuple[list[bytes], list[bytes]]) -> None:
    told = root_stat(root)
    extents = list(root.glob("*/*/*.kv"))
    assert (told.total.extents, told.total.blocks) == (5, 40 + 12 + 4)
    assert told.total.bytes == on_disk(iter(extents))
    assert told.models == {LAYOUT.namespace: "desk", OTHER.namespace: "other"}
    assert told.namespaces[OTHER.namespace].blocks == 4
    assert {name: space.blocks for name, space in told.classes.items()} == {"agent": 40, "chat": 16}
    assert (told.owner, told.removed, told.total.expired) == ("", {}, 0)
    assert 0 < told.free_bytes <= told.file_system_bytes
    used_s = [int(path.stat().st_atime) for path in extents]
    assert (told.total.oldest_use_s, told.total.newest_use_s) == (min(used_s), max(used_s))
    os.utime(extents[0], (used_s[0], time.time() - 1))
    assert root_stat(root).total.expired == 1


def test_usage_is_what_the_files_take_at_every_depth(
    root: Path, keys: tuple[list[bytes], list[bytes]], tmp_path: Path
) -> None:
    (tmp_path / "big").write_bytes(b"x" * 100_000)
    (root / "link").symlink_to(tmp_path)
    (whole,) = usage(root, 0)
    assert whole.bytes == on_disk(root.rglob("*"))
    deep = {Path(one.path): one for one in usage(root, 2)}
    for path, one in deep.items():
        assert one.bytes == on_disk(path.rglob("*")), path
    space = root / LAYOUT.namespace
    assert deep.keys() >= {root, space, *(path.parent for path in space.glob("*/*.kv"))}
    assert {Path(one.path) for one in usage(root)} >= {root, space}
    by_class = usage_by_class(root)
    assert sum(one.bytes for one in by_class) == root_stat(root).total.bytes
    assert [one.path.rpartition(" ")[2] for one in by_class if LAYOUT.namespace in one.path] == [
        "agent",
        "chat",
    ]


# ------------------------------------------------------------------------------------- a block


def test_a_block_is_told_with_what_is_around_it(
    root: Path, keys: tuple[list[bytes], list[bytes]]
) -> None:
    long, other = keys
    (block,) = find_block([root], long[BRANCH_AT - 1].hex()[:12]).blocks
    assert (block.key, block.number, block.model) == (long[BRANCH_AT - 1].hex(), 19, "desk")
    assert [one.start for one in block.held] == [GRID]
    assert [one.start for one in block.above] == [0]
    assert sorted(one.start or 0 for one in block.below) == [BRANCH_AT, 2 * GRID]
    assert block.siblings == []
    (block,) = find_block([root], other[BRANCH_AT].hex()).blocks
    assert [one.start for one in block.above] == [GRID, 0]
    assert (block.below, block.siblings) == ([], [])
    (block,) = find_block([root], long[-1].hex()).blocks
    assert (block.number, [one.start for one in block.above]) == (39, [GRID, 0])
    (block,) = find_block([root], long[BRANCH_AT].hex()).blocks
    assert [one.start for one in block.siblings] == [BRANCH_AT]


def test_the_same_prompt_of_two_models_are_two_blocks(root: Path) -> None:
    with opened(root, pool=POOL) as store:
        for layout in (LAYOUT, OTHER):
            kv = store.cache(layout)
            put(kv, chain := kv.keys(tokens("both", 3)))
    found = find_block([root], chain[1].hex())
    assert {block.namespace for block in found.blocks} == {LAYOUT.namespace, OTHER.namespace}


def test_a_chain_over_several_roots_is_one(
    root: Path, keys: tuple[list[bytes], list[bytes]], tmp_path: Path
) -> None:
    second = tmp_path / "second"
    (moved,) = root.glob(f"{LAYOUT.namespace}/*/{keys[0][GRID].hex()}.kv")
    target = second / moved.relative_to(root)
    target.parent.mkdir(parents=True)
    shutil.move(moved, target)
    (block,) = find_block([root, second], keys[0][-1].hex()).blocks
    assert [(one.root, one.start) for one in block.above] == [(str(second), GRID), (str(root), 0)]
    (block,) = find_block([root], keys[0][-1].hex()).blocks
    assert block.above == []


def test_of_a_block_that_left_the_reason_is_told(
    root: Path, keys: tuple[list[bytes], list[bytes]]
) -> None:
    with opened(root, pool=POOL) as store:
        store.cache(LAYOUT).delete_blocking(keys[1][BRANCH_AT])
    key = keys[1][BRANCH_AT].hex()
    found = find_block([root], key)
    assert found.blocks == []
    (left,) = found.left
    assert (left.namespace, left.reason) == (LAYOUT.namespace, "deleted")
    assert abs(left.time_s - time.time()) < 3600
    assert find_block([root], key[:16]).left == [left]
    assert find_block([root], key[:8]).left == []
    assert root_stat(root).removed == {"deleted": 12}


def test_what_lies_in_quarantine_is_named_also_by_its_inner_keys(
    root: Path, keys: tuple[list[bytes], list[bytes]]
) -> None:
    (path,) = root.glob(f"{LAYOUT.namespace}/*/{keys[0][GRID].hex()}.kv")
    name = quarantine.move(root, str(path.relative_to(root)), now_s=int(time.time()))
    for key in (keys[0][GRID], keys[0][GRID + 3]):
        found = find_block([root], key.hex())
        assert (found.blocks, found.quarantined) == ([], [str(root / name)])
    os.truncate(root / name, 10)
    assert find_block([root], keys[0][GRID].hex()[:8]).quarantined == [str(root / name)]
    assert find_block([root], keys[0][GRID + 3].hex()).quarantined == []
    assert root_stat(root).quarantine_files == 1


@pytest.mark.parametrize("asked", ["", "abcdef0", "x" * 8, "0" * 65, "0x12345678"])
def test_what_is_no_key_is_refused(root: Path, asked: str) -> None:
    with pytest.raises(ValueError, match="8 to 64 of its hex digits"):
        find_block([root], asked)
