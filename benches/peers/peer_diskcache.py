"""diskcache: SQLite index, one file a value above 32 KiB; values are bytes objects.

Best: 4 threads, no eviction, as many bytes allowed as are put, read=True (an open file) read into
huge-page memory. As shipped: its defaults (1 GiB, least recently stored), get() of bytes.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import diskcache

from benches.peers.work import Facts, Setup, Slots, file_name, on_threads

THREADS = 4


class DiskCache:
    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.size = setup.work.value_bytes
        self.slots = Slots(setup) if setup.huge else None
        self.found: dict[int, bytes] = {}
        options: dict[str, Any] = {}
        if setup.huge:
            options = {"size_limit": 8 * setup.work.nbytes + (1 << 30), "eviction_policy": "none"}
        self.cache = diskcache.Cache(str(setup.folder), **options)
        self.threads = ThreadPoolExecutor(THREADS)
        self.facts = Facts(
            {**options, "threads": THREADS},
            "no checksum of values; values are not synced",
            buffered=True,
            versions={"diskcache": diskcache.__version__},
        )

    def put(self, generation: int, count: int) -> None:
        list(self.threads.map(lambda i: self._write(generation, i), range(count)))

    def load(
        self, generation: int, batches: Sequence[Sequence[int]], ready: Callable[[int], None]
    ) -> None:
        on_threads(self.threads, lambda index: self._read(generation, index), batches, ready)

    def value(self, index: int) -> Any:
        return self.slots[index] if self.slots else self.found[index]

    def forget(self) -> None:
        self.found.clear()

    def delete(self, generation: int, count: int) -> None:
        for index in range(count):
            del self.cache[file_name(generation, index)]

    def close(self) -> None:
        self.threads.shutdown()
        self.cache.close()

    def _write(self, generation: int, index: int) -> None:
        value = self.setup.source.value(generation, index).tobytes()
        self.cache.set(file_name(generation, index), value)

    def _read(self, generation: int, index: int) -> None:
        name = file_name(generation, index)
        if not self.slots:
            self.found[index] = self.cache.get(name)
            return
        with self.cache.get(name, read=True) as file:
            if file.readinto(memoryview(self.slots[index])[: self.size]) != self.size:
                raise OSError("short read")


open_peer = DiskCache
