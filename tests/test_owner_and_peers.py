"""One owner and its peers on one root: the budget, the lock, who takes over, and no wrong byte when
any of them is killed."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvstore.store import Store, open_blocking
from kvstore.testing import Injection, VirtualClock
from tests.support.crowd_member import PROMPTS
from tests.support.extent_reader import read_root
from tests.support.prompts import (
    GRID,
    eventually,
    extent_files,
    load,
    physical_bytes,
    put,
    small_layout,
    tokens,
)
from tests.support.tight import chain_named, fill, measure_full_extent, opened, resident

LAYOUT = small_layout()
REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def full_extent_bytes(tmp_path_factory: pytest.TempPathFactory) -> int:
    return measure_full_extent(tmp_path_factory.mktemp("measure"))


def looked(store: Store, clock: VirtualClock) -> None:
    """A rescan is over: a delete waits for one."""
    clock.advance(11)
    store.tick()
    store.cache(LAYOUT).delete_blocking(bytes(32))


# ------------------------------------------------------------------------------------- the budget


def test_peers_files_count_from_adoption_and_are_evicted_like_ours(
    tmp_path: Path, full_extent_bytes: int
) -> None:
    clock = VirtualClock()
    capacity = 4 * full_extent_bytes
    with (
        opened(tmp_path, capacity, clock=clock) as owner,
        opened(tmp_path, capacity, clock=clock, role="peer") as peer,
    ):
        kv = owner.cache(LAYOUT)
        ours = fill(kv, ["ours"], clock)
        fill(peer.cache(LAYOUT), range(6), clock)
        assert owner.info().roots[0].used_bytes < physical_bytes(tmp_path), "not met yet"
        looked(owner, clock)
        eventually(
            lambda: owner.info().roots[0].used_bytes == physical_bytes(tmp_path) <= capacity,
            "adopted, and evicted to fit",
        )
        clock.advance(61)
        put(kv, chain_named(kv, "next"))
        assert owner.info().roots[0].used_bytes == physical_bytes(tmp_path) <= capacity
        assert resident(kv, ours) == [], "the oldest"
        assert kv.match(chain_named(kv, 5)).blocks == GRID, "the peer's newest"


def test_what_a_peer_used_a_moment_ago_is_spared(tmp_path: Path, full_extent_bytes: int) -> None:
    clock = VirtualClock()
    capacity = 2 * full_extent_bytes
    with (
        opened(tmp_path, capacity, clock=clock) as owner,
        opened(tmp_path, capacity, clock=clock, role="peer") as peer,
    ):
        kv, theirs = owner.cache(LAYOUT), peer.cache(LAYOUT)
        old = fill(kv, range(2), clock)
        clock.advance(600)
        assert load(theirs, theirs.find_blocking(old[0])) == (GRID, None)
        peer.tick()  # the use is written to the file
        used_s = clock.now_ns // 1_000_000_000

        def written() -> bool:
            newest = max(path.stat().st_atime for path in extent_files(tmp_path))
            return newest > used_s - 700 + 1_700_000_000 - 1

        eventually(written, "its atime moved on")
        fill(kv, ["new"], clock)
        assert resident(kv, old) == [0], "the other one went, though it was used later by us"


# ------------------------------------------------------------------------------------------ roles

FORKS = """
import os, sys, time
from kvstore.store import open_blocking
store = open_blocking(sys.argv[1], pool="16MB")
read, write = os.pipe()
if os.fork() == 0:
    print(os.getpid(), flush=True)
    os.close(write)
    os.read(read, 1)  # until the parent's end of the pipe is closed by its death ...
    sys.stdin.read()  # ... and then until the test is over
    os._exit(0)
