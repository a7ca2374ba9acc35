"""What a new process finds: everything that was flushed, the exact usage, the order of use; and who
may own a root.

Processes that are to be killed run this file's helper in `python -c`, and say when they are ready.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstore import OpenError
from kvstore.store import Store, open_blocking
from tests.support.extent_reader import read_root
from tests.support.prompts import (
    GRID,
    assert_whole,
    eventually,
    extent_files,
    physical_bytes,
    put,
    small_layout,
    tokens,
)
from tests.support.stores import fork

LAYOUT = small_layout()
REPOSITORY = Path(__file__).resolve().parent.parent
PROMPTS = {"one": 5, "two": 2 * GRID + 3, "three": 1}

# Commits the prompts, flushes when told to, then waits to be killed.
CHILD = """
import json, sys
from kvstore.store import open_blocking
from tests.support.prompts import put, small_layout, tokens
root, role, prompts = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
store = open_blocking(root, capacity="1GB", pool="16MB", role=role)
kv = store.cache(small_layout())
for name, blocks in prompts.items():
    assert put(kv, kv.keys(tokens(name, blocks))) == blocks
store.flush_blocking()
print("ready", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def child(root: Path, role: str = "owner", prompts: dict[str, int] | None = None) -> Iterator[int]:
    """A process that holds the root; its pid. Killed at the end if it still lives."""
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(root), role, json.dumps(prompts or {})],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"ready\n"
        yield process.pid
    finally:
        process.kill()
        process.communicate()


@contextlib.contextmanager
def opened(root: Path, role: str = "owner", capacity: int = 1 << 30) -> Iterator[Store]:
    with open_blocking(root, capacity=capacity, pool="16MB", role=role) as store:
        yield store


def scanned(store: Store) -> None:
    eventually(lambda: not store.info().roots[0].warming, "the scan ended")


def assert_all_there(store: Store) -> None:
    kv = store.cache(LAYOUT)
    for name, blocks in PROMPTS.items():
        assert_whole(kv, kv.keys(tokens(name, blocks)))


def put_all_prompts(store: Store) -> None:
    kv = store.cache(LAYOUT)
    for name, blocks in PROMPTS.items():
        assert put(kv, kv.keys(tokens(name, blocks))) == blocks


# ------------------------------------------------------------------------------ what is found


