"""The order in which extents go, and what protects them."""

from pathlib import Path

import pytest

from kvstore.testing import VirtualClock
from tests.support.prompts import (
    GRID,
    assert_whole,
    extent_files,
    load,
    put,
)
from tests.support.tight import LAYOUT, chain_named, fill, measure_full_extent, opened, resident

HOUR = 3600


@pytest.fixture(scope="session")
def full_extent_bytes(tmp_path_factory: pytest.TempPathFactory) -> int:
    """What one extent of GRID blocks takes on this disk."""
    return measure_full_extent(tmp_path_factory.mktemp("measure"))


def test_the_least_recently_used_extent_goes_first(tmp_path: Path, full_extent_bytes: int) -> None:
    clock = VirtualClock()
    with opened(tmp_path, 4 * full_extent_bytes, clock=clock) as store:
        kv = store.cache(LAYOUT)
        old = fill(kv, range(4), clock)
        assert load(kv, kv.match(old[0])) == (GRID, None)
        fill(kv, ["five"], clock)
        assert resident(kv, old) == [0, 2, 3], "loaded a moment ago; the next oldest went"
        kv.match(old[2])  # a match is no use
        fill(kv, ["six"], clock)
        assert resident(kv, old) == [0, 3]
        assert kv.match(old[1]).reason == kv.match(old[2]).reason == "evicted"
        put(kv, old[3])  # a put of what is there is a use
        fill(kv, ["seven"], clock)
        assert resident(kv, old) == [3]


@pytest.mark.parametrize("ram", [False, True], ids=["from disk", "from memory"])
def test_a_tight_cache_keeps_the_head_of_a_prompt(
    ram: bool, tmp_path: Path, full_extent_bytes: int
) -> None:
    """Blocks of one chain are touched tail first. Root first, the six extents of this prompt would
    lose their first two, and with them every hit."""
    clock = VirtualClock()
    with opened(tmp_path, 6 * full_extent_bytes, clock=clock) as store:
        kv = store.cache(LAYOUT)
        prompt = chain_named(kv, "agent", 6 * GRID)
        put(kv, prompt)
        if not ram:
            store.drop_ram()
        assert load(kv, kv.match(prompt)) == (6 * GRID, None)
        fill(kv, ["other", "another"], clock)
        hit = kv.match(prompt)
        assert (hit.blocks, hit.reason) == (4 * GRID, "evicted")
        assert load(kv, hit) == (4 * GRID, None)


def test_agents_that_grow_turn_by_turn_in_a_tight_cache_lose_tails_only(
    tmp_path: Path, full_extent_bytes: int
) -> None:
    """Three agents take turns, each turn a block or a few longer: what stays of each is a prefix,
    and no extent lies on the disk that a missing parent makes useless."""
    clock = VirtualClock()
    blocks_on_disk = 8 * GRID
    with opened(tmp_path, 8 * full_extent_bytes, clock=clock) as store:
        kv = store.cache(LAYOUT)
        for turn in range(1, 16):
            for agent in range(3):
                chain = chain_named(kv, ("agent", agent), 5 * turn)
                hit = kv.match(chain)
                assert load(kv, hit)[0] == hit.blocks
                put(kv, chain, start=hit.blocks)
                clock.advance(1)
        last = [chain_named(kv, ("agent", agent), 75) for agent in range(3)]
        usable = sum(kv.match(chain).blocks for chain in last)
        assert usable == store.stats().blocks, "every block on disk is in a usable prefix"
        assert usable > blocks_on_disk // 2


def test_leased_extents_are_not_evicted(tmp_path: Path, full_extent_bytes: int) -> None:
    clock = VirtualClock()
    with opened(tmp_path, 4 * full_extent_bytes, clock=clock) as store:
        kv = store.cache(LAYOUT)
        old = fill(kv, range(4), clock)
        with kv.lease(kv.match(old[0]), timeout="1h"), kv.lease(kv.match(old[2]), timeout="1h"):
            new = fill(kv, ["a", "b", "c"], clock)
            assert resident(kv, old) == [0, 2]
            assert resident(kv, new) == [1, 2]
        fill(kv, ["d", "e", "f"], clock)
        assert resident(kv, old) == [], "released: the oldest again"


def test_a_lease_that_timed_out_protects_no_more(tmp_path: Path, full_extent_bytes: int) -> None:
    clock = VirtualClock()
    with opened(tmp_path, 2 * full_extent_bytes, clock=clock) as store:
        kv = store.cache(LAYOUT)
        old = fill(kv, range(2), clock)
        lease = kv.lease(kv.match(old[0]), timeout="60s")
        clock.advance(61)
        store.tick()
        assert not lease.alive
        fill(kv, ["new"], clock)
        assert resident(kv, old) == [1]


def test_a_put_without_room_because_all_is_leased_is_dropped_and_counted(
    tmp_path: Path, full_extent_bytes: int
) -> None:
    clock = VirtualClock()
    with opened(tmp_path, 2 * full_extent_bytes, clock=clock) as store:
        kv = store.cache(LAYOUT)
        old = fill(kv, range(2), clock)
        leases = [kv.lease(kv.match(chain)) for chain in old]
        new = chain_named(kv, "new")
        assert put(kv, new) == 0
        assert store.stats().dropped_blocks == GRID
        assert resident(kv, old) == [0, 1]
        leases[0].release()
        assert put(kv, new) == GRID
        assert resident(kv, old) == [1]


def test_extents_that_are_being_loaded_are_not_evicted(
    tmp_path: Path, full_extent_bytes: int
) -> None:
    clock = VirtualClock()
    with opened(tmp_path, 2 * full_extent_bytes, clock=clock) as store:
        kv = store.cache(LAYOUT)
        old = fill(kv, range(2), clock)
        store.drop_ram()
        # A stalled open keeps the load running; nothing but the load itself holds the extent.
        with kv.load(kv.match(old[0])) as running:
            assert put(kv, chain_named(kv, "new")) == GRID
            assert running.wait(LAYOUT.layers - 1).blocks == GRID
        assert resident(kv, old) == [0]


def test_peers_never_evict(tmp_path: Path, full_extent_bytes: int) -> None:
    clock = VirtualClock()
    with opened(tmp_path, 2 * full_extent_bytes, clock=clock) as owner:
        kv = owner.cache(LAYOUT)
        old = fill(kv, range(2), clock)
        with opened(tmp_path, 2 * full_extent_bytes, clock=clock, role="peer") as peer:
            theirs = peer.cache(LAYOUT)
            for chain in old:
                assert_whole(theirs, chain)
            clock.advance(8 * 24 * HOUR)
            peer.tick()
            put(theirs, chain_named(theirs, "new"))
            assert peer.stats().evicted_extents == peer.stats().expired_extents == 0
            assert len(extent_files(tmp_path)) == 3, "room is the owner's to make"


def test_stats_tell_how_long_evicted_extents_lived(tmp_path: Path, full_extent_bytes: int) -> None:
    clock = VirtualClock()
    with opened(tmp_path, 2 * full_extent_bytes, clock=clock) as store:
        kv = store.cache(LAYOUT)
        put(kv, chain_named(kv, "agent"), retain="agent")
        put(kv, chain_named(kv, "chat"), retain="chat")
        clock.advance(HOUR)
        put(kv, chain_named(kv, "new"), retain="chat")
        retention = store.stats().retention
        assert retention["agent"].removed == retention["agent"].evicted_before_ttl == 1
        assert retention["agent"].mean_evicted_age_s == HOUR
        assert retention["chat"].removed == 0
