"""Completions of an in-memory store: in place of `_core.Ticket` and `_core.Queue`."""

import os
import threading
from typing import Any


class FakeTicket:
    """Finished once, with a number; waiters in threads and in event loops hear of it."""

    def __init__(self) -> None:
        self.waiter: Any = None  # the bridge that an event goes to
        self._finished = threading.Event()
        self._lock = threading.Lock()
        self._result: int | None = None
        self._queue: FakeQueue | None = None
        self._token = 0

    def finish(self, result: int = 0) -> None:
        with self._lock:
            if self._result is not None:
                return
            self._result = result
            queue = self._queue
        self._finished.set()
        if queue is not None:
            queue.post(self._token)

    def done(self) -> int | None:
        return self._result

    def wait(self, timeout_ns: int) -> bool:
        return self._finished.wait(None if timeout_ns < 0 else timeout_ns / 1e9)

    def send(self, queue: "FakeQueue | None", token: int) -> None:
        with self._lock:
            self._queue, self._token = queue, token
            late = self._result is not None
        if late and queue is not None:
            queue.post(token)


class FakeQueue:
    """Tokens of finished tickets, and an eventfd that is readable while there are some."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tokens: list[int] = []
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fd(self) -> int:
        return self._fd

    def post(self, token: int) -> None:
        with self._lock:
            self._tokens.append(token)
            if self._fd >= 0:
                os.eventfd_write(self._fd, 1)

    def take(self) -> list[int]:
        with self._lock:
            tokens, self._tokens = self._tokens, []
            if tokens:
                os.eventfd_read(self._fd)
            return tokens

    def close(self) -> None:
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        self.close()


def finished(result: int = 0) -> FakeTicket:
    ticket = FakeTicket()
    ticket.finish(result)
    return ticket
