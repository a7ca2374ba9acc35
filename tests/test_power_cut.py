"""A power cut after each step of whatever changes the disk: put, writers, names that are taken,
eviction, renewal, quarantine, delete, the ring of removals.

A history is recorded once; then the power is cut after each of its changes. What may be left is
built as a directory tree, again and again with other losses, and opened by an ordinary store: no
wrong byte, what a flush covered is there, everything can be put again, and no byte lies on disk
that the store does not know of (`kvstore fsck` looks, too).

Not here: real file systems (test_crash_matrix.py), killed processes.
"""

from __future__ import annotations

import itertools
import random
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from kvstore.cache import Cache
from kvstore.chain import Chain
from kvstore.fsck.check import check
from kvstore.store import open_blocking
from kvstore.testing import START_WALL_S, Injection, VirtualClock
from tests.support.power_cut import Image, Rules, read, tree
from tests.support.prompts import (
    GRID,
    eventually,
    extent_files,
    file_named,
    load,
    physical_bytes,
    put,
)
from tests.support.recording import LAYOUT, POOL, Promise, Recording

CUT_WALL_S = START_WALL_S + 4000  # temporary names are swept when they are an hour old
# What fsck may find afterwards: small files that a store does without, and what is in the budget or
# bounded in number. Nothing that holds space which nobody gives back. A damaged cell is one that no
# load has asked for yet: a load or the scrub finds it.
HARMLESS = {
    "layout", "identity", "no-layout", "no-identity",
    "quarantined", "empty-bucket", "expired", "cell",
}  # fmt: skip


# ---- histories -----------------------------------------------------------------------------------


def puts(recording: Recording) -> None:
    with recording.life():
        recording.put("a", 5)
        recording.put("b", GRID + 3)
        recording.flush()
        recording.put("a", 9)


def taken_names(recording: Recording) -> None:
    """The winner is shorter, longer, a branch."""
    with recording.life():
        late = recording.writer("a", 9), recording.writer("b", 4), recording.writer("c", 7)
        recording.put("a", 5)
        recording.put("b", 8)
        recording.put("c+d", 6)
        for writer in late:
            assert writer.commit_blocking("30s") == len(writer.chain)
        recording.flush()


def damaged_winner(recording: Recording) -> None:
    """The name is taken by a torn file, by a whole one with other content, by an empty one."""
    with recording.earlier():
        recording.put("z", 2)
    with recording.life():
        whole = read(extent_files(recording.root)[0])
        writers = [recording.writer(name, 3) for name in "abc"]
        for writer, data in zip(writers, (whole[:5000], whole, b""), strict=True):
            name = writer.chain[0].hex()
            folder = extent_files(recording.root)[0].parents[1]
            recording.plant(folder / name[:3] / f"{name}.kv", data)
            assert writer.commit_blocking("30s") == 3
        recording.flush()


def evictions(recording: Recording) -> None:
    with recording.life(capacity="50KB"):
        for number in range(6):
            recording.may_go()
            recording.put(f"p{number}", 2)
            if number % 3 == 0:
                recording.flush()
        assert recording.store.stats().evicted_extents >= 3


def renewals(recording: Recording) -> None:
    with recording.life() as store:
        recording.put("a", 3)
        recording.put("b", 3)
        recording.flush()
        for name in ("a", "b", "a"):
            recording.clock.advance(700)
            assert recording.load(name, 3) == (3, None)
            recording.clock.advance(700)
            store.tick()


def quarantine(recording: Recording) -> None:
    with recording.earlier():
        recording.put("a", 3)
        recording.put("b", 3)
        path = file_named(recording.root, recording.chain("a", 3)[0])
    damaged = bytearray(path.read_bytes())
    damaged[-4096] ^= 1
    path.write_bytes(damaged)
    recording.before = tree(recording.root)
    with recording.life():
        assert recording.load("a", 3)[1] == "damaged"
        recording.put("a", 3)
        recording.flush()


def deletes(recording: Recording) -> None:
    with recording.life():
        recording.put("a", 5)
        recording.put("b", 2)
        recording.flush()
        recording.delete("a", 5, 2)
        recording.delete("b", 2, 1)
        recording.flush()
        recording.put("a", 4)
        recording.flush()


def lives(recording: Recording) -> None:
    """What was removed is noted at close; a new life relies on what the last one left."""
    with recording.life(capacity="60KB"):
        for name in "abcd":
            recording.put(name, 2)
    with recording.life():
        recording.put("d", 2)
        recording.put("e", 2)
        recording.flush()
        recording.delete("d", 2, 0)
    with recording.life():
        recording.put("d", 2)


def ring(recording: Recording) -> None:
    """The removal ring is written while the store runs, and written over."""
    with recording.life() as store:
        for name in "ab":
            recording.put(name, 2)
        recording.flush()
        for name in "ab":
            recording.delete(name, 2, 0)
            before = ring_inode(recording)
            recording.clock.advance(61)
            store.tick()
            eventually(lambda: ring_inode(recording) != before, "the ring is saved")
        recording.put("a", 2)


def ring_inode(recording: Recording) -> int:
    path = recording.root / "removed.ring"
    return path.stat().st_ino if path.exists() else 0


HISTORIES: list[Callable[[Recording], None]] = [
    puts, taken_names, damaged_winner, evictions, renewals, quarantine, deletes, ring, lives,
]  # fmt: skip


# ---- judging -------------------------------------------------------------------------------------


