"""The children of the torture: started, listened to, killed. One per slot at a time.

They are forked from a server that has imported everything and opened nothing, so a start costs
milliseconds. Nobody is left behind: leaving the crowd kills them all, and a child whose parent is
gone ends by itself.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from multiprocessing import connection
from typing import Any

from tests.torture.ledger import Ledger
from tests.torture.worker import Part, main

HANG_S = 150.0  # longer than any wait of a child
_server = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload(["tests.torture.worker"])


class Broken(AssertionError):
    """A promise did not hold; the message says which."""


class Child:
    def __init__(self, part: Part) -> None:
        self.part = part
        self.pipe, theirs = _server.Pipe()
        self.process = _server.Process(target=main, args=(theirs, part))
        self.process.start()
        theirs.close()
        self.is_open = self.is_owner = self.closed = self.doomed = self.ended = False
        self.refused: str | None = None
        self.said: dict[str, Any] | None = None

    @property
    def name(self) -> str:
        return f"{self.part.role} in slot {self.part.scene.slot}"

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def hear(self, word: str, *facts: Any) -> None:
        if word == "open":
            self.is_open, self.is_owner = True, facts[0]
        elif word == "owns":
            self.is_owner = True
        elif word == "refused":
            self.refused = facts[0]
        elif word == "closed":
            self.closed = True
        elif word == "said":
            self.said = facts[0]
        else:
            raise Broken(f"{self.name}: {word}: {facts[0]}")


class Crowd:
    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.children: dict[int, Child] = {}
        self.bystanders: list[int] = []
        self.heard = 0  # acknowledgements so far
        self.kills = 0

    def __enter__(self) -> Crowd:
        return self

    def __exit__(self, *_: object) -> None:
        for child in self.children.values():
            child.process.kill()
            child.process.join(HANG_S)
            child.pipe.close()
        for pid in self.bystanders:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def start(self, part: Part) -> Child:
        child = self.children[part.scene.slot] = Child(part)
        return child

    def living(self) -> list[Child]:
        return [child for child in self.children.values() if not child.ended]

    def owner(self) -> Child | None:
        return next((child for child in self.living() if child.is_owner), None)

    # --------------------------------------------------------------------------------- listen

    def listen(self, seconds: float) -> None:
        """Takes in what children tell, for that long at most or until something was told."""
        pipes = {child.pipe: child for child in self.living()}
        for pipe in connection.wait(list(pipes), seconds):
            child = pipes[pipe]  # type: ignore[index]
            try:
                while not child.ended and child.pipe.poll():
                    self.take(child, *child.pipe.recv())
            except (EOFError, OSError):
                self.end(child)

    def take(self, child: Child, word: str, *facts: Any) -> None:
        if hasattr(self.ledger, word):
            self.ledger.note(word, *facts)
            self.heard += word in ("stored", "forgot", "flushed")
        elif word == "bystander":
            self.bystanders.append(facts[0])
        else:
            child.hear(word, *facts)

    def end(self, child: Child) -> None:
        child.ended = True
        child.process.join(HANG_S)
        code = child.process.exitcode
        child.pipe.close()
        killed = code == -signal.SIGKILL and (child.doomed or child.part.cut is not None)
        if killed:
            self.kills += 1
        elif code != 0 or not (child.closed or child.refused):
            raise Broken(f"{child.name} ended by itself, exit code {code}")

    def pass_time(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.listen(left)

    def until(self, true: Callable[[], bool], what: str) -> None:
        """Listens until it holds; Broken when only a hang can be the cause that it does not."""
        end = time.monotonic() + HANG_S
        while not true():
            if time.monotonic() > end:
                raise Broken(f"not within {HANG_S:.0f} s: {what}")
            self.listen(0.1)

    # ------------------------------------------------------------------------------------ end

    def kill(self, children: list[Child]) -> None:
        """SIGKILL to all at once; returns when they are gone and all they told was taken in."""
        for child in children:
            child.doomed = True
            child.process.kill()
        self.until(lambda: all(child.ended for child in children), "killed processes end")

    def stop(self, children: list[Child]) -> None:
        """They finish what they are at and close their stores."""
        for child in children:
            with contextlib.suppress(OSError):  # one that is to die may have done so
                child.pipe.send("stop")
        self.until(lambda: all(child.ended for child in children), "children close")

    def ask(self, child: Child, command: str) -> dict[str, Any]:
        """What it says of itself, after "say" or "rest"."""
        child.said = None
        child.pipe.send(command)
        self.until(lambda: child.ended or child.said is not None, f"{child.name} answers")
        if child.said is None:
            raise Broken(f"{child.name} is gone")
        return child.said

    def bystander(self, child: Child) -> None:
        """A forked child of it that outlives it, with all of its descriptors."""
        before = len(self.bystanders)
        with contextlib.suppress(OSError):
            child.pipe.send("bystander")
        self.until(lambda: child.ended or len(self.bystanders) > before, "a bystander is forked")
