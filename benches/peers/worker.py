"""One peer in one process, told by the driver what to do next: a line of JSON in, one out.

    python -m benches.peers.worker MODULE FOLDER WORK_JSON best|shipped

Each in its own process, so that environments do not mix, CPU seconds are the peer's own, and one
that crashes costs nobody else. Times one operation at a time; decides nothing.
"""

import importlib
import json
import os
import resource
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benches.peers.work import Peer, Setup, Source, Work, batches_of, check


def cpu_seconds() -> float:
    """Of this process with all its threads, those of the kernel's io_uring workers too."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def timed(work: Callable[[], None]) -> dict[str, float]:
    cpu, began = cpu_seconds(), time.perf_counter()
    work()
    took = time.perf_counter() - began
    return {"seconds": took, "cpu_s": cpu_seconds() - cpu}


class Worker:
    def __init__(self, module: str, setup: Setup) -> None:
        self.setup = setup
        self.peer: Peer = importlib.import_module(f"benches.peers.{module}").open_peer(setup)

    def do(self, op: str, told: dict[str, Any]) -> dict[str, Any]:
        if op == "load":
            return self.load(told["kind"])
        if op == "put":
            return self.put(told["generation"], told["count"])
        if op == "forget":
            self.peer.forget()
        elif op == "check":
            self.peer.load(0, batches_of(self.setup.work, told["kind"]), lambda _: None)
            check(self.setup.source, 0, self.peer.value, whole=True)
        elif op == "close":
            self.peer.close()
        else:
            raise ValueError(f"no such operation: {op}")
        return {}

    def load(self, kind: str) -> dict[str, Any]:
        """Loads generation 0. first_s: until the first batch was there."""
        batches = batches_of(self.setup.work, kind)
        times: list[float] = []

        def work() -> None:
            times.append(time.perf_counter())
            self.peer.load(0, batches, lambda _: times.append(time.perf_counter()))

        found = timed(work)
        check(self.setup.source, 0, self.peer.value, whole=False)
        return {**found, "first_s": times[1] - times[0], "bytes": self.setup.work.nbytes}

    def put(self, generation: int, count: int) -> dict[str, Any]:
        """sync_s: what a sync of the file system takes afterwards. Later generations are deleted
        again, outside the time."""
        found = timed(lambda: self.peer.put(generation, count))
        began = time.perf_counter()
        os.sync()
        found["sync_s"] = time.perf_counter() - began
        if generation:
            self.peer.delete(generation, count)
        return {**found, "bytes": count * self.setup.work.value_bytes}


def serve(worker: Worker, answer: Callable[[dict[str, Any]], None]) -> None:
    for line in sys.stdin:
        told = json.loads(line)
        answer(worker.do(told["op"], told))
        if told["op"] == "close":
            return


def main() -> None:
    module, folder, work_json, mode = sys.argv[1:]
    # Libraries print to stdout as they like; the answers have a descriptor of their own.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def answer(what: dict[str, Any]) -> None:
        answers.write(json.dumps(what) + "\n")

    try:
        work = Work(**json.loads(work_json))
        huge = mode == "best"
        worker = Worker(module, Setup(Path(folder), work, Source(work, huge=huge), huge))
        answer({"ready": vars(worker.peer.facts)})
        serve(worker, answer)
    except Exception as error:  # whatever a peer raises is its result
        traceback.print_exc()
        answer({"error": f"{type(error).__name__}: {error}"})
        answers.flush()
        os._exit(1)  # threads of a peer that failed must not keep the driver waiting
    os._exit(0)


if __name__ == "__main__":
    main()