def test_everything_hits_after_a_close_also_before_the_scan_is_over(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put_all_prompts(store)
    for _ in range(5):
        with opened(tmp_path) as store:
            assert_all_there(store)
            assert store.stats().disk_bytes > 0


def test_everything_flushed_hits_after_the_process_was_killed(tmp_path: Path) -> None:
    with child(tmp_path, prompts=PROMPTS) as pid:
        os.kill(pid, signal.SIGKILL)
    read_root(tmp_path)
    with opened(tmp_path) as store:
        assert_all_there(store)
        scanned(store)
        assert store.stats().quarantined_extents == 0


def test_a_writer_that_was_not_committed_leaves_nothing(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        kv = store.cache(LAYOUT)
        chain = kv.keys(tokens("never", 7))
        kv.writer(chain)
    with opened(tmp_path) as store:
        scanned(store)
        assert store.cache(LAYOUT).match(chain).blocks == 0
        assert store.info().roots[0].used_bytes == 0
    assert extent_files(tmp_path) == []


def test_a_middle_block_is_warming_or_there_but_never_called_absent(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put_all_prompts(store)
    for _ in range(20):
        with opened(tmp_path) as store:
            kv = store.cache(LAYOUT)
            hit = kv.match(kv.keys(tokens("two", 5)))
            assert hit.blocks == 5 or hit.reason == "warming"
            scanned(store)
            assert kv.contains(kv.keys(tokens("two", 5))[4])


def test_a_delete_right_after_open_also_drops_what_the_scan_had_not_reached(
    tmp_path: Path,
) -> None:
    with opened(tmp_path) as store:
        kv = store.cache(LAYOUT)
        chains = [kv.keys(tokens(("deleted", i), GRID)) for i in range(80)]
        for chain in chains:
            put(kv, chain)
    for turn in range(8):
        with opened(tmp_path) as store:
            kv = store.cache(LAYOUT)
            for chain in chains[turn * 10 : turn * 10 + 10]:
                kv.delete_blocking(chain[3])
            scanned(store)
            for chain in chains[: turn * 10 + 10]:
                assert kv.find_blocking(chain).blocks == 0
            for chain in chains[turn * 10 + 10 :]:
                assert kv.find_blocking(chain).blocks == GRID


def test_a_delete_that_waits_for_the_scan_ends_with_a_close(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        kv = store.cache(LAYOUT)
        keys = [kv.keys(tokens(("closed", i), 2)) for i in range(40)]
        for chain in keys:
            put(kv, chain)
    for _ in range(5):
        store = open_blocking(tmp_path, pool="16MB")
        kv = store.cache(LAYOUT)
        waiting = [kv._delete(chain[1]) for chain in keys[:5]]
        store.close_blocking()
        assert all(handle.done for handle in waiting)


@pytest.mark.parametrize("killed", [False, True], ids=["closed", "killed"])
def test_used_bytes_after_a_restart_are_what_is_on_disk(killed: bool, tmp_path: Path) -> None:
    if killed:
        with child(tmp_path, prompts=PROMPTS):
            pass
    else:
        with opened(tmp_path) as store:
            put_all_prompts(store)
    with opened(tmp_path) as store:
        scanned(store)
        assert store.info().roots[0].used_bytes == physical_bytes(tmp_path) > 0
        assert store.stats().extents == len(extent_files(tmp_path))
        assert store.stats().blocks == sum(PROMPTS.values())


def test_a_smaller_capacity_after_a_restart_is_reached_before_the_next_put(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put_all_prompts(store)
    smaller = physical_bytes(tmp_path) // 2
    with opened(tmp_path, capacity=smaller) as store:
        scanned(store)
        kv = store.cache(LAYOUT)
        chain = kv.keys(tokens("new", 2))
        assert put(kv, chain) == 2
        assert physical_bytes(tmp_path) <= smaller
        assert_whole(kv, chain)


# -------------------------------------------------------------------------------------- roles


def test_a_second_owner_is_refused_by_name_of_the_first(tmp_path: Path) -> None:
    with child(tmp_path) as pid, pytest.raises(OpenError, match=rf"\b{pid}\b.*role="):
        open_blocking(tmp_path, pool="16MB").close_blocking()
    with opened(tmp_path) as store:
        assert store.info().roots[0].is_owner, "the first was killed: the lock is free"


def test_a_second_owner_in_one_process_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path), pytest.raises(OpenError, match=rf"this process {os.getpid()}\b"):
        open_blocking(tmp_path, pool="16MB").close_blocking()
    with opened(tmp_path):
        pass


def test_a_peer_finds_by_walking_names_what_the_owner_wrote(tmp_path: Path) -> None:
    with child(tmp_path, prompts=PROMPTS), opened(tmp_path, "peer") as peer:
        kv = peer.cache(LAYOUT)
        chain = kv.keys(tokens("two", PROMPTS["two"]))
        hit = kv.match(chain)
        assert (hit.blocks, hit.reason, hit.pending) == (0, "pending", True)
        assert kv.find_blocking(chain).blocks == len(chain)
        assert kv.match(chain).blocks == len(chain), "now it knows"
        nothing = kv.keys(tokens("nothing", 3))
        assert (kv.find_blocking(nothing).blocks, kv.match(nothing).pending) == (0, False)
        assert_all_there(peer)
        assert not peer.info().roots[0].is_owner


def test_a_peer_loads_a_hit_that_another_process_matched(tmp_path: Path) -> None:
    with opened(tmp_path) as owner:
        put_all_prompts(owner)
        hit = owner.cache(LAYOUT).match(owner.cache(LAYOUT).keys(tokens("two", PROMPTS["two"])))
        with opened(tmp_path, "peer") as peer, peer.cache(LAYOUT).load(hit) as running:
            assert running.wait(LAYOUT.layers - 1).blocks == PROMPTS["two"]


def test_what_a_peer_wrote_is_there_for_the_next_owner(tmp_path: Path) -> None:
    with child(tmp_path), opened(tmp_path, "peer") as peer:
        put_all_prompts(peer)
    with opened(tmp_path) as store:
        assert_all_there(store)
        scanned(store)
        assert store.info().roots[0].used_bytes == physical_bytes(tmp_path)


def test_a_peer_publishes_nothing_while_nobody_owns_the_root(tmp_path: Path) -> None:
    with opened(tmp_path, "peer") as peer:
        kv = peer.cache(LAYOUT)
        assert put(kv, kv.keys(tokens("orphan", 3))) == 0
        assert peer.stats().dropped_blocks == 3
    assert extent_files(tmp_path) == []


def test_auto_takes_over_when_the_owner_was_killed(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        with child(tmp_path, prompts=PROMPTS):
            store = stack.enter_context(opened(tmp_path, "auto"))
            peer = stack.enter_context(opened(tmp_path, "peer"))
            assert not store.info().roots[0].is_owner
            assert_all_there(store)
        eventually(lambda: store.info().roots[0].is_owner, "it took the lock")
        scanned(store)
        assert not peer.info().roots[0].is_owner
        assert store.info().roots[0].used_bytes == physical_bytes(tmp_path)
        kv = store.cache(LAYOUT)
        nothing = kv.match(kv.keys(tokens("nothing", 3)))
        assert (nothing.blocks, nothing.reason) == (0, "absent"), "an owner knows all names"
        assert_all_there(store)
        with pytest.raises(OpenError, match="has an owner already"):
            open_blocking(tmp_path, pool="16MB").close_blocking()


def test_auto_owns_a_free_root_at_once(tmp_path: Path) -> None:
    with opened(tmp_path, "auto") as store:
        assert store.info().roots[0].is_owner


def test_the_lock_is_not_inherited_by_a_forked_child(tmp_path: Path) -> None:
    read, write = os.pipe()
    with opened(tmp_path) as store:
        put_all_prompts(store)
        pid = fork()
        if pid == 0:  # lives on with all descriptors of its parent
            os.close(write)
            os.read(read, 1)
            os._exit(0)
    try:
        os.close(read)
        with opened(tmp_path) as store:
            assert store.info().roots[0].is_owner
            assert_all_there(store)
    finally:
        os.close(write)
        assert os.waitpid(pid, 0)[1] == 0
