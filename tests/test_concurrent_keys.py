"""One key from many threads: put by many at once, loaded while it is put, evicted, deleted and
expires; and leases, which protect what is being loaded and always end.

`prompts.load` compares every delivered byte, so each load here is a check.
"""

import gc
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import kvstore
from kvstore.cache import Cache
from kvstore.chain import Chain
from kvstore.store import Store, open_blocking
from kvstore.testing import Fault, FaultDevice, Injection, VirtualClock
from tests.support.prompts import (
    GRID,
    block_bytes,
    eventually,
    extent_files,
    load,
    load_into,
    physical_bytes,
    put,
    small_layout,
    tokens,
)
from tests.support.racing import assert_disk_is_sound, at_once

LAYOUT = small_layout()
THREADS = 8
HOUR, DAY = 3600, 24 * 3600


@contextmanager
def opened(
    root: Path,
    clock: VirtualClock | None = None,
    capacity: int = 1 << 30,
    device: FaultDevice | None = None,
) -> Iterator[Store]:
    injected = None
    if clock:
        injected = Injection(clock=clock, devices=(device,), manual_ticks=True)
    # The clock jumps by days while reads are under way: that is no trouble of a device.
    with open_blocking(
        root, capacity=capacity, pool="16MB", min_age=0, io_timeout="365d", _testing=injected
    ) as store:
        eventually(lambda: not store.info().roots[0].warming, "the scan ended")
        yield store


def full_bytes(root: Path) -> int:
    with opened(root) as store:
        put(store.cache(LAYOUT), store.cache(LAYOUT).keys(tokens("measure", GRID)))
        return physical_bytes(root)


# ------------------------------------------------------------------------------- put by many


