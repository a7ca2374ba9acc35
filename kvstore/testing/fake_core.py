"""The core of an in-memory store: the classes of `kvstore._core` that a store makes, over FakeDisk.

What an engine meets (`Store`, `Cache`, `Load`, `Writer` ...) is the package's own code; only what
lies below is replaced. So misuse is refused in the same words, and waiting in an event loop works
the same way. Everything happens within the call that asks for it, except what the disk holds back.

Not here: budget, expiry, devices. Stages take no time.
"""

import struct
import time
import weakref
from typing import Any

from kvstore import _core
from kvstore.chain import KEY_BYTES
from kvstore.errors import StoreClosed
from kvstore.report import Stats
from kvstore.testing.fake_disk import Extent, FakeDisk, Name
from kvstore.testing.fake_load import FakeLoad
from kvstore.testing.fake_ticket import FakeQueue, FakeTicket, finished
from kvstore.testing.fake_writer import FakeWriter


class FakeStore:
    """In place of `_core.Store`."""

    def __init__(self, disk: FakeDisk, *, pool_bytes: int, classes: int, owner: bool) -> None:
        self.disk = disk
        self.pool_bytes = pool_bytes
        self.counts = dict.fromkeys(Stats.__struct_fields__, 0)
        self.misses_by_reason = [0] * len(_core.REASONS)
        self.loads_by_reason = [0] * len(_core.REASONS)
        self.leases: weakref.WeakSet[FakeLease] = weakref.WeakSet()
        self.closed = False
        self._classes = classes
        self._owner = owner

    def check_open(self) -> None:
        if self.closed:
            raise StoreClosed("the store is closed")

    def cache(self, **layout: Any) -> "FakeCache":
        self.check_open()
        return FakeCache(self, **layout)

    def queue(self) -> FakeQueue:
        self.check_open()
        return FakeQueue()

    def close(self) -> int:
        """Loads end; what the disk holds back for this store happens now."""
        with self.disk.lock:
            for load in [load for load in self.disk.running if load.cache.store is self]:
                load.end("closed")
            self.disk.release_all_of(self)
            if self._owner:
                self.disk.has_owner = False
            self.closed = True
        return 0

    def flush(self) -> FakeTicket:
        self.check_open()
        return finished()

    def drop_ram(self) -> None:
        self.check_open()
        with self.disk.lock:
            for extent in self.disk.extents():
                extent.in_ram = False

    def tick(self) -> None:
        self.check_open()

    def events(self) -> list[str]:
        self.check_open()
        return []

    def note_layer_wait(self, ns: int) -> None:
        """Times mean nothing here."""

    def stage_latency(self, stage: int) -> dict[str, Any]:
        self.check_open()
        return {"counts": [0] * (len(_core.LATENCY_EDGES_NS) + 1), "sum_ns": 0}

    def stats(self) -> dict[str, Any]:
        self.check_open()
        with self.disk.lock:
            extents = list(self.disk.extents())
            now = {
                "extents": len(extents),
                "blocks": self.disk.block_count(),
                "loads_running": sum(load.cache.store is self for load in self.disk.running),
                "leases": len({lease.owner for lease in self.leases if lease.alive()}),
                "pool_bytes": self.pool_bytes,
                "misses_by_reason": list(self.misses_by_reason),
                "loads_by_reason": list(self.loads_by_reason),
                "refused_blocks": [0] * len(_core.REFUSALS),
            }
        by_class = ("evicted_before_ttl", "evicted_age_s_sum", "removed_in_class")
        numbers = self.counts | now | {name: [0] * self._classes for name in by_class}
        del numbers["retention"]  # made of those by class
        return numbers

    def pool_info(self) -> dict[str, Any]:
        self.check_open()
        huge = max(_core.PAGE_KINDS)
        return {
            "base": 0, "bytes": self.pool_bytes, "page_kind": huge, "huge_coverage": 1.0,
            "root_count": 1,
        }  # fmt: skip

    def files_info(self) -> dict[str, Any]:
        self.check_open()
        return {"descriptor_limit": 1 << 20, "open_max": 1 << 20}

    def root_info(self, root: int) -> dict[str, Any]:
        self.check_open()
        texts = {"path": b"memory", "engine": b"memory", "file_system": b"memory"}
        return dict.fromkeys(ROOT_NUMBERS, 0) | texts | {
            "engine_why": b"", "trouble": b"", "is_owner": self._owner,
            "used_bytes": self.disk.used_bytes(),
        }  # fmt: skip


ROOT_NUMBERS = (
    "registered", "register_error", "warming", "lost", "io_depth", "capacity_bytes",
    "reserve_bytes", "free_bytes", "quarantine_files", "quarantine_bytes", "reads_in_flight_max",
    "ops_in_flight", "bytes_in_flight", "reads_queued", "read_bytes_queued", "device_read_bytes",
    "device_written_bytes", "device_errors", "breaker_state", "down_ns", "probe_in_ns",
    "breaker_trips", "write_budget_bytes", "write_budget_left_bytes", "scrub_bytes_per_s",
    "scrub_pass_extents",
)  # fmt: skip


