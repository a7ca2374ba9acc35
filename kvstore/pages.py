"""Caller memory that a load writes into: paged tensors of an engine, or plain arrays.

Invariant: `targets` is made only when every page that the load may write lies inside the memory
given, so that no block table and no range can make the core write outside of it.
"""

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kvstore.layout import Layout
from kvstore.memory import Pointer, rows_of

PartMemory = Mapping[str, Any]  # part name -> tensor, array, writable buffer or Pointer


class Pages:
    """Where a load writes: per layer a mapping from part name to memory, None for "not wanted".

    parts: one entry per layer of the layout, or one mapping of part name to a list over layers.
    page_tokens: tokens of one page; divides the layout's block_tokens or is a multiple of it.
      None: a page is a block. Memory of a part is [pages, page_tokens, ...], pages apart by any
      stride, each page contiguous.
    block_table: page number of each local page of the load, -1: do not write it. None: page j is j.

    The memory belongs to the load until `load.drained`, whatever happens before.
    """

    def __init__(
        self,
        parts: Sequence[PartMemory | None] | Mapping[str, Sequence[Any]],
        *,
        page_tokens: int | None = None,
        block_table: Any = None,
    ) -> None:
        self.parts = _by_layer(parts) if isinstance(parts, Mapping) else tuple(parts)
        self.page_tokens = page_tokens
        self.table = None if block_table is None else _int32_table(block_table)

    @classmethod
    def contiguous(cls, parts: Mapping[str, Sequence[Any]]) -> "Pages":
        """Arrays whose first dimension is the tokens (or the blocks) of the load, one per layer."""
        return cls(parts)

    def targets(self, layout: Layout, start: int, blocks: int) -> tuple[bytes, int, list[object]]:
        """For the core: (packed targets, page_tokens, what keeps the memory). Checks the bounds."""
        page_tokens = self._page_tokens(layout, start)
        if len(self.parts) != layout.layers:
            raise ValueError(f"Pages of {len(self.parts)} layers for a layout of {layout.layers}")
        self._check_names(layout)
        needed = self._pages_needed(-(-blocks * layout.block_tokens // page_tokens))
        packed, owners = bytearray(), list[object]()
        for layer, memory in enumerate(self.parts):
            for name, part_bytes in layout.parts_by_layer[layer]:
                what = f"part {name!r} of layer {layer}"
                address, stride, owner = _target(
                    None if memory is None else memory.get(name),
                    page_tokens * _token_bytes(part_bytes, layout.block_tokens, what),
                    needed,
                    what,
                )
                packed += struct.pack("=QQ", address, stride)
                owners.append(owner)
        return bytes(packed), page_tokens, owners

    def _check_names(self, layout: Layout) -> None:
        """A misspelt name would look like a part that is not wanted."""
        known = {name for parts in layout.parts_by_layer for name, _ in parts}
        given = {name for memory in self.parts if memory is not None for name in memory}
        if not given <= known:
            raise ValueError(
                f"the layout has the parts {sorted(known)}, not {sorted(given - known, key=repr)}"
            )

    def _page_tokens(self, layout: Layout, start: int) -> int:
        page = layout.block_tokens if self.page_tokens is None else self.page_tokens
        block = layout.block_tokens
        if page < 1 or (block % page and page % block):
            raise ValueError(f"page_tokens {page} must divide {block} or be a multiple of it")
        if page > block and start * block % page:
            raise ValueError(f"block {start} does not begin a page of {page} tokens")
        return page

    def _pages_needed(self, local_pages: int) -> int:
        """How many pages every part must have."""
        if self.table is None:
            return local_pages
        if len(self.table) < local_pages:
            raise ValueError(
                f"the block table has {len(self.table)} entries, the load needs {local_pages}"
            )
        used = self.table[:local_pages]
        if local_pages and int(used.min()) < -1:
            raise ValueError("a block table entry is below -1")
        return int(used.max()) + 1 if local_pages else 0


def _by_layer(parts: Mapping[str, Sequence[Any]]) -> tuple[PartMemory, ...]:
    counts = {len(arrays) for arrays in parts.values()}
    if len(counts) != 1:
        raise ValueError(f"every part needs one array per layer, not {sorted(counts)}")
    return tuple({name: parts[name][i] for name in parts} for i in range(counts.pop()))


def _int32_table(block_table: Any) -> "np.ndarray[Any, np.dtype[np.int32]]":
    table = np.asarray(block_table)
    if table.ndim != 1 or (table.size and table.dtype.kind not in "iu"):
        raise ValueError(f"a block table is 1-d integers, not {table.ndim}-d {table.dtype}")
    if table.size and int(table.max()) > 2**31 - 1:
        raise ValueError("a block table entry is above 2**31 - 1")
    return np.ascontiguousarray(table, dtype=np.int32)


def _token_bytes(part_bytes: int, block_tokens: int, what: str) -> int:
    if part_bytes % block_tokens:
        raise ValueError(f"{what}: {part_bytes} bytes a block do not divide into its tokens")
    return part_bytes // block_tokens


def _target(memory: Any, page_bytes: int, needed: int, what: str) -> tuple[int, int, object]:
    """(address, page stride, owner); address 0: not wanted."""
    if memory is None:
        return 0, page_bytes, None
    if isinstance(memory, Pointer):
        if not memory.address or memory.page_stride < page_bytes:
            raise ValueError(f"{what}: a page has {page_bytes} bytes, stride {memory.page_stride}")
        address, stride, count, owner = (
            memory.address, memory.page_stride, memory.count, memory.owner,
        )  # fmt: skip
    else:
        rows = rows_of(memory, page_bytes, writable=True, what=what)
        address, stride, count, owner = rows.address, rows.stride, rows.count, rows.owner
    if count < needed:
        raise ValueError(f"{what}: {count} pages of {page_bytes} bytes, the load needs {needed}")
    return address, stride, owner
