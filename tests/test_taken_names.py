"""A put whose name is taken by a file that is expired, damaged or not ours hits at once."""

from collections.abc import Callable
from pathlib import Path

import pytest

from kvstore.testing import START_WALL_S, VirtualClock
from tests.support.extent_reader import read_extent
from tests.support.prompts import (
    GRID,
    assert_whole,
    eventually,
    extent_files,
    file_named,
    keys_of,
    put,
    small_layout,
    tokens,
)
from tests.support.racing import LAYOUT, Steps, assert_disk_is_sound, opened

HOURS = 3600


@pytest.mark.parametrize("ticks", [False, True], ids=["still there", "being unlinked"])
def test_a_put_after_expiry_hits_at_once(ticks: bool, tmp_path: Path) -> None:
    clock = VirtualClock()
    with opened(tmp_path, clock) as store:
        kv = store.cache(LAYOUT)
        for turn in range(20):
            chain = kv.keys(tokens(("expiry", turn), GRID + 5))
            put(kv, chain)
            clock.advance(8 * 24 * HOURS)
            assert kv.match(chain).reason == "expired"
            if ticks:
                store.tick()
            assert put(kv, chain) == len(chain)
            assert_whole(kv, chain)
            assert {path.stem for path in extent_files(tmp_path)} >= {
                chain[0].hex(),
                chain[GRID].hex(),
            }


def test_a_commit_hits_though_its_names_are_just_being_given_up(tmp_path: Path) -> None:
    """Expired extents leave the index at once and their files a little later."""
    clock = VirtualClock()
    with opened(tmp_path, clock) as store:
        kv = store.cache(LAYOUT)
        chains = [kv.keys(tokens(("given up", turn), 3)) for turn in range(60)]
        firsts, seconds = [[Steps(kv, chain) for chain in chains] for _ in range(2)]
        for steps in firsts + seconds:
            steps.open()
            steps.put()
        for steps in firsts:
            steps.commit()
        clock.advance(8 * 24 * HOURS)
        store.tick()
        for steps in seconds:
            steps.commit()
        for chain in chains:
            assert_whole(kv, chain)
        assert_disk_is_sound(tmp_path, store)


def test_a_put_over_an_expired_file_that_only_the_disk_knows_renews_it(tmp_path: Path) -> None:
    clock = VirtualClock()
    with opened(tmp_path, clock) as owner, opened(tmp_path, clock, role="peer") as peer:
        chain = owner.cache(LAYOUT).keys(tokens("unknown", 6))
        put(owner.cache(LAYOUT), chain)
        clock.advance(8 * 24 * HOURS)
        kv = peer.cache(LAYOUT)
        assert put(kv, chain) == 6
        assert peer.stats().lost_to_eexist_bytes > 0
        assert_whole(kv, chain)


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(bytes(data))


DAMAGE: dict[str, Callable[[Path], object]] = {
    "a flipped bit in the header": lambda path: flip(path, 700),
    "cut to nothing": lambda path: path.write_bytes(b""),
    "cut inside the header": lambda path: path.write_bytes(path.read_bytes()[:1000]),
    "cut before its last page": lambda path: path.write_bytes(path.read_bytes()[:-4096]),
    "garbage": lambda path: path.write_bytes(b"garbage" * 3000),
}


@pytest.mark.parametrize("how", DAMAGE)
@pytest.mark.parametrize("when", ["while open", "while closed"])
def test_a_put_over_a_damaged_winner_hits_at_once(how: str, when: str, tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        chain = store.cache(LAYOUT).keys(tokens("damaged", 6))
        put(store.cache(LAYOUT), chain)
    path = file_named(tmp_path, chain[0])
    if when == "while closed":
        DAMAGE[how](path)
    else:
        path.rename(tmp_path / "kept")
    with opened(tmp_path) as store:
        kv = store.cache(LAYOUT)
        assert kv.find_blocking(chain).blocks == 0
        eventually(lambda: not store.info().roots[0].warming, "the scan ended")
        if when == "while open":
            (tmp_path / "kept").rename(path)
            DAMAGE[how](path)
        assert put(kv, chain) == 6
        assert_whole(kv, chain)
        assert_disk_is_sound(tmp_path, store)
        assert store.stats().quarantined_extents == 1
        assert len(list((tmp_path / "quarantine").iterdir())) == 1


def test_a_put_over_a_file_that_went_bad_after_it_was_indexed_hits_after_one_miss(
    tmp_path: Path,
) -> None:
    with opened(tmp_path) as store:
        kv = store.cache(LAYOUT)
        for turn in range(10):
            chain = kv.keys(tokens(("bad", turn), 6))
            put(kv, chain)
            store.drop_ram()
            flip(file_named(tmp_path, chain[0]), 5000)  # a cell: found out by reading it
            with kv.load(kv.match(chain)) as running:
                assert running.wait(LAYOUT.layers - 1).reason == "damaged"
            assert put(kv, chain) == 6
            assert_whole(kv, chain)


def test_a_foreign_layouts_file_under_our_name_is_moved_aside(tmp_path: Path) -> None:
    other = small_layout("other")
    with opened(tmp_path) as store:
        kv, foreign = store.cache(LAYOUT), store.cache(other)
        chain = kv.keys(tokens("foreign", 6))
        put(foreign, chain)
        theirs = file_named(tmp_path, chain[0])
        ours = tmp_path / LAYOUT.namespace / theirs.parent.name / theirs.name
        ours.parent.mkdir(parents=True)
        ours.write_bytes(theirs.read_bytes())
        assert put(kv, chain) == 6
        assert_whole(kv, chain)
        assert_whole(foreign, chain)
        assert read_extent(ours).fingerprint == LAYOUT.fingerprint
        (aside,) = (tmp_path / "quarantine").iterdir()
        assert aside.name.endswith(theirs.name[:60]) or theirs.name[:60] in aside.name


def test_a_file_that_holds_none_of_its_names_key_is_moved_aside(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        kv = store.cache(LAYOUT)
        chain, another = kv.keys(tokens("mine", 6)), kv.keys(tokens("another", 6))
        put(kv, another)
        theirs = file_named(tmp_path, another[0])
        name = chain[0].hex()
        ours = theirs.parents[1] / name[:3] / f"{name}.kv"
        ours.parent.mkdir(exist_ok=True)
        ours.write_bytes(theirs.read_bytes())
        assert put(kv, chain) == 6
        assert_whole(kv, chain)
        assert_whole(kv, another)
        assert read_extent(ours).keys == keys_of(kv.match(chain))


def test_times_of_a_new_file_are_set_before_it_has_a_name(tmp_path: Path) -> None:
    with opened(tmp_path, VirtualClock()) as store:
        kv = store.cache(LAYOUT)
        chain = kv.keys(tokens("times", 3))
        put(kv, chain)
        stat = file_named(tmp_path, chain[0]).stat()
        assert stat.st_mtime == START_WALL_S + 7 * 24 * HOURS
        assert stat.st_atime == START_WALL_S
