"""The work that every peer does: which values, their bytes, the memory they go to, the checks.

Not here: how a peer stores or reads. Needs NumPy only, because it runs in every peer's environment.
Invariants: the bytes of a value depend on its generation and index only; every peer reads into as
much memory of the same kind; a wrong byte raises.
"""

import mmap
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

PAGE = 4096
HUGE_PAGE = 1 << 21
GENERATIONS = 64  # 0 is loaded again and again; each put that is timed makes a new one
KEYS_IN_FLIGHT = 32
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Work:
    """`blocks` blocks of `layers` cells. A value is a block, or with by_layer one of its cells;
    value i is then block i % blocks of layer i // blocks."""

    name: str
    cell_bytes: int
    layers: int
    blocks: int
    by_layer: bool = False

    @property
    def values(self) -> int:
        return self.blocks * (self.layers if self.by_layer else 1)

    @property
    def value_bytes(self) -> int:
        return self.cell_bytes * (1 if self.by_layer else self.layers)

    @property
    def slot_bytes(self) -> int:
        """What a value takes where O_DIRECT wants whole pages."""
        return padded(self.value_bytes)

    @property
    def nbytes(self) -> int:
        return self.values * self.value_bytes


@dataclass(frozen=True)
class Setup:
    """huge: the best documented mode, buffers on huge pages; else the peer as it is shipped."""

    folder: Path
    work: Work
    source: "Source"
    huge: bool


@dataclass(frozen=True)
class Facts:
    """What is printed beside a peer's figures. buffered: it reads through the page cache."""

    settings: dict[str, Any]
    lacks: str
    buffered: bool = False
    versions: dict[str, str] = field(default_factory=dict)


class Peer(Protocol):
    """One peer at one work. Every call returns when its work is done; trouble raises."""

    facts: Facts

    def put(self, generation: int, count: int) -> None:
        """Stores values [0, count); on return they can be loaded."""

    def load(
        self, generation: int, batches: Sequence[Sequence[int]], ready: Callable[[int], None]
    ) -> None:
        """Brings values into memory, batch after batch. Calls ready(i) once batches 0..i are there;
        may work ahead of it."""

    def value(self, index: int) -> Any:
        """Buffer of at least value_bytes: value `index` of the last load."""

    def forget(self) -> None:
        """Drops what the peer itself keeps in memory, and maps."""

    def delete(self, generation: int, count: int) -> None: ...

    def close(self) -> None: ...


def padded(nbytes: int) -> int:
    return -(-nbytes // PAGE) * PAGE


def memory(nbytes: int, *, huge: bool) -> Bytes:
    """Zeroed private memory, faulted in, at a 2 MiB boundary; on huge pages where they are to be
    had and `huge` asks for them."""
    room = mmap.mmap(
        -1, padded(nbytes) + 2 * HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    )
    if huge:
        room.madvise(mmap.MADV_HUGEPAGE)
    array = np.frombuffer(room, dtype=np.uint8)
    start = -array.ctypes.data % HUGE_PAGE
    array = array[start : start + padded(nbytes)]
    array[::PAGE] = 0
    return array


class Source:
    """The bytes of all values: windows of one random array that overlap, so it stays small. No two
    begin at the same place."""

    def __init__(self, work: Work, *, huge: bool) -> None:
        self.work = work
        # From one block to the next; each value begins at a page, as O_DIRECT wants it.
        self.step = padded(work.cell_bytes) + (work.layers * PAGE if work.by_layer else 0)
        rows = work.blocks + GENERATIONS
        self.bytes = memory(rows * self.step + padded(work.cell_bytes * work.layers), huge=huge)
        random = np.random.default_rng(0)
        for start in range(0, self.bytes.size, HUGE_PAGE):
            part = self.bytes[start : start + HUGE_PAGE]
            part[:] = random.integers(0, 256, part.size, dtype=np.uint8)

    def cell_offset(self, generation: int, layer: int, block: int) -> int:
        """Cells of a whole block follow each other; cells of a layer lie `step` apart."""
        next_layer = PAGE if self.work.by_layer else self.work.cell_bytes
        return (generation % GENERATIONS + block) * self.step + layer * next_layer

    def offset(self, generation: int, index: int) -> int:
        layer, block = divmod(index, self.work.blocks) if self.work.by_layer else (0, index)
        return self.cell_offset(generation, layer, block)

    def value(self, generation: int, index: int) -> Bytes:
        """Exactly value_bytes."""
        start = self.offset(generation, index)
        return self.bytes[start : start + self.work.value_bytes]

    def slot(self, generation: int, index: int) -> Bytes:
        """The value, and what follows it up to a whole page."""
        start = self.offset(generation, index)
        return self.bytes[start : start + self.work.slot_bytes]


class Slots:
    """Where values are read to: slot i is for value i, at a multiple of 4096."""

    def __init__(self, setup: Setup) -> None:
        self.work = setup.work
        self.bytes = memory(setup.work.values * setup.work.slot_bytes, huge=setup.huge)
        self.address = self.bytes.ctypes.data

    def __getitem__(self, index: int) -> Bytes:
        start = index * self.work.slot_bytes
        return self.bytes[start : start + self.work.slot_bytes]

    def address_of(self, index: int) -> int:
        return self.address + index * self.work.slot_bytes


def file_name(generation: int, index: int) -> str:
    return f"{generation}-{index}"


def batches_of(work: Work, kind: str) -> list[list[int]]:
    """bulk: all in prompt order, known at once. keys: random order, as many at a time as are in
    flight. layers: layer by layer, all blocks of one before the next."""
    everything = list(range(work.values))
    if kind == "bulk":
        return [everything]
    if kind == "layers":
        if not work.by_layer:
            raise ValueError("only values of one layer can be loaded layer by layer")
        return [everything[i : i + work.blocks] for i in range(0, work.values, work.blocks)]
    if kind != "keys":
        raise ValueError(f"no such kind of load: {kind}")
    order = np.random.default_rng(1).permutation(work.values).tolist()
    return [order[i : i + KEYS_IN_FLIGHT] for i in range(0, len(order), KEYS_IN_FLIGHT)]


def on_threads(
    threads: ThreadPoolExecutor,
    read: Callable[[int], None],
    batches: Sequence[Sequence[int]],
    ready: Callable[[int], None],
) -> None:
    """Peer.load for who reads one value a call: all are queued in order, waited for by batch."""
    running = [[threads.submit(read, index) for index in batch] for batch in batches]
    for number, batch in enumerate(running):
        for one in batch:
            one.result()
        ready(number)


def check(source: Source, generation: int, value: Callable[[int], Any], *, whole: bool) -> None:
    """Raises at the first value whose first or last 8 bytes (whole: any byte) are not its own."""
    for index in range(source.work.values):
        found = np.frombuffer(value(index), dtype=np.uint8)[: source.work.value_bytes]
        wanted = source.value(generation, index)
        same = (
            np.array_equal(found, wanted)
            if whole
            else np.array_equal(found[:8], wanted[:8]) and np.array_equal(found[-8:], wanted[-8:])
        )
        if not same:
            raise ValueError(f"value {index} of generation {generation} came back wrong")
