"""What a device gives without a store: raw O_DIRECT reads and writes straight on an I/O engine,
into and from huge-page memory, as the store has it. The denominator of benches.

Verifies and makes nothing: files exist, with the length that the steps need.
"""

import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypedDict

from kvstore import _core

PAGE = 4096
DEPTHS = (8, 16, 32, 64, 128)
_STEP = struct.Struct("=QII")  # struct kvs_raw_step

AnyPath = str | os.PathLike[str]


class Step(NamedTuple):
    """One operation. offset, bytes: multiples of 4096; file: number of its path."""

    file: int
    offset: int
    bytes: int


class Moved(NamedTuple):
    """What a run did; ns from the first submission to the last completion."""

    bytes: int
    steps: int
    ns: int

    @property
    def gbps(self) -> float:
        """1e9 bytes a second."""
        return self.bytes / max(1, self.ns)


class RawIo:
    """Walks the steps round and round, at most depth_max in flight; of the thread that made it.

    memory_bytes: how much memory they use, round and round; 0: each operation in flight has one
    buffer, which stays in the processor's cache and can look much faster than anyone who keeps what
    it reads. engine: as `open` takes it. ValueError, and OSError when a file cannot be opened with
    O_DIRECT or the engine is refused.
    """

    def __init__(
        self,
        paths: Sequence[AnyPath],
        steps: Iterable[Step],
        *,
        writes: bool = False,
        depth_max: int = max(DEPTHS),
        memory_bytes: int = 0,
        engine: str = "auto",
    ) -> None:
        packed = b"".join(_STEP.pack(offset, file, size) for file, offset, size in steps)
        names = [os.fsencode(path) for path in paths]
        self._core = _core.RawIo(names, packed, writes, depth_max, memory_bytes, engine)
        self.engine = self._core.engine
        self.registered = self._core.registered
        self.huge_coverage = self._core.huge_coverage()

    def run(self, depth: int, seconds: float, *, steps: int = 0) -> Moved:
        """Goes on where the last run ended, for so many seconds or steps (0: no such bound).

        OSError of the first operation that failed.
        """
        return Moved(**self._core.run(depth, round(seconds * 1e9), steps))

    def latency_counts(self) -> list[int]:
        """Of single operations in all runs: how many took at most `report.LATENCY_EDGES_S[i]`."""
        return self._core.latency_counts()


def whole_files(paths: Sequence[AnyPath], io_bytes: int) -> Iterator[Step]:
    """One file after the other in pieces of io_bytes; the rest below 4096 bytes is left out."""
    for number, path in enumerate(paths):
        end = os.stat(path).st_size // PAGE * PAGE
        for offset in range(0, end, io_bytes):
            yield Step(number, offset, min(io_bytes, end - offset))


class Ceiling(TypedDict):
    """What raw reads reach. gbps: 1e9 bytes per second, the best of by_depth, at `depth`."""

    gbps: float
    depth: int
    engine: str
    registered: bool
    by_depth: dict[int, float]


def raw_read_ceiling(
    paths: Sequence[AnyPath],
    io_bytes: int,
    depths: Sequence[int] = DEPTHS,
    seconds: float = 0.4,
    memory_bytes: int = 0,
    engine: str = "auto",
) -> Ceiling:
    """The device's ceiling: reads of io_bytes (a multiple of 4096) over the files, round and round,
    `seconds` at each depth. ValueError, OSError as `RawIo`, which explains the rest."""
    if not paths or not depths or io_bytes < 1:
        raise ValueError("a ceiling needs files, depths and a size")
    raw = RawIo(
        paths,
        whole_files(paths, io_bytes),
        depth_max=max(depths),
        memory_bytes=memory_bytes,
        engine=engine,
    )
    by_depth = {depth: raw.run(depth, seconds).gbps for depth in depths}
    best = max(by_depth, key=by_depth.__getitem__)
    return Ceiling(
        gbps=by_depth[best],
        depth=best,
        engine=raw.engine,
        registered=raw.registered,
        by_depth=by_depth,
    )
