"""`kvstore fsck`: finds every kind of trouble, repairs what can be, and changes no times.

A root is filled by a store and harmed on disk; the answer is the JSON and the exit code. Exit codes
of other kinds, live owners and recency without O_NOATIME are in test_fsck_live.py.
"""

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvstore.fsck.report import KINDS
from tests.support import extent_bytes
from tests.support.extent_reader import read_extent
from tests.support.filled_root import (
    BLOCKS,
    LAYOUT,
    POOL,
    extents,
    fill,
    kinds,
    run_fsck,
    times,
)
from tests.support.harms import HARMS, IN_PLACE
from tests.support.stores import cells_of, check_load, opened, prompt, until, write

DAY_S = 86_400


@pytest.fixture(autouse=True)
def strict_umask() -> Iterator[None]:
    """Files that a test puts there have the modes of the store's own."""
    old = os.umask(0o077)
    yield
    os.umask(old)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return fill(tmp_path / "kv")


def physical(paths: list[Path]) -> int:
    return sum(path.stat().st_blocks * 512 for path in paths)


def test_a_whole_root_is_clean_and_its_sums_are_those_of_a_store(root: Path) -> None:
    before = times(root)
    code, told = run_fsck(root, "--deep")
    assert (code, told["findings"], told["owner"]) == (0, [], "")
    assert times(root) == before
    (space,) = told["namespaces"]
    assert (space["model"], space["extents"], space["blocks"]) == ("m", 2, BLOCKS)
    assert space["duplicate_blocks"] == 0
    assert told["read_bytes"] >= BLOCKS * LAYOUT.block_bytes
    files = [path for path in root.rglob("*") if path.is_file()]
    assert told["charged_bytes"] + told["other_bytes"] == physical(files)
    with opened(root, pool=POOL) as store:
        until(lambda: not store.info().roots[0].warming)
        assert store.info().roots[0].used_bytes == told["charged_bytes"]


# ------------------------------------------------------------------ what happens to extents

NOT_SERVED = {"header", "length"}
EXPECTED = {
    **dict.fromkeys(IN_PLACE, NOT_SERVED),
    "zeros: back": {"cell"},
    "hole: all": {"header"},
    "hole: front": {"header"},
    "hole: back": {"cell"},
    "swapped": {"misnamed", "bucket"},
    "a_copy_of_another": {"misnamed", "bucket"},
    "a_link_to_the_file": {"not-a-file", "foreign"},
    "removed": {"empty-bucket"},
    "in_the_wrong_bucket": {"bucket", "empty-bucket"},
    **dict.fromkeys(
        ("of_another_layout", "of_a_layout_whose_name_is_the_same", "with_cells_of_another_size"),
        {"namespace"},
    ),
    **dict.fromkeys(("version 2", "version 65535", "unknown section, required"), {"later-version"}),
    **dict.fromkeys(
        ("a_directory", "a_full_directory", "a_fifo", "a_socket", "a_device", "a_link_to_nothing",
         "a_link_to_a_device", "a_link_out_of_the_root"),
        {"not-a-file"},
    ),
    **dict.fromkeys(
        ("its_bucket_a_file", "its_bucket_a_fifo", "its_bucket_a_link_out_of_the_root",
         "in_capitals", "with_something_behind_its_name"),
        {"foreign"},
    ),
    **dict.fromkeys(
        ("unknown section, optional", "made_before_time_began", "its_bucket_removed"), set()
    ),
}  # fmt: skip


# What may not be read is told by its exit code: test_fsck_live.py.
@pytest.mark.parametrize("name", [name for name, harm in HARMS.items() if not harm.needs_user])
def test_whatever_happens_to_an_extent_is_found_and_repaired(name: str, root: Path) -> None:
    first, second = extents(root)
    HARMS[name].do(first, second)
    before = times(root)
    code, told = run_fsck(root, "--deep")
    assert kinds(told) <= EXPECTED[name] and bool(told["findings"]) == bool(EXPECTED[name])
    errors = [finding for finding in told["findings"] if finding["error"]]
    assert code == (4 if errors else 0)
    assert times(root) == before
    code, told = run_fsck(root, "--deep", "--repair")
    assert code == (1 if errors else 0)
    assert all(finding["corrected"] for finding in told["findings"] if finding["error"])
    assert told["quarantine_files"] == len(errors) == len(list(root.glob("quarantine/*")))
    code, told = run_fsck(root, "--deep")
    assert code == 0 and not any(finding["error"] for finding in told["findings"])
    with opened(root, pool=POOL) as store:  # what is gone is put again, and all of it hits
        kv = store.cache(LAYOUT)
        chain, cells = kv.keys(prompt(BLOCKS)), cells_of(LAYOUT, BLOCKS)
        if "later-version" not in EXPECTED[name]:
            assert write(kv, chain, cells) == BLOCKS
            with kv.load(kv.find_blocking(chain)) as load:
                check_load(load, cells, BLOCKS)


def test_one_flipped_bit_in_a_cell_is_found_by_deep_alone(root: Path) -> None:
    path = extents(root)[0]
    at, cell = extent_bytes.regions(path.read_bytes())[2]
    extent_bytes.flip(path, 8 * (at + 5 * cell) + 3)
    assert run_fsck(root)[0] == 0
    code, told = run_fsck(root, "--deep")
    (finding,) = told["findings"]
    assert (code, finding["kind"], finding["detail"]) == (4, "cell", "layer 2, block 5")
    assert finding["path"] == str(path.relative_to(root))


