"""Whole chunks of an engine's memory tier, to kvstore and back, without waiting. Knows no vLLM.

A chunk is one row of the tier's memory: some tokens, all layers and ranks, opaque. It is stored as
an extent of its own under its own key, since the engine asks for chunks one by one.

Invariants
  1. A job that reads memory is over when its commit is: no source is touched any more. A job that
     writes memory is over when its load is drained, also when it failed long before.
  2. Every job is reported once, whatever happened to it.
  3. A chunk that could not be loaded is not offered to the same request again.

One thread calls all of it.
"""

import logging
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from kvstore import Cache, Chain, Hit, KvstoreError, Load, Pages

PART = "chunk"
PIECE_BYTES = 16 << 20  # of a row: what a cell may have is limited, and the pool must hold one
SAY_AGAIN_S = 10  # while a drain waits for a device

_log = logging.getLogger("kvstore")
Rows = npt.NDArray[np.uint8]


def parts_of_row(row_bytes: int) -> tuple[tuple[tuple[str, int], ...], ...]:
    """For a layout: a row is cut into pieces, and each stands where a layer would."""
    sizes = [min(PIECE_BYTES, row_bytes - at) for at in range(0, row_bytes, PIECE_BYTES)]
    return tuple(((PART, size),) for size in sizes)


@dataclass(frozen=True)
class Finished:
    """A job that is over. good: how many of its leading keys were stored, or loaded."""

    job_id: int
    is_load: bool
    keys: Sequence[bytes]
    good: int
    nbytes: int
    seconds: float


class Commit(Protocol):
    """What `Writer.begin_commit` gives."""

    @property
    def done(self) -> bool: ...
    def wait(self, timeout: float | str | None = None) -> int: ...


@dataclass(frozen=True)
class _Job:
    job_id: int
    keys: Sequence[bytes]
    request: str | None  # None: it stores
    work: Load | Commit | None  # None: it could not even begin
    began_s: float = field(default_factory=time.monotonic)

    @property
    def over(self) -> bool:
        if isinstance(self.work, Load):
            return self.work.wait_drained(0)
        return self.work is None or self.work.done

    def wait(self, seconds: float) -> bool:
        if isinstance(self.work, Load):
            return self.work.wait_drained(seconds)
        if self.work is not None and not self.work.done:
            try:
                self.work.wait(seconds)
            except TimeoutError:
                return False
            except (KvstoreError, OSError):
                return True
        return True


@dataclass
class _Request:
    """asked_s: when a chunk was first asked for, while it is not known whether it is there."""

    failed: set[bytes] = field(default_factory=set)
    asked_s: dict[bytes, float] = field(default_factory=dict)


