"""A load of an in-memory store: in place of `_core.Load`.

It delivers its layers when it is made, up to one that the disk holds back.

Nastier than a real one wherever an engine could rely on what it must not: a cell that failed its
check leaves wrong bytes in caller memory; a read that is in flight when the load ends writes caller
memory later, and only then the load is drained; views of a released layer turn into 0xDD.
"""

import ctypes
import struct
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kvstore import _core
from kvstore.errors import PoolTooSmall
from kvstore.testing.fake_disk import Extent
from kvstore.testing.fake_ticket import FakeTicket

if TYPE_CHECKING:
    from kvstore.testing.fake_core import FakeLease

RELEASED = 0xDD
WRONG = bytes(255 - value for value in range(256))  # a table for bytes.translate
COUNTS = ("reads", "disk_bytes", "ram_bytes", "direct_bytes", "bounced_bytes", "failed_blocks")

Answer = tuple[int, str | None, int, int]  # good blocks, why not more, spans, when


class FakeLoad:
    """In place of `_core.Load`. What begins with _ is guarded by the disk's lock."""

    def __init__(
        self, lease: "FakeLease", *, targets: bytes | None, page_tokens: int, table: bytes | None,
        owners: object, flags: int, deadline_ns: int,
    ) -> None:  # fmt: skip
        self.cache = lease.cache
        self.drained = FakeTicket()
        self.closed = True  # until it is known to fit
        self._disk = self.cache.store.disk
        self._first = lease.first
        self._names = lease.names
        self._pages = (
            None
            if targets is None
            else FakePages(self.cache.parts, targets, page_tokens, table, self.cache.block_tokens)
        )
        self._owners = owners  # of the pages' memory
        self._flags = flags
        self._answers: list[Answer] = []  # of the layers that are ready
        self._tickets = [FakeTicket() for _ in self.cache.parts]
        self._spans: dict[int, list[tuple[int, int, bytearray]]] = {}
        self._landing: int | None = None  # the layer whose read was in flight at the end
        self._timer: threading.Timer | None = None
        self._counts = dict.fromkeys(COUNTS, 0)
        self._opened_ns, self._finished_ns = _boot_ns(), 0
        self._check_room()
        self.closed = False
        with self._disk.lock:
            self._places, self._reason = self._look_up()
            self._good = len(self._places)
            self.cache.store.counts["loads"] += 1
            self._disk.running.add(self)
            self._go_on()
            if not self._finished_ns:
                self._end_at(deadline_ns)

    def _look_up(self) -> tuple[list[tuple[Extent, int]], str | None]:
        """The blocks that are there, up to the first that is not, and why that one is not."""
        places = list[tuple[Extent, int]]()
        for name in self._names:
            found = self._disk.find(name)
            if isinstance(found, str):
                return places, found
            places.append(found)
        return places, None

    def _check_room(self) -> None:
        by_layer = [sum(sizes) for sizes in self.cache.parts]
        at_once = sum(by_layer) if self._flags & _core.LOAD_BLOCK else max(by_layer)
        needed = at_once * len(self._names)
        if self._pages is None and needed > self.cache.store.pool_bytes:
            raise PoolTooSmall(needed)

    def _end_at(self, deadline_ns: int) -> None:
        """Only a load that is held back needs a thread: it must end though nobody looks at it."""
        self._timer = threading.Timer(deadline_ns / 1e9, self.end, ["deadline"])
        self._timer.daemon = True
        self._timer.start()

    # ------------------------------------------------------------------------------- delivery

    def _go_on(self) -> None:
        """Delivers what is not held back."""
        while (layer := len(self._answers)) < len(self.cache.parts):
            if self._disk.layer_held(layer):
                self._disk.at_release(self.cache.store, self._arrive)
                return
            self._deliver(layer)
        self._finish()

    def _arrive(self) -> None:
        """What was held back is let go."""
        if self._landing is None:
            self._go_on()
        else:
            self._fill_pages(self._landing, len(self._places))
            self.drained.finish()

    def _deliver(self, layer: int) -> None:
        self._fill_pages(layer, self._good)
        bad = [one for one in range(self._good) if self._is_damaged(layer, one)]
        if bad:
            self._good, self._reason = bad[0], "damaged"
            self._disk.quarantine(self._names[bad[0]], layer, self._places[bad[0]][0])
            self.cache.store.counts["quarantined_extents"] += 1
        self._count(layer)
        if self._pages is None and not self._flags & _core.LOAD_PREFETCH:
            self._spans[layer] = list(self._spans_of(layer))
        self._answer(layer, self._good, self._reason)

    def _is_damaged(self, layer: int, local: int) -> bool:
        return self._disk.is_damaged(self._names[local], layer)

    def _answer(self, layer: int, good: int, reason: str | None) -> None:
        self._answers.append((good, reason, len(self._spans.get(layer, ())), _boot_ns()))
        self._tickets[layer].finish()

    def _cell(self, layer: int, local: int) -> bytes:
        extent, position = self._places[local]
        return extent.cells[layer][position]

    def _spans_of(self, layer: int) -> Iterator[tuple[int, int, bytearray]]:
        """Runs of good blocks that lie in one extent."""
        local = 0
        while local < self._good and self.cache.parts[layer]:
            end = local + 1
            while end < self._good and self._places[end][0] is self._places[local][0]:
                end += 1
            cells = bytearray().join(self._cell(layer, one) for one in range(local, end))
            yield self._first + local, end - local, cells
            local = end

    def _fill_pages(self, layer: int, asked: int) -> None:
        if self._pages is None:
            return
        for local in range(asked):
            cell = self._cell(layer, local)
            damaged = self._is_damaged(layer, local)
            self._pages.write(layer, local, cell.translate(WRONG) if damaged else cell)

    def _count(self, layer: int) -> None:
        for local in range(self._good):
            extent, size = self._places[local][0], len(self._cell(layer, local))
            from_ram = extent.in_ram
            self._counts["ram_bytes" if from_ram else "disk_bytes"] += size
            self._counts["reads"] += not from_ram and size > 0
            if self._pages is not None:
                self._counts["bounced_bytes" if from_ram else "direct_bytes"] += size

    # ------------------------------------------------------------------------------------ end

    def end(self, reason: str) -> None:
        """Ends what is left at once; layers that are not ready get the reason."""
        with self._disk.lock:
            if self._finished_ns:
                return
            self._landing = len(self._answers)
            for layer in range(self._landing, len(self.cache.parts)):
                self._answer(layer, 0, reason)
            self._good, self._reason = 0, reason
            self._finish()

    def _finish(self) -> None:
        self._finished_ns = _boot_ns()
        if self._timer is not None:
            self._timer.cancel()
        self._disk.running.discard(self)
        if self._landing is None and self._pages is None:
            for extent, _ in self._places:
                extent.in_ram = True
        if self._landing is None or self._pages is None:
            self.drained.finish()
        self._counts["failed_blocks"] = len(self._names) - self._good
        self.cache.note_load(self._counts, self._reason)

    def cancel(self) -> None:
        if not self.closed:
            self.end("cancelled")

    def release(self, layer: int) -> None:
        with self._disk.lock:
            for _, _, cells in self._spans.pop(layer, ()):
                cells[:] = bytes([RELEASED]) * len(cells)

    def close(self) -> None:
        self.end("cancelled")
        self.closed = True
        for layer in list(self._spans):
            self.release(layer)

    def __del__(self) -> None:
        if not self.closed:
            self.close()

    # ------------------------------------------------------------------------------- questions

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError("the load is closed")

    def layer_ticket(self, layer: int) -> FakeTicket:
        self._check_open()
        return self._tickets[layer]

    def layer(self, layer: int) -> Answer | None:
        self._check_open()
        return self._answers[layer] if layer < len(self._answers) else None

    def span(self, layer: int, index: int, cell_bytes: int) -> tuple[int, int, memoryview] | None:
        self._check_open()
        spans = self._spans.get(layer, [])
        if index >= len(spans):
            return None
        first, blocks, cells = spans[index]
        return first, blocks, memoryview(cells).toreadonly()

    def block(self) -> memoryview:
        self._check_open()
        cells = [self._cell(layer, 0) for layer in range(len(self.cache.parts))]
        return memoryview(b"".join(cells))

    def stats(self) -> dict[str, int]:
        self._check_open()
        times = {"opened_ns": self._opened_ns, "finished_ns": self._finished_ns}
        return self._counts | times