@pytest.mark.parametrize("blocks", [1, 5, 3 * GRID + 2])
def test_the_same_prompt_put_by_many_at_once_is_stored_once(blocks: int, tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        kv = store.cache(LAYOUT)
        chain = kv.keys(tokens("shared", blocks))
        committed: list[int] = []
        at_once([lambda: committed.append(put(kv, chain))] * THREADS)
        assert committed == [blocks] * THREADS
        assert_disk_is_sound(tmp_path, store)
        assert len(extent_files(tmp_path)) == (blocks + GRID - 1) // GRID
        store.drop_ram()
        assert load(kv, kv.match(chain)) == (blocks, None)
        assert store.stats().leases == 0


def test_the_same_single_block_put_by_many_at_once_is_stored_once(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        kv = store.cache(LAYOUT)
        key = kv.keys(tokens("single", 1))[0]
        data = block_bytes(LAYOUT, key)
        at_once([lambda: kv.put_blocking(key, data)] * THREADS)
        assert len(extent_files(tmp_path)) == 1
        store.drop_ram()
        with kv.get_blocking(key) as block:  # type: ignore[union-attr]
            assert bytes(block) == data


def test_prompts_that_share_a_prefix_put_by_many_at_once_all_hit(tmp_path: Path) -> None:
    """Each is longer than the one before; all begin alike, and every second one branches off."""
    with opened(tmp_path) as store:
        kv = store.cache(LAYOUT)
        chains = [
            kv.keys(tokens("trunk", 7 + 5 * i) + (tokens(("branch", i), 3) if i % 2 else []))
            for i in range(THREADS)
        ]
        at_once([lambda chain=chain: put(kv, chain) for chain in chains])  # type: ignore[misc]
        for chain in chains:
            if kv.match(chain).blocks < len(chain):
                put(kv, chain)  # two cut the trunk differently: the next put completes it
        store.drop_ram()
        for chain in chains:
            assert load(kv, kv.match(chain)) == (len(chain), None)
        assert_disk_is_sound(tmp_path, store)


# ------------------------------------------------------------- loaded while all else happens to it


class Crowd:
    """Threads over few prompts in a tight root: every step is right or a miss with a reason."""

    PUTS = 60  # of each putter; the others go on as long as one of them does
    REASONS = {"absent", "expired", "evicted", "deleted", "deadline", "pool", None}

    def __init__(self, store: Store, clock: VirtualClock, seed: int) -> None:
        self.store, self.clock, self.seed = store, clock, seed
        self.kv: Cache = store.cache(LAYOUT)
        self.chains = [self.kv.keys(tokens(("few", i), GRID + 4 * i)) for i in range(6)]
        self.good_blocks = 0
        self.putters = 2

    def steps(
        self, number: int, step: Callable[[random.Random, Chain], None]
    ) -> Callable[[], None]:
        def run() -> None:
            rng = random.Random(self.seed * 100 + number)
            puts = self.PUTS if step == self.put else 1 << 30
            try:
                while puts > 0 and self.putters > 0:
                    step(rng, rng.choice(self.chains))
                    puts -= 1
            finally:
                self.putters -= number < 2

        return run

    def put(self, rng: random.Random, chain: Chain) -> None:
        put(self.kv, chain, retain=rng.choice(["agent", "chat"]))

    def load(self, rng: random.Random, chain: Chain) -> None:
        hit = self.kv.match(chain)
        how = rng.choice([load, load_into])
        blocks, reason = how(self.kv, hit)
        assert reason in self.REASONS, reason
        assert blocks == hit.blocks or reason is not None
        self.good_blocks += blocks

    def delete(self, rng: random.Random, chain: Chain) -> None:
        self.kv.delete_blocking(chain[rng.randrange(len(chain))])

    def time(self, rng: random.Random, chain: Chain) -> None:
        self.clock.advance(rng.choice([0.1] * 500 + [HOUR, DAY]))
        if rng.random() < 0.01:
            self.clock.step_wall(rng.choice([-DAY, DAY]))
        self.store.tick()
        if rng.random() < 0.1:
            self.store.drop_ram()

    def run(self) -> None:
        kinds = [self.put, self.put, self.load, self.load, self.load, self.delete, self.time]
        at_once([self.steps(number, step) for number, step in enumerate(kinds)])


@pytest.mark.parametrize("seed", [1, 2, pytest.param(range(3, 15), marks=pytest.mark.slow)])
def test_loads_are_right_while_their_keys_are_put_evicted_deleted_and_expire(
    seed: int | range, tmp_path: Path
) -> None:
    full = full_bytes(tmp_path / "measure")
    for one in seed if isinstance(seed, range) else [seed]:
        print("seed", one)
        root, clock = tmp_path / f"root{one}", VirtualClock()
        with opened(root, clock, capacity=6 * full) as store:
            crowd = Crowd(store, clock, one)
            crowd.run()
            stats = store.stats()
            assert crowd.good_blocks > 0
            assert stats.deleted_extents > 0 and stats.evicted_extents > 0
            assert (stats.leases, stats.quarantined_extents) == (0, 0)
            assert physical_bytes(root) <= 6 * full
            for chain in crowd.chains:  # it still works
                put(crowd.kv, chain)
                assert load(crowd.kv, crowd.kv.match(chain))[0] > 0
            assert_disk_is_sound(root, store)


# ------------------------------------------------------------------------------------ leases


def test_what_is_being_loaded_survives_all_that_needs_its_room(tmp_path: Path) -> None:
    """The reads are stalled, so the load lasts as long as the test says; nothing else holds it."""
    full = full_bytes(tmp_path / "measure")
    clock = VirtualClock()
    device = FaultDevice(clock)
    with opened(tmp_path / "root", clock, 2 * full, device) as store:
        kv = store.cache(LAYOUT)
        chain = kv.keys(tokens("loaded", GRID))
        put(kv, chain)
        store.drop_ram()
        device.add(Fault.STALL, io=kvstore.testing.Io.READ, count=0)
        running = kv.load(kv.match(chain), deadline="60d")
        for name in range(4):
            put(kv, kv.keys(tokens(("other", name), GRID)))
        assert kv.match(chain).blocks == GRID
        clock.advance(40 * DAY)
        store.tick()
        assert kv.delete_blocking(chain[0]) <= 1, "deleted or expired: it has no name any more"
        device.clear()
        device.release_stalled()
        last = running.wait(LAYOUT.layers - 1)
        assert last.blocks == GRID, "and is delivered all the same"
        running.close()
        eventually(lambda: store.stats().open_files <= 1, "let go")


def test_a_lease_ends_by_release_by_time_and_with_its_last_load(tmp_path: Path) -> None:
    full = full_bytes(tmp_path / "measure")
    clock = VirtualClock()
    with opened(tmp_path / "root", clock, 3 * full) as store:
        kv = store.cache(LAYOUT)
        chains = [kv.keys(tokens(("leased", i), GRID)) for i in range(3)]
        for chain in chains:
            put(kv, chain)
        released, timed, loaded = (
            kv.lease(kv.match(chain), owner=str(i), timeout="60s") for i, chain in enumerate(chains)
        )
        released.release()
        with kv.load(loaded) as running:
            clock.advance(61)
            store.tick()
            assert (released.alive, timed.alive) == (False, False)
            assert loaded.alive or running.stats().finished_ns, "protected while it is loaded"
            running.wait(LAYOUT.layers - 1)
            clock.advance(61)
            store.tick()
            for layer in range(LAYOUT.layers):
                running.wait(layer).release()
        clock.advance(61)
        store.tick()
        eventually(lambda: store.stats().leases == 0, "the load was its last use")
        for i in range(3):
            assert put(kv, kv.keys(tokens(("new", i), GRID))) == GRID, "nothing is protected"


def test_leases_whose_owners_forgot_them_end_by_themselves(tmp_path: Path) -> None:
    """A thousand owners on many threads that never release, some of whose objects are dropped."""
    clock = VirtualClock()
    with opened(tmp_path, clock) as store:
        kv = store.cache(LAYOUT)
        chain = kv.keys(tokens("leased", GRID))
        put(kv, chain)
        kept: list[kvstore.Lease] = []
        lock = threading.Lock()

        def lease_many(number: int) -> Callable[[], None]:
            def run() -> None:
                for i in range(125):
                    lease = kv.lease(kv.match(chain), owner=f"{number} {i}", timeout="10m")
                    if i % 2:
                        with lock:
                            kept.append(lease)

            return run

        at_once([lease_many(number) for number in range(THREADS)])
        gc.collect()
        assert all(lease.alive for lease in kept)
        clock.advance(600)
        store.tick()
        assert store.stats().leases == 0
        assert not any(lease.alive for lease in kept)
        assert kv.match(chain).blocks == GRID, "what was protected is still there"
