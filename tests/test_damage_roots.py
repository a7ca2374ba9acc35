"""Everything in a root that is not an extent, damaged or replaced: its small files, its
directories, the quarantine itself. The store opens (or says what to remove), serves what is good,
takes puts, and touches nothing outside the root.

Extents are harmed in test_damage.py.
"""

import os
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvstore import OpenError, Store
from tests.support import extent_bytes
from tests.support.kept import (
    BLOCKS,
    POOL,
    QUARANTINE_MAX,
    SMALL,
    Kept,
    contents,
    descriptors,
    warm,
)
from tests.support.stores import opened, until

Do = Callable[[Path], None]
DAY = 86_400


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """A root with a prompt in it. Afterwards nothing is open, and nothing outside it changed."""
    root, outside = tmp_path / "root", tmp_path / "outside"
    (outside / "directory").mkdir(parents=True)
    (outside / "file").write_bytes(b"{" * 4096)
    (outside / "directory" / "file").write_bytes(b"of another")
    with opened(root, pool=POOL) as store:
        Kept(store, SMALL, root).put()
        until((root / Kept(store, SMALL, root).kv.namespace / "layout.json").exists)
    open_before, before = descriptors(), contents(outside)
    yield root
    assert descriptors() == open_before
    assert contents(outside) == before


def check_serves(store: Store, root: Path) -> None:
    """What was there is, and a new prompt can be put."""
    assert Kept(store, SMALL, root).load() == (BLOCKS, None)
    Kept(store, SMALL, root, seed=99).check_whole()


# ---- one name of the root, and what may stand there instead ----


def a_directory(path: Path) -> None:
    path.mkdir()
    (path / "file").write_bytes(b"of a person")


def a_socket(path: Path) -> None:
    before = os.getcwd()
    os.chdir(path.parent)  # from anywhere else the name is too long to bind
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(before)


def link_to(name: str) -> Do:
    def do(path: Path) -> None:
        path.symlink_to(next(up for up in path.parents if up.name == "root").parent / name)

    return do


def holding(data: bytes) -> Do:
    def do(path: Path) -> None:
        path.write_bytes(data)

    return do


ODD: dict[str, Do] = {
    "a directory": a_directory,
    "a fifo": os.mkfifo,
    "a socket": a_socket,
    "a link out": link_to("outside/file"),
    "a link to a directory": link_to("outside/directory"),
    "a link to nothing": link_to("nothing"),
}
BYTES: dict[str, Do] = {
    "nothing": lambda path: None,
    "empty": holding(b""),
    "zeros": holding(bytes(1 << 17)),
    "garbage": holding(b"garbage " * 16_384),
    "short": holding(b'{"format": 1, "uuid": "00'),
    "a uuid cut off by the end": holding(b" " * 4086 + b'"uuid": "1'),
    "no hex digits": holding(b'{"format": 1, "uuid": "' + b"+0x " * 8 + b'"}' + b" " * 4096),
}


def replace(path: Path, do: Do) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    do(path)


@pytest.mark.parametrize("name", ODD | BYTES)
def test_root_json(name: str, root: Path) -> None:
    """A peer takes it as it is. The owner moves it aside and makes a new one, which then stays."""
    path = root / "root.json"
    good = path.read_bytes()
    replace(path, (ODD | BYTES)[name])
    with opened(root, pool=POOL, role="peer") as store:
        assert Kept(store, SMALL, root).load() == (BLOCKS, None)
        assert not (root / "quarantine").exists()
    for _ in range(2):
        with opened(root, pool=POOL) as store:
            warm(store)
            check_serves(store, root)
        assert path.is_file() and len(path.read_bytes()) == len(good) == 4096
        mine, good = good, path.read_bytes()
    assert mine == good
    moved = list((root / "quarantine").glob("*root.json"))
    assert len(moved) == (name != "nothing")


