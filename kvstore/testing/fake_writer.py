"""A writer of an in-memory store: in place of `_core.Writer`.

Sources are copied within `put`. Commit publishes whole extents in chain order, up to the first that
lacks a cell, as on a real disk.
"""

import ctypes
import itertools
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kvstore import _core
from kvstore.testing.fake_disk import Extent
from kvstore.testing.fake_ticket import FakeTicket, finished

if TYPE_CHECKING:
    from kvstore.testing.fake_core import FakeCache

COUNTS = (
    "bytes_submitted", "bytes_written", "blocks_skipped", "blocks_dropped", "blocks_admitted",
    "blocks_refused", "extents",
)  # fmt: skip


class FakeWriter:
    """In place of `_core.Writer`."""

    def __init__(self, cache: "FakeCache", keys: bytes, start: int, flags: int) -> None:
        self.cache = cache
        self.committed = False
        self._disk = cache.store.disk
        self._single = bool(flags & _core.WRITER_SINGLE)
        self._start = start
        self._names = cache.names(keys)
        self._staged: dict[tuple[int, int], bytes] = {}  # (layer, block) -> cell
        self._counts = dict.fromkeys(COUNTS, 0)
        self._closed = self._done = False
        with self._disk.lock:
            for block in self._resident(0):
                self._place(block)[0].holders.add(self)
                self._counts["blocks_skipped"] += block >= start

    def alive(self) -> bool:
        """Whether it keeps the beginning of its chain from eviction."""
        return not self._closed and not self._done

    def extend(self, keys: bytes, extras: bytes | None, token_ids: object) -> None:
        self._check_open()
        self._names = self.cache.names(keys)

    def put(self, layer: int, first: int, count: int, sources: bytes, owners: object) -> FakeTicket:
        """The result is the number of cells that were dropped."""
        self._check_open()
        parts = list(zip(self.cache.parts[layer], struct.iter_unpack("=QQ", sources), strict=True))
        dropped = 0
        with self._disk.lock:
            for number in range(count):
                cell = b"".join(
                    ctypes.string_at(address + number * stride, size)
                    for size, (address, stride) in parts
                )
                dropped += not self._stage(layer, first + number, cell)
        return finished(dropped)

    def _stage(self, layer: int, block: int, cell: bytes) -> bool:
        """Whether the cell was taken, or is there already."""
        if self._is_resident(block) or (layer, block) in self._staged:
            return True
        if self._disk.refuse_puts:
            return False
        self._staged[layer, block] = cell
        self.cache.store.counts["puts_bytes"] += len(cell)
        return True

    def commit(self) -> FakeTicket:
        self._check_open()
        self.committed = True
        ticket = FakeTicket()
        with self._disk.lock:
            if self._disk.commits_held:
                self._disk.at_release(self.cache.store, lambda: ticket.finish(self._publish()))
            else:
                ticket.finish(self._publish())
        return ticket

    def _publish(self) -> int:
        """The number of blocks from the start that are resident then."""
        for run in self._runs():
            cells = [self._cells_of(layer, run) for layer in range(len(self.cache.parts))]
            extent_cells = [one for one in cells if one is not None]
            if len(extent_cells) < len(cells):
                break
            self._disk.publish(Extent([self._names[block] for block in run], extent_cells))
            self._count(sum(len(cell) for layer in extent_cells for cell in layer))
        self._done = True
        published = sum(1 for _ in self._resident(self._start))
        self._drop(len(self._names) - self._start - published)
        return published

    def _cells_of(self, layer: int, run: list[int]) -> list[bytes] | None:
        """None: one is missing."""
        if not self.cache.parts[layer]:
            return [b""] * len(run)
        cells = [self._staged.get((layer, block)) for block in run]
        whole = [cell for cell in cells if cell is not None]
        return whole if len(whole) == len(run) else None

    def _runs(self) -> Iterator[list[int]]:
        """Consecutive blocks that are not resident, cut at the grid of extents."""
        per_extent = 1 if self._single else self.cache.extent_blocks
        blocks = range(self._start, len(self._names))
        for resident, run in itertools.groupby(
            blocks, lambda block: (block // per_extent, self._is_resident(block))
        ):
            if not resident[1]:
                yield list(run)

    def _count(self, nbytes: int) -> None:
        self._counts["extents"] += 1
        self._counts["bytes_submitted"] += nbytes
        self._counts["bytes_written"] += nbytes
        self.cache.store.counts["published_extents"] += 1
        self.cache.store.counts["written_bytes"] += nbytes

    def _drop(self, blocks: int) -> None:
        self._counts["blocks_dropped"] += blocks
        self.cache.store.counts["dropped_blocks"] += blocks

    def _place(self, block: int) -> tuple[Extent, int]:
        place = self._disk.find(self._names[block])
        assert not isinstance(place, str)
        return place

    def _is_resident(self, block: int) -> bool:
        return not isinstance(self._disk.find(self._names[block]), str)

    def _resident(self, start: int) -> Iterator[int]:
        blocks = range(start, len(self._names))
        return itertools.takewhile(self._is_resident, blocks)

    def stats(self) -> dict[str, int]:
        return self._counts | {"blocks_admitted": len(self._names) - self._start}

    def close(self) -> None:
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError("the writer is closed: it was aborted")
        self.cache.store.check_open()
        if self.committed:
            raise ValueError("the writer was committed already")