class Chunks:
    """rows: the tier's memory, uint8 [rows, bytes], bytes of a row as the cache's layout has them
    (`parts_of_row`).

    deadline: of a load, in seconds. lookup_timeout: how long a request is asked to come back while
    names are walked on disk; then the chunk is a miss.
    """

    def __init__(
        self,
        cache: Cache,
        rows: Rows,
        *,
        deadline: float = 10.0,
        lookup_timeout: float = 1.0,
        retain: str | None = None,
    ) -> None:
        self._cache = cache
        self._deadline = deadline
        self._lookup_timeout = lookup_timeout
        self._retain = retain
        self._pieces = list(_pieces_of(rows, cache.layout.layers))
        self._jobs: list[_Job] = []
        self._requests: defaultdict[str | None, _Request] = defaultdict(_Request)

    # ------------------------------------------------------------------------------- look up

    def look_up(self, key: bytes, request: str) -> bool | None:
        """Whether the chunk can be loaded; None: it is being looked for, ask again."""
        hit = self._cache.match(self._chain([key]))
        if hit.blocks:
            return key not in self._requests[request].failed
        if not hit.pending:
            return False
        asked_s = self._requests[request].asked_s
        if key not in asked_s:
            asked_s[key] = time.monotonic()
            # It begins to walk names, and does not wait for them.
            return self._cache.find_blocking(self._chain([key]), timeout=0).blocks > 0 or None
        return None if time.monotonic() - asked_s[key] < self._lookup_timeout else False

    def touch(self, keys: Iterable[bytes]) -> None:
        """They were used, if only in memory: those that are on disk are renewed."""
        self._cache.writer(self._chain(list(keys)), retain=self._retain).abort()

    def forget(self, request: str) -> None:
        """The request is over; its jobs go on."""
        self._requests.pop(request, None)

    # ---------------------------------------------------------------------------------- jobs

    def store(self, job_id: int, keys: Sequence[bytes], rows: Sequence[int]) -> None:
        """Copies the rows to disk, those that are not there. They must stay as they are until the
        job is reported."""
        self._jobs.append(_Job(job_id, keys, None, self._write(keys, rows)))

    def load(self, job_id: int, keys: Sequence[bytes], rows: Sequence[int], request: str) -> None:
        """Fills the rows. They belong to the load until the job is reported."""
        self._jobs.append(_Job(job_id, keys, request, self._read(keys, rows)))

    def finished(self) -> Iterator[Finished]:
        """Every job that is over and was not reported yet."""
        over = [job for job in self._jobs if job.over]
        self._jobs = [job for job in self._jobs if job not in over]
        return map(self._report, over)

    @property
    def busy(self) -> bool:
        return bool(self._jobs)

    def drain(self) -> None:
        """Blocks until every job is over. Loads end at their deadline; a device that never gives a
        read back is waited for, since the memory is its until then."""
        for job in self._jobs:
            while not job.wait(SAY_AGAIN_S):
                age = time.monotonic() - job.began_s
                _log.warning("job %d of %d chunks: %.0f s old", job.job_id, len(job.keys), age)

    def cancel(self) -> None:
        """Ends loads; they are over when they are drained."""
        for job in self._jobs:
            if isinstance(job.work, Load):
                job.work.cancel()

    def close(self) -> None:
        """Lets go of the memory. Jobs that are not reported never will be."""
        for job in self._jobs:
            if isinstance(job.work, Load):
                job.work.close()
        self._jobs.clear()
        self._pieces.clear()

    def _write(self, keys: Sequence[bytes], rows: Sequence[int]) -> Commit | None:
        try:
            with self._cache.writer(self._chain(keys), retain=self._retain) as writer:
                for piece, memory in enumerate(self._pieces):
                    for number, row in enumerate(rows):
                        writer.put(piece, (number, number + 1), [memory[row : row + 1]])
                return writer.begin_commit()
        except (KvstoreError, OSError) as error:
            _log.warning("%d chunks are not stored: %s", len(keys), error)
            return None

    def _read(self, keys: Sequence[bytes], rows: Sequence[int]) -> Load | None:
        hit = Hit(
            namespace=self._cache.namespace,
            start=0,
            blocks=len(keys),
            block_tokens=self._cache.layout.block_tokens,
            reason=None,
            keys=self._chain(keys).keys,
        )
        into = Pages([{PART: memory} for memory in self._pieces], block_table=list(rows))
        try:
            return self._cache.load(hit, into=into, deadline=self._deadline)
        except (KvstoreError, OSError) as error:
            _log.warning("%d chunks are not loaded: %s", len(keys), error)
            return None

    def _report(self, job: _Job) -> Finished:
        good = _loaded(job.work) if isinstance(job.work, Load) else _stored(job.work)
        if job.request in self._requests:
            self._requests[job.request].failed.update(job.keys[good:])
        return Finished(
            job_id=job.job_id,
            is_load=job.request is not None,
            keys=job.keys,
            good=good,
            nbytes=good * self._cache.layout.block_bytes,
            seconds=time.monotonic() - job.began_s,
        )

    def _chain(self, keys: Sequence[bytes]) -> Chain:
        """The engine's keys end with 4 bytes that tell groups of layers apart."""
        own = [self._cache.wrap([key[:-4]], salt=key[-4:]).keys for key in keys]
        return Chain(b"".join(own), self._cache.layout.block_tokens)


def _pieces_of(rows: Rows, count: int) -> Iterator[Rows]:
    """The columns of each piece, as `parts_of_row` cuts them."""
    for piece in range(count):
        yield rows[:, piece * PIECE_BYTES : (piece + 1) * PIECE_BYTES]


def _loaded(load: Load) -> int:
    with load:
        return load.wait(load.layout.layers - 1, timeout=0).blocks


def _stored(commit: Commit | None) -> int:
    if commit is None:
        return 0
    try:
        return commit.wait(0)
    except (KvstoreError, OSError) as error:
        _log.warning("chunks are not stored: %s", error)
        return 0