def test_root_json_of_a_later_format_keeps_its_uuid(root: Path) -> None:
    path = root / "root.json"
    data = path.read_bytes().replace(b'"format": 1', b'"format": 2')
    path.write_bytes(data)
    with opened(root, pool=POOL) as store:
        check_serves(store, root)
    assert path.read_bytes() == data


@pytest.mark.parametrize("name", ODD)
def test_owner_lock_that_is_no_file_is_named_by_open(name: str, root: Path) -> None:
    path = root / "owner.lock"
    replace(path, ODD[name])
    with pytest.raises(OpenError) as caught:
        with opened(root, pool=POOL):
            pass
    assert str(path) in str(caught.value) and "remove it" in str(caught.value)
    with opened(root, pool=POOL, role="peer") as store:
        assert Kept(store, SMALL, root).load() == (BLOCKS, None)


@pytest.mark.parametrize("name", BYTES)
def test_owner_lock_holds_whatever_its_file_says(name: str, root: Path) -> None:
    replace(root / "owner.lock", BYTES[name])
    with opened(root, pool=POOL) as store:
        check_serves(store, root)


@pytest.mark.parametrize("name", ODD | BYTES)
@pytest.mark.parametrize("file", ["removed.ring", "layout.json"])
def test_files_that_nobody_needs(file: str, name: str, root: Path) -> None:
    with opened(root, pool=POOL) as store:
        namespace = root / Kept(store, SMALL, root).kv.namespace
    replace((namespace if file == "layout.json" else root) / file, (ODD | BYTES)[name])
    for role in ("peer", "owner", "owner"):
        with opened(root, pool=POOL, role=role) as store:
            assert Kept(store, SMALL, root).load() == (BLOCKS, None)
            if role == "owner":
                check_serves(store, root)


def test_each_bit_of_removed_ring_that_turns_costs_reasons_and_nothing_else(root: Path) -> None:
    path = root / "removed.ring"
    with opened(root, pool=POOL) as store:
        gone = Kept(store, SMALL, root, seed=7)
        gone.put()
        assert gone.kv.delete_blocking(gone.chain[0]) == 1
    assert path.read_bytes()[24:].strip(b"\0")
    for at in (0, 8, 11, 15, 16, 23, 24, 40):
        extent_bytes.flip(path, 8 * at)
        with opened(root, pool=POOL) as store:
            warm(store)
            gone = Kept(store, SMALL, root, seed=7)
            assert gone.load() == (0, "absent")
            assert Kept(store, SMALL, root).load() == (BLOCKS, None)
            gone.put()
            assert gone.kv.delete_blocking(gone.chain[0]) == 1
    with opened(root, pool=POOL) as store:
        warm(store)
        assert Kept(store, SMALL, root, seed=7).load() == (0, "deleted")


# ---- directories ----


@pytest.mark.parametrize("name", [name for name in ODD if name != "a directory"])
def test_a_namespace_that_is_no_directory_is_moved_aside_by_the_next_put(
    name: str, root: Path
) -> None:
    with opened(root, pool=POOL) as store:
        kept = Kept(store, SMALL, root)
        namespace = root / kept.kv.namespace
        warm(store)
        replace(namespace, ODD[name])
        blocks, reason = kept.load()
        assert blocks == 0 and reason in ("absent", "evicted")
        kept.check_whole()
        assert len(kept.moved()) == 1 and namespace.is_dir() and not namespace.is_symlink()
    replace(namespace, ODD[name])
    with opened(root, pool=POOL, role="peer") as store:
        assert Kept(store, SMALL, root).load() == (0, "absent")
    with opened(root, pool=POOL) as store:
        warm(store)
        kept = Kept(store, SMALL, root)
        assert kept.load() == (0, "absent")
        kept.check_whole()


