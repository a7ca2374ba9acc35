"""What a file may be called: racing writers, taken names, damaged and foreign winners.

Two writers of prompts that share blocks run in every order of their steps; whatever the order, both
prompts are whole afterwards and every byte is right.
"""

import itertools
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from kvstore.cache import Cache
from kvstore.chain import Chain
from kvstore.testing import VirtualClock
from tests.support.extent_reader import read_extent, read_root
from tests.support.prompts import (
    GRID,
    assert_whole,
    eventually,
    extent_files,
    file_named,
    put,
    tokens,
)
from tests.support.racing import LAYOUT, Steps, assert_disk_is_sound, at_once, matches_whole, opened

# ------------------------------------------------------------------------------- interleavings


@dataclass(frozen=True)
class Pair:
    """Two prompts as (token seed of the branch, shared blocks, all blocks)."""

    shared: int
    first: int
    second: int

    def chains(self, kv: Cache, salt: str) -> tuple[Chain, Chain]:
        common = tokens("common", self.shared)
        return (
            kv.keys(common + tokens("one", self.first - self.shared), salt=salt.encode()),
            kv.keys(common + tokens("two", self.second - self.shared), salt=salt.encode()),
        )


PAIRS = {
    "a longer one inside the extent": Pair(5, 5, 11),
    "a shorter one inside the extent": Pair(5, 11, 5),
    "a longer one beyond the extent": Pair(GRID - 3, GRID - 3, 2 * GRID + 5),
    "the same prompt": Pair(GRID + 2, GRID + 2, GRID + 2),
    "a branch inside the first extent": Pair(6, 11, 9),
    "a branch inside the second extent": Pair(GRID + 3, GRID + 9, 2 * GRID + 1),
    "nothing in common": Pair(0, 7, 8),
}

ORDERS = sorted(set(itertools.permutations("AAABBB")))


@pytest.mark.parametrize("name", PAIRS)
def test_both_prompts_are_whole_in_every_order_of_two_writers(name: str, tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        kv = store.cache(LAYOUT)
        for order in ORDERS:
            one, two = PAIRS[name].chains(kv, salt="".join(order))
            writers = {"A": Steps(kv, one), "B": Steps(kv, two)}
            for who in order:
                writers[who].next()
            assert_whole(kv, one)
            assert_whole(kv, two)
        assert_disk_is_sound(tmp_path, store)
        assert store.stats().dropped_blocks == 0


@pytest.mark.parametrize("name", PAIRS)
def test_both_prompts_are_whole_when_two_threads_commit_at_once(name: str, tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        kv = store.cache(LAYOUT)
        for turn in range(20):
            one, two = PAIRS[name].chains(kv, salt=f"turn {turn}")
            writers = Steps(kv, one), Steps(kv, two)
            for writer in writers:
                writer.open()
                writer.put()
            at_once([writer.commit for writer in writers])
            assert_whole(kv, one)
            assert_whole(kv, two)
        assert_disk_is_sound(tmp_path, store)
        assert store.stats().dropped_blocks == 0


@pytest.mark.parametrize("name", PAIRS)
def test_an_owner_and_a_peer_write_both_prompts_in_every_order(name: str, tmp_path: Path) -> None:
    clock = VirtualClock()
    with opened(tmp_path, clock) as owner, opened(tmp_path, clock, role="peer") as peer:
        kvs = {"A": owner.cache(LAYOUT), "B": peer.cache(LAYOUT)}
        for order in ORDERS:
            one, two = PAIRS[name].chains(kvs["A"], salt="".join(order))
            writers = {"A": Steps(kvs["A"], one), "B": Steps(kvs["B"], two)}
            for who in order:
                writers[who].next()
            assert_whole(kvs["B"], one, cold=False)
            assert_whole(kvs["B"], two, cold=False)
        clock.advance(11)
        owner.tick()
        for order in ORDERS:
            one, two = PAIRS[name].chains(kvs["A"], salt="".join(order))
            for chain in (one, two):
                eventually(partial(matches_whole, kvs["A"], chain), "the owner found it")
                assert_whole(kvs["A"], chain, cold=False)
        assert_disk_is_sound(tmp_path, owner)


def test_an_owner_and_a_peer_commit_at_once(tmp_path: Path) -> None:
    with opened(tmp_path) as owner, opened(tmp_path, role="peer") as peer:
        kvs = owner.cache(LAYOUT), peer.cache(LAYOUT)
        for turn, pair in enumerate(list(PAIRS.values()) * 3):
            one, two = pair.chains(kvs[0], salt=f"turn {turn}")
            writers = Steps(kvs[0], one), Steps(kvs[1], two)
            for writer in writers:
                writer.open()
                writer.put()
            at_once([writer.commit for writer in writers])
            assert_whole(kvs[1], one)
            assert_whole(kvs[1], two)
    read_root(tmp_path)


# --------------------------------------------------------------------------------- what is lost


def test_bytes_written_and_lost_to_a_taken_name_are_counted(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        kv = store.cache(LAYOUT)
        chain = kv.keys(tokens("lost", 7))
        first, second = Steps(kv, chain), Steps(kv, chain)
        for writer in (first, second):
            writer.open()
            writer.put()
        first.commit()
        assert store.stats().lost_to_eexist_bytes == 0
        second.commit()
        (path,) = extent_files(tmp_path)
        assert store.stats().lost_to_eexist_bytes == path.stat().st_size
        assert second.writer.stats().blocks_dropped == 0
        put(kv, chain)  # resident: nothing is written, so nothing is lost
        assert store.stats().lost_to_eexist_bytes == path.stat().st_size
        assert_disk_is_sound(tmp_path, store)


def test_cells_before_the_named_key_are_not_served_under_that_name(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        kv = store.cache(LAYOUT)
        short, long = kv.keys(tokens("named", 5)), kv.keys(tokens("named", 11))
        writers = Steps(kv, short), Steps(kv, long)
        for writer in writers:
            writer.open()
            writer.put()
        for writer in writers:
            writer.commit()
        inner = read_extent(file_named(tmp_path, long[5]))
        assert inner.keys == [long[i] for i in range(11)], "the whole run lies in the file"
        assert inner.start == 0
        assert kv.delete_blocking(long[10]) == 1
        assert_whole(kv, short)
        put(kv, long)
        file_named(tmp_path, long[0]).unlink()
    with opened(tmp_path) as store:
        kv = store.cache(LAYOUT)
        hit = kv.find_blocking(long)
        assert hit.blocks == 0, "blocks 0..4 lie in a file under another name only"
        assert put(kv, long) == 11
        assert_whole(kv, long)


def test_delete_drops_every_extent_that_holds_the_key_also_where_it_is_not_served(
    tmp_path: Path,
) -> None:
    with opened(tmp_path) as store:
        kv = store.cache(LAYOUT)
        short, long = kv.keys(tokens("twice", 5)), kv.keys(tokens("twice", 11))
        writers = Steps(kv, short), Steps(kv, long)
        for writer in writers:
            writer.open()
            writer.put()
        for writer in writers:
            writer.commit()
        assert kv.delete_blocking(long[2]) == 2
        assert extent_files(tmp_path) == []
        assert (kv.match(long).blocks, kv.match(long).reason) == (0, "deleted")
        assert_disk_is_sound(tmp_path, store)
