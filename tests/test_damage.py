"""Whatever happens to a file, a load gives the bytes put, or fewer blocks with a reason. It never
gives other bytes, never raises, never hangs; other extents are served on, and the next put hits.

Every harm of tests/support/harms.py (that who runs this can do) is done to a closed root, below an
owner who knows the extent but has not opened it, below one who has, and where a peer looks. One
store meets them all, a prompt for each. Single bits and lengths are in test_damage_bits.py, other
files of a root in test_damage_roots.py, trouble of the device in test_load_faults.py, names and
their winners in test_names.py.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstore import Store
from kvstore.testing import Injection, VirtualClock
from tests.support.harms import HARMS, Harm, outside
from tests.support.kept import (
    BLOCKS,
    POOL,
    SMALL,
    Kept,
    contents,
    descriptors,
    unlike,
    warm,
)
from tests.support.stores import opened, until

GONE = {"absent", "evicted"}  # no file: both are true
BYSTANDER = -1
RESCAN_S = 10

Outside = dict[str, tuple[object, ...]]


def prompts(store: Store, root: Path) -> Iterator[tuple[Harm, Kept]]:
    """A prompt for each harm. A failure shows the name of the last one in its output."""
    kepts = unlike(store, SMALL, root, len(HARMS))
    for (name, harm), kept in zip(HARMS.items(), kepts, strict=True):
        print(name)
        yield harm, kept


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """A root with everybody's prompt in it, and a bystander's; afterwards nothing is left open."""
    root = tmp_path / "root"
    with opened(root, pool=POOL) as store:
        Kept(store, SMALL, root, seed=BYSTANDER).put()
        for _, kept in prompts(store, root):
            kept.put()
    before = descriptors()
    yield root
    assert descriptors() == before


def do_all(store: Store, root: Path) -> Outside:
    """What then lies outside the root, for no one to touch."""
    for harm, kept in prompts(store, root):
        harm.do(kept.path(0), kept.path(BLOCKS - 1))
    return contents(outside(root / "namespace" / "bucket" / "name"))


def check_outside(root: Path, before: Outside) -> None:
    assert before and contents(outside(root / "namespace" / "bucket" / "name")) == before


def check_miss(harm: Harm, kept: Kept, *, scanned: bool = False) -> None:
    blocks, reason = kept.load()
    if harm.reason is None:
        assert (blocks, reason) == (BLOCKS, None)
    elif harm.reason == "absent" or (scanned and not harm.listed):
        assert blocks < 16 and reason in GONE
    else:
        assert blocks < 16 and reason == harm.reason


def is_aside(kept: Kept) -> bool:
    return any(kept.path(0).name in path.name for path in kept.moved())


def check_aside(harm: Harm, kept: Kept, *, scanned: bool = False) -> None:
    """What is damaged was moved, all else is where it was."""
    if harm.reason == "damaged" and (harm.listed or not scanned):
        until(lambda: is_aside(kept))  # a file worker is at it
    else:
        assert not is_aside(kept)
        assert os.path.lexists(kept.path(0)) or harm.reason == "absent"


def check_healed(store: Store, root: Path) -> None:
    for _, kept in prompts(store, root):
        kept.check_whole()
    bystander = Kept(store, SMALL, root, seed=BYSTANDER)
    assert bystander.load() == (BLOCKS, None)
    assert bystander.moved()


def test_harmed_before_the_store_opens(root: Path) -> None:
    with opened(root, pool=POOL) as store:
        before = do_all(store, root)
    with opened(root, pool=POOL) as store:
        warm(store)
        damaged = [harm for harm in HARMS.values() if harm.reason == "damaged" and harm.listed]
        for harm, kept in prompts(store, root):
            check_miss(harm, kept, scanned=True)
            check_aside(harm, kept, scanned=True)
        assert len(damaged) <= store.stats().quarantined_extents <= len(damaged) + 3
        assert store.stats().misses_by_reason["damaged"] >= 16
        check_healed(store, root)
    check_outside(root, before)


def test_harmed_and_looked_for_while_the_scan_runs(root: Path) -> None:
    with opened(root, pool=POOL) as store:
        before = do_all(store, root)
    with opened(root, pool=POOL) as store:
        for harm, kept in prompts(store, root):
            blocks, reason = kept.load()
            assert reason in ({harm.reason} | (set() if harm.reason is None else GONE)), reason
            assert blocks < 16 or harm.reason is None
        check_healed(store, root)
    check_outside(root, before)


def test_harmed_below_an_owner_who_knows_the_extents(root: Path) -> None:
    with opened(root, pool=POOL) as store:
        warm(store)  # indexed, not open
        before = do_all(store, root)
        for harm, kept in prompts(store, root):
            check_miss(harm, kept)
            check_aside(harm, kept)
            again = kept.load()  # nobody comes back to what is known to be bad
            assert again[1] is not None or harm.reason is None
        check_healed(store, root)
        check_outside(root, before)


def test_harmed_below_an_owner_who_has_them_open(root: Path) -> None:
    with opened(root, pool=POOL) as store:
        for _, kept in prompts(store, root):
            assert kept.load() == (BLOCKS, None)  # open from here on
        before = do_all(store, root)
        for harm, kept in prompts(store, root):
            blocks, reason = kept.load()
            assert reason == harm.while_open
            assert (blocks == BLOCKS) == (reason is None)
        for _, kept in prompts(store, root):
            kept.load()
        check_healed(store, root)
        check_outside(root, before)


def test_harmed_where_a_peer_looks(root: Path) -> None:
    """A peer moves nothing. The owner, who comes upon it then, does, and both see his put."""
    with opened(root, pool=POOL) as owner, opened(root, role="peer", pool=POOL) as peer:
        warm(owner)
        before = do_all(owner, root)
        for harm, kept in prompts(peer, root):
            check_miss(harm, kept)
            assert not kept.moved()
        assert Kept(peer, SMALL, root, seed=BYSTANDER).load() == (BLOCKS, None)
        for harm, kept in prompts(owner, root):
            check_miss(harm, kept)
            check_aside(harm, kept)
        check_healed(owner, root)
        for _, kept in prompts(peer, root):
            until(lambda: kept.load() == (BLOCKS, None))
        check_outside(root, before)


def test_harmed_where_a_peer_had_looked_before(root: Path) -> None:
    with opened(root, role="peer", pool=POOL) as peer:
        for _, kept in prompts(peer, root):
            assert kept.kv.find_blocking(kept.chain).blocks == BLOCKS
        before = do_all(peer, root)
        for harm, kept in prompts(peer, root):
            blocks, reason = kept.load()
            assert (blocks == BLOCKS) == (reason is None)
            assert reason in {None, "damaged", harm.reason, *GONE}
            assert not kept.moved()
        check_outside(root, before)


def test_harmed_before_a_rescan_comes_upon_them(tmp_path: Path) -> None:
    """A peer made the files; the owner meets them by listing, as any fifo among them."""
    root, clock = tmp_path / "root", VirtualClock()
    injected = Injection(clock=clock, manual_ticks=True)
    with (
        opened(root, pool=POOL, _testing=injected) as owner,
        opened(root, pool=POOL, role="peer", _testing=injected) as peer,
    ):
        warm(owner)
        for _, kept in prompts(peer, root):
            kept.put()
        do_all(peer, root)
        clock.advance(RESCAN_S + 1)
        owner.tick()
        for harm, kept in prompts(owner, root):
            if harm.reason is None:
                until(lambda: kept.load() == (BLOCKS, None))
            elif harm.reason == "damaged" and harm.listed:
                until(lambda: kept.load()[1] == "damaged" and is_aside(kept))
            elif harm.reason == "foreign":
                until(lambda: kept.load() == (0, "foreign"))
            kept.check_whole()


def test_a_peer_moves_nothing_to_put_over_it(root: Path) -> None:
    with opened(root, pool=POOL) as owner, opened(root, role="peer", pool=POOL) as peer:
        warm(owner)
        before = do_all(owner, root)
        for harm, kept in prompts(peer, root):
            kept.load()
            put = kept.try_put()
            assert put == BLOCKS or harm.reason is not None
            blocks, reason = kept.load()
            assert blocks <= put and (blocks == BLOCKS) == (reason is None)
            assert not kept.moved()
        check_outside(root, before)
