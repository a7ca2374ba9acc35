"""Plain files and threads: one file a value, os.preadv with O_DIRECT: what one writes oneself."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benches.peers.work import Bytes, Facts, Setup, Slots, file_name, on_threads

THREADS = 4


class Files:
    """As shipped: buffered, as open() is. Best: O_DIRECT, values padded to whole pages."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.flags = os.O_DIRECT if setup.huge else 0
        self.slots = Slots(setup)
        self.threads = ThreadPoolExecutor(THREADS)
        self.facts = Facts(
            {"threads": THREADS, "O_DIRECT": setup.huge, "huge pages": setup.huge},
            "no checksum, no capacity, no index, no sync; a write that is cut short is served",
            buffered=not setup.huge,
        )

    def put(self, generation: int, count: int) -> None:
        list(self.threads.map(lambda i: self._write(generation, i), range(count)))

    def load(
        self, generation: int, batches: Sequence[Sequence[int]], ready: Callable[[int], None]
    ) -> None:
        on_threads(self.threads, lambda index: self._read(generation, index), batches, ready)

    def value(self, index: int) -> Bytes:
        return self.slots[index]

    def forget(self) -> None:
        pass

    def delete(self, generation: int, count: int) -> None:
        for index in range(count):
            self._path(generation, index).unlink()

    def close(self) -> None:
        self.threads.shutdown()

    def _path(self, generation: int, index: int) -> Path:
        return self.setup.folder / file_name(generation, index)

    def _write(self, generation: int, index: int) -> None:
        data = self.setup.source.slot(generation, index)
        fd = os.open(self._path(generation, index), os.O_CREAT | os.O_WRONLY | self.flags, 0o600)
        try:
            if os.pwrite(fd, data, 0) != data.size:
                raise OSError("short write")
        finally:
            os.close(fd)

    def _read(self, generation: int, index: int) -> None:
        into = self.slots[index]
        fd = os.open(self._path(generation, index), os.O_RDONLY | self.flags)
        try:
            if os.preadv(fd, [into], 0) != into.size:
                raise OSError("short read")
        finally:
            os.close(fd)


open_peer = Files
