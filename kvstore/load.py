"""A running load: layers arrive in order, each verified before it is delivered.

Invariants
  1. Data trouble never raises: a layer says how many leading blocks are good in layers 0..i, and
     why not more. What is below that count stays valid whatever happens later.
  2. Cancel, timeout, close and garbage collection end waiting, never the core's duty: caller memory
     is referred to from before the load starts until the drained ticket is done (`_core.Load`).
  3. No view is handed out for a released layer. Views handed out before are then invalid: their
     memory stays mapped, but its bytes are reused.
"""

import time
from collections.abc import AsyncIterator, Generator, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from kvstore import _core
from kvstore._loop import Bridges, readable
from kvstore.hit import Lease
from kvstore.layout import Layout
from kvstore.pages import Pages
from kvstore.tracing import LoadSpan
from kvstore.units import timeout_ns


class LoadStats(msgspec.Struct, frozen=True, kw_only=True):
    """reads: operations sent to the device. Bytes are of cells. *_ns: boot clock, 0: running."""

    reads: int
    disk_bytes: int
    ram_bytes: int
    direct_bytes: int
    bounced_bytes: int
    failed_blocks: int
    opened_ns: int
    finished_ns: int


@dataclass(frozen=True)
class Span:
    """Cells [blocks, cell_bytes] of consecutive blocks from first_block (absolute); read-only."""

    first_block: int
    blocks: int
    cells: npt.NDArray[np.uint8]


class Layer:
    """One delivered layer. A context manager that releases it."""

    def __init__(
        self, load: "Load", index: int, blocks: int, reason: str | None, spans: int, ready_ns: int
    ):
        self.index = index
        self.blocks = blocks  # leading blocks good in layers 0..index, counted from load.start
        self.reason = reason  # of the block that ended them; None when all are good
        self.ready_ns = ready_ns  # CLOCK_BOOTTIME when it was verified
        self._load = load
        self._span_count = spans
        self._spans: list[Span] | None = None

    @property
    def released(self) -> bool:
        return self.index in self._load.released

    @property
    def reasons(self) -> dict[int, str]:
        """Absolute number of the block that ended the prefix -> why; empty when all are good."""
        return {} if self.reason is None else {self._load.start + self.blocks: self.reason}

    @property
    def spans(self) -> list[Span]:
        """The good blocks in the pool, in order, without a copy. Empty with caller memory.

        ValueError after release.
        """
        if self.released:
            raise ValueError(f"layer {self.index} was released: its memory is reused")
        if self._spans is None:
            self._spans = list(self._load.spans(self.index, self.blocks, self._span_count))
        return self._spans

    def part(self, name: str) -> list[npt.NDArray[np.uint8]]:
        """The part's bytes, one strided view [blocks, part_bytes] per span, without a copy."""
        offset, part_bytes = self._load.layout.part(self.index, name)
        return [span.cells[:, offset : offset + part_bytes] for span in self.spans]

    def gather(self, name: str, dtype: npt.DTypeLike = np.uint8) -> npt.NDArray[Any]:
        """The part as one contiguous array [blocks, part_bytes / itemsize of dtype]: one copy.

        The copy is the caller's; it stays valid after release.
        """
        if self._load.into is not None:
            raise ValueError("the cells of this load are in the memory given as `into`")
        _, part_bytes = self._load.layout.part(self.index, name)
        out = np.empty((self.blocks, part_bytes), dtype=np.uint8)
        for span, view in zip(self.spans, self.part(name), strict=True):
            at = span.first_block - self._load.start
            out[at : at + span.blocks] = view
        return out.view(dtype)

    def release(self) -> None:
        """Gives the layer's memory back to the pool. Idempotent. Views of it are invalid then."""
        self._spans = None
        self._load.release(self.index)

    def __enter__(self) -> "Layer":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __repr__(self) -> str:
        why = f", {self.reason}" if self.reason else ""
        return f"<Layer {self.index}: {self.blocks} of {self._load.blocks} blocks{why}>"


