"""Writers that run a step at a time, and what must hold on disk whatever their order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from kvstore.cache import Cache
from kvstore.chain import Chain
from kvstore.store import Store, open_blocking
from kvstore.testing import Injection, VirtualClock
from kvstore.writer import Writer
from tests.support.extent_reader import read_root
from tests.support.prompts import eventually, extent_files, physical_bytes, put_all, small_layout

LAYOUT = small_layout()


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

    def counted() -> bool:
        info = store.info().roots[0]
        return physical_bytes(root) == info.used_bytes - info.quarantine_bytes

    eventually(counted, "used bytes are on disk")


def matches_whole(kv: Cache, chain: Chain) -> bool:
    return kv.match(chain).blocks == len(chain)


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
