"""lmdb: an ordered map in one memory-mapped file; values are copied out of the map.

Best: sync=False, writemap, 4 threads that copy into huge-page memory. As shipped: its defaults, and
bytes objects. A read is a page fault per 4 KiB of a cold value.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import lmdb
import numpy as np

from benches.peers.work import Facts, Setup, Slots, file_name, on_threads

THREADS = 4


class Lmdb:
    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.size = setup.work.value_bytes
        self.options: dict[str, Any] = {"map_size": 6 * setup.work.nbytes + (1 << 30)}
        if setup.huge:
            self.options.update(sync=False, writemap=True, readahead=True)
        self.slots = Slots(setup) if setup.huge else None
        self.found: dict[int, bytes] = {}
        self.threads = ThreadPoolExecutor(THREADS)
        self.env = lmdb.open(str(setup.folder), **self.options)
        self.facts = Facts(
            {**self.options, "threads": THREADS},
            "no checksum; full map is an error, nothing is evicted"
            + ("; sync=False: a power cut can harm the file" if setup.huge else ""),
            buffered=True,
            versions={"lmdb": lmdb.__version__},
        )

    def put(self, generation: int, count: int) -> None:
        with self.env.begin(write=True) as transaction:
            for index in range(count):
                value = memoryview(self.setup.source.value(generation, index))
                transaction.put(file_name(generation, index).encode(), value)

    def load(
        self, generation: int, batches: Sequence[Sequence[int]], ready: Callable[[int], None]
    ) -> None:
        on_threads(self.threads, lambda index: self._read(generation, index), batches, ready)

    def value(self, index: int) -> Any:
        return self.slots[index] if self.slots else self.found[index]

    def forget(self) -> None:
        """Mapped pages stay in the page cache whoever drops it, so the map is closed."""
        self.found.clear()
        self.env.close()
        self.env = lmdb.open(str(self.setup.folder), **self.options)

    def delete(self, generation: int, count: int) -> None:
        with self.env.begin(write=True) as transaction:
            for index in range(count):
                transaction.delete(file_name(generation, index).encode())

    def close(self) -> None:
        self.threads.shutdown()
        self.env.close()

    def _read(self, generation: int, index: int) -> None:
        with self.env.begin(buffers=self.slots is not None) as transaction:
            value = transaction.get(file_name(generation, index).encode())
            if self.slots:
                np.copyto(self.slots[index][: self.size], np.frombuffer(value, dtype=np.uint8))
            else:
                self.found[index] = value


open_peer = Lmdb
