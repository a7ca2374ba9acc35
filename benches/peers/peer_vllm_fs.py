"""vLLM's "fs" offloading tier: its thread pool and its batch calls in C, one file a value.

Best: 4 jobs at a time into huge pages. As shipped: one job a load, as the tier submits it, into
shared memory, whose pages are small. Values are padded to whole pages, as its chunks are.
"""

import mmap
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from vllm.v1.kv_offload.tiering.fs import io
from vllm.v1.kv_offload.tiering.fs.thread_pool import DualQueueThreadPool

from benches.peers.work import Bytes, Facts, Setup, Slots, file_name

THREADS = 16  # its default, for reads and for writes
JOBS = 4
WAIT_S = 60.0


class VllmFs:
    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.slot_bytes = setup.work.slot_bytes
        self.jobs = JOBS if setup.huge else 1
        if setup.huge:
            self.memory = Slots(setup).bytes
        else:
            shared = mmap.mmap(-1, setup.work.values * self.slot_bytes)
            self.memory = np.frombuffer(shared, dtype=np.uint8)
            self.memory[::4096] = 0
        self.direct = io.probe_o_direct(str(setup.folder))
        self.pool = DualQueueThreadPool(THREADS, THREADS)
        self.numbers = 0
        self.facts = Facts(
            {
                "jobs": self.jobs,
                "C calls": io._HAS_FSIO_C,
                "O_DIRECT": self.direct,
                "huge pages": setup.huge,
            },
            "no checksum, no sync, no capacity, no eviction",
            buffered=not self.direct,
        )

    def put(self, generation: int, count: int) -> None:
        source = self.setup.source
        offsets = [source.offset(generation, index) for index in range(count)]
        self._submit(io.batch_store_block, generation, list(range(count)), source.bytes, offsets)
        self._finish(self.jobs)

    def load(
        self, generation: int, batches: Sequence[Sequence[int]], ready: Callable[[int], None]
    ) -> None:
        for number, batch in enumerate(batches):
            offsets = [index * self.slot_bytes for index in batch]
            self._submit(io.batch_load_block, generation, batch, self.memory, offsets)
            self._finish(self.jobs)
            ready(number)

    def value(self, index: int) -> Bytes:
        return self.memory[index * self.slot_bytes : (index + 1) * self.slot_bytes]

    def forget(self) -> None:
        pass

    def delete(self, generation: int, count: int) -> None:
        for index in range(count):
            (self.setup.folder / file_name(generation, index)).unlink()

    def close(self) -> None:
        self.pool.shutdown()

    def _submit(
        self,
        call: Callable[..., Any],
        generation: int,
        indices: Sequence[int],
        memory: Bytes,
        offsets: Sequence[int],
    ) -> None:
        """Splits a batch over the jobs; each job is one thread's, as in the tier."""
        enqueue = self.pool.enqueue_load if call is io.batch_load_block else self.pool.enqueue_store
        paths = [str(self.setup.folder / file_name(generation, index)) for index in indices]
        for job in range(self.jobs):
            mine = slice(job, None, self.jobs)
            task = partial(
                call,
                paths[mine],
                memoryview(memory),
                list(offsets[mine]),
                self.slot_bytes,
                self.direct,
            )
            self.numbers += 1
            enqueue(self.numbers, 1, [task])

    def _finish(self, jobs: int) -> None:
        deadline = time.monotonic() + WAIT_S
        self.pool.wait_idle()
        while jobs and time.monotonic() < deadline:
            for _, good, _ in self.pool.get_finished():
                if not good:
                    raise OSError("vLLM's fs tier failed (see its log)")
                jobs -= 1
        if jobs:
            raise TimeoutError("vLLM's fs tier did not answer")


open_peer = VllmFs
