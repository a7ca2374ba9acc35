"""One store over several directories: which extent lies where, and that each root stands for itself
(budget, lock, being there at all). A chain's extents lie on several roots; a reader cannot tell.

Not here: how fast several devices are together (test_roots_overlap.py).
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from kvstore import OpenError
from kvstore.chain import Chain
from kvstore.options import Capacity
from kvstore.store import Store, open_blocking
from kvstore.testing import Injection, VirtualClock
from tests.support.prompts import (
    GRID,
    assert_whole,
    eventually,
    extent_files,
    load,
    load_into,
    physical_bytes,
    put,
)
from tests.support.tight import LAYOUT, chain_named, measure_full_extent, resident

EXTENTS = 40  # of one long prompt: two roots of one size each get some, but for one in 2^39
ROOMY = 1 << 30


@contextmanager
def opened(
    roots: Sequence[Path],
    *,
    capacity: Capacity = ROOMY,
    role: str = "owner",
    clock: VirtualClock | None = None,
) -> Iterator[Store]:
    """On a driven clock; every root's scan is over."""
    injected = Injection(clock=clock or VirtualClock(), manual_ticks=True)
    with open_blocking(
        *roots, capacity=capacity, pool="16MB", role=role, _testing=injected
    ) as store:
        eventually(lambda: not any(root.warming for root in store.info().roots), "the scans ended")
        yield store


def directories(parent: Path, count: int) -> list[Path]:
    return [parent / name for name in "abc"[:count]]


def placement(roots: Sequence[Path]) -> dict[str, Path]:
    """Name of each extent -> its root; none lies on two."""
    found = [(path.stem, root) for root in roots for path in extent_files(root)]
    assert len(dict(found)) == len(found), "an extent lies on two roots"
    return dict(found)


def names_of(chain: Chain) -> list[str]:
    """Of the chain's extents, when each is full."""
    return [chain[first].hex() for first in range(0, len(chain), GRID)]


def remove_extents(roots: Sequence[Path]) -> None:
    for root in roots:
        for path in extent_files(root):
            path.unlink()


@pytest.fixture(scope="session")
def full_extent_bytes(tmp_path_factory: pytest.TempPathFactory) -> int:
    """What one extent of GRID blocks takes on this disk."""
    return measure_full_extent(tmp_path_factory.mktemp("measure"))


# ---- where an extent lies ------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 3])
def test_extents_are_spread_over_all_roots_and_a_prompt_loads_from_them(
    count: int, tmp_path: Path
) -> None:
    roots = directories(tmp_path, count)
    with opened(roots) as store:
        kv = store.cache(LAYOUT)
        chain = chain_named(kv, "long", EXTENTS * GRID)
        assert put(kv, chain) == len(chain)
        lies = placement(roots)
        assert sorted(lies) == sorted(names_of(chain))
        assert set(lies.values()) == set(roots)
        assert_whole(kv, chain)  # through the pool from memory and disk, and into caller memory
    with opened(roots) as store:
        assert_whole(store.cache(LAYOUT), chain)


def test_a_slice_over_the_border_of_two_roots_loads(tmp_path: Path) -> None:
    roots = directories(tmp_path, 2)
    with opened(roots) as store:
        kv = store.cache(LAYOUT)
        chain = chain_named(kv, "long", EXTENTS * GRID)
        put(kv, chain)
        lies = [placement(roots)[name] for name in names_of(chain)]
        border = GRID * next(i for i in range(1, EXTENTS) if lies[i] != lies[i - 1])
        store.drop_ram()
        piece = kv.match(chain)[border - 3 : border + 5]
        assert load(kv, piece) == (8, None)
        store.drop_ram()
        assert load_into(kv, piece) == (8, None)


@pytest.mark.parametrize("count", [2, 3])
def test_the_same_key_goes_to_the_same_root_in_whatever_order_the_roots_are_given(
    count: int, tmp_path: Path
) -> None:
    """Written anew each time, so it is the choice that is compared, not what lies there."""
    roots = directories(tmp_path, count)
    seen = []
    for order in (roots, roots, roots[::-1], roots[1:] + roots[:1]):
        with opened(order) as store:
            kv = store.cache(LAYOUT)
            chain = chain_named(kv, "long", EXTENTS * GRID)
            assert put(kv, chain) == len(chain)
            assert_whole(kv, chain, cold=False)
        seen.append(placement(roots))
        remove_extents(roots)
    assert seen[0] and all(lies == seen[0] for lies in seen)


