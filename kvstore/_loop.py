"""The bridge from the core's tickets to asyncio (and to blocking waits). Holds no storage logic.

One core queue per running event loop: its eventfd is a reader of that loop, its tokens are ids of
tickets. A bridge is made when a loop first waits, and goes when the store is closed or the loop is.

Invariants
  1. A waiter may be cancelled at any moment; that only takes the waiter away. The ticket and its
     future stay in the table until the event arrives, and what the core works on goes on.
  2. A bridge is used from its own loop's thread only; `close_from_any_thread` hands over to it.
  3. A ticket sends to one queue: it may have many waiters in one loop, not in two at a time. Of a
     loop that is gone the next one takes it over; which bridge has it changes under one lock.
"""

import asyncio
import concurrent.futures
import os
import threading
import weakref
from collections.abc import Awaitable, Callable, Generator
from typing import Any, Generic, TypeVar

from kvstore import _core
from kvstore.errors import StoreClosed, error_of
from kvstore.units import timeout_ns

T = TypeVar("T")


class Bridge:
    """Tickets to futures, for one loop."""

    def __init__(
        self, store: _core.Store, loop: asyncio.AbstractEventLoop, lock: "threading.RLock"
    ) -> None:
        # A weak reference: the loop's reader refers to the bridge already.
        self._loop = weakref.ref(loop)
        self._lock = lock
        self._queue = store.queue()
        self._waiting: dict[int, tuple[_core.Ticket, asyncio.Future[None]]] = {}
        self.closed = False
        loop.add_reader(self._queue.fd(), self._on_ready)

    async def wait(self, ticket: _core.Ticket, timeout: int) -> bool:
        """True when the ticket is done, False when `timeout` ns passed (< 0: for ever)."""
        future = self._future(ticket)
        seconds = None if timeout < 0 else timeout / 1e9
        # asyncio.wait leaves the future alone when this waiter is cancelled or late.
        await asyncio.wait({future}, timeout=seconds)
        if future.done() and future.exception() is not None:
            raise StoreClosed("the store was closed")
        return ticket.done() is not None

    def _future(self, ticket: _core.Ticket) -> "asyncio.Future[None]":
        known = self._waiting.get(id(ticket))
        if known is not None:
            return known[1]
        future = asyncio.get_running_loop().create_future()
        with self._lock:
            other = ticket.waiter
            if other is not None and not other.gone:
                raise RuntimeError("this is being awaited in another event loop")
            ticket.waiter = self
            ticket.send(self._queue, id(ticket))
        self._waiting[id(ticket)] = (ticket, future)
        return future

    @property
    def gone(self) -> bool:
        """Nobody waits here any more, and nobody ever will."""
        loop = self._loop()
        return self.closed or loop is None or loop.is_closed()

    def _on_ready(self) -> None:
        for token in self._queue.take():
            ticket, future = self._waiting.pop(token, (None, None))
            if ticket is not None and future is not None:
                ticket.waiter = None
                _set_once(future)

    def close(self) -> None:
        """In the loop's thread, or when the loop is gone. Idempotent."""
        if self.closed:
            return
        loop = self._loop()
        if self.gone:  # its futures can tell nobody, and must not be told
            loop = None
        else:
            self._on_ready()
        self.closed = True
        for ticket, future in self._waiting.values():
            with self._lock:
                if ticket.waiter is self:
                    ticket.send(None, 0)
            if not future.done() and loop is not None:
                future.set_exception(StoreClosed("the store was closed"))
                future.exception()  # seen: nobody may be waiting any more
        self._waiting.clear()
        if loop is not None:
            loop.remove_reader(self._queue.fd())
        self._queue.close()

    def close_from_any_thread(self) -> None:
        loop = self._loop()
        try:
            if loop is not None and not loop.is_closed():
                loop.call_soon_threadsafe(self.close)
                return
        except RuntimeError:  # closed in the meantime
            pass
        self.close()