class FakePages:
    """Caller memory, addressed as struct kvs_into of csrc/kvs.h says."""

    def __init__(
        self, parts: list[tuple[int, ...]], targets: bytes, page_tokens: int, table: bytes | None,
        block_tokens: int,
    ) -> None:  # fmt: skip
        self._parts = parts
        packed = struct.iter_unpack("=QQ", targets)
        self._targets = [[next(packed) for _ in sizes] for sizes in parts]
        self._page_tokens = page_tokens
        self._table = None if table is None else memoryview(table).cast("i")
        self._block_tokens = block_tokens

    def write(self, layer: int, local: int, cell: bytes) -> None:
        """The cell of the load's block number `local`."""
        at = 0
        pieces = zip(self._parts[layer], self._targets[layer], strict=True)
        for part_bytes, (address, stride) in pieces:
            if address:
                self._write_part(address, stride, local, cell[at : at + part_bytes])
            at += part_bytes

    def _write_part(self, address: int, stride: int, local: int, part: bytes) -> None:
        token_bytes = len(part) // self._block_tokens
        step = min(self._page_tokens, self._block_tokens)
        for token in range(0, self._block_tokens, step):
            page, within = divmod(local * self._block_tokens + token, self._page_tokens)
            number = page if self._table is None else self._table[page]
            if number >= 0:
                piece = part[token * token_bytes : (token + step) * token_bytes]
                ctypes.memmove(address + number * stride + within * token_bytes, piece, len(piece))


def _boot_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)