def test_an_added_root_takes_its_share_and_moves_nothing_between_the_old_ones(
    tmp_path: Path,
) -> None:
    roots = directories(tmp_path, 3)
    lies = []
    for used in (roots[:2], roots):
        with opened(used, capacity=[ROOMY] * len(used)) as store:
            kv = store.cache(LAYOUT)
            chain = chain_named(kv, "long", EXTENTS * GRID)
            assert put(kv, chain) == len(chain)
        lies.append(placement(roots))
        remove_extents(roots)
    moved = {name: root for name, root in lies[1].items() if lies[0][name] != root}
    assert set(moved.values()) == {roots[2]}
    assert len(moved) < EXTENTS


def test_what_lies_on_a_root_is_found_there_even_if_it_would_be_placed_elsewhere(
    tmp_path: Path,
) -> None:
    """Written while there was one root only: a second one hides nothing and nothing is doubled."""
    roots = directories(tmp_path, 2)
    with opened(roots[:1]) as store:
        kv = store.cache(LAYOUT)
        chain = chain_named(kv, "long", EXTENTS * GRID)
        put(kv, chain)
    with opened(roots[::-1]) as store:
        kv = store.cache(LAYOUT)
        assert_whole(kv, chain)
        assert put(kv, chain) == len(chain)
        assert set(placement(roots).values()) == {roots[0]}
    with opened(roots[::-1], role="peer") as store:
        assert_whole(store.cache(LAYOUT), chain)  # by walking names on both roots


# ---- capacity ------------------------------------------------------------------------------------


def test_a_total_is_split_by_the_sizes_of_the_file_systems(tmp_path: Path) -> None:
    """Both are on one file system here, so it is halved."""
    with opened(directories(tmp_path, 2), capacity="1GB") as store:
        assert [root.capacity_bytes for root in store.info().roots] == [500_000_000] * 2


def test_listed_capacities_are_of_the_roots_in_the_order_given(tmp_path: Path) -> None:
    roots = directories(tmp_path, 2)
    for order, capacity in ((roots, ["10MB", "30MB"]), (roots[::-1], ["30MB", "10MB"])):
        with opened(order, capacity=capacity) as store:
            given = {Path(root.path): root.capacity_bytes for root in store.info().roots}
            assert given == {roots[0]: 10_000_000, roots[1]: 30_000_000}


def test_a_larger_root_takes_more_of_the_extents(tmp_path: Path) -> None:
    """Of 200, a quarter of the room gets 50 on average; 100 would be eight deviations off."""
    roots = directories(tmp_path, 2)
    with opened(roots, capacity=[ROOMY, 3 * ROOMY]) as store:
        kv = store.cache(LAYOUT)
        for name in range(200):
            assert put(kv, chain_named(kv, name, 1)) == 1
    share = Counter(placement(roots).values())
    assert 0 < share[roots[0]] < 100 < share[roots[1]]


def test_a_full_root_evicts_its_own_oldest_and_nothing_elsewhere(
    tmp_path: Path, full_extent_bytes: int
) -> None:
    """Also when the oldest of the other root are older, and there is room on it."""
    roots = directories(tmp_path, 2)
    clock = VirtualClock()
    room = 6
    capacity = room * full_extent_bytes
    kept: dict[Path, list[Chain]] = {root: [] for root in roots}
    with opened(roots, capacity=[capacity, capacity], clock=clock) as store:
        kv = store.cache(LAYOUT)
        for name in range(EXTENTS):
            chain = chain_named(kv, name)
            assert put(kv, chain) == GRID
            clock.advance(1)
            here = placement(roots)[chain[0].hex()]
            kept[here] = [*kept[here], chain][-room:]
            for root in roots:
                there = resident(kv, kept[root])
                assert there == list(range(len(kept[root]))), "it was not this root's oldest"
            assert len(placement(roots)) == sum(map(len, kept.values()))
        assert store.stats().evicted_extents == EXTENTS - 2 * room
        assert [root.used_bytes for root in store.info().roots] == [capacity, capacity]
        assert [physical_bytes(root) for root in roots] == [capacity, capacity]