class Bridges:
    """The bridges of one store, one per running loop. What refers to a bridge is its loop's reader:
    its futures refer to the loop, so from here it would keep a loop that was dropped."""

    def __init__(self, store: _core.Store) -> None:
        self._store = store
        self._lock = threading.RLock()
        self._by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, weakref.ref[Bridge]] = (
            weakref.WeakKeyDictionary()
        )

    def running(self) -> Bridge:
        """The bridge of the running loop; RuntimeError without one."""
        loop = asyncio.get_running_loop()
        with self._lock:
            known = self._by_loop.get(loop)
            bridge = None if known is None else known()
            if bridge is None or bridge.closed:
                self._forget_closed_loops()
                bridge = Bridge(self._store, loop, self._lock)
                self._by_loop[loop] = weakref.ref(bridge)
            return bridge

    async def wait(self, ticket: _core.Ticket, timeout: int) -> bool:
        """True when done (also on a closed store), False when `timeout` ns passed."""
        return ticket.done() is not None or await self.running().wait(ticket, timeout)

    def close(self) -> None:
        """After the core's store was closed: hands out the last events, then ends every bridge."""
        with self._lock:
            bridges = [known() for known in self._by_loop.values()]
            self._by_loop.clear()
        for bridge in bridges:
            if bridge is not None:
                bridge.close_from_any_thread()

    def _forget_closed_loops(self) -> None:
        for loop in [loop for loop in self._by_loop if loop.is_closed()]:
            bridge = self._by_loop.pop(loop)()
            if bridge is not None:
                bridge.close()


class Handle(Generic[T]):
    """A result that can be awaited or waited for, more than once. Dropping it cancels nothing."""

    __slots__ = ("_bridges", "_doing", "_result", "ticket")

    def __init__(
        self, bridges: Bridges, ticket: _core.Ticket, doing: str, result: Callable[[int], T]
    ) -> None:
        self._bridges = bridges
        self.ticket = ticket
        self._doing = doing
        self._result = result

    @property
    def done(self) -> bool:
        return self.ticket.done() is not None

    def __await__(self) -> Generator[Any, None, T]:
        return self.finish().__await__()

    async def finish(self, timeout: float | str | None = None) -> T:
        """Awaits it. TimeoutError when `timeout` passes first; the work goes on."""
        return self._value(await self._bridges.wait(self.ticket, timeout_ns(timeout)))

    def wait(self, timeout: float | str | None = None) -> T:
        """The same, blocking the thread without the GIL."""
        return self._value(self.ticket.wait(timeout_ns(timeout)))

    def _value(self, in_time: bool) -> T:
        if not in_time:
            raise TimeoutError(f"{self._doing}: not done in time")
        code = self.ticket.done()
        assert code is not None
        if code < 0:
            raise error_of(code, self._doing)
        return self._result(code)


def _set_once(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


async def readable(fd: int) -> None:
    """Until `fd` is readable. Waits on a copy of it: a loop has one reader per descriptor."""
    loop = asyncio.get_running_loop()
    future = loop.create_future()
    copy = os.dup(fd)
    loop.add_reader(copy, _set_once, future)
    try:
        await future
    finally:
        loop.remove_reader(copy)
        os.close(copy)


async def in_thread(function: Callable[[], T], undo: Callable[[T], None] | None = None) -> T:
    """Runs what blocks (open, close) on a thread of its own. If the waiter is cancelled or its loop
    closed, it runs on and `undo` gets its result."""
    running: concurrent.futures.Future[T] = concurrent.futures.Future()
    running.set_running_or_notify_cancel()  # a waiter that leaves early must not take it along

    def work() -> None:
        try:
            running.set_result(function())
        except BaseException as error:
            running.set_exception(error)

    def given_up(done: "concurrent.futures.Future[T]") -> None:
        if undo is not None and done.exception() is None:  # undo may block, too
            threading.Thread(target=undo, args=(done.result(),), name="kvstore").start()

    threading.Thread(target=work, name="kvstore").start()
    try:
        return await asyncio.wrap_future(running)
    except (asyncio.CancelledError, GeneratorExit):
        running.add_done_callback(given_up)
        raise


class Opening(Generic[T]):
    """What `open` returns: await it, or enter it with `async with`."""

    def __init__(self, start: Callable[[], Awaitable[T]], end: Callable[[T], Awaitable[None]]):
        self._start = start
        self._end = end
        self._opened: T | None = None

    def __await__(self) -> Generator[Any, None, T]:
        return self._start().__await__()

    async def __aenter__(self) -> T:
        self._opened = await self._start()
        return self._opened

    async def __aexit__(self, *exception: object) -> None:
        if self._opened is not None:
            await self._end(self._opened)
