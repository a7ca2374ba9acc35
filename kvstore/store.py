"""Opening a store, and what concerns all of it.

`open` and `open_blocking` return a working store or raise OpenError, whose message says what to do.
Stores that are still open when the interpreter ends are closed then, so that times are kept.
"""

import atexit
import logging
import os
import threading
import warnings
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING

from kvstore import _core
from kvstore._loop import Bridges, Handle, Opening, in_thread
from kvstore.cache import Cache, Timeout
from kvstore.layout import Layout
from kvstore.memory import register_with_cuda, unregister_from_cuda
from kvstore.options import RETENTION, AnyPath, Capacity, Options
from kvstore.report import (
    CLOCK_STEP_S,
    Info,
    StageLatency,
    Stats,
    clock_step_words,
    info_of,
    latency_of,
    stats_of,
)
from kvstore.tracing import tracer_of_program
from kvstore.version import VERSION

if TYPE_CHECKING:
    from kvstore.testing import Injection

_log = logging.getLogger("kvstore")
_open_stores: "weakref.WeakSet[Store]" = weakref.WeakSet()


def open(
    *paths: AnyPath,
    capacity: Capacity = None,
    pool: int | str = "1GB",
    role: str = "owner",
    retention: Mapping[str, float | str] = RETENTION,
    default_class: str = "chat",
    engine: str = "auto",
    io_depth: int = 64,
    reserve: int | str | None = None,
    min_age: float | str = "60s",
    io_timeout: float | str = "10s",
    scrub: int | str | None = None,
    admission: str = "always",
    write_budget: int | str | None = None,
    keep_token_ids: bool = False,
    _testing: "Injection | None" = None,
) -> "Opening[Store]":
    """Opens a store over one directory per device: `await` it, or `async with` it.

    capacity: bytes on disk in total, split over the roots by file-system size, or one per root;
      None: 80 % of each file system less the reserve. pool: memory for reads and the RAM tier.
    role: "owner" (evicts, expires; one process per root), "peer" (never), or "auto": owner where
      the lock can be had, else a peer until it can.
    retention: class name -> time to live. default_class: of puts that name none.
    engine: "auto" takes the best that works; else "io_uring", "io_uring_plain", "aio" (Linux AIO)
      or "threads".
    io_depth: operations in flight per root. reserve: free bytes left to others per root; None: 1 %
      of the file system, 0: none.
    min_age: extents that another process (a peer) used more recently are not evicted.
    io_timeout: what one operation of a device may take. A root whose device takes longer, or only
      fails, goes down: misses instead of waits, until it answers again (`info().roots`).
    scrub: the owner verifies what lies on disk while the device is idle, at most so many bytes a
      second per root ("20MB/s"), each extent once a week; None: only what is loaded is verified.
    admission: "always", or "second-hit": a block is stored when a writer is offered it once more.
    write_budget: bytes of cells that each root may be written a day ("1TB/day"), for the endurance
      of its device; None: no bound. Both are of this process; what they refuse is a miss later and
      is counted (`Writer.admitted`, `stats().refused_blocks`), never an error.
    keep_token_ids: extents also hold the prompt's token ids (4 bytes each), so that `kvstore
      explain --store` can name the token that made a prompt miss. Off: no token id lies on disk.
      On: whoever can read the directory can read the prompts.
    Raises OpenError (the message says what to do), ValueError and TypeError for misuse.
    """
    options = Options(
        paths, capacity, pool, role, retention, default_class, engine, io_depth, reserve, min_age,
        io_timeout, scrub, admission, write_budget, keep_token_ids, _testing,
    )  # fmt: skip
    return Opening(
        lambda: in_thread(lambda: Store(options), undo=Store.close_blocking), Store.close
    )


def open_blocking(
    *paths: AnyPath,
    capacity: Capacity = None,
    pool: int | str = "1GB",
    role: str = "owner",
    retention: Mapping[str, float | str] = RETENTION,
    default_class: str = "chat",
    engine: str = "auto",
    io_depth: int = 64,
    reserve: int | str | None = None,
    min_age: float | str = "60s",
    io_timeout: float | str = "10s",
    scrub: int | str | None = None,
    admission: str = "always",
    write_budget: int | str | None = None,
    keep_token_ids: bool = False,
    _testing: "Injection | None" = None,
) -> "Store":
    """Like `open`, blocking the thread without the GIL; the store is a context manager."""
    options = Options(
        paths, capacity, pool, role, retention, default_class, engine, io_depth, reserve, min_age,
        io_timeout, scrub, admission, write_budget, keep_token_ids, _testing,
    )  # fmt: skip
    return Store(options)


