"""What a process and a store hold at a moment, so that a test can say: all of it was given back.

Not counted: memory of the interpreter, and files that the store keeps open on purpose (its cache of
extents): of those it is checked that the store knows every one.
"""

from __future__ import annotations

import gc
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from kvstore import Store, _core
from tests.support.stores import until

T = TypeVar("T")


def descriptors() -> Counter[str]:
    """Open descriptors by what they are: a path, or "anon_inode:[eventfd]"."""
    found: Counter[str] = Counter()
    for number in os.listdir("/proc/self/fd"):
        try:
            found[os.readlink(f"/proc/self/fd/{number}")] += 1
        except FileNotFoundError:  # that of listdir itself
            pass
    return found


def is_extent(name: str) -> bool:
    return name.removesuffix(" (deleted)").endswith(".kv")


@dataclass(frozen=True)
class Held:
    """Of a process: descriptors that are no extents, threads, objects kept for the core."""

    descriptors: Counter[str]
    threads: int
    python_threads: int
    kept: int

    @staticmethod
    def now() -> Held:
        gc.collect()
        others = Counter({name: n for name, n in descriptors().items() if not is_extent(name)})
        tasks = len(os.listdir("/proc/self/task"))
        return Held(others, tasks, threading.active_count(), _core.sweep())

    def covers(self, later: Held) -> bool:
        return (
            later.descriptors <= self.descriptors
            and later.threads <= self.threads
            and later.python_threads <= self.python_threads
            and later.kept <= self.kept
        )


@dataclass(frozen=True)
class StoreHeld:
    """Of a store, its RAM tier dropped: leases, regions, pool, extents' files not in its cache, and
    charged bytes that no file has."""

    leases: int
    regions: int
    pool_free_bytes: int
    files_unknown: int
    bytes_unknown: int

    @staticmethod
    def now(store: Store) -> StoreHeld:
        store.drop_ram()
        roots = store.info().roots
        files = [path for root in roots for path in Path(root.path).rglob("*.kv")]
        on_disk = sum(path.stat().st_blocks * 512 for path in files)
        charged = sum(root.used_bytes for root in roots)
        open_extents = sum(count for name, count in descriptors().items() if is_extent(name))
        stats = store.stats()
        return StoreHeld(
            stats.leases,
            stats.regions,
            stats.pool_free_bytes,
            open_extents - stats.open_files,
            charged - on_disk,
        )


def assert_nothing_held(store: Store) -> None:
    """Nothing is leased, in the pool, staged, or open without the store's knowing."""
    pool = store.stats().pool_bytes
    nothing = StoreHeld(0, 0, pool, 0, 0)
    assert_becomes(lambda: StoreHeld.now(store), lambda held: held == nothing)


def assert_no_more_than(before: Held) -> None:
    """The process holds what it held, or less: garbage of earlier tests may have gone meanwhile."""
    assert_becomes(Held.now, before.covers)


def assert_becomes(look: Callable[[], T], right: Callable[[T], bool]) -> None:
    """Some of it goes on other threads: polls, and shows what was seen last."""
    seen: list[T] = []

    def comes() -> bool:
        seen[:] = [look()]
        return right(seen[0])

    try:
        until(comes)
    except AssertionError:
        raise AssertionError(f"this is held: {seen[0]}") from None


@contextmanager
def nothing_left() -> Iterator[None]:
    """What the process holds at the end is no more than it held at the begin."""
    before = Held.now()
    yield
    assert_no_more_than(before)
