"""Space is given back at a pace, so that loads do not stall; a put that needs the room does not
wait for it. The pace is 2^30 bytes a second, a tenth of a second ahead; the clock is a driven one.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from kvstore import Layout, LayoutWarning
from kvstore.cache import Cache
from kvstore.store import Store, open_blocking
from kvstore.testing import Injection, VirtualClock
from kvstore.writer import Writer
from tests.support.prompts import BLOCK_TOKENS, GRID, eventually, extent_files, tokens

CELL = 32 << 10
LAYERS = 16
EXTENT = LAYERS * GRID * CELL  # 8 MiB and a header
AHEAD = (1 << 30) // 10  # bytes unlinked while the clock stands still, and what begun in them
EXTENTS = 30


def layout() -> Layout:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LayoutWarning)
        return Layout(
            parts_by_layer=((("latent", CELL),),) * LAYERS,
            model="paced",
            block_tokens=BLOCK_TOKENS,
            extent_blocks=GRID,
        )


LAYOUT = layout()


@contextmanager
def opened(root: Path, clock: VirtualClock, capacity: int = 1 << 30) -> Iterator[Store]:
    injected = Injection(clock=clock, manual_ticks=True)
    with open_blocking(root, capacity=capacity, pool="64MB", _testing=injected) as store:
        eventually(lambda: not store.info().roots[0].warming, "the scan ended")
        yield store


def begun(kv: Cache, name: object, extents: int) -> Writer:
    """A writer whose files are all allocated; one cell of each is written."""
    writer = kv.writer(kv.keys(tokens(name, extents * GRID)))
    cell = np.ones((1, CELL), dtype=np.uint8)
    for extent in range(extents):
        writer.put(0, (extent * GRID, extent * GRID + 1), [cell]).wait("30s")
    eventually(lambda: used(kv.store) >= extents * EXTENT, "allocated")
    return writer


def put_whole(kv: Cache, name: object, extents: int) -> int:
    cells = np.ones((GRID, CELL), dtype=np.uint8)
    with kv.writer(kv.keys(tokens(name, extents * GRID))) as writer:
        for extent in range(extents):
            for layer in range(LAYERS):
                at = extent * GRID
                writer.put(layer, (at, at + GRID), [cells]).wait("30s")
        return writer.commit_blocking("60s")


def used(store: Store) -> int:
    return store.info().roots[0].used_bytes


def settle(store: Store, clock: VirtualClock, goal: int) -> None:
    """Time passes until no more than `goal` bytes are used."""

    def step() -> bool:
        clock.advance(0.1)
        store.tick()
        return used(store) <= goal

    eventually(step, "given back")


def test_an_abandoned_writers_files_are_closed_at_a_pace(tmp_path: Path) -> None:
    clock = VirtualClock()
    with opened(tmp_path, clock) as store:
        writer = begun(store.cache(LAYOUT), "abandoned", EXTENTS)
        before = used(store)
        writer.abort()
        eventually(lambda: used(store) < before - AHEAD + EXTENT, "as much as may be at once")
        store.tick()
        assert used(store) >= before - AHEAD - 2 * EXTENT, "the clock stands still"
        settle(store, clock, 0)


def test_a_put_takes_the_room_at_once_and_evicts_nothing_for_it(tmp_path: Path) -> None:
    clock = VirtualClock()
    capacity = (EXTENTS + 3) * (EXTENT + (64 << 10))
    with opened(tmp_path, clock, capacity) as store:
        kv = store.cache(LAYOUT)
        assert put_whole(kv, "stays", 2) == 2 * GRID
        writer = begun(kv, "abandoned", EXTENTS)
        writer.abort()
        assert put_whole(kv, "needs room", EXTENTS - 8) == (EXTENTS - 8) * GRID
        assert store.stats().evicted_extents == 0
        assert kv.match(kv.keys(tokens("stays", 2 * GRID))).blocks == 2 * GRID


def test_deletes_are_paced_and_all_end(tmp_path: Path) -> None:
    clock = VirtualClock()
    with opened(tmp_path, clock) as store:
        kv = store.cache(LAYOUT)
        chain = kv.keys(tokens("deleted", EXTENTS * GRID))
        assert put_whole(kv, "deleted", EXTENTS) == EXTENTS * GRID
        handles = [kv._delete(chain[at]) for at in range(0, len(chain), GRID)]
        least = EXTENTS - AHEAD // EXTENT - 2
        eventually(lambda: len(extent_files(tmp_path)) < EXTENTS - 5, "as many as may be at once")
        assert len(extent_files(tmp_path)) >= least, "the clock stands still"
        settle(store, clock, 0)
        assert sum(handle.wait("30s") for handle in handles) == EXTENTS


def test_closing_does_not_wait_for_the_pace(tmp_path: Path) -> None:
    clock = VirtualClock()
    with opened(tmp_path, clock) as store:
        kv = store.cache(LAYOUT)
        begun(kv, "abandoned", EXTENTS).abort()
        handle = kv._delete(bytes(32))
    assert handle.done
    with opened(tmp_path, clock) as store:
        assert used(store) == 0