def test_a_namespace_that_leads_out_of_the_root_is_not_entered(root: Path, tmp_path: Path) -> None:
    """It leads to good extents, some expired, one damaged, with old names in tmp/: none is read,
    renewed, removed or moved, and no new one is made there."""
    away = tmp_path / "away"
    with opened(root, pool=POOL) as store:
        kept = Kept(store, SMALL, root)
        Kept(store, SMALL, root, seed=1).put()
    namespace = root / kept.kv.namespace
    (namespace / "tmp").mkdir()
    (namespace / "tmp" / "old").write_bytes(b"old")
    os.utime(namespace / "tmp" / "old", (1, 1))
    os.utime(kept.path(16), (1, 1))
    extent_bytes.flip(Kept(store, SMALL, root, seed=1).path(0), 8 * 100)
    namespace.rename(away)
    namespace.symlink_to(away)
    before = contents(away)
    for role in ("peer", "owner"):
        with opened(root, pool=POOL, role=role) as store:
            assert Kept(store, SMALL, root).load()[0] == 0
            assert Kept(store, SMALL, root, seed=1).load()[0] == 0
            if role == "owner":
                warm(store)
                Kept(store, SMALL, root).check_whole()
                store.flush_blocking()
    assert contents(away) == before


def test_names_that_are_not_ours_are_left_alone(root: Path) -> None:
    with opened(root, pool=POOL) as store:
        kept = Kept(store, SMALL, root)
        bucket = kept.path(0).parent
        namespace = bucket.parent
    key = kept.path(0).stem
    data = kept.path(0).read_bytes()
    for name in (f"{key.upper()}.kv", f"{key}.kv.bak", f"{key}.KV", f"{key[1:]}.kv", f"x{key}.kv"):
        (bucket / name).write_bytes(data)
    (bucket / ("n" * 255)).write_bytes(data)
    (bucket / f".{key}.kv").write_bytes(data)
    os.mkfifo(bucket / "fifo")
    for name in ("ABC", "abcd", "zzz"):
        (namespace / name).mkdir()
        (namespace / name / f"{key}.kv").write_bytes(data)
    (root / namespace.name.upper()).mkdir()
    (root / (namespace.name + "0")).symlink_to(namespace)
    (root / ("e" * 32)).symlink_to(namespace)
    (root / ("d" * 32)).write_bytes(b"a file")
    os.mkfifo(root / ("f" * 32))
    skip = {"owner.lock", "removed.ring"}
    before = {name: seen for name, seen in contents(root).items() if name not in skip}
    with opened(root, pool=POOL) as store:
        warm(store)
        assert store.stats().extents == 2
        assert Kept(store, SMALL, root).load() == (BLOCKS, None)
    after = {name: seen for name, seen in contents(root).items() if name not in skip}
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    assert changed <= {str(path.relative_to(root)) for path in (kept.path(0), kept.path(16))}


def test_old_temporaries_are_swept_whatever_they_are_and_nothing_else(root: Path) -> None:
    with opened(root, pool=POOL) as store:
        namespace = root / Kept(store, SMALL, root).kv.namespace
    for tmp in (root / "tmp", namespace / "tmp"):
        tmp.mkdir()
        for name, do in (ODD | {"a file": holding(b"half an extent")}).items():
            for path in (tmp / f"kv-{name}.tmp", tmp / name):
                do(path)
                os.utime(path, (1, 1), follow_symlinks=False)
        (tmp / "kv-1-2-3.tmp").write_bytes(b"being written")
    with opened(root, pool=POOL) as store:
        warm(store)
        check_serves(store, root)
    for tmp in (root / "tmp", namespace / "tmp"):
        theirs = {*ODD, "a file"}
        assert {path.name for path in tmp.iterdir()} == {
            "kv-a directory.tmp",
            "kv-1-2-3.tmp",
            *theirs,
        }
        assert (tmp / "a directory" / "file").exists()


# ---- the quarantine ----


def damage(kept: Kept) -> None:
    """Its header, for who opens it, and its first cell, for who has it open."""
    at, _ = extent_bytes.regions(kept.path(0).read_bytes())[0]
    extent_bytes.flip(kept.path(0), 8 * 100)
    extent_bytes.flip(kept.path(0), 8 * at)