class FakeCache:
    """In place of `_core.Cache`. parts: bytes of each part, by layer."""

    def __init__(
        self, store: FakeStore, *, fingerprint: bytes, block_tokens: int, extent_blocks: int,
        part_counts: bytes, part_bytes: bytes, description: bytes,
    ) -> None:  # fmt: skip
        self.store = store
        self.block_tokens = block_tokens
        self.extent_blocks = extent_blocks
        sizes = (size for (size,) in struct.iter_unpack("=I", part_bytes))
        counts = struct.iter_unpack("=I", part_counts)
        self.parts = [tuple(next(sizes) for _ in range(count)) for (count,) in counts]
        self._fingerprint = fingerprint

    def names(self, keys: bytes) -> list[Name]:
        return [
            (self._fingerprint, keys[at : at + KEY_BYTES]) for at in range(0, len(keys), KEY_BYTES)
        ]

    def match(self, keys: bytes) -> tuple[int, str | None]:
        self.store.check_open()
        with self.store.disk.lock:
            names = self.names(keys)
            blocks, reason = self._leading(names)
            tally = self.store.counts
            tally["lookups"] += 1
            for word, count in (("hit", blocks), ("missed", len(names) - blocks)):
                tally[f"{word}_blocks"] += count
                tally[f"{word}_tokens"] += count * self.block_tokens
            if reason is not None:
                self.store.misses_by_reason[_core.REASONS.index(reason)] += len(names) - blocks
            return blocks, reason

    def _leading(self, names: list[Name]) -> tuple[int, str | None]:
        if self.store.disk.names_held and names:
            return 0, "pending"
        for blocks, name in enumerate(names):
            found = self.store.disk.find(name)
            if isinstance(found, str):
                return blocks, found
        return len(names), None

    def find(self, keys: bytes) -> FakeTicket:
        self.store.check_open()
        ticket = FakeTicket()
        with self.store.disk.lock:
            if self.store.disk.names_held:
                self.store.disk.at_release(self.store, ticket.finish)
            else:
                ticket.finish()
        return ticket

    def contains(self, key: bytes) -> bool:
        return not isinstance(self._find(key), str)

    def removed(self, key: bytes) -> tuple[str, int] | None:
        self._find(key)
        return self.store.disk.removed((self._fingerprint, key))

    def delete(self, key: bytes) -> FakeTicket:
        with self.store.disk.lock:
            found = self._find(key)
            if isinstance(found, str):
                return finished(0)
            self.store.disk.forget(found[0], "deleted")
            self.store.counts["deleted_extents"] += 1
            return finished(1)

    def _find(self, key: bytes) -> tuple[Extent, int] | str:
        self.store.check_open()
        if len(key) != KEY_BYTES:
            raise ValueError(f"a key has {KEY_BYTES} bytes, not {len(key)}")
        with self.store.disk.lock:
            return self.store.disk.find((self._fingerprint, key))

    def lease(
        self, keys: bytes, first: int, end: int, owner: bytes, retention: int, timeout_ns: int
    ) -> "FakeLease":
        self.store.check_open()
        return FakeLease(self, self.names(keys)[first:end], first, owner, timeout_ns)

    def writer(
        self, keys: bytes, start: int, retention: int, flags: int, extras: bytes | None,
        token_ids: object,
    ) -> FakeWriter:  # fmt: skip
        self.store.check_open()
        return FakeWriter(self, keys, start, flags)

    def note_load(self, counts: dict[str, int], reason: str | None) -> None:
        """A load has ended."""
        block_bytes = sum(map(sum, self.parts))
        for kind in ("disk", "ram"):
            nbytes = counts[f"{kind}_bytes"]
            self.store.counts[f"{kind}_bytes"] += nbytes
            self.store.counts[f"{kind}_tokens"] += nbytes * self.block_tokens // block_bytes
        self.store.counts["reads"] += counts["reads"]
        if reason is not None:
            self.store.counts["loads_short"] += 1
            self.store.loads_by_reason[_core.REASONS.index(reason)] += 1


class FakeLease:
    """In place of `_core.Lease`."""

    def __init__(
        self, cache: FakeCache, names: list[Name], first: int, owner: bytes, timeout_ns: int
    ) -> None:
        self.cache = cache
        self.owner = owner
        self.names = names
        self.first = first
        self._timeout_ns = timeout_ns
        self._until_ns = time.monotonic_ns() + timeout_ns
        self._released = False
        with cache.store.disk.lock:
            cache.store.leases.add(self)
            for name in names:
                found = cache.store.disk.find(name)
                if not isinstance(found, str):
                    found[0].holders.add(self)

    def load(self, **words: Any) -> FakeLoad:
        if self._released:
            raise ValueError("the lease was released")
        self.cache.store.check_open()
        self._until_ns = time.monotonic_ns() + self._timeout_ns
        return FakeLoad(self, **words)

    def release(self) -> None:
        self._released = True

    def alive(self) -> bool:
        return not self._released and time.monotonic_ns() < self._until_ns
