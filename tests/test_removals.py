"""Why blocks left: told by an open store, and by the ring in the root, which outlives a kill and is
harmless when torn."""

import os
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kvstore import _core
from kvstore.cache import Cache
from kvstore.chain import Chain
from kvstore.removals import Removal, read_removals
from kvstore.store import Store, open_blocking
from kvstore.testing import START_WALL_S, FaultFiles, FileCall, Injection, VirtualClock
from tests.support.prompts import (
    GRID,
    eventually,
    extent_files,
    file_named,
    physical_bytes,
    put,
    small_layout,
    tokens,
)

LAYOUT = small_layout()
REPOSITORY = Path(__file__).resolve().parent.parent
DAY = 24 * 3600
RING_MAX = 5460
REASON_NUMBERS = {"expired": 2, "evicted": 3, "deleted": 4, "damaged": 7}  # docs/FORMAT.md

CHILD = """
import sys
from kvstore.store import open_blocking
from tests.support.prompts import put, small_layout, tokens
store = open_blocking(sys.argv[1], capacity="1GB", pool="16MB")
kv = store.cache(small_layout())
chain = kv.keys(tokens("prompt", 5))
put(kv, chain)
kv.delete_blocking(chain[0])
print("ready", flush=True)
sys.stdin.read()
"""


@contextmanager
def opened(
    root: Path, clock: VirtualClock, capacity: int = 1 << 30, files: FaultFiles | None = None
) -> Iterator[Store]:
    injected = Injection(clock=clock, files=files, manual_ticks=True)
    with open_blocking(root, capacity=capacity, pool="16MB", _testing=injected) as store:
        eventually(lambda: not store.info().roots[0].warming, "the scan ended")
        yield store


def put_named(kv: Cache, name: object, blocks: int = GRID, retain: str | None = None) -> Chain:
    chain = kv.keys(tokens(name, blocks))
    assert put(kv, chain, retain=retain) == blocks
    return chain


def ring_of(entries: list[tuple[bytes, str, int]], namespace: str) -> bytes:
    """Made from docs/FORMAT.md alone."""
    mix = _core.xxh3(namespace.encode())
    packed = b"".join(
        struct.pack(
            "<QqII", int.from_bytes(key[:8], "little") ^ mix, when, REASON_NUMBERS[reason], 0
        )
        for key, reason, when in entries
    )
    head = struct.pack("<8sQQ", b"KVSREMOV", len(entries), _core.xxh3(packed))
    return (head + packed).ljust(1 << 17, b"\0")


def minutes_pass(store: Store, clock: VirtualClock, true: Callable[[], object], what: str) -> None:
    """A minute after another: a round that meets a save under way leaves it to the next."""

    def round_of_the_keeper() -> object:
        clock.advance(61)
        store.tick()
        return true()

    eventually(round_of_the_keeper, what)