@pytest.mark.parametrize("name", [name for name in ODD if name != "a directory"] + ["a file"])
@pytest.mark.parametrize("when", ["before open", "after open"])
def test_a_quarantine_that_is_no_directory_is_made_one(when: str, name: str, root: Path) -> None:
    do = (ODD | {"a file": holding(b"something")})[name]
    if when == "before open":
        do(root / "quarantine")
    with opened(root, pool=POOL) as store:
        warm(store)
        kept = Kept(store, SMALL, root)
        if when == "after open":
            do(root / "quarantine")
        damage(kept)
        assert kept.load() == (0, "damaged")
        kept.check_whole()
        assert len(kept.moved()) == store.stats().quarantined_extents == 1
        assert not (root / "quarantine").is_symlink()


def test_hundreds_of_damaged_files_leave_a_bounded_quarantine(root: Path) -> None:
    """Met by the scan, then by loads, over two lives; what is over the bound is deleted, oldest
    first, all is counted, and a person may empty it at any time."""
    seeds = range(100, 250)
    with opened(root, pool=POOL) as store:
        for seed in seeds:
            Kept(store, SMALL, root, seed=seed).put()
            damage(Kept(store, SMALL, root, seed=seed))
    newest: set[str] = set()
    for life in range(2):
        with opened(root, pool=POOL) as store:
            warm(store)
            for seed in seeds:
                kept = Kept(store, SMALL, root, seed=seed)
                blocks, reason = kept.load()
                assert blocks == 0 and reason in ("damaged", "absent")  # old reasons may be lost
                kept.put()
                damage(kept)
                assert kept.load() == (0, "damaged")
            assert store.stats().quarantined_extents == (2 - life) * len(seeds)
            until(lambda: len(kept.moved()) == QUARANTINE_MAX)
            names = {path.name for path in kept.moved()}
            assert not names & newest
            newest = names
            assert all(path.stat().st_mode & 0o777 == 0o600 for path in kept.moved())
    with opened(root, pool=POOL) as store:
        kept = Kept(store, SMALL, root, seed=100)
        for count in range(1, 5):
            if count == 1:
                shutil.rmtree(root / "quarantine")
            kept.put()
            damage(kept)
            assert kept.load() == (0, "damaged")
            until(lambda count=count: len(kept.moved()) == count)


def test_a_quarantine_full_of_directories_takes_no_more_and_loses_none(root: Path) -> None:
    """They are not ours to delete, so what is damaged is deleted instead: the bound and the name
    matter more than its remains."""
    (root / "quarantine").mkdir()
    for number in range(QUARANTINE_MAX):
        a_directory(root / "quarantine" / f"{number}")
    before = contents(root / "quarantine")
    with opened(root, pool=POOL) as store:
        warm(store)
        kept = Kept(store, SMALL, root)
        for _ in range(3):
            damage(kept)
            assert kept.load() == (0, "damaged")
            kept.check_whole()
    assert contents(root / "quarantine") == before


def test_a_quarantine_full_of_a_persons_files_takes_no_more_and_loses_none(root: Path) -> None:
    """Whatever they are called, short of the very form that ours have."""
    quarantine = root / "quarantine"
    quarantine.mkdir()
    names = ["0", "123456789012-note", "123456789012-12345-a", "12345678901-123456-a"]
    names += ["1234567890123-123456-a", "123456789012-123456", "123456789012_123456-a"]
    for name in names + [f"{number:03} notes.txt" for number in range(QUARANTINE_MAX)]:
        (quarantine / name).write_bytes(b"of a person")
    before = contents(quarantine)
    (quarantine / "000000000001-000000-mine").write_bytes(b"of an earlier life")
    with opened(root, pool=POOL) as store:
        warm(store)
        kept = Kept(store, SMALL, root)
        for _ in range(3):
            damage(kept)
            assert kept.load() == (0, "damaged")
            kept.check_whole()
        assert store.stats().quarantine_deleted == 1
    assert contents(quarantine) == before