class Store:
    """Directories of one host under one budget, any number of layouts. Made by `open`."""

    def __init__(self, options: Options) -> None:
        self._pid = os.getpid()
        self._cuda_why = "not yet"
        self.core = core = options.open_core()
        self.bridges = Bridges(core)
        self.retention = dict(options.retention)
        self.class_names = tuple(self.retention)
        self.tracer = tracer_of_program()
        self.default_class = self.class_names.index(options.default_class)
        self.keeps_token_ids = options.keep_token_ids
        self.admission = options.admission
        self._caches: dict[str, Cache] = {}
        self._closing = threading.Lock()
        self._clock_step_s = 0
        where = core.pool_info()
        self._cuda_why = register_with_cuda(where["base"], where["bytes"])
        atexit.unregister(_close_open_stores)  # once, however many stores are opened
        atexit.register(_close_open_stores)
        _open_stores.add(self)
        _log_opening(self.info())

    def cache(self, layout: Layout) -> Cache:
        """The cache of a layout; the same object for equal layouts."""
        if not isinstance(layout, Layout):
            raise TypeError(f"a cache is of a Layout, not {type(layout).__name__}")
        namespace = layout.namespace
        known = self._caches.get(namespace)
        return known or self._caches.setdefault(namespace, Cache(self, layout))

    def class_number(self, retain: str | None, *, otherwise: int) -> int:
        """The core's number of a retention class; ValueError for one that open() did not name."""
        if retain is None:
            return otherwise
        if retain not in self.class_names:
            raise ValueError(
                f"retention class {retain!r} was not named at open; there are"
                f" {', '.join(self.class_names)}"
            )
        return self.class_names.index(retain)

    def stats(self) -> Stats:
        """Counters since open."""
        self.log_events()
        _core.sweep()
        self._watch_clock()
        return stats_of(self.core, self.class_names)

    def latency(self) -> dict[str, StageLatency]:
        """Where time went since open, by stage: histograms of seconds.

        "read", "write": one operation of the device; "open": an extent's file; "first_layer",
        "load": from the start of a load; "commit"; "layer_wait": a caller waited for a layer.
        """
        return latency_of(self.core)

    def info(self) -> Info:
        """What the store runs on, and everything that is slower than it could be.

        Milliseconds, since it looks up how much of the pool is on huge pages; `stats` costs little.
        """
        self.log_events()
        self._watch_clock()
        return info_of(
            self.core, VERSION, self._cuda_why,
            keeps_token_ids=self.keeps_token_ids, admission=self.admission,
        )  # fmt: skip

    def _watch_clock(self) -> None:
        """Logs a step of the wall clock once, and its end."""
        before, now = self._clock_step_s, self.core.stats()["clock_step_s"]
        self._clock_step_s = now
        if now and abs(now - before) > CLOCK_STEP_S:
            _log.warning("%s", clock_step_words(now))
        elif before and not now:
            _log.warning("clock: the step of the wall clock is over, taken back or followed")

    def drop_ram(self) -> None:
        """Empties the RAM tier; leased views and reads in flight stay."""
        self.core.drop_ram()

    def tick(self) -> None:
        """One round of housekeeping now: leases, deadlines, expiry, write-back of times."""
        self.core.tick()
        self.log_events()
        _core.sweep()
        self._watch_clock()

    def log_events(self) -> None:
        """Roots that went down or came back, to the log. Called wherever work is begun."""
        for event in self.core.events():
            _log.warning("%s", event)

    async def flush(self, timeout: Timeout = "60s") -> None:
        """Makes what is resident now survive a power cut, whoever put it; what is deleted stays so.

        Syncs the whole file system of each root (`syncfs`), so it also waits for what other
        programs wrote there. TimeoutError (also without `timeout`, when a sync has not come back
        for 60 times `io_timeout`), OSError.
        """
        await self._flush().finish(timeout)

    def flush_blocking(self, timeout: Timeout = "60s") -> None:
        """The same, blocking the thread without the GIL."""
        self._flush().wait(timeout)

    async def close(self) -> None:
        """Ends loads and writers, waits for what is in flight, keeps times, frees everything.

        Waits 10 s for commits and `io_timeout` for devices. What a device then still holds (memory
        of reads in flight, the owner's lock) is let go by a thread left behind, when it answers.
        Idempotent. If cancelled, the close goes on by itself.
        """
        await in_thread(self.close_blocking)

    def close_blocking(self) -> None:
        """The same, blocking the thread without the GIL."""
        if self._pid != os.getpid():
            return  # its parent's; the lock may have been held at the fork
        with self._closing:
            if self.core.closed:
                return
            _open_stores.discard(self)
            self.log_events()
            _close(self.core, self.bridges, registered=not self._cuda_why)

    def _flush(self) -> Handle[None]:
        return Handle(self.bridges, self.core.flush(), "flush", lambda _: None)

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *_: object) -> None:
        self.close_blocking()

    async def __aenter__(self) -> "Store":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __del__(self) -> None:
        core = getattr(self, "core", None)
        if core is None or core.closed or self._pid != os.getpid():
            return
        warnings.warn("a kvstore.Store was not closed", ResourceWarning, stacklevel=2)
        threading.Thread(
            target=_close,
            args=(core, self.bridges),
            kwargs={"registered": not self._cuda_why},
            name="kvstore-close",
        ).start()


def _close(core: _core.Store, bridges: Bridges, *, registered: bool) -> None:
    if registered:
        unregister_from_cuda(core.pool_info()["base"])
    if left := core.close():
        _log.warning("closed, but %d root(s) did not answer: see Store.close", left)
    bridges.close()  # else loops that go on keep the pool mapped


def _log_opening(info: Info) -> None:
    engines = ", ".join(sorted({root.engine for root in info.roots}))
    _log.info(
        "opened %d root(s): %s, %s, pool of %d bytes on %s pages",
        len(info.roots), engines, info.build.liburing, info.pool.bytes, info.pool.pages,
    )  # fmt: skip
    for fallback in info.fallbacks:
        _log.warning("%s", fallback)


def _close_open_stores() -> None:
    """At exit, in the process that opened them: a forked child must not touch its parent's."""
    for store in list(_open_stores):
        if store._pid == os.getpid():
            store.close_blocking()
