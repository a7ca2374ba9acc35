"""LMCache raw_block: fixed slots in one preallocated file, RawBlockCore as its adapter drives it.

Best: io_uring with registered buffers, memory objects over huge pages. As shipped: its defaults
(posix, one value after another), plain pages.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from lmcache.v1.memory_management import MemoryFormat, MemoryObjMetadata, TensorMemoryObj
from lmcache.v1.storage_backend.raw_block import RawBlockCore, RawBlockCoreConfig
from lmcache.v1.storage_backend.raw_block.key_codec import RawBlockKeySpec

from benches.peers.work import PAGE, Bytes, Facts, Setup, Slots, file_name, padded

META_BYTES = 64 << 20


def memory_object(memory: Bytes, size: int) -> TensorMemoryObj:
    """LMCache's view of `size` bytes at the start of `memory`, which the caller keeps alive."""
    about = MemoryObjMetadata(
        shape=torch.Size([size]),
        dtype=torch.uint8,
        address=0,
        phy_size=memory.size,
        ref_count=1,
        fmt=MemoryFormat.KV_MLA_FMT,
    )
    return TensorMemoryObj(torch.from_numpy(memory), about, None)


def core_config(path: Path, setup: Setup) -> RawBlockCoreConfig:
    """Slots for four times the values; what is not named in the module's text is the default."""
    slot = padded(setup.work.value_bytes) + PAGE
    capacity = padded(2 * META_BYTES + 4 * setup.work.values * slot)
    with path.open("wb") as file:
        file.truncate(capacity)
    return RawBlockCoreConfig(
        device_path=str(path),
        capacity_bytes=capacity,
        block_align=PAGE,
        header_bytes=PAGE,
        slot_bytes=slot,
        use_odirect=True,
        enable_zero_copy=True,
        meta_total_bytes=META_BYTES,
        meta_magic=b"LMCIDX01",
        meta_version=1,
        meta_checkpoint_interval_sec=60,
        meta_idle_quiet_ms=100,
        meta_enable_periodic=True,
        meta_verify_on_load=True,
        load_checkpoint_on_init=False,
        io_engine="io_uring" if setup.huge else "posix",
    )


class RawBlock:
    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.size = setup.work.value_bytes
        self.slots = Slots(setup)
        self.objects = [memory_object(self.slots[i], self.size) for i in range(setup.work.values)]
        config = core_config(setup.folder / "device", setup)
        self.core: Any = RawBlockCore(config, key_namespace="object")
        self.core.register_fixed_buffer_range(self.slots.address, self.slots.bytes.size)
        self.facts = Facts(
            {
                "engine": config.io_engine,
                "queue depth": config.iouring_queue_depth,
                "O_DIRECT": True,
                "huge pages": setup.huge,
            },
            "no checksum of values (its index has one), no sync, fixed size of value; "
            "capacity by slots",
        )

    def put(self, generation: int, count: int) -> None:
        source = self.setup.source
        objects = [memory_object(source.slot(generation, i), self.size) for i in range(count)]
        keys = [RawBlockKeySpec(file_name(generation, i), i + 1) for i in range(count)]
        if not all(self.core.put_many(keys, objects).results):
            raise OSError("raw_block did not store every value")

    def load(
        self, generation: int, batches: Sequence[Sequence[int]], ready: Callable[[int], None]
    ) -> None:
        for number, batch in enumerate(batches):
            names = [file_name(generation, index) for index in batch]
            if not all(self.core.load_many_into(names, [self.objects[i] for i in batch])):
                raise OSError("raw_block did not load every value")
            ready(number)

    def value(self, index: int) -> Bytes:
        return self.slots[index]

    def forget(self) -> None:
        pass

    def delete(self, generation: int, count: int) -> None:
        self.core.delete_many([file_name(generation, index) for index in range(count)])

    def close(self) -> None:
        self.core.close()


open_peer = RawBlock