sys.stdin.read()
"""


def test_a_fork_does_not_keep_the_lock_of_an_owner_that_was_killed(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", FORKS, str(tmp_path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert process.stdout is not None and process.stdin is not None
    child = int(process.stdout.readline())
    try:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert Path(f"/proc/{child}").exists(), "the fork lives on"
        with open_blocking(tmp_path, pool="16MB") as store:
            assert store.info().roots[0].is_owner
    finally:
        process.stdin.close()  # the fork reads the end of it
        process.stdout.read()
        process.stdout.close()


def test_an_auto_peer_evicts_once_it_has_taken_over(tmp_path: Path, full_extent_bytes: int) -> None:
    clock = VirtualClock()
    capacity = 3 * full_extent_bytes
    injected = Injection(clock=clock, manual_ticks=True)
    with open_blocking(
        tmp_path, capacity=capacity, pool="16MB", role="owner", _testing=injected
    ) as owner:
        auto = open_blocking(
            tmp_path, capacity=capacity, pool="16MB", role="auto", min_age=0, _testing=injected
        )
        fill(owner.cache(LAYOUT), range(3), clock)
        kv = auto.cache(LAYOUT)
        assert put(kv, chain_named(kv, "of a peer")) == GRID
        clock.advance(2)
        auto.tick()
        assert not auto.info().roots[0].is_owner
    with auto:

        def took_over() -> bool:
            clock.advance(1)
            auto.tick()
            return auto.info().roots[0].is_owner

        eventually(took_over, "the lock is free")
        eventually(lambda: not auto.info().roots[0].warming, "the scan ended")
        eventually(
            lambda: auto.info().roots[0].used_bytes == physical_bytes(tmp_path) <= capacity,
            "it knows all that is there, and made room",
        )
        assert put(kv, chain_named(kv, "of the owner")) == GRID
        assert physical_bytes(tmp_path) <= capacity


# -------------------------------------------------------------------------------- all of it at once


class Member:
    """A process of the crowd."""

    def __init__(self, root: Path, role: str, capacity: int, seed: int) -> None:
        self.role = role
        words = ["-m", "tests.support.crowd_member", root, role, capacity, seed]
        self.process = subprocess.Popen(
            [sys.executable, *map(str, words)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=REPOSITORY,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip

    def report(self) -> dict[str, Any]:
        """The next line that it prints; a member that failed shows why."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            pytest.fail(self.process.communicate()[1].decode())
        return dict(json.loads(line))

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def end(self) -> None:
        _, errors = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, errors.decode()


@contextlib.contextmanager
def crowd(root: Path, capacity: int) -> Iterator[list[Member]]:
    members = [Member(root, "owner", capacity, 0)]
    try:
        members[0].report()
        for i, role in enumerate(["auto", "peer", "peer", "peer"]):
            members.append(Member(root, role, capacity, i + 1))
        yield members
    finally:
        for member in members:
            member.kill()


@pytest.mark.slow
def test_an_owner_and_four_peers_of_which_each_is_killed_in_turn(
    tmp_path: Path, full_extent_bytes: int
) -> None:
    """Every member checks every byte that it loads and ends with an error on a wrong one."""
    capacity = PROMPTS // 2 * full_extent_bytes
    with crowd(tmp_path, capacity) as members:
        for member in members:
            member.report()
        refused = Member(tmp_path, "owner", capacity, 99)
        assert str(members[0].process.pid) in refused.report()["refused"]
        refused.end()
        for number in (2, 3, 4, 0):  # the owner last
            role = "auto" if number == 0 else members[number].role
            members[number].kill()
            for other in members:
                if other is not members[number]:
                    other.report()
                    assert other.report()["quarantined"] == 0
            while number == 0 and not members[1].report()["owner"]:
                pass  # else the one that comes back may be quicker
            members[number] = Member(tmp_path, role, capacity, 10 + number)
            assert members[number].report()["quarantined"] == 0
        last = members[1].report()
        while last["evicted"] == 0:  # it rescans, puts and makes room like the one before it
            last = members[1].report()
        assert members[0].report()["owner"] is False
        for member in members:
            member.end()
        members.clear()
    read_root(tmp_path)
    with open_blocking(tmp_path, capacity=capacity, pool="16MB", min_age=0) as store:
        eventually(lambda: not store.info().roots[0].warming, "the scan ended")
        kv = store.cache(LAYOUT)
        eventually(
            lambda: store.info().roots[0].used_bytes == physical_bytes(tmp_path) <= capacity,
            "what the last puts of peers took is made good",
        )
        assert put(kv, kv.keys(tokens("after", GRID))) == GRID
        assert physical_bytes(tmp_path) <= capacity
        for name in range(PROMPTS):
            load(kv, kv.match(kv.keys(tokens(name, GRID))))
        assert store.stats().quarantined_extents == 0