# ---- a root that is not there --------------------------------------------------------------------


@pytest.mark.parametrize("how", ["left out", "empty"])
def test_without_one_of_its_roots_a_prompt_ends_at_its_first_missing_extent(
    how: str, tmp_path: Path
) -> None:
    """And all of it is back with the root: a disk that was not mounted loses nothing."""
    roots = directories(tmp_path, 3)
    with opened(roots) as store:
        kv = store.cache(LAYOUT)
        chain = chain_named(kv, "long", EXTENTS * GRID)
        put(kv, chain)
    order = [placement(roots)[name] for name in names_of(chain)]
    gone = next(root for root in roots if root != order[0])
    first_missing = order.index(gone) * GRID
    kept_aside = gone.rename(tmp_path / "unmounted")
    with opened([root for root in roots if root != gone or how == "empty"]) as store:
        kv = store.cache(LAYOUT)
        hit = kv.find_blocking(chain)
        assert (hit.blocks, hit.reason) == (first_missing, "absent")
        assert load(kv, hit) == (first_missing, None)
        store.drop_ram()
        assert load_into(kv, hit) == (first_missing, None)
        for first, root in zip(range(0, len(chain), GRID), order, strict=True):
            assert kv.contains(chain[first]) == (root != gone), "later extents are still known"
    if how == "empty":
        shutil.rmtree(gone)
    kept_aside.rename(gone)
    with opened(roots) as store:
        assert_whole(store.cache(LAYOUT), chain)


def test_what_was_put_again_while_a_root_was_away_is_one_answer_when_it_is_back(
    tmp_path: Path,
) -> None:
    """Then an extent lies on two roots: either copy is right, and a delete drops both."""
    roots = directories(tmp_path, 2)
    with opened(roots) as store:
        kv = store.cache(LAYOUT)
        chain = chain_named(kv, "long", EXTENTS * GRID)
        put(kv, chain)
    with opened(roots[:1]) as store:
        kv = store.cache(LAYOUT)
        assert put(kv, chain) == len(chain)
        assert_whole(kv, chain)
    doubled = {path.stem for path in extent_files(roots[0])} & {
        path.stem for path in extent_files(roots[1])
    }
    assert doubled
    with opened(roots) as store:
        kv = store.cache(LAYOUT)
        assert_whole(kv, chain)
        key = bytes.fromhex(min(doubled))
        kv.delete_blocking(key)
        assert not kv.contains(key)
        assert not [path for root in roots for path in extent_files(root) if path.stem == key.hex()]
    with opened(roots) as store:
        assert not store.cache(LAYOUT).contains(key)


# ---- owners --------------------------------------------------------------------------------------


def test_a_second_owner_of_any_root_is_refused_and_the_root_named(tmp_path: Path) -> None:
    a, b, c = directories(tmp_path, 3)
    with opened([a, b]):
        with pytest.raises(OpenError, match=rf"{b} has an owner already"):
            open_blocking(c, b, capacity=ROOMY, pool="16MB").close_blocking()
        with opened([c]) as store:  # the refused one let go of what it had locked
            assert store.info().roots[0].is_owner
    with opened([c, b]) as store:
        assert [root.is_owner for root in store.info().roots] == [True, True]


def test_a_store_may_own_one_root_and_be_a_peer_on_another(tmp_path: Path) -> None:
    a, b = directories(tmp_path, 2)
    with opened([a]), opened([a, b], role="auto") as store:
        assert [root.is_owner for root in store.info().roots] == [False, True]
        kv = store.cache(LAYOUT)
        chain = chain_named(kv, "long", EXTENTS * GRID)
        assert put(kv, chain) == len(chain)
        assert set(placement([a, b]).values()) == {a, b}
        assert_whole(kv, chain)
