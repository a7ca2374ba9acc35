"""vLLM's tiering stack on a CPU: where its own worker copies from a GPU, this one copies memory.

For tests only: vLLM refuses to offload where there is no GPU. `spec_name` CpuTieringSpec.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from vllm.v1.kv_offload.base import (
    CanonicalKVCaches,
    GPULoadStoreSpec,
    OffloadingWorker,
    TransferResult,
)
from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec


class CopyingWorker(OffloadingWorker):
    """Every transfer is done when it is submitted."""

    def __init__(self, caches: CanonicalKVCaches, region: SharedOffloadRegion, per_chunk: int):
        self._groups = caches.group_data_refs
        self._per_chunk = per_chunk
        self._region = region
        pages = [one.page_size_bytes for one in caches.tensors]
        self._engine = [
            one.tensor.view(torch.int8).view(-1, size)
            for one, size in zip(caches.tensors, pages, strict=True)
        ]
        self._memory = [region.create_next_worker_view(size * per_chunk) for size in pages]
        self._finished: list[TransferResult] = []

    def submit_store(
        self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: CPULoadStoreSpec
    ) -> bool:
        return self._copy(job_id, src_spec, dst_spec, to_memory=True)

    def submit_load(
        self, job_id: int, src_spec: CPULoadStoreSpec, dst_spec: GPULoadStoreSpec
    ) -> bool:
        return self._copy(job_id, dst_spec, src_spec, to_memory=False)

    def _copy(
        self, job_id: int, blocks: GPULoadStoreSpec, chunks: CPULoadStoreSpec, *, to_memory: bool
    ) -> bool:
        began, moved, at, chunk_at = time.monotonic(), 0, 0, 0
        for size, first, refs in zip(
            blocks.group_sizes, blocks.block_indices, self._groups, strict=True
        ):
            skipped = first % self._per_chunk
            for number in range(size):
                chunk, within = divmod(skipped + number, self._per_chunk)
                block = int(blocks.block_ids[at + number])
                row = int(chunks.block_ids[chunk_at + chunk])
                for ref in refs:
                    page = self._engine[ref.tensor_idx][block]
                    start = within * len(page)
                    copy = self._memory[ref.tensor_idx][row, start : start + len(page)]
                    copy.copy_(page) if to_memory else page.copy_(copy)
                    moved += len(page)
            at += size
            chunk_at += -(-(skipped + size) // self._per_chunk) if size else 0
        seconds = time.monotonic() - began
        self._finished.append(TransferResult(job_id, True, moved, seconds))
        return True

    def get_finished(self) -> list[TransferResult]:
        finished, self._finished = self._finished, []
        return finished

    def wait(self, job_ids: set[int]) -> None:
        """Nothing runs."""

    def shutdown(self) -> None:
        self._memory.clear()
        self._region.cleanup()


class CpuTieringSpec(TieringOffloadingSpec):
    def get_worker(self, kv_caches: CanonicalKVCaches) -> Any:
        region = SharedOffloadRegion(
            engine_id=self._engine_id,
            num_chunks=self.num_chunks,
            rank=0,
            kv_bytes_per_chunk=self.kv_bytes_per_chunk,
            cpu_page_size=self.cpu_page_size_per_worker,
        )
        return CopyingWorker(kv_caches, region, self.blocks_per_chunk)