def test_every_reason_is_told_with_its_time_by_the_store_and_by_the_ring(tmp_path: Path) -> None:
    clock = VirtualClock()
    with opened(tmp_path / "measure", clock) as store:
        put_named(store.cache(LAYOUT), "one")
        full = physical_bytes(tmp_path / "measure")
    root = tmp_path / "root"
    with opened(root, clock, capacity=3 * full + full // 2) as store:
        kv = store.cache(LAYOUT)
        left: dict[str, tuple[bytes, int]] = {}

        def note(reason: str, chain: Chain) -> None:
            now_s = START_WALL_S + (clock.now_ns - 1_000_000_000) // 1_000_000_000
            left[reason] = (chain[7], now_s)

        evicted = put_named(kv, "evicted")
        clock.advance(10)
        deleted = put_named(kv, "deleted")
        put_named(kv, "stays")
        put_named(kv, "needs room")
        note("evicted", evicted)
        clock.advance(10)
        kv.delete_blocking(deleted[2])
        note("deleted", deleted)
        harmed = put_named(kv, "damaged")
        path = file_named(root, harmed[0])
        path.write_bytes(path.read_bytes()[:-4096])
        store.drop_ram()
        with kv.load(kv.match(harmed)) as load:
            assert load.wait(3).blocks == 0
        note("damaged", harmed)
        expired = put_named(kv, "expired", retain="agent")
        clock.advance(3 * DAY)
        store.tick()
        eventually(lambda: store.stats().expired_extents == 1, "unlinked")
        note("expired", expired)
        wanted = {key: Removal(reason=reason, time_s=at) for reason, (key, at) in left.items()}
        assert {key: kv.removed(key) for key in wanted} == wanted
        assert kv.removed(bytes(32)) is None
        minutes_pass(
            store,
            clock,
            lambda: read_removals(root).of(LAYOUT.namespace, expired[7]) is not None,
            "written within a minute, while the store is open",
        )
        ring = read_removals(root)
        assert {key: ring.of(LAYOUT.namespace, key) for key in wanted} == wanted
    ring = read_removals(root)
    assert {key: ring.of(LAYOUT.namespace, key) for key in wanted} == wanted
    with opened(root, VirtualClock(START_WALL_S + 4 * DAY)) as store:
        kv = store.cache(LAYOUT)
        assert {key: kv.removed(key) for key in wanted} == wanted
        for reason, (key, _) in left.items():
            assert kv.get_blocking(key).reason == reason  # type: ignore[union-attr]


def test_reasons_outlive_a_kill(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tmp_path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"ready\n"
        eventually(lambda: len(read_removals(tmp_path)) == 5, "the first save is at once")
        os.kill(process.pid, signal.SIGKILL)
    finally:
        process.kill()
        process.communicate()
    with open_blocking(tmp_path, pool="16MB") as store:
        kv = store.cache(LAYOUT)
        chain = kv.keys(tokens("prompt", 5))
        found = [kv.removed(key) for key in chain]
        assert [one and one.reason for one in found] == ["deleted"] * 5
        eventually(lambda: kv.match(chain).reason == "deleted", "once the scan is over")


def test_a_ring_made_from_the_format_is_read(tmp_path: Path) -> None:
    with opened(tmp_path, VirtualClock()) as store:
        chain = put_named(store.cache(LAYOUT), "prompt", 4)
    entries = [(chain[0], "evicted", 1000), (chain[0], "deleted", 2000), (chain[1], "damaged", -5)]
    (tmp_path / "removed.ring").write_bytes(ring_of(entries, LAYOUT.namespace))
    ring = read_removals(tmp_path)
    assert ring.of(LAYOUT.namespace, chain[0]) == Removal(reason="deleted", time_s=2000)
    assert ring.of("0" * 32, chain[0]) is None, "of another layout"
    with opened(tmp_path, VirtualClock()) as store:
        kv = store.cache(LAYOUT)
        assert kv.match(chain).blocks == 4, "what is there is there, whatever the ring says"
        kv.delete_blocking(chain[3])
        assert kv.removed(chain[0]) == Removal(reason="deleted", time_s=START_WALL_S)


@pytest.mark.parametrize("harm", ["empty", "cut", "flipped", "garbage", "count", "directory"])
def test_a_torn_ring_costs_the_reasons_and_nothing_else(harm: str, tmp_path: Path) -> None:
    with opened(tmp_path, VirtualClock()) as store:
        kv = store.cache(LAYOUT)
        chain, stays = put_named(kv, "prompt"), put_named(kv, "stays")
        kv.delete_blocking(chain[0])
    path = tmp_path / "removed.ring"
    data = bytearray(path.read_bytes())
    assert len(read_removals(tmp_path)) == GRID
    path.unlink()
    if harm == "flipped":
        data[100] ^= 1
    elif harm == "count":
        data[8:16] = b"\xff" * 8
    elif harm == "garbage":
        data[:] = os.urandom(len(data))
    if harm == "directory":
        path.mkdir()
    else:
        path.write_bytes({"empty": b"", "cut": data[:50]}.get(harm, data))
        assert len(read_removals(tmp_path)) == 0
    with opened(tmp_path, VirtualClock()) as store:
        kv = store.cache(LAYOUT)
        assert (kv.match(chain).blocks, kv.match(chain).reason) == (0, "absent")
        assert kv.match(stays).blocks == GRID
        kv.delete_blocking(stays[0])
    if harm != "directory":
        assert len(read_removals(tmp_path)) == GRID, "whole again"


def test_what_a_killed_save_left_behind_does_not_stop_the_next(tmp_path: Path) -> None:
    with opened(tmp_path, VirtualClock()) as store:
        kv = store.cache(LAYOUT)
        kv.delete_blocking(put_named(kv, "prompt")[0])
    (tmp_path / "removed.ring.new").write_bytes(b"half of it")
    with opened(tmp_path, VirtualClock()) as store:
        kv = store.cache(LAYOUT)
        kv.delete_blocking(put_named(kv, "another")[0])
    assert len(read_removals(tmp_path)) == 2 * GRID
    assert not (tmp_path / "removed.ring.new").exists()


def test_a_save_that_fails_leaves_the_old_ring_and_is_made_up_for(tmp_path: Path) -> None:
    clock, files = VirtualClock(), FaultFiles()
    with opened(tmp_path, clock, files=files) as store:
        kv = store.cache(LAYOUT)
        kv.delete_blocking(put_named(kv, "one")[0])
        minutes_pass(store, clock, lambda: len(read_removals(tmp_path)) == GRID, "saved")
        renamed = files.calls(FileCall.RENAME)
        files.add(FileCall.RENAME, 5, count=1)
        kv.delete_blocking(put_named(kv, "two")[0])
        minutes_pass(store, clock, lambda: files.calls(FileCall.RENAME) > renamed, "tried")
        assert len(read_removals(tmp_path)) == GRID
    assert len(read_removals(tmp_path)) == 2 * GRID


def test_of_more_removals_than_the_ring_holds_the_newest_stay(tmp_path: Path) -> None:
    extents = RING_MAX // GRID + 20
    clock = VirtualClock()
    with opened(tmp_path, clock) as store:
        kv = store.cache(LAYOUT)
        chain = put_named(kv, "long", extents * GRID)
        for at in range(0, len(chain), GRID):
            kv._delete(chain[at]).wait("30s") if at % (40 * GRID) == 0 else kv._delete(chain[at])
        eventually(lambda: extent_files(tmp_path) == [], "all deleted")
    ring = read_removals(tmp_path)
    assert len(ring) == RING_MAX
    assert ring.of(LAYOUT.namespace, chain[-1]) is not None
    assert ring.of(LAYOUT.namespace, chain[0]) is None
