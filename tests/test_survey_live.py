"""A root watched and looked at while it is in use: what changed since the last look; that looking
changes nothing, and that nothing goes wrong beside a store that writes and deletes.
"""

import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvstore import quarantine
from kvstore.fsck import quiet
from kvstore.store import open_blocking
from kvstore.survey.blocks import find_block
from kvstore.survey.extents import survey, with_headers
from kvstore.survey.sums import root_stat, usage, usage_by_class
from kvstore.survey.watch import UNTOLD, Watch
from tests.support.desk_root import BRANCH_AT, LAYOUT, OTHER, POOL, branch, fill, stem
from tests.support.filled_root import times
from tests.support.prompts import GRID, put, tokens
from tests.support.stores import opened, until

DAY_S = 86_400


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "kv"


@pytest.fixture
def keys(root: Path) -> tuple[list[bytes], list[bytes]]:
    return fill(root)


@pytest.fixture
def not_permitted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """O_NOATIME is refused, as for another user's files; what was refused."""
    refused: list[Any] = []
    real = os.open

    def other_user(path: Any, flags: int, *rest: Any, **words: Any) -> int:
        if flags & os.O_NOATIME:
            refused.append(path)
            raise PermissionError(1, "Operation not permitted")
        return real(path, flags, *rest, **words)

    monkeypatch.setattr(quiet.os, "open", other_user)
    yield refused


def look_at_everything(root: Path, key: bytes) -> None:
    list(with_headers(survey(root)))
    root_stat(root)
    usage(root, 2)
    usage_by_class(root)
    find_block([root], key.hex())
    watch = Watch(root)
    watch.look()
    watch.look()


# ------------------------------------------------------------------------------------- watching


def test_a_watch_tells_what_came_was_used_and_left(
    root: Path, keys: tuple[list[bytes], list[bytes]]
) -> None:
    watch = Watch(root)
    first = watch.look()
    assert (first.elapsed_s, first.removed, first.owner) == (0, {}, "")
    assert [(one.model, one.extents, one.new) for one in first.namespaces.values()] in (
        [("desk", 4, 0), ("other", 1, 0)],
        [("other", 1, 0), ("desk", 4, 0)],
    )
    with opened(root, pool=POOL) as store:
        kv = store.cache(LAYOUT)
        put(kv, kv.keys(tokens("more", GRID + 2)))
        look = watch.look()
        assert str(os.getpid()) in look.owner
        space = look.namespaces[LAYOUT.namespace]
        assert (space.extents, space.new, space.new_blocks) == (6, 2, GRID + 2)
        assert space.bytes == sum(
            path.stat().st_blocks * 512 for path in root.glob(f"{LAYOUT.namespace}/*/*.kv")
        )
        assert look.written_bytes_per_s == pytest.approx(space.new_bytes / look.elapsed_s)
        kv.delete_blocking(keys[1][BRANCH_AT])
        look = watch.look()
        space = look.namespaces[LAYOUT.namespace]
        assert (space.new, space.removed, space.extents) == (0, 1, 5)
        assert look.removed in ({UNTOLD: 1}, {"deleted": 1})
    assert watch.look().removed == {"deleted": 1}  # the owner wrote the ring when it closed
    path = next(root.glob(f"{LAYOUT.namespace}/*/*.kv"))
    os.utime(path, (time.time() + 60, path.stat().st_mtime))
    look = watch.look()
    assert [one.used for one in look.namespaces.values() if one.model == "desk"] == [1]
    assert [one.used for one in watch.look().namespaces.values()] == [0, 0]


def test_a_watch_sees_a_use_in_a_directory_that_did_not_change(
    root: Path, keys: tuple[list[bytes], list[bytes]]
) -> None:
    for path in root.glob("*/*/"):
        os.utime(path, (time.time() - DAY_S, time.time() - DAY_S))
    watch = Watch(root)
    watch.look()
    path = next(root.glob(f"{LAYOUT.namespace}/*/*.kv"))
    os.utime(path, (time.time() + 60, path.stat().st_mtime))
    assert watch.look().namespaces[LAYOUT.namespace].used == 1


def test_a_namespace_that_is_removed_by_hand_is_counted_as_removed(
    root: Path, keys: tuple[list[bytes], list[bytes]]
) -> None:
    watch = Watch(root)
    watch.look()
    shutil.rmtree(root / OTHER.namespace)
    look = watch.look()
    assert look.namespaces[OTHER.namespace].removed == 1
    assert look.removed == {UNTOLD: 1}
    assert list(watch.look().namespaces) == [LAYOUT.namespace]


# ----------------------------------------------------------------------------- nothing is changed


def test_nothing_is_changed_by_looking(
    root: Path, keys: tuple[list[bytes], list[bytes]], not_permitted: list[Any]
) -> None:
    """Neither with O_NOATIME refused: with mtime ahead of atime every read would move atime."""
    for path in root.rglob("*"):
        if path.is_file():
            os.utime(path, (time.time() - DAY_S, path.stat().st_mtime))
    quarantine.move(root, str(next(root.glob("*/*/*.kv")).relative_to(root)), now_s=1)
    names, before = sorted(root.rglob("*")), times(root)
    look_at_everything(root, keys[0][3])
    assert (sorted(root.rglob("*")), times(root)) == (names, before)
    assert {os.path.basename(path) for path in not_permitted} >= {"removed.ring", "layout.json"}


def test_nothing_is_changed_beside_an_owner(
    root: Path, keys: tuple[list[bytes], list[bytes]]
) -> None:
    with opened(root, pool=POOL) as store:
        until(lambda: not store.info().roots[0].warming)
        chain, kv = stem(store), store.cache(LAYOUT)
        lock = {root / "owner.lock"}  # who holds it is read; its times mean nothing
        before = times(root)
        look_at_everything(root, keys[0][3])
        after = times(root)
        assert {path for path in after if after[path] != before[path]} <= lock
        assert kv.match(chain).blocks == len(chain)
        assert str(os.getpid()) in root_stat(root).owner


def test_beside_an_owner_that_writes_evicts_and_deletes_nothing_goes_wrong(root: Path) -> None:
    key = fill(root)[0][3]
    rounds, ended = 0, threading.Event()
    with opened(root, pool=POOL, capacity=600_000) as store:
        kv = store.cache(LAYOUT)

        def live() -> None:
            nonlocal rounds
            while not ended.is_set():
                chain = kv.keys(tokens(rounds, GRID + 1))
                put(kv, chain)
                if rounds % 3 == 0:
                    kv.delete_blocking(chain[0])
                rounds += 1

        thread = threading.Thread(target=live)
        thread.start()
        try:
            watch, looks, seen = Watch(root), 0, [0, 0]
            end_s = time.monotonic() + 60
            while (looks < 5 or not all(seen)) and time.monotonic() < end_s:
                for space in watch.look().namespaces.values():
                    seen = [seen[0] + space.new, seen[1] + space.removed]
                look_at_everything(root, key)
                looks += 1
                assert thread.is_alive()
        finally:
            ended.set()
            thread.join()
    assert rounds and all(seen)
    assert set(root_stat(root).removed) == {"deleted", "evicted"}


def test_what_a_peer_writes_is_seen(root: Path) -> None:
    with opened(root, pool=POOL):
        with open_blocking(root, role="peer", pool=POOL) as peer:
            kv = peer.cache(LAYOUT)
            put(kv, branch(peer))
            assert root_stat(root).total.blocks == len(branch(peer))
            assert find_block([root], branch(peer)[2].hex()).blocks