@dataclass
class Tally:
    """What a run looked at; printed."""

    points: int = 0
    images: int = 0
    blocks: int = 0
    wrong: int = 0

    @contextmanager
    def shown(self, what: str, capsys: pytest.CaptureFixture[str]) -> Iterator[Tally]:
        try:
            yield self
        finally:
            with capsys.disabled():
                print(
                    f"\n{what}: {self.points} points, {self.images} images, "
                    f"{self.blocks} blocks read back, wrong bytes: {self.wrong}",
                    end="",
                )

    def load(self, kv: Cache, chain: Chain) -> tuple[int, str | None]:
        try:
            blocks, reason = load(kv, kv.find_blocking(chain))
        except AssertionError:
            self.wrong += 1
            raise
        self.blocks += blocks
        return blocks, reason


def judge(root: Path, chains: dict[str, Chain], promise: Promise, tally: Tally) -> None:
    """Opens the image with an ordinary store; all that it gives must be right."""
    injection = Injection(clock=VirtualClock(CUT_WALL_S), manual_ticks=True)
    with open_blocking(root, capacity="1GB", pool=POOL, _testing=injection) as store:
        eventually(lambda: not store.info().roots[0].warming, "the scan ended")
        kv = store.cache(LAYOUT)
        assert not any(kv.contains(key) for key in promise.gone), "what was deleted is back"
        for name, chain in chains.items():
            blocks, reason = tally.load(kv, chain)
            assert name not in promise.whole or blocks == len(chain), f"{name} is lost: {reason}"
        for chain in chains.values():
            put_until_whole(kv, chain, tally)
        told = store.info().roots[0]
        assert told.used_bytes == physical_bytes(root) + told.quarantine_bytes
    report = check(root, deep=True, now_s=lambda: CUT_WALL_S)
    assert {finding.kind for finding in report.findings} <= HARMLESS


def put_until_whole(kv: Cache, chain: Chain, tally: Tally) -> None:
    """Damage shows when it is read: each load that meets some makes room for another put."""
    for _ in range(len(chain) + 1):
        assert put(kv, chain) == len(chain)
        kv.store.drop_ram()
        if tally.load(kv, chain) == (len(chain), None):
            return
    pytest.fail("a put again and again never came back whole")


def judge_all(
    images: Iterable[tuple[int, Image]], recording: Recording, folder: Path, tally: Tally
) -> None:
    seen = set()
    for cut, image in images:
        promise = recording.promised(cut)
        if (digest := (image.digest(), promise)) not in seen:
            seen.add(digest)
            root = folder / "image"
            image.build(root, START_WALL_S)
            judge(root, recording.chains, promise, tally)
            tally.images += 1
            shutil.rmtree(root)


def cut_everywhere(
    recording: Recording, folder: Path, tally: Tally, rng: random.Random, each: int
) -> None:
    """`each` images after each change of the history, the kinds of file system in turn."""
    disks = [recording.disk(), recording.disk(with_temporary_names=True)]
    points = range(len(disks[0].changes) + 1)
    rules = itertools.cycle(Rules)
    tally.points += len(points)
    judge_all(
        (
            (cut, rng.choice(disks).sample(cut, next(rules), rng))
            for cut in points
            for _ in range(each)
        ),
        recording, folder, tally,
    )  # fmt: skip


# ---- tests ---------------------------------------------------------------------------------------


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    given = request.config.getoption("--seed")
    seed = random.randrange(1 << 32) if given is None else given
    print(f"replay with --seed {seed}")
    return seed


@pytest.mark.parametrize("history", HISTORIES, ids=lambda history: history.__name__)
def test_a_history_without_a_cut_is_what_is_on_disk(
    history: Callable[[Recording], None], tmp_path: Path
) -> None:
    """The recorder misses no change, and the model makes of them what the file system made."""
    recording = Recording(tmp_path)
    history(recording)
    image = recording.disk().whole()
    real = {found.path: found for found in tree(recording.root)}
    assert set(image.directories) == {path for path, found in real.items() if found.is_directory}
    assert {*image.files, "owner.lock"} == real.keys() - set(image.directories)
    for path, entry in image.files.items():
        assert entry.data == real[path].data, path
        if path.endswith(".kv") and entry.times:
            assert entry.times == real[path].times, path


@pytest.mark.parametrize("history", HISTORIES, ids=lambda history: history.__name__)
def test_a_cut_after_any_step_costs_no_more_than_blocks(
    history: Callable[[Recording], None], seed: int, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    recording = Recording(tmp_path, seed)
    history(recording)
    with Tally().shown(history.__name__, capsys) as tally:
        cut_everywhere(recording, tmp_path, tally, random.Random(seed), 1)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("history", HISTORIES, ids=lambda history: history.__name__)
def test_many_cuts_after_any_step_cost_no_more_than_blocks(
    history: Callable[[Recording], None], seed: int, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    recording = Recording(tmp_path, seed)
    history(recording)
    with Tally().shown(history.__name__, capsys) as tally:
        cut_everywhere(recording, tmp_path, tally, random.Random(seed), 6)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_all_that_a_cut_may_leave_of_one_extent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every combination of writes made, not made and torn, with and without length and times."""
    recording = Recording(tmp_path)
    with recording.life():
        recording.put("a", 9)
    disk = recording.disk()
    path = next(name for name in disk.now if name.endswith(".kv"))
    cuts = [number + 1 for number in (*disk.now[path].content, len(disk.changes) - 1)]
    with Tally(points=len(cuts)).shown("one extent, exhaustively", capsys) as tally:
        images = ((cut, image) for cut in cuts for image in disk.every(cut, path))
        judge_all(images, recording, tmp_path, tally)
