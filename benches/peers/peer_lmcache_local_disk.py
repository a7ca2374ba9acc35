"""LMCache LocalDiskBackend over its LocalCPUBackend allocator: one file a value, 4 threads.

Best: use_odirect, its allocator's memory on huge pages through glibc (the driver sets
GLIBC_TUNABLES). As shipped: buffered, plain pages. It pads nothing: values that are not whole pages
go through the page cache in either mode.
"""

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from lmcache.utils import CacheEngineKey
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.memory_management import MemoryFormat
from lmcache.v1.metadata import LMCacheMetadata
from lmcache.v1.storage_backend.local_cpu_backend import LocalCPUBackend
from lmcache.v1.storage_backend.local_disk_backend import LocalDiskBackend

from benches.peers.work import PAGE, Facts, Setup

BATCH = 32  # what is allocated and read together
WAIT_S = 60.0


class LocalDisk:
    def __init__(self, setup: Setup) -> None:
        self.setup, work = setup, setup.work
        self.shape = torch.Size([work.value_bytes])
        self.found: dict[int, Any] = {}
        gigabytes = 2 * work.values * work.slot_bytes / 1e9 + 0.5
        config = LMCacheEngineConfig.from_defaults(
            local_cpu=False,
            max_local_cpu_size=gigabytes,
            local_disk=str(setup.folder),
            max_local_disk_size=4 * gigabytes,
            extra_config={"use_odirect": setup.huge},
        )
        about = LMCacheMetadata(
            model_name="bench",
            world_size=1,
            local_world_size=1,
            worker_id=0,
            local_worker_id=0,
            kv_dtype=torch.uint8,
            kv_shape=(work.layers, 1, 64, 1, work.cell_bytes // 64),
            use_mla=True,
        )
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        self.memory: Any = LocalCPUBackend(config, about, dst_device="cpu")
        self.disk: Any = LocalDiskBackend(config, self.loop, self.memory, dst_device="cpu")
        direct = setup.huge and work.value_bytes % PAGE == 0
        self.facts = Facts(
            {"threads": 4, "O_DIRECT": direct, "glibc huge pages": setup.huge, "batch": BATCH},
            "no checksum, no sync; its index is lost at a restart; capacity yes (LRU)",
            buffered=not direct,
        )

    def put(self, generation: int, count: int) -> None:
        """The copy into its memory is part: it stores only what its allocator gave out."""
        for first in range(0, count, BATCH):
            indices = range(first, min(first + BATCH, count))
            left = threading.Semaphore(0)
            objects = [self._filled(generation, index) for index in indices]
            self.disk.batched_submit_put_task(
                [self._key(generation, index) for index in indices],
                objects,
                on_complete_callback=lambda _, left=left: left.release(),
            )
            for _ in indices:
                if not left.acquire(timeout=WAIT_S):
                    raise TimeoutError("LocalDisk did not store every value")
            for one in objects:
                one.ref_count_down()

    def load(
        self, generation: int, batches: Sequence[Sequence[int]], ready: Callable[[int], None]
    ) -> None:
        for number, batch in enumerate(batches):
            keys = [self._key(generation, index) for index in batch]
            found = self.disk.batched_get_blocking(keys)
            if any(one is None for one in found):
                raise OSError("LocalDisk did not load every value")
            self.found.update(zip(batch, found, strict=True))
            ready(number)

    def value(self, index: int) -> Any:
        return self.found[index].byte_array

    def forget(self) -> None:
        for one in self.found.values():
            one.ref_count_down()
        self.found.clear()

    def delete(self, generation: int, count: int) -> None:
        for index in range(count):
            self.disk.remove(self._key(generation, index))

    def close(self) -> None:
        self.forget()
        self.disk.close()
        self.loop.call_soon_threadsafe(self.loop.stop)

    def _key(self, generation: int, index: int) -> CacheEngineKey:
        return CacheEngineKey("bench", 1, 0, generation << 32 | index, torch.uint8)

    def _filled(self, generation: int, index: int) -> Any:
        one = self.memory.allocate(self.shape, torch.uint8, MemoryFormat.KV_MLA_FMT)
        if one is None:
            raise MemoryError("LocalCPUBackend has no memory left")
        value = torch.from_numpy(self.setup.source.value(generation, index))
        one.tensor.view(-1).copy_(value)
        return one


open_peer = LocalDisk
