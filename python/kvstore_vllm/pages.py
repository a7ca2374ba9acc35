"""The engine's paged tensors, layer by layer, as rows of bytes: one row is one block's page.

A page is copied whole and never looked into: on a CPU, vLLM packs keys and values of a block in an
order that depends on the instruction set.

Invariant: nothing but a load that is not drained writes pages from outside the engine, and only
those of its block table.
"""

from collections.abc import Mapping, Sequence
from math import gcd
from typing import Any

import numpy as np
import torch

from kvstore import Pages

DIRECT_UNIT = 4096  # a page at a multiple of this may be written by the device itself
PART = "kv"


class EnginePages:
    """kv_caches: layer name -> tensor [blocks, ...], as the engine registers them.

    Layers that share one tensor are stored once. ValueError when a block's bytes are not contiguous
    or the first dimension is not a multiple of `blocks`.
    """

    def __init__(self, kv_caches: Mapping[str, torch.Tensor], blocks: int) -> None:
        self.index_of: dict[str, int] = {}
        self.names: list[str] = []
        self.rows: list[torch.Tensor] = []
        self.shapes: list[str] = []  # of a page, as the engine sees it
        seen: dict[int, int] = {}
        for name in kv_caches:
            tensor = kv_caches[name]
            known = seen.get(tensor.data_ptr())
            if known is None:
                known = seen[tensor.data_ptr()] = len(self.rows)
                self.names.append(name)
                self.rows.append(byte_rows(tensor, blocks, name))
                self.shapes.append(
                    f"{list(tensor.shape[1:])}{list(tensor.stride()[1:])}{tensor.dtype}"
                )
            self.index_of[name] = known
        self.through_pool = any(map(_device_may_write, self.rows))

    @property
    def layers(self) -> int:
        return len(self.rows)

    def page_bytes(self, layer: int) -> int:
        return int(self.rows[layer].shape[1])

    def target(self, block_ids: Sequence[int]) -> Pages | None:
        """Where a load writes; None: it goes through the pool, and `scatter` does."""
        if self.through_pool:
            return None
        return Pages([{PART: rows} for rows in self.rows], block_table=list(block_ids))

    def gather(self, layer: int, block_ids: Sequence[int]) -> torch.Tensor:
        """A copy in CPU memory, [blocks, page bytes]; the pages may be reused at once."""
        rows = self.rows[layer]
        chosen = rows.index_select(0, torch.tensor(block_ids, device=rows.device))
        return chosen if chosen.device.type == "cpu" else chosen.cpu()

    def scatter(self, layer: int, block_ids: Sequence[int], cells: "np.ndarray[Any, Any]") -> None:
        """Copies cells [blocks, page bytes] into the pages; returns when they were read."""
        rows = self.rows[layer]
        # A view of pool memory is read-only, which from_numpy would warn of: it is only read here.
        source = torch.from_numpy(cells.copy() if not cells.flags.writeable else cells)
        where = torch.tensor(block_ids, device=rows.device)
        rows.index_copy_(0, where, source.to(rows.device))


def byte_rows(tensor: torch.Tensor, blocks: int, name: str) -> torch.Tensor:
    """uint8 [blocks, page bytes] over the tensor's own memory, whatever order a page has inside."""
    if tensor.shape[0] % blocks:
        raise ValueError(
            f"{name}: shape {tuple(tensor.shape)} does not divide into {blocks} blocks"
        )
    item = tensor.element_size()
    kernel_blocks = tensor.shape[0] // blocks
    inner = tensor[0].numel() * item
    stride = tensor.stride(0) * item
    if not _compact(tensor) or (kernel_blocks > 1 and stride != inner):
        raise ValueError(
            f"{name}: the bytes of a block are not contiguous (shape {tuple(tensor.shape)}, strides"
            f" {tensor.stride()}); choose a KV cache layout whose blocks are, like LBHNC or LBNHC"
        )
    raw = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    raw.set_(
        tensor.untyped_storage(),
        tensor.storage_offset() * item,
        (blocks, kernel_blocks * inner),
        (kernel_blocks * stride, 1),
    )
    return raw


def _compact(tensor: torch.Tensor) -> bool:
    """Whether each item of the first dimension is one run of bytes, in any order of dimensions."""
    expected = 1
    inner = zip(tensor.stride()[1:], tensor.shape[1:], strict=True)
    for stride, length in sorted(pair for pair in inner if pair[1] > 1):
        if stride != expected:
            return False
        expected *= length
    return tensor.shape[0] < 2 or tensor.stride(0) >= expected


def _device_may_write(rows: torch.Tensor) -> bool:
    """Whether a read could go straight into a page. A read in flight cannot be called back, and an
    engine wants its pages back at once when a request ends; so such pages are filled by a copy."""
    if rows.device.type != "cpu":
        return True
    return rows.data_ptr() % gcd(rows.stride(0), DIRECT_UNIT) == 0