# --------------------------------------------------------------------------- everything else


def old_temporary(root: Path) -> None:
    place = next(path for path in root.glob("*") if len(path.name) == 32) / "tmp"
    place.mkdir(mode=0o700)
    (place / "kv-1-2-3.tmp").write_bytes(b"left")
    os.utime(place / "kv-1-2-3.tmp", (0, time.time() - 7200))


def fresh_temporary(root: Path) -> None:
    (root / "tmp").mkdir(mode=0o700)
    (root / "tmp" / "kv-1-2-3.tmp").write_bytes(b"being written")


def wrong_bucket(root: Path) -> None:
    path = extents(root)[0]
    other = path.parents[1] / ("000" if path.parent.name != "000" else "001")
    other.mkdir(mode=0o700)
    path.rename(other / path.name)
    path.parent.rmdir()


def foreign_names(root: Path) -> None:
    (root / "notes.txt").write_text("mine")
    (root / "tmp").mkdir(mode=0o700)
    (root / "tmp" / "notes.txt").write_text("mine")
    os.utime(root / "tmp" / "notes.txt", (1, 1))
    (root / "\udcff\n").write_text("an odd name")
    (extents(root)[0].parent / "ABC.kv").write_text("mine")
    (extents(root)[0].parents[1] / "fff").symlink_to("/")


def open_to_others(root: Path) -> None:
    extents(root)[0].chmod(0o644)
    extents(root)[0].parent.chmod(0o755)


def used_in_the_future(root: Path) -> None:
    path = extents(root)[0]
    os.utime(path, (time.time() + DAY_S, path.stat().st_mtime))


def valid_for_too_long(root: Path) -> None:
    path = extents(root)[0]
    os.utime(path, (path.stat().st_atime, time.time() + 9 * DAY_S))


def expired(root: Path) -> None:
    path = extents(root)[0]
    os.utime(path, (path.stat().st_atime, time.time() - 5))


def spoiled(name: str, data: bytes) -> Callable[[Path], None]:
    def spoil(root: Path) -> None:
        path = next(root.glob(name))
        path.write_bytes(data)

    return spoil


def renamed_to_nothing(name: str) -> Callable[[Path], None]:
    return lambda root: next(root.glob(name)).unlink()


OTHER = {
    "temporary": (old_temporary, "temporary"),
    "fresh temporary": (fresh_temporary, "fresh-temporary"),
    "bucket": (wrong_bucket, "bucket"),
    "foreign": (foreign_names, "foreign"),
    "modes": (open_to_others, "mode"),
    "last use": (used_in_the_future, "last-use"),
    "valid until": (valid_for_too_long, "valid-until"),
    "expired": (expired, "expired"),
    "ring": (spoiled("removed.ring", bytes(1 << 17)), "ring"),
    "ring cut": (spoiled("removed.ring", b"KVSREMOV"), "ring"),
    "identity": (spoiled("root.json", bytes(4096)), "identity"),
    "identity gone": (renamed_to_nothing("root.json"), "no-identity"),
    "later root": (
        spoiled("root.json", b'{"format": 9, "uuid": "%032x"}' % 7), "later-version",
    ),
    "layout": (spoiled("*/layout.json", bytes(4096)), "layout"),
    "layout of another": (spoiled("*/layout.json", b'{"parts_by_layer": []}'), "layout"),
    "layout gone": (renamed_to_nothing("*/layout.json"), "no-layout"),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHER)
def test_every_other_trouble_is_found_and_repaired(name: str, root: Path) -> None:
    harm, kind = OTHER[name]
    harm(root)
    is_error = KINDS[kind].error
    before = times(root)
    code, told = run_fsck(root)
    assert (code, kinds(told)) == (4 if is_error else 0, {kind})
    assert times(root) == before
    code, told = run_fsck(root, "--repair")
    assert (code, kinds(told) - {"quarantined"}) == (1 if is_error else 0, {kind})
    code, told = run_fsck(root, "--deep")
    assert code == 0
    assert is_error is not (kind in kinds(told)), "an error is repaired, a note stays"


def test_a_longer_time_to_live_than_the_files_show_is_told_by_the_operator(root: Path) -> None:
    valid_for_too_long(root)
    assert run_fsck(root)[0] == 4
    assert run_fsck(root, "--ttl", "10d")[0] == 0


def test_duplicates_are_counted_and_fine(root: Path) -> None:
    """The same file under its first key and under its third: the latter serves blocks 2 and on."""
    path = extents(root)[0]
    name = read_extent(path).keys[2].hex()
    other = path.parents[1] / name[:3] / f"{name}.kv"
    other.parent.mkdir(mode=0o700, exist_ok=True)
    subprocess.run(["cp", "-a", path, other], check=True)
    code, told = run_fsck(root, "--deep")
    assert (code, told["findings"]) == (0, [])
    assert told["namespaces"][0]["duplicate_blocks"] == 14
    assert told["namespaces"][0]["blocks"] == BLOCKS + 14


@pytest.mark.root
def test_a_file_of_another_user_is_named(root: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: giving files away")
    os.chown(extents(root)[0], 65534, -1)
    assert run_fsck(root)[0] == 4
    code, told = run_fsck(root, "--repair")
    assert (code, kinds(told)) == (4, {"owner"})
