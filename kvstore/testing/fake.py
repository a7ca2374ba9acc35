"""A store in memory, for tests of what is built on kvstore: quick, without a disk, and with faults.

    disk = FakeDisk()
    with open_fake_blocking(disk) as store:
        engine = Engine(store)
        disk.hold_layer(3)  # layer 3 arrives late ...
        disk.release()      # ... now

It is a `kvstore.Store`; tests/test_fake.py runs the same contract over it and over the real one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from kvstore import _core
from kvstore._loop import Opening
from kvstore.errors import OpenError
from kvstore.options import RETENTION, Options
from kvstore.store import Store
from kvstore.testing.fake_core import FakeStore
from kvstore.testing.fake_disk import FakeDisk
from kvstore.units import parse_size


def open_fake(
    disk: FakeDisk,
    *,
    pool: int | str = "1GB",
    role: str = "owner",
    retention: Mapping[str, float | str] = RETENTION,
    default_class: str = "chat",
) -> Opening[Store]:
    """Like `kvstore.open`, on a disk in memory: `await` it, or `async with` it.

    pool: what one layer of a load (the block of a `get`) must fit; nothing is allocated. No budget
    and no time to live: what is put stays until the disk is told otherwise. OpenError: the disk has
    an owner already.
    """

    async def start() -> Store:
        return open_fake_blocking(
            disk, pool=pool, role=role, retention=retention, default_class=default_class
        )

    return Opening(start, Store.close)


def open_fake_blocking(
    disk: FakeDisk,
    *,
    pool: int | str = "1GB",
    role: str = "owner",
    retention: Mapping[str, float | str] = RETENTION,
    default_class: str = "chat",
) -> Store:
    """The same, at once; the store is a context manager."""
    return Store(
        _InMemory(
            paths=["memory"],
            capacity=None,
            pool=pool,
            role=role,
            retention=retention,
            default_class=default_class,
            engine="auto",
            io_depth=64,
            reserve=None,
            min_age="60s",
            io_timeout="10s",
            scrub=None,
            admission="always",
            write_budget=None,
            keep_token_ids=False,
            testing=None,
            disk=disk,
        )
    )


@dataclass(frozen=True)
class _InMemory(Options):
    disk: FakeDisk

    def open_core(self) -> _core.Store:
        with self.disk.lock:
            if self.role == "owner" and self.disk.has_owner:
                raise OpenError("memory: this disk has an owner already; close it, or be a peer")
            owner = self.role != "peer" and not self.disk.has_owner
            self.disk.has_owner = self.disk.has_owner or owner
        core = FakeStore(
            self.disk,
            pool_bytes=parse_size(self.pool, "pool"),
            classes=len(self.retention),
            owner=owner,
        )
        return cast(_core.Store, core)
