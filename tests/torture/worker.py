"""One child: a store that it opens, lanes that live on it, and a pipe to the parent.

Down the pipe come commands: "stop", "bystander", "say", "rest" (lanes end, nothing is in use) and
"go" (lanes again); up go tuples, the first word says what.
What `tell` was called with has left this process when it returns, so a kill cannot take it back.
The pipe's end is the parent's: then this process ends too.
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import os
import random
import threading
import time
import traceback
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

from kvstore import OpenError, Store, open_blocking
from kvstore.testing import FaultFiles, FileCall, Injection
from tests.torture.deeds import Lane, Scene
from tests.torture.faces import Blocking, Face, Loop
from tests.torture.universe import CLASSES

POLL_S = 0.02
STOP_S = 60.0
BYSTANDER_S = 120.0


@dataclass(frozen=True)
class Part:
    """What a child is to be. cut: dies before the call of that kind, after `skip` of them."""

    root: str
    role: str
    capacity: int
    seed: str
    scene: Scene
    lanes: int = 2
    engine: str = "auto"
    pool: str = "16MB"
    cut: tuple[int, int] | None = None


class Worker:
    def __init__(self, pipe: Connection, part: Part) -> None:
        self.pipe, self.part = pipe, part
        self.rng = random.Random(part.seed)
        self.sending = threading.Lock()
        self.stopping = self.broken = self.resting = False
        self.face: Face = Loop() if self.rng.random() < 0.5 else Blocking()
        self.lanes: list[Lane] = []
        self.threads: list[threading.Thread] = []
        self.was_owner = False
        self.told = (0, 0, 0)

    def tell(self, *what: object) -> None:
        with self.sending:
            self.pipe.send(what)

    def run(self) -> None:
        try:
            store = self.open()
        except OpenError as error:
            self.tell("refused", str(error))
            return
        self.was_owner = store.info().roots[0].is_owner
        self.tell("open", self.was_owner)
        self.lanes = self.make_lanes(store)
        self.go()
        while not self.stopping and not self.broken:
            self.look(store)
            if self.pipe.poll(POLL_S):
                self.obey(self.pipe.recv(), store)
        self.rest()
        if not self.broken:
            self.look(store)
            self.lanes.clear()
            store.close_blocking()
            self.tell("closed")

    def open(self) -> Store:
        part = self.part
        injection = None
        if part.cut:
            files = FaultFiles()
            files.kill(FileCall(part.cut[0]), skip=part.cut[1])
            injection = Injection(files=files)
        return open_blocking(
            part.root,
            role=part.role,
            capacity=part.capacity,
            pool=part.pool,
            reserve="64MB",
            engine=part.engine,
            retention=CLASSES,
            default_class="kept",
            min_age="1s",
            _testing=injection,
        )

    def make_lanes(self, store: Store) -> list[Lane]:
        part, lanes = self.part, []
        for number in range(part.lanes):
            scene = replace(part.scene, private=number == 0)
            rng = random.Random(f"{part.seed} {number}")
            lanes.append(Lane(store, self.face, rng, self.tell, scene))
        return lanes

    def go(self) -> None:
        """Blocking lanes have a thread each; those of the asyncio face share a loop."""
        self.resting = False
        together = isinstance(self.face, Loop)
        groups = [self.lanes] if together else [[lane] for lane in self.lanes]
        self.threads = [threading.Thread(target=self.live, args=(group,)) for group in groups]
        for thread in self.threads:
            thread.start()

    def rest(self) -> None:
        """Lanes finish what they are at."""
        self.resting = True
        for thread in self.threads:
            thread.join(STOP_S)
            if thread.is_alive():
                faulthandler.dump_traceback(all_threads=True)
                self.tell("broke", "a lane hangs, its stack is above")
                os._exit(1)
        self.threads.clear()

    def live(self, lanes: list[Lane]) -> None:
        async def together() -> None:
            await asyncio.gather(*(lane.run(lambda: not self.resting) for lane in lanes))

        try:
            asyncio.run(together())
        except BaseException:
            if not self.broken:
                self.broken = self.resting = True
                self.tell("broke", traceback.format_exc())

    def look(self, store: Store) -> None:
        judged = self.judged()
        if judged != self.told:
            self.tell("judged", *(now - then for now, then in zip(judged, self.told, strict=True)))
            self.told = judged
        owner = store.info().roots[0].is_owner
        if owner and not self.was_owner:
            self.tell("owns")
        self.was_owner = owner

    def judged(self) -> tuple[int, int, int]:
        counts = [lane.counts for lane in self.lanes]
        return (
            sum(count.blocks for count in counts),
            sum(count.bytes for count in counts),
            sum(count.loads for count in counts),
        )

    def obey(self, command: str, store: Store) -> None:
        if command == "stop":
            self.stopping = True
        elif command == "bystander":
            self.tell("bystander", self.fork())
        elif command == "go":
            self.go()
        else:
            if command == "rest":
                self.rest()
                store.drop_ram()
                gc.collect()
            self.tell("said", self.say(store))

    def fork(self) -> int:
        """A child that holds every descriptor of ours but the pipe, and does nothing."""
        pid = os.fork()
        if pid == 0:
            self.pipe.close()
            time.sleep(BYSTANDER_S)
            os._exit(0)
        return pid

    def say(self, store: Store) -> dict[str, Any]:
        stats, root = store.stats(), store.info().roots[0]
        return {
            "pid": os.getpid(),
            "owner": root.is_owner,
            "used": root.used_bytes,
            "capacity": root.capacity_bytes,
            "leases": stats.leases,
            "regions": stats.regions,
            "open_files": stats.open_files,
            "evicted": stats.evicted_extents,
            "expired": stats.expired_extents,
            "quarantined": stats.quarantined_extents,
        }


def main(pipe: Connection, part: Part) -> None:
    faulthandler.enable()
    worker = Worker(pipe, part)
    try:
        worker.run()
    except EOFError:  # the parent is gone
        os._exit(1)
    except BaseException:
        worker.tell("broke", traceback.format_exc())
        os._exit(1)
