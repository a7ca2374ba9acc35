"""LMCache fs_native: one file a value, its C++ client with 4 workers, batches and an eventfd.

Best: O_DIRECT, huge pages; values are padded to whole pages, as its adapter does then. As shipped:
buffered, plain pages.
"""

import select
from collections.abc import Callable, Sequence
from typing import Any

from lmcache.lmcache_fs import LMCacheFSClient

from benches.peers.work import Bytes, Facts, Setup, Slots

WORKERS = 4
WAIT_MS = 60_000


def key_of(generation: int, index: int) -> str:
    """In the form that it insists on: model, rank, group, chunk hash."""
    return f"bench@0x00000000@0@{generation << 32 | index:032x}"


class FsNative:
    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.slots = Slots(setup)
        self.client: Any = LMCacheFSClient(str(setup.folder), WORKERS, "", setup.huge, 0)
        self.wake = select.poll()
        self.wake.register(self.client.event_fd(), select.POLLIN)
        self.facts = Facts(
            {"workers": WORKERS, "O_DIRECT": setup.huge, "huge pages": setup.huge},
            "no checksum, no sync; capacity only with its eviction controller",
            buffered=not setup.huge,
        )

    def put(self, generation: int, count: int) -> None:
        source = self.setup.source
        values = [memoryview(source.slot(generation, index)) for index in range(count)]
        names = [key_of(generation, index) for index in range(count)]
        self._finish({self.client.submit_batch_set(names, values)})

    def load(
        self, generation: int, batches: Sequence[Sequence[int]], ready: Callable[[int], None]
    ) -> None:
        for number, batch in enumerate(batches):
            names = [key_of(generation, index) for index in batch]
            into = [memoryview(self.slots[index]) for index in batch]
            self._finish({self.client.submit_batch_get(names, into)})
            ready(number)

    def value(self, index: int) -> Bytes:
        return self.slots[index]

    def forget(self) -> None:
        pass

    def delete(self, generation: int, count: int) -> None:
        names = [key_of(generation, index) for index in range(count)]
        self._finish({self.client.submit_batch_delete(names)})

    def close(self) -> None:
        self.client.close()

    def _finish(self, jobs: set[int]) -> None:
        while jobs:
            if not self.wake.poll(WAIT_MS):
                raise TimeoutError("fs_native did not answer")
            for job, good, error, *_ in self.client.drain_completions():
                if not good:
                    raise OSError(f"fs_native: {error}")
                jobs.discard(job)


open_peer = FsNative