class Load:
    """Reads the blocks of a lease, layer after layer. Made by `Cache.load`; returns at once.

    `await load.layer(i)`, `async for layer in load`, or blocking `load.wait(i)`, `for layer in
    load`. Close it (or use it as a context manager, either kind) when done.
    """

    def __init__(
        self,
        lease: Lease,
        layout: Layout,
        bridges: Bridges,
        *,
        into: Pages | None,
        flags: int = 0,
        deadline_ns: int,
        owns_lease: bool = False,
        span: LoadSpan | None = None,
    ) -> None:
        self.layout = layout
        self.lease = lease
        self.into = into
        self.start = lease.hit.start
        self.blocks = lease.hit.blocks
        self._bridges = bridges
        self.released: set[int] = set()
        self._owns_lease = owns_lease
        self._layerwise = flags == 0
        self._span = span
        self._newest = -1  # highest layer known to be ready, and its good blocks
        self._good = self.blocks
        self._tickets: dict[int, _core.Ticket] = {}
        self._drained_queue: _core.Queue | None = None
        targets, page_tokens, owners = (
            (None, 0, []) if into is None else into.targets(layout, self.start, self.blocks)
        )
        table = None if into is None or into.table is None else into.table.tobytes()
        self.core = lease.core.load(
            targets=targets,
            page_tokens=page_tokens,
            table=table,
            owners=owners,
            flags=flags,
            deadline_ns=deadline_ns,
        )

    # ------------------------------------------------------------------------------- layers

    async def layer(self, index: int, timeout: float | str | None = None) -> Layer:
        """Waits until layers 0..index are verified or given up. Never raises for data.

        TimeoutError when `timeout` passes before the load's own deadline; the load goes on. A load
        that is closed meanwhile gives no blocks, reason "cancelled"; one that is closed already is
        a ValueError.
        """
        ready = self._ready(index)
        if ready is None:
            began_ns = time.monotonic_ns()
            in_time = await self._bridges.wait(self._ticket(index), timeout_ns(timeout))
            self._note_wait(began_ns)
            if not in_time:
                raise TimeoutError(f"layer {index} is not ready yet")
            ready = self._awaited(index)
        return ready

    def wait(self, index: int, timeout: float | str | None = None) -> Layer:
        """The same, blocking the thread without the GIL."""
        ready = self._ready(index)
        if ready is None:
            began_ns = time.monotonic_ns()
            in_time = self._ticket(index).wait(timeout_ns(timeout))
            self._note_wait(began_ns)
            if not in_time:
                raise TimeoutError(f"layer {index} is not ready yet")
            ready = self._awaited(index)
        return ready

    async def __aiter__(self) -> AsyncIterator[Layer]:
        for index in range(self.layout.layers):
            layer = await self.layer(index)
            try:
                yield layer
            finally:
                layer.release()

    def __iter__(self) -> Iterator[Layer]:
        for index in range(self.layout.layers):
            with self.wait(index) as layer:
                yield layer

    @property
    def failed_blocks(self) -> range:
        """Absolute numbers of the blocks known to be lost so far: those after the good prefix."""
        while not self.core.closed and self._newest + 1 < self.layout.layers:
            if self._ready(self._newest + 1) is None:
                break
        return range(self.start + self._good, self.start + self.blocks)

    def _note_wait(self, began_ns: int) -> None:
        """Waits of get and prefetch are for all of a block, not for a layer."""
        if self._layerwise:
            self.core.cache.store.note_layer_wait(time.monotonic_ns() - began_ns)

    def _ticket(self, index: int) -> _core.Ticket:
        """One object per layer: the core's ticket sends to one queue, its waiters share it."""
        if index not in self._tickets:
            self._tickets[index] = self.core.layer_ticket(index)
        return self._tickets[index]

    def _ready(self, index: int) -> Layer | None:
        if not 0 <= index < self.layout.layers:
            raise IndexError(f"the layout has {self.layout.layers} layers, no layer {index}")
        answer = self.core.layer(index)
        if answer is None:
            return None
        blocks, reason, spans, ready_ns = answer
        self._newest = max(self._newest, index)
        self._good = min(self._good, blocks)
        return Layer(self, index, blocks, reason, spans, ready_ns)

    def _awaited(self, index: int) -> Layer:
        """The layer whose ticket is done; nothing of it when the load was closed meanwhile."""
        try:
            ready = self._ready(index)
        except ValueError:
            if not self.core.closed:
                raise
            return Layer(self, index, 0, "cancelled", spans=0, ready_ns=0)
        assert ready is not None
        return ready

    def spans(self, layer: int, good: int, count: int) -> Iterator[Span]:
        """The good blocks of a layer that is ready; `Layer.spans` keeps them."""
        cell_bytes = self.layout.cell_bytes(layer)
        end = self.start + good
        for index in range(count if cell_bytes else 0):
            found = self.core.span(layer, index, cell_bytes)
            if found is None:
                raise ValueError(f"layer {layer} was released: its memory is reused")
            first, blocks, view = found
            blocks = min(blocks, end - first)
            if blocks > 0:
                cells = np.frombuffer(memoryview(view), dtype=np.uint8)[: blocks * cell_bytes]
                yield Span(first, blocks, cells.reshape(blocks, cell_bytes))

    # --------------------------------------------------------------------------------- ends

    def release(self, layer: int) -> None:
        """What `Layer.release` does."""
        self.released.add(layer)
        self.core.release(layer)

    def cancel(self) -> None:
        """Ends the load at once: layers not ready get reason "cancelled". Memory: see `drained`."""
        self.core.cancel()

    @property
    def drained(self) -> "Drained":
        """Awaitable: done when no read or copy can write caller memory any more.

        A device that never answers keeps its reads, and with them this, for ever: see `io_timeout`.
        """
        return Drained(self)

    def wait_drained(self, timeout: float | str | None = None) -> bool:
        """The same, blocking. False when `timeout` passed first."""
        return self.core.drained.wait(timeout_ns(timeout))

    def drained_fd(self) -> int:
        """A file descriptor that becomes readable, and stays so, once drained. The load's own."""
        if self._drained_queue is None:
            queue = self.core.cache.store.queue()
            self.core.drained.send(queue, 0)
            self._drained_queue = queue
        return self._drained_queue.fd()

    def stats(self) -> LoadStats:
        """Counters so far. ValueError after close."""
        return LoadStats(**self.core.stats())

    def close(self) -> None:
        """Cancels what is left and releases every layer. Idempotent; never waits."""
        if self.core.closed:
            return
        try:
            if self._span is not None:
                self._span.end(self)
        finally:
            self.core.close()
        if self._owns_lease:
            self.lease.release()
        _core.sweep()

    def __enter__(self) -> "Load":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> "Load":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


class Drained:
    """`await load.drained`; may be awaited many times."""

    def __init__(self, load: Load) -> None:
        self._load = load

    def __await__(self) -> Generator[Any, None, None]:
        return self._wait().__await__()

    async def _wait(self) -> None:
        """By the load's own fd, so that any number of tasks and loops may wait."""
        if not self._load.wait_drained(0):
            await readable(self._load.drained_fd())
