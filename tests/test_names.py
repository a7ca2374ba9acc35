"""What a file may be called: racing writers, taken names, damaged and foreign winners.

Two writers of prompts that share blocks run in every order of their steps; whatever the order, both
prompts are whole afterwards and every byte is right.
"""

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from kvstore.cache import Cache
from kvstore.chain import Chain
from kvstore.store import Store, open_blocking
from kvstore.testing import START_WALL_S, Injection, VirtualClock
from kvstore.writer import Writer
from tests.support.extent_reader import read_extent, read_root
from tests.support.prompts import (
    GRID,
    assert_whole,
    eventually,
    extent_files,
    file_named,
    keys_of,
    physical_bytes,
    put,
    put_all,
    small_layout,
    tokens,
)

LAYOUT = small_layout()
HOURS = 3600


@contextmanager
def opened(
    root: Path, clock: VirtualClock | None = None, *, role: str = "owner"
) -> Iterator[Store]:
    injected = Injection(clock=clock, manual_ticks=True) if clock else None
    with open_blocking(root, capacity="1GB", pool="16MB", role=role, _testing=injected) as store:
        yield store


def assert_disk_is_sound(root: Path, store: Store) -> None:
    """Every file reads whole with the independent reader, is named by a key of its own, and the
    usage counter says what is there."""
    assert len(read_root(root)) == len(extent_files(root)) == store.stats().extents
    eventually(
        lambda: physical_bytes(root) == store.info().roots[0].used_bytes, "used bytes are on disk"
    )


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


class Steps:
    """One writer, driven a step at a time."""

    def __init__(self, kv: Cache, chain: Chain) -> None:
        self.kv, self.chain = kv, chain
        self.left = iter((self.open, self.put, self.commit))

    def next(self) -> None:
        next(self.left)()

    def open(self) -> None:
        self.writer: Writer = self.kv.writer(self.chain)

    def put(self) -> None:
        put_all(self.kv, self.writer)

    def commit(self) -> None:
        assert self.writer.commit_blocking("30s") == len(self.chain)


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


def at_once(calls: list[Callable[[], None]]) -> None:
    """Runs them on a thread each from one moment on; their errors come out here."""
    errors: list[BaseException] = []
    barrier = threading.Barrier(len(calls))

    def run(call: Callable[[], None]) -> None:
        try:
            barrier.wait()
            call()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


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
                eventually(lambda: not kvs["A"].match(chain).reason, "the owner found it")
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


# --------------------------------------------------------------------- expired and bad winners


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


DAMAGE: dict[str, Callable[[Path], None]] = {
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
