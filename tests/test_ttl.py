"""Retention: classes, renewal, and that both times of an extent survive a restart as its metadata.

Every store here runs on a driven clock and does its housekeeping only when told to.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kvstore import Miss
from kvstore.cache import Cache
from kvstore.chain import Chain
from kvstore.store import Store, open_blocking
from kvstore.testing import START_WALL_S, Injection, VirtualClock
from tests.support.prompts import (
    GRID,
    block_bytes,
    eventually,
    extent_files,
    file_named,
    load,
    physical_bytes,
    put,
    small_layout,
    tokens,
)

LAYOUT = small_layout()
HOUR, DAY = 3600, 24 * 3600
AGENT, CHAT = 3 * DAY, 7 * DAY
YEARS = 5 * 365 * DAY


@contextmanager
def opened(root: Path, clock: VirtualClock, capacity: int = 1 << 30) -> Iterator[Store]:
    """Once the scan is over: what is on disk is known."""
    injected = Injection(clock=clock, manual_ticks=True)
    with open_blocking(root, capacity=capacity, pool="16MB", _testing=injected) as store:
        eventually(lambda: not store.info().roots[0].warming, "the scan ended")
        yield store


def chain_named(kv: Cache, name: object, blocks: int = 5) -> Chain:
    return kv.keys(tokens(name, blocks))


def times(root: Path, chain: Chain) -> tuple[float, float]:
    """(last use, valid until) of the extent named by the first block, in seconds since START."""
    stat = file_named(root, chain[0]).stat()
    return stat.st_atime - START_WALL_S, stat.st_mtime - START_WALL_S


def answer(kv: Cache, chain: Chain) -> tuple[int, str | None]:
    hit = kv.match(chain)
    return hit.blocks, hit.reason


# ----------------------------------------------------------------------------- while it is open


@pytest.mark.parametrize(("retain", "ttl"), [("agent", AGENT), ("chat", CHAT), (None, CHAT)])
def test_a_block_lives_for_the_time_of_its_class(
    retain: str | None, ttl: int, tmp_path: Path
) -> None:
    clock = VirtualClock()
    with opened(tmp_path, clock) as store:
        kv = store.cache(LAYOUT)
        chain = chain_named(kv, "prompt")
        put(kv, chain, retain=retain)
        hit = kv.match(chain)
        clock.advance(ttl - 1)
        store.tick()
        assert answer(kv, chain) == (5, None)
        clock.advance(1)
        assert answer(kv, chain) == (0, "expired"), "also before anybody ticked"
        assert load(kv, hit) == (0, "expired")
        assert not kv.contains(chain[0])
        assert kv.get_blocking(chain[0]) == Miss("expired")
        store.tick()
        assert answer(kv, chain) == (0, "expired")


def test_a_load_renews_and_a_match_does_not(tmp_path: Path) -> None:
    clock = VirtualClock()
    with opened(tmp_path, clock) as store:
        kv = store.cache(LAYOUT)
        loaded, matched = chain_named(kv, "loaded"), chain_named(kv, "matched")
        for chain in (loaded, matched):
            put(kv, chain, retain="agent")
        clock.advance(2 * DAY)
        assert load(kv, kv.match(loaded)) == (5, None)
        assert answer(kv, matched) == (5, None)
        assert kv.contains(matched[0])
        clock.advance(2 * DAY)
        assert answer(kv, loaded) == (5, None)
        assert answer(kv, matched) == (0, "expired")


def test_a_lease_alone_does_not_renew(tmp_path: Path) -> None:
    clock = VirtualClock()
    with opened(tmp_path, clock) as store:
        kv = store.cache(LAYOUT)
        chain = chain_named(kv, "leased")
        put(kv, chain, retain="agent")
        clock.advance(2 * DAY)
        kv.lease(kv.match(chain), retain="chat").release()
        clock.advance(DAY)
        assert answer(kv, chain) == (0, "expired")


def test_a_get_and_a_put_of_what_is_there_renew(tmp_path: Path) -> None:
    clock = VirtualClock()
    with opened(tmp_path, clock) as store:
        kv = store.cache(LAYOUT)
        got, put_again = chain_named(kv, "got", 1), chain_named(kv, "put again")
        put(kv, got, retain="agent")
        put(kv, put_again, retain="agent")
        clock.advance(2 * DAY)
        block = kv.get_blocking(got[0])
        assert not isinstance(block, Miss)
        with block:
            assert bytes(block) == block_bytes(LAYOUT, got[0])
        put(kv, put_again, retain="agent")
        clock.advance(2 * DAY)
        assert answer(kv, got) == (1, None)
        assert answer(kv, put_again) == (5, None)


def test_a_renewal_by_another_class_only_ever_extends(tmp_path: Path) -> None:
    clock = VirtualClock()
    with opened(tmp_path, clock) as store:
        kv = store.cache(LAYOUT)
        short, long = chain_named(kv, "short"), chain_named(kv, "long")
        put(kv, short, retain="agent")
        put(kv, long, retain="chat")
        clock.advance(DAY)
        assert load(kv, kv.match(short), retain="chat") == (5, None)
        assert load(kv, kv.match(long), retain="agent") == (5, None)
        clock.advance(6 * DAY - 1)
        assert answer(kv, long) == (5, None), "7 days from the put, not 3 from the load"
        clock.advance(1)
        assert answer(kv, long) == (0, "expired")
        assert answer(kv, short) == (5, None), "7 days from the load"
        clock.advance(DAY)
        assert answer(kv, short) == (0, "expired")


def test_expired_extents_are_unlinked_one_by_one_and_their_bytes_given_back(
    tmp_path: Path,
) -> None:
    clock = VirtualClock()
    with opened(tmp_path, clock) as store:
        kv = store.cache(LAYOUT)
        for name in range(5):
            put(kv, chain_named(kv, name), retain="agent")
        stays = chain_named(kv, "stays")
        put(kv, stays, retain="chat")
        clock.advance(AGENT)
        for left in range(5, 0, -1):  # one a minute: each is more than a twentieth of the root
            store.tick()
            eventually(lambda: len(extent_files(tmp_path)) == left, "one more is unlinked")
            clock.advance(60)
        assert extent_files(tmp_path) == [file_named(tmp_path, stays[0])]
        eventually(
            lambda: store.info().roots[0].used_bytes == physical_bytes(tmp_path), "given back"
        )
        assert store.stats().expired_extents == 5
        assert store.stats().evicted_extents == 0
        assert store.stats().retention["agent"].evicted_before_ttl == 0


def test_expired_extents_make_room_before_older_ones_that_are_valid(tmp_path: Path) -> None:
    clock = VirtualClock()
    with opened(tmp_path / "measure", clock) as store:
        put(store.cache(LAYOUT), chain_named(store.cache(LAYOUT), "one", GRID))
        full = physical_bytes(tmp_path / "measure")
    with opened(tmp_path / "tight", clock, capacity=3 * full) as store:
        kv = store.cache(LAYOUT)
        oldest, expired, newest = (chain_named(kv, name, GRID) for name in ("o", "e", "n"))
        put(kv, oldest, retain="chat")
        clock.advance(1)
        put(kv, expired, retain="agent")
        clock.advance(AGENT)
        put(kv, newest, retain="chat")
        assert put(kv, chain_named(kv, "more", GRID)) == GRID
        assert answer(kv, oldest) == (GRID, None), "least recently used, but valid"
        assert answer(kv, expired) == (0, "expired")
        assert store.stats().expired_extents == 1
        assert store.stats().evicted_extents == 0


@pytest.mark.parametrize("step", [YEARS, -YEARS], ids=["forward", "backward"])
def test_a_stepped_wall_clock_expires_nothing_and_keeps_nothing_longer(
    step: int, tmp_path: Path
) -> None:
    clock = VirtualClock()
    with opened(tmp_path, clock) as store:
        kv = store.cache(LAYOUT)
        before = chain_named(kv, "before")
        put(kv, before, retain="agent")
        clock.step_wall(step)
        store.tick()
        assert answer(kv, before) == (5, None)
        after = chain_named(kv, "after")
        put(kv, after, retain="agent")
        clock.advance(AGENT - 1)
        store.tick()
        assert answer(kv, before) == answer(kv, after) == (5, None)
        clock.advance(1)
        store.tick()
        assert answer(kv, before) == answer(kv, after) == (0, "expired")


# ------------------------------------------------------------------------------ over a restart


def test_both_times_are_on_disk_in_whole_seconds(tmp_path: Path) -> None:
    clock = VirtualClock()
    with opened(tmp_path, clock) as store:
        kv = store.cache(LAYOUT)
        chain = chain_named(kv, "prompt")
        clock.advance(10.75)
        put(kv, chain, retain="agent")
        assert times(tmp_path, chain) == (10, 10 + AGENT)
        clock.advance(HOUR)
        load(kv, kv.match(chain))
    assert times(tmp_path, chain) == (10 + HOUR, 10 + HOUR + AGENT), (
        "written at close at the latest"
    )


def test_a_renewal_reaches_the_disk_within_ten_minutes(tmp_path: Path) -> None:
    clock = VirtualClock()
    with opened(tmp_path, clock) as store:
        kv = store.cache(LAYOUT)
        chain = chain_named(kv, "prompt")
        put(kv, chain, retain="agent")
        clock.advance(601)
        store.tick()
        clock.advance(HOUR)
        load(kv, kv.match(chain))
        store.drop_ram()
        clock.advance(601)
        store.tick()
        wanted = (601 + HOUR, 601 + HOUR + AGENT)
        eventually(lambda: times(tmp_path, chain) == wanted, "the times are written")


def test_expiry_goes_on_where_it_was_after_a_restart(tmp_path: Path) -> None:
    with opened(tmp_path, VirtualClock()) as store:
        kv = store.cache(LAYOUT)
        agent, chat = chain_named(kv, "agent"), chain_named(kv, "chat")
        put(kv, agent, retain="agent")
        put(kv, chat, retain="chat")
    clock = VirtualClock(START_WALL_S + AGENT - 1)
    with opened(tmp_path, clock) as store:
        kv = store.cache(LAYOUT)
        assert answer(kv, agent) == answer(kv, chat) == (5, None)
        clock.advance(1)
        assert answer(kv, agent) == (0, "expired")
        assert answer(kv, chat) == (5, None)
    clock = VirtualClock(START_WALL_S + CHAT)
    with opened(tmp_path, clock) as store:
        kv = store.cache(LAYOUT)
        assert kv.match(chat).blocks == 0
        store.tick()
        eventually(lambda: len(extent_files(tmp_path)) == 1, "expired while closed: unlinked")
        clock.advance(60)
        store.tick()
        eventually(lambda: extent_files(tmp_path) == [], "expired while closed: unlinked")


def test_a_reopened_extent_is_renewed_by_its_own_class(tmp_path: Path) -> None:
    with opened(tmp_path, VirtualClock()) as store:
        kv = store.cache(LAYOUT)
        chain = chain_named(kv, "agent")
        put(kv, chain, retain="agent")
    with opened(tmp_path, VirtualClock(START_WALL_S + DAY)) as store:
        kv = store.cache(LAYOUT)
        assert load(kv, kv.match(chain)) == (5, None)
    assert times(tmp_path, chain) == (DAY, DAY + AGENT)


def test_the_order_of_use_survives_a_restart(tmp_path: Path) -> None:
    clock = VirtualClock()
    with opened(tmp_path, clock) as store:
        kv = store.cache(LAYOUT)
        chains = [chain_named(kv, name, GRID) for name in range(5)]
        for chain in chains:
            put(kv, chain)
            clock.advance(1)
        full = physical_bytes(tmp_path) // 5
        load(kv, kv.match(chains[1]))
    clock = VirtualClock(START_WALL_S + 60)
    with opened(tmp_path, clock, capacity=5 * full) as store:
        kv = store.cache(LAYOUT)
        for name, left in (("a", [1, 2, 3, 4]), ("b", [1, 3, 4]), ("c", [1, 4]), ("d", [1])):
            clock.advance(1)
            put(kv, chain_named(kv, name, GRID))
            assert [i for i in range(5) if kv.match(chains[i]).blocks == GRID] == left


def test_of_a_prompt_used_within_one_second_the_tail_goes_first_after_a_restart(
    tmp_path: Path,
) -> None:
    with opened(tmp_path, VirtualClock()) as store:
        kv = store.cache(LAYOUT)
        chain = chain_named(kv, "long", 5 * GRID)
        put(kv, chain)
        full = physical_bytes(tmp_path) // 5
    clock = VirtualClock(START_WALL_S + 60)
    with opened(tmp_path, clock, capacity=5 * full) as store:
        kv = store.cache(LAYOUT)
        put(kv, chain_named(kv, "other", 2 * GRID))
        assert answer(kv, chain) == (3 * GRID, "evicted")


# ------------------------------------------------------------------- times that are not believed


@pytest.fixture
def stored(tmp_path: Path) -> Chain:
    with opened(tmp_path, VirtualClock()) as store:
        kv = store.cache(LAYOUT)
        chain = chain_named(kv, "prompt")
        put(kv, chain, retain="agent")
    return chain


def set_times(root: Path, chain: Chain, used: int, until: int) -> None:
    os.utime(file_named(root, chain[0]), (used, until))


def test_valid_beyond_the_longest_class_means_the_longest_class(
    tmp_path: Path, stored: Chain
) -> None:
    set_times(tmp_path, stored, START_WALL_S, START_WALL_S + YEARS)
    clock = VirtualClock(START_WALL_S + DAY)
    with opened(tmp_path, clock) as store:
        kv = store.cache(LAYOUT)
        clock.advance(CHAT - 1)
        assert answer(kv, stored) == (5, None)
        clock.advance(1)
        assert answer(kv, stored) == (0, "expired")


@pytest.mark.parametrize(
    ("used", "rank"),
    [
        pytest.param(START_WALL_S + YEARS, "newest", id="in the future: now"),
        pytest.param(0, "by mtime", id="lost: valid until less the class's time"),
    ],
)
def test_an_impossible_last_use_is_replaced(used: int, rank: str, tmp_path: Path) -> None:
    clock = VirtualClock()
    with opened(tmp_path, clock) as store:
        kv = store.cache(LAYOUT)
        chains = [chain_named(kv, name, GRID) for name in range(3)]
        for chain in chains:
            put(kv, chain, retain="agent")
            clock.advance(10)
        full = physical_bytes(tmp_path) // 3
    set_times(tmp_path, chains[1], used, START_WALL_S + 10 + AGENT)
    clock = VirtualClock(START_WALL_S + 60)
    with opened(tmp_path, clock, capacity=3 * full) as store:
        kv = store.cache(LAYOUT)
        put(kv, chain_named(kv, "a", GRID))
        assert [kv.match(chain).blocks for chain in chains] == [0, GRID, GRID]
        clock.advance(1)
        put(kv, chain_named(kv, "b", GRID))
        left = [0, GRID, 0] if rank == "newest" else [0, 0, GRID]
        assert [kv.match(chain).blocks for chain in chains] == left


def test_verification_and_matching_leave_both_times_alone(tmp_path: Path, stored: Chain) -> None:
    before = times(tmp_path, stored)
    with opened(tmp_path, VirtualClock(START_WALL_S + DAY)) as store:
        kv = store.cache(LAYOUT)
        assert answer(kv, stored) == (5, None)
        assert kv.contains(stored[0])
        store.tick()
    assert times(tmp_path, stored) == before
