"""Writing a chain's blocks: any order of layers and ranges, then one commit.

Invariants
  1. Nothing is visible before commit; an aborted or dropped writer publishes nothing.
  2. Source memory is referred to until its handle is done, also when writer and handle are dropped.
  3. A writer that was asked to commit lives until that is done, whoever still waits for it.
"""

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from kvstore import _core
from kvstore._loop import Bridges, Handle
from kvstore.chain import Chain
from kvstore.layout import Layout
from kvstore.memory import rows_of
from kvstore.tracing import Note, Spans


class WriterStats(msgspec.Struct, frozen=True, kw_only=True):
    """bytes_submitted: of cells, handed to the device; bytes_written: that it said are done.
    blocks_dropped: for want of room, or trouble of the device. blocks_refused: by admission or the
    write budget. blocks_admitted: the length of `Writer.admitted`."""

    bytes_submitted: int
    bytes_written: int
    blocks_skipped: int
    blocks_dropped: int
    blocks_refused: int
    blocks_admitted: int
    extents: int


class Writer:
    """Blocks [start, len(chain)) of a chain. Made by `Cache.writer`.

    A context manager (either kind) that aborts when it was not committed.
    """

    def __init__(
        self, core_cache: _core.Cache, layout: Layout, bridges: Bridges, chain: Chain,
        *, start: int, retention: int, spans: Spans, keeps_token_ids: bool,
    ) -> None:  # fmt: skip
        self.chain = chain
        self.start = start
        self._layout = layout
        self._bridges = bridges
        self._spans = spans
        self._final: WriterStats | None = None
        self._keeps_token_ids = keeps_token_ids
        self._core = core_cache.writer(
            chain.keys, start, retention, 0, chain.extra_digests, self._ids_of(chain)
        )

    @property
    def committed(self) -> bool:
        """It takes no more puts; a commit goes on by itself."""
        return self._core.committed

    @property
    def admitted(self) -> range:
        """The blocks from `start` on that are resident or to be written. Known before the first
        put, and again after `extend`; what is put of others is ignored, so need not be put."""
        return range(self.start, self.start + self.stats().blocks_admitted)

    def put(
        self,
        layer: int,
        blocks: range | tuple[int, int],
        parts: Mapping[str, Any] | Sequence[Any],
    ) -> Handle[int]:
        """Cells of `layer` for absolute blocks [first, end), in any order; what was put already is
        not put again.

        parts: a numpy array, torch CPU tensor or buffer per part of the layer, by name or in the
        layout's order; first dimension = blocks of the range (or contiguous tokens), each block
        contiguous. The handle is done when the sources may be reused; its result is the number of
        cells dropped for want of room. Starts the writing, never waits for it. ValueError: the
        writer was committed or aborted.
        """
        first, end = _first_end(blocks, self.start, len(self.chain))
        if not 0 <= layer < self._layout.layers:
            raise IndexError(f"the layout has {self._layout.layers} layers, no layer {layer}")
        sources, owners = pack_sources(self._layout, layer, end - first, parts)
        ticket = self._core.put(layer, first, end - first, sources, owners)
        return Handle(self._bridges, ticket, f"put of layer {layer}", int)

    def extend(self, chain: Chain) -> None:
        """Goes on with a longer chain of the same prompt (decode): its new blocks may be put.

        ValueError: the chain is another one, or the writer was committed or aborted.
        """
        if chain.block_tokens != self.chain.block_tokens or not chain.starts_with(self.chain):
            raise ValueError("the longer chain must begin with the writer's chain")
        self._core.extend(chain.keys, chain.extra_digests, self._ids_of(chain))
        self.chain = chain

    def _ids_of(self, chain: Chain) -> Any:
        """What the core may write to disk: nothing, unless this store was asked to keep ids."""
        return chain.token_ids if self._keeps_token_ids else None

    async def commit(self, timeout: float | str | None = "60s") -> int:
        """Publishes in chain order up to the first extent lacking a cell; the number of blocks from
        `start` that are resident now. TimeoutError: not done yet, but it goes on."""
        with self._spans.call("commit") as note:
            blocks = await self._commit().finish(timeout)
            self._note_commit(note, blocks)
            return blocks

    def commit_blocking(self, timeout: float | str | None = "60s") -> int:
        """The same, blocking the thread without the GIL."""
        with self._spans.call("commit") as note:
            blocks = self._commit().wait(timeout)
            self._note_commit(note, blocks)
            return blocks

    def begin_commit(self) -> Handle[int]:
        """The same without waiting: the commit goes on, also when the handle is dropped."""
        return self._commit()

    def abort(self) -> None:
        """Abandons what was not committed. Idempotent; sources stay the caller's duty until their
        handles are done."""
        if self.committed or self._final is not None:
            return
        self._final = self.stats()
        self._core.close()

    def stats(self) -> WriterStats:
        """Counters so far, or as they were at abort."""
        return self._final or WriterStats(**self._core.stats())

    def _commit(self) -> Handle[int]:
        return Handle(self._bridges, self._core.commit(), "commit", int)

    def _note_commit(self, note: Note, blocks: int) -> None:
        stats = self.stats()
        note(
            asked_blocks=len(self.chain) - self.start,
            blocks=blocks,
            blocks_skipped=stats.blocks_skipped,
            blocks_dropped=stats.blocks_dropped,
            blocks_refused=stats.blocks_refused,
            written_bytes=stats.bytes_written,
        )

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, *_: object) -> None:
        self.abort()

    async def __aenter__(self) -> "Writer":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.abort()


def pack_sources(
    layout: Layout, layer: int, blocks: int, parts: Mapping[str, Any] | Sequence[Any]
) -> tuple[bytes, list[object]]:
    """(packed sources of one layer, what keeps their memory). ValueError when they do not fit."""
    wanted = layout.parts_by_layer[layer]
    names = [name for name, _ in wanted]
    if isinstance(parts, Mapping):
        if set(parts) != set(names):
            raise ValueError(f"layer {layer} has the parts {names}, got {list(parts)}")
        parts = [parts[name] for name in names]
    if len(parts) != len(wanted):
        raise ValueError(f"layer {layer} has {len(wanted)} parts {names}, got {len(parts)}")
    packed, owners = bytearray(), list[object]()
    for (name, part_bytes), memory in zip(wanted, parts, strict=True):
        what = f"part {name!r} of layer {layer}"
        rows = rows_of(memory, part_bytes, writable=False, what=what)
        if rows.count != blocks:
            raise ValueError(f"{what}: holds {rows.count} blocks, the range has {blocks}")
        packed += struct.pack("=QQ", rows.address, rows.stride)
        owners.append(rows.owner)
    return bytes(packed), owners


def _first_end(blocks: range | tuple[int, int], start: int, count: int) -> tuple[int, int]:
    if isinstance(blocks, range):
        if blocks.step != 1:
            raise ValueError(f"a block range has step 1, not {blocks.step}")
        blocks = (blocks.start, blocks.stop)
    first, end = blocks
    if not start <= first < end <= count:
        raise ValueError(f"blocks {first} to {end} are not within the writer's {start} to {count}")
    return first, end
