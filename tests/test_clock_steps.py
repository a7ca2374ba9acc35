"""Steps of the wall clock, by hours and years, both ways: what expires, what is unlinked, what is
on disk. Every store here runs on a driven clock and keeps house only when told to.
"""

import dataclasses
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kvstore.cache import Cache
from kvstore.chain import Chain
from kvstore.store import Store, open_blocking
from kvstore.testing import START_WALL_S, Injection, VirtualClock
from tests.support.extent_bytes import replace
from tests.support.extent_reader import read_extent
from tests.support.make_extents import as_made, encode
from tests.support.prompts import (
    GRID,
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
MINUTE, HOUR, DAY = 60, 3600, 24 * 3600
AGENT = 3 * DAY  # time to live of that class
CHAT = 7 * DAY
YEARS = 5 * 365 * DAY
STEPS = [2 * HOUR, -2 * HOUR, YEARS, -YEARS]
NAMES = ["hours ahead", "hours back", "years ahead", "years back"]


@contextmanager
def opened(
    root: Path, clock: VirtualClock, *, capacity: int = 1 << 30, role: str = "owner"
) -> Iterator[Store]:
    """Once the scan is over: what is on disk is known."""
    injected = Injection(clock=clock, manual_ticks=True)
    with open_blocking(
        root, capacity=capacity, pool="16MB", role=role, min_age=0, _testing=injected
    ) as store:
        eventually(lambda: not store.info().roots[0].warming, "the scan ended")
        yield store


def chain_named(kv: Cache, name: object, blocks: int = 5) -> Chain:
    return kv.keys(tokens(name, blocks))


def put_named(kv: Cache, name: object, retain: str = "agent", blocks: int = 5) -> Chain:
    chain = chain_named(kv, name, blocks)
    assert put(kv, chain, retain=retain) == blocks
    return chain


def answer(kv: Cache, chain: Chain) -> tuple[int, str | None]:
    hit = kv.match(chain)
    return hit.blocks, hit.reason


def pass_time(store: Store, clock: VirtualClock, seconds: int, *, round_s: int = 600) -> None:
    """Rounds of housekeeping all the while."""
    for _ in range(seconds // round_s):
        clock.advance(round_s)
        store.tick()


def resident(kv: Cache, chains: list[Chain]) -> int:
    return sum(kv.match(chain).blocks == len(chain) for chain in chains)


# ------------------------------------------------------------ what was put while the store was open


@pytest.mark.parametrize("followed", [False, True], ids=["for a moment", "for good"])
@pytest.mark.parametrize("step", STEPS, ids=NAMES)
def test_no_step_changes_how_long_a_put_still_lives(
    step: int, followed: bool, tmp_path: Path
) -> None:
    clock = VirtualClock()
    with opened(tmp_path, clock) as store:
        kv = store.cache(LAYOUT)
        before = put_named(kv, "before")
        clock.step_wall(step)
        store.tick()
        after = put_named(kv, "after")
        lived = 2 * HOUR
        if followed:
            pass_time(store, clock, lived)
            assert store.stats().clock_step_s == 0, "it lasted an hour"
        else:
            pass_time(store, clock, 600)
            clock.step_wall(-step)
            pass_time(store, clock, lived - 600)
        clock.advance(AGENT - lived - 1)
        assert answer(kv, before) == answer(kv, after) == (5, None)
        clock.advance(1)
        assert answer(kv, before) == answer(kv, after) == (0, "expired")


@pytest.mark.parametrize("step", STEPS, ids=NAMES)
def test_a_step_is_named_and_logged_once_until_it_has_lasted_an_hour(
    step: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = VirtualClock()
    with opened(tmp_path, clock) as store, caplog.at_level(logging.WARNING, "kvstore"):
        caplog.clear()
        clock.step_wall(step)
        store.tick()
        assert store.stats().clock_step_s == step
        assert any("wall clock was stepped" in line for line in store.info().fallbacks)
        pass_time(store, clock, HOUR - 600)
        assert store.stats().clock_step_s == step
        assert store.stats().clock_steps == 1
        assert [f"stepped by {step:+d} s" in line for line in caplog.messages] == [True]
        pass_time(store, clock, 600)
        assert store.stats().clock_step_s == 0
        assert len(caplog.messages) == 2
        assert "clock" in caplog.messages[1]


def test_a_step_that_is_taken_back_was_never_followed(tmp_path: Path) -> None:
    clock = VirtualClock()
    with opened(tmp_path, clock) as store:
        kv = store.cache(LAYOUT)
        for _ in range(3):
            clock.step_wall(YEARS)
            pass_time(store, clock, HOUR - 600)
            clock.step_wall(-YEARS)
            store.tick()
            assert store.stats().clock_step_s == 0
        assert store.stats().clock_steps == 3
        chain = put_named(kv, "prompt")
        assert file_named(tmp_path, chain[0]).stat().st_mtime < START_WALL_S + CHAT


def test_another_step_while_one_lasts_begins_its_hour_anew(tmp_path: Path) -> None:
    clock = VirtualClock()
    with opened(tmp_path, clock) as store:
        clock.step_wall(YEARS)
        store.tick()
        pass_time(store, clock, HOUR - 600)
        clock.step_wall(2 * HOUR)
        store.tick()
        pass_time(store, clock, HOUR - 600)
        assert store.stats().clock_step_s == YEARS + 2 * HOUR
        pass_time(store, clock, 600)
        assert store.stats().clock_step_s == 0


@pytest.mark.parametrize("step", [HOUR, -HOUR, 2, -2])
def test_a_difference_of_an_hour_is_followed_at_once(step: int, tmp_path: Path) -> None:
    clock = VirtualClock()
    with opened(tmp_path, clock) as store:
        kv = store.cache(LAYOUT)
        before = put_named(kv, "before")
        clock.step_wall(step)
        store.tick()
        after = put_named(kv, "after")
        assert (store.stats().clock_step_s, store.stats().clock_steps) == (0, 0)
        assert file_named(tmp_path, after[0]).stat().st_mtime == START_WALL_S + step + AGENT
        clock.advance(AGENT - 1)
        assert answer(kv, before) == answer(kv, after) == (5, None)
        clock.advance(1)
        assert answer(kv, before) == answer(kv, after) == (0, "expired")
    assert file_named(tmp_path, before[0]).stat().st_mtime == START_WALL_S + max(step, 0) + AGENT, (
        "written anew where that does not shorten it"
    )


# --------------------------------------------------------------------- what was read from the disk


@pytest.mark.parametrize("step", [YEARS, -YEARS], ids=["years ahead", "years back"])
def test_a_step_that_was_followed_is_what_the_next_life_reads(step: int, tmp_path: Path) -> None:
    clock = VirtualClock()
    with opened(tmp_path, clock) as store:
        chain = put_named(store.cache(LAYOUT), "prompt")
        clock.step_wall(step)
        store.tick()
        pass_time(store, clock, HOUR)
    clock = VirtualClock(START_WALL_S + step + HOUR)
    with opened(tmp_path, clock) as store:
        kv = store.cache(LAYOUT)
        clock.advance(AGENT - HOUR - 1)
        assert answer(kv, chain) == (5, None)
        clock.advance(1)
        assert answer(kv, chain) == (0, "expired")


def many(root: Path, extents: int) -> list[Chain]:
    with opened(root, VirtualClock()) as store:
        return [put_named(store.cache(LAYOUT), i, blocks=GRID) for i in range(extents)]


def test_a_clock_years_ahead_at_open_does_not_wipe_the_disk(tmp_path: Path) -> None:
    """Half an hour with the wrong clock, then NTP sets it right. Nothing is served meanwhile, some
    of it is unlinked; what is left comes back when the step has lasted an hour."""
    chains = many(tmp_path, 40)
    clock = VirtualClock(START_WALL_S + YEARS)
    with opened(tmp_path, clock) as store:
        kv = store.cache(LAYOUT)
        assert resident(kv, chains) == 0
        for minute in range(10):
            for _ in range(6):
                store.tick()
                clock.advance(MINUTE / 6)
            # Minutes begin when something is unlinked: one more may have begun just now.
            assert store.stats().expired_extents <= 40 * (1 - 0.95 ** (minute + 2))
        eventually(lambda: store.stats().expired_extents > 0, "expiry goes on, slowly")
        eventually(
            lambda: len(extent_files(tmp_path)) + store.stats().expired_extents == 40, "unlinked"
        )
        left = len(extent_files(tmp_path))
        clock.step_wall(-YEARS)
        store.tick()
        pass_time(store, clock, HOUR - 600)
        assert resident(kv, chains) == 0, "the step is not believed yet"
        pass_time(store, clock, 600)
        assert len(extent_files(tmp_path)) == left, "the clock was in doubt: nothing was unlinked"
        assert resident(kv, chains) == left
        for chain in chains:
            hit = kv.match(chain)
            assert load(kv, hit)[0] == hit.blocks


def test_a_clock_far_behind_at_open_costs_nothing_when_it_is_put_right(tmp_path: Path) -> None:
    """A machine without a battery wakes up in 1970; the times on disk are years ahead."""
    chains = many(tmp_path, 10)
    clock = VirtualClock(1000)
    with opened(tmp_path, clock) as store:
        kv = store.cache(LAYOUT)
        assert resident(kv, chains) == 10
        assert load(kv, kv.match(chains[0])) == (GRID, None), "renewed by the wrong clock"
        clock.step_wall(START_WALL_S + HOUR - 1000)
        store.tick()
        pass_time(store, clock, 2 * HOUR)
        assert resident(kv, chains) == 10
        assert len(extent_files(tmp_path)) == 10
        clock.advance(AGENT - 3 * HOUR)
        assert resident(kv, chains) == 1, "the others were put three days ago"
    with opened(tmp_path, VirtualClock(START_WALL_S + AGENT)) as store:
        assert resident(store.cache(LAYOUT), chains) == 1


def test_room_is_made_by_recency_while_the_clock_is_in_doubt(tmp_path: Path) -> None:
    clock = VirtualClock()
    with opened(tmp_path, clock) as store:
        kv = store.cache(LAYOUT)
        old, new = put_named(kv, "old", "chat", GRID), put_named(kv, "new", "agent", GRID)
        room = physical_bytes(tmp_path)
    for path, used in ((old, 0), (new, 10)):
        stat = file_named(tmp_path, path[0]).stat()
        os.utime(file_named(tmp_path, path[0]), (START_WALL_S + used, stat.st_mtime))
    clock = VirtualClock(START_WALL_S + YEARS)
    with opened(tmp_path, clock, capacity=room) as store:
        kv = store.cache(LAYOUT)
        clock.step_wall(HOUR - YEARS)
        store.tick()
        put_named(kv, "needs room", "agent", GRID)
        names = [path.stem for path in extent_files(tmp_path)]
        assert new[0].hex() in names, "expires first, but was used last"
        assert old[0].hex() not in names


def test_eviction_takes_as_many_expired_extents_as_a_put_needs(tmp_path: Path) -> None:
    clock = VirtualClock()
    many(tmp_path, 10)
    room = physical_bytes(tmp_path)
    clock = VirtualClock(START_WALL_S + CHAT + HOUR)
    with opened(tmp_path, clock, capacity=room) as store:
        kv = store.cache(LAYOUT)
        new = [put_named(kv, ("new", i), blocks=GRID) for i in range(8)]
        assert resident(kv, new) == 8, "no minute passed"
        assert physical_bytes(tmp_path) <= room
        assert store.stats().expired_extents == 8


def test_a_peer_with_another_clock_neither_loses_nor_keeps_for_ever(tmp_path: Path) -> None:
    ahead, clock = VirtualClock(START_WALL_S + YEARS), VirtualClock()
    with opened(tmp_path, clock) as owner, opened(tmp_path, ahead, role="peer") as peer:
        theirs = put_named(peer.cache(LAYOUT), "theirs")
        ours = put_named(owner.cache(LAYOUT), "ours")
        kv = owner.cache(LAYOUT)
        assert peer.cache(LAYOUT).find_blocking(ours).blocks == 0, "expired years ago, for it"
        clock.advance(11)
        owner.tick()
        eventually(lambda: answer(kv, theirs) == (5, None), "the owner met it")
        clock.advance(CHAT)
        assert answer(kv, theirs) == (0, "expired"), "not valid for years"


@pytest.mark.parametrize("created_s", [2**63 - 1, -(2**63)])
@pytest.mark.parametrize("far_s", [430 * 365 * DAY, -68 * 365 * DAY])
def test_dates_that_nobody_can_mean_harm_no_sum(far_s: int, created_s: int, tmp_path: Path) -> None:
    """Of files, their directories and in headers. Served, renewed and moved along with a step; for
    the sums themselves this runs with the checks for undefined behaviour."""
    clock = VirtualClock()
    with opened(tmp_path, clock) as store:
        chain = put_named(store.cache(LAYOUT), "prompt")
    path = file_named(tmp_path, chain[0])
    replace(path, encode(dataclasses.replace(as_made(read_extent(path)), created_s=created_s)))
    until_s = int(path.stat().st_mtime)
    os.utime(path, (far_s, far_s if far_s > 0 else until_s))
    for directory in (path.parent, path.parent.parent):
        os.utime(directory, (far_s, far_s))
    with opened(tmp_path, clock) as store:
        kv = store.cache(LAYOUT)
        assert load(kv, kv.match(chain)) == (5, None)
        assert load(kv, kv.match(chain)) == (5, None)
        clock.step_wall(HOUR)
        store.tick()
        assert answer(kv, chain) == (5, None)
        clock.advance(8 * DAY)
        store.tick()
        assert answer(kv, chain) == (0, "expired")
