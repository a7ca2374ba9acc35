"""Coroutines that are stopped at every place where they can be, on both kinds of event loop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Awaitable, Callable, Coroutine, Generator
from functools import partial
from typing import Any, TypeVar

import pytest

T = TypeVar("T")
LOOPS = ["asyncio", "uvloop"]
LIMIT_S = 60


def new_loop(kind: str) -> asyncio.AbstractEventLoop:
    if kind == "asyncio":
        return asyncio.new_event_loop()
    uvloop = pytest.importorskip("uvloop", reason="uvloop is not installed")
    loop = uvloop.new_event_loop()
    assert isinstance(loop, asyncio.AbstractEventLoop)
    return loop


def run_in(kind: str, coroutine: Coroutine[Any, Any, T]) -> T:
    """As asyncio.run does it; a hang is a TimeoutError, a task that is left over an error."""
    loop = new_loop(kind)

    async def limited() -> T:
        result = await asyncio.wait_for(coroutine, LIMIT_S)
        await asyncio.sleep(0)  # generators that were dropped are closed by a task of their own
        await asyncio.sleep(0)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, f"tasks are left: {left}"
        return result

    try:
        return loop.run_until_complete(limited())
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


with contextlib.suppress(pytest.skip.Exception):
    run_in("uvloop", asyncio.sleep(0))  # the first one makes a pipe for all, and keeps it


async def late(awaitable: Awaitable[object]) -> None:
    with pytest.raises((TimeoutError, asyncio.TimeoutError)):
        await awaitable


class Stepped:
    """Awaits a coroutine; calls `act` when that is suspended for the n-th time (the first is 0)."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], n: int, act: Callable[[], None]):
        self.coroutine = coroutine
        self.n = n
        self.act = act
        self.suspensions = 0

    def __await__(self) -> Generator[Any, None, Any]:
        steps = self.coroutine.__await__()
        resume: Callable[[], Any] = partial(steps.send, None)
        while True:
            try:
                awaited = resume()
            except StopIteration as end:
                return end.value
            if self.suspensions == self.n:
                self.act()
            self.suspensions += 1
            try:
                yield awaited
            except BaseException as error:
                resume = partial(steps.throw, error)
            else:
                resume = partial(steps.send, None)


async def cancelled_at(coroutine: Coroutine[Any, Any, Any], n: int) -> bool:
    """Cancels it at its n-th suspension. False when it was done before."""
    loop = asyncio.get_running_loop()
    stepped = Stepped(coroutine, n, lambda: None)

    async def stepping() -> None:
        await stepped

    task = loop.create_task(stepping())
    stepped.act = partial(loop.call_soon, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        assert stepped.suspensions > n
    return stepped.suspensions > n


def left_at(
    kind: str, start: Callable[[], Coroutine[Any, Any, Any]], n: int, beside: Any = None
) -> bool:
    """Runs it up to its n-th suspension; then the loop is closed, without a word to its tasks, and
    forgotten. False when it was done before. beside: a coroutine function that runs along."""
    loop = new_loop(kind)
    reached = loop.create_future()

    async def stepping() -> None:
        stepped = Stepped(start(), n, lambda: reached.set_result(True))
        await stepped
        if not reached.done():
            reached.set_result(False)

    tasks = [loop.create_task(stepping())] + ([loop.create_task(beside())] if beside else [])
    loop.set_exception_handler(lambda *_: None)  # "Task was destroyed but it is pending!"
    try:
        return bool(loop.run_until_complete(asyncio.wait_for(reached, LIMIT_S)))
    finally:
        if tasks[0].done():
            tasks[0].result()
        loop.close()
        tasks.clear()
        del loop
        gc.collect()
