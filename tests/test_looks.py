"""What the owner's looks through its root meet, and that a delete holds whatever they meet."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kvstore.cache import Cache
from kvstore.chain import Chain
from kvstore.store import Store, open_blocking
from kvstore.testing import START_WALL_S, FaultFiles, FileCall, Injection, VirtualClock
from tests.support.prompts import (
    GRID,
    eventually,
    extent_files,
    file_named,
    physical_bytes,
    put,
    small_layout,
    tokens,
)

LAYOUT = small_layout()
DAY = 24 * 3600


@contextmanager
def opened(
    root: Path, clock: VirtualClock, role: str = "owner", files: FaultFiles | None = None
) -> Iterator[Store]:
    injected = Injection(clock=clock, files=files, manual_ticks=True)
    with open_blocking(root, capacity="1GB", pool="16MB", role=role, _testing=injected) as store:
        eventually(lambda: not store.info().roots[0].warming, "the scan ended")
        yield store


def look(store: Store, clock: VirtualClock) -> None:
    """One rescan, and its end: it counts what lies in quarantine last."""
    clock.advance(11)
    store.tick()


def put_named(kv: Cache, name: object, blocks: int = GRID) -> Chain:
    chain = kv.keys(tokens(name, blocks))
    assert put(kv, chain) == blocks
    return chain


def in_bucket_of(kv: Cache, chain: Chain) -> Chain:
    """Another prompt of one block whose file lies in the same directory."""
    chains = (kv.keys(tokens(("bucket", i), 1)) for i in range(1 << 20))
    return next(other for other in chains if other[0].hex()[:3] == chain[0].hex()[:3])


# ------------------------------------------------------------------------------ what a look meets


@pytest.mark.parametrize("step", [400 * 365 * DAY, -40 * 365 * DAY], ids=["ahead", "behind"])
def test_peers_extents_are_met_whatever_the_wall_clock_says(step: int, tmp_path: Path) -> None:
    """Directories have the change times of the real clock; the owner's says another year."""
    clock = VirtualClock(START_WALL_S + step)
    with opened(tmp_path, clock) as owner, opened(tmp_path, clock, "peer") as peer:
        kv = owner.cache(LAYOUT)
        for turn in range(3):
            chain = put_named(peer.cache(LAYOUT), turn)
            look(owner, clock)
            eventually(lambda: kv.match(chain).blocks == GRID, "the owner met it")
            assert owner.info().roots[0].used_bytes == physical_bytes(tmp_path)


def test_a_name_made_in_the_very_moment_of_a_look_is_met_by_the_next(tmp_path: Path) -> None:
    """The clock of a file system ticks in milliseconds: the directory's time after the name is the
    one that the look saw before it."""
    clock = VirtualClock()
    with opened(tmp_path, clock) as owner, opened(tmp_path, clock, "peer") as peer:
        kv = owner.cache(LAYOUT)
        first = put_named(peer.cache(LAYOUT), "first", 1)
        look(owner, clock)
        eventually(lambda: kv.contains(first[0]), "met")
        bucket = file_named(tmp_path, first[0]).parent
        seen = bucket.stat().st_mtime_ns
        second = in_bucket_of(kv, first)
        assert put(peer.cache(LAYOUT), second) == 1
        os.utime(bucket, ns=(seen, seen))
        look(owner, clock)
        eventually(lambda: kv.contains(second[0]), "met")


def test_a_bucket_in_which_nothing_happens_is_not_listed_again(tmp_path: Path) -> None:
    clock, files = VirtualClock(), FaultFiles()
    with opened(tmp_path, clock, files=files) as store:
        for name in range(20):
            put_named(store.cache(LAYOUT), name, 1)
        listed = []
        for _ in range(6):
            before = files.calls(FileCall.LIST)
            looked = files.calls(FileCall.STAT_PATH)
            look(store, clock)
            buckets = len(list(tmp_path.glob("*/[0-9a-f][0-9a-f][0-9a-f]")))
            eventually(
                lambda: files.calls(FileCall.STAT_PATH) >= looked + buckets,
                "every bucket was looked at",
            )
            store.cache(LAYOUT).delete_blocking(bytes(32))  # waits for a look of its own
            listed.append(files.calls(FileCall.LIST) - before)
        assert listed[0] > listed[-1], "root, namespace and quarantine only"
        assert listed[-1] <= 2 * 4


# ---------------------------------------------------------------------------------- a delete holds


def test_a_delete_drops_what_a_peer_published_and_the_owner_had_not_met(tmp_path: Path) -> None:
    """Named by another key than the deleted one, so no walk finds it."""
    clock = VirtualClock()
    with opened(tmp_path, clock) as owner, opened(tmp_path, clock, "peer") as peer:
        kv = owner.cache(LAYOUT)
        chain = put_named(peer.cache(LAYOUT), "theirs")
        assert not kv.contains(chain[3])
        assert kv.delete_blocking(chain[3]) == 1
        assert extent_files(tmp_path) == []
        for _ in range(3):
            look(owner, clock)
            owner.cache(LAYOUT).delete_blocking(bytes(32))
            assert kv.find_blocking(chain).blocks == 0
            assert (kv.match(chain).reason, owner.stats().extents) == ("deleted", 0)


def test_many_deletes_at_once_share_looks_and_all_hold(tmp_path: Path) -> None:
    clock, files = VirtualClock(), FaultFiles()
    with (
        opened(tmp_path, clock, files=files) as owner,
        opened(tmp_path, clock, "peer") as peer,
    ):
        kv = owner.cache(LAYOUT)
        chains = [put_named(peer.cache(LAYOUT), i) for i in range(40)]
        handles = [kv._delete(chain[5]) for chain in chains[:30]]
        for handle in handles:
            handle.wait("30s")
        assert len(extent_files(tmp_path)) == 10
        assert [kv.find_blocking(chain).blocks for chain in chains] == [0] * 30 + [GRID] * 10


def test_a_delete_says_when_the_root_could_not_be_looked_through(tmp_path: Path) -> None:
    clock, files = VirtualClock(), FaultFiles()
    with opened(tmp_path, clock, files=files) as store:
        kv = store.cache(LAYOUT)
        chain = put_named(kv, "prompt")
        files.add(FileCall.LIST, 5, count=0)
        with pytest.raises(OSError, match="delete"):
            kv.delete_blocking(chain[0])
        assert not kv.contains(chain[0]), "what is known is gone all the same"
        files.clear()
        assert kv.delete_blocking(chain[0]) == 0


@pytest.mark.parametrize("role", ["owner", "peer"])
def test_a_put_after_a_delete_stays(role: str, tmp_path: Path) -> None:
    clock = VirtualClock()
    with opened(tmp_path, clock) as owner:
        kv = owner.cache(LAYOUT)
        chain = put_named(kv, "prompt")
        assert kv.delete_blocking(chain[2]) == 1
        with opened(tmp_path, clock, "peer") as peer:
            put_named((owner if role == "owner" else peer).cache(LAYOUT), "prompt")
        look(owner, clock)
        assert kv.delete_blocking(bytes(32)) == 0
        assert kv.find_blocking(chain).blocks == GRID
        assert kv.delete_blocking(chain[2]) == 1
