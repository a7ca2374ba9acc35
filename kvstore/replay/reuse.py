"""What a trace alone says: hits of an endless cache, gaps between uses, how many blocks have to be
kept to keep them for a time, and (stack distances) the hit rate of an LRU of every size at once.

The order is the store's: a request touches its blocks tail first, root last. So the blocks that
were last touched by one request lie in the LRU in chain order, root nearest to the front, and a
chain meets them in runs: for a run last touched by request r the distance of its first block is one
more than the number of blocks touched after r, then one more for each block.

It knows no times to live, no admission and no extents: one block a file. `tests/test_replay.py`
holds it against the store's own LRU.
"""

import math
from array import array
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from kvstore.replay.request import Request

GAP_EDGES_S = (60, 600, 1800, 3600, 86400, 3 * 86400, math.inf)
GAP_NAMES = ("<=1m", "1-10m", "10-30m", "30m-1h", "1h-1d", "1d-3d", ">3d")


class Reuse:
    """Add requests in order of time. Cost: about 40 ns a block, 8 bytes a block of memory, and with
    `curve` some microseconds a request more."""

    def __init__(self, windows_s: Sequence[float] = (), *, curve: bool = False) -> None:
        """windows_s: times, in the trace's clock, to count the blocks used within."""
        self.requests = 0
        self.ideal_tokens = 0
        self.input_tokens = 0
        self.block_refs = 0
        self.unique_blocks = 0
        self.windows = [_Window(seconds) for seconds in windows_s]
        self._last = np.full(1024, -1, dtype=np.int64)  # block -> request that touched it last
        self._times = array("d")  # of each request
        self._alive: list[int] = []  # blocks that this request was the last to touch
        self._gaps, self._gap_tokens = array("d"), array("q")
        self._newer = _Counts() if curve else None
        self._at_distance = np.zeros(1024, dtype=np.int64)  # hit tokens by distance - 1

    def add(self, request: Request) -> None:
        """The next in time. ValueError when its numbers are not those of a chain."""
        blocks, number = request.blocks, self.requests
        self._grow(int(blocks.max(initial=0)) + 1)
        last = self._last[blocks]
        known = int(np.argmax(last < 0)) if (last < 0).any() else len(last)
        if (last[known:] >= 0).any() or (np.diff(last[:known]) > 0).any():
            raise ValueError(f"request {number}: a block was used without what comes before it")
        for window in self.windows:
            window.advance(request.at_s, self._times, self._alive)
        self._count_known(request, last[:known])
        self._last[blocks] = number
        self._times.append(request.at_s)
        self._alive.append(len(blocks))
        for window in self.windows:
            window.grew(len(blocks))
        if self._newer:
            self._newer.append(len(blocks))
        self.requests += 1
        self.input_tokens += request.input_tokens
        self.block_refs += len(blocks)
        self.unique_blocks += len(blocks) - known
        self.ideal_tokens += request.tokens_of(known)

    def _count_known(self, request: Request, last: npt.NDArray[np.int64]) -> None:
        """Run by run of blocks with the same last use."""
        ends = [*(np.flatnonzero(np.diff(last)) + 1).tolist(), len(last)] if len(last) else []
        start = 0
        for end in ends:
            before = int(last[start])
            tokens = request.tokens_of(end) - request.tokens_of(start)
            self._gaps.append(request.at_s - self._times[before])
            self._gap_tokens.append(tokens)
            if self._newer:
                self._count_distances(request, start, end, self._newer.after(before))
            self._alive[before] -= end - start
            for window in self.windows:
                window.moved(before, end - start)
            if self._newer:
                self._newer.add(before, start - end)
            start = end

    def _count_distances(self, request: Request, start: int, end: int, newer: int) -> None:
        """Blocks of this request that were counted already are no longer among the newer ones, but
        they lie in front of the run: the chain is met root first."""
        first = newer + start
        while first + end - start > len(self._at_distance):
            more = np.zeros_like(self._at_distance)
            self._at_distance = np.concatenate([self._at_distance, more])
        self._at_distance[first : first + end - start] += request.block_tokens
        spare = end * request.block_tokens - request.tokens_of(end)
        self._at_distance[first + end - start - 1] -= spare  # of a partial block

    def _grow(self, blocks: int) -> None:
        while blocks > len(self._last):
            self._last = np.concatenate([self._last, np.full_like(self._last, -1)])

    # ---- answers -----------------------------------------------------------------------------

    @property
    def duration_s(self) -> float:
        return self._times[-1] - self._times[0] if self._times else 0.0

    @property
    def ideal_rate(self) -> float:
        """Of the input tokens, with room for everything, for ever."""
        return self.ideal_tokens / max(1, self.input_tokens)

    def hit_rate_at(self, capacity_blocks: int) -> float:
        """Of the input tokens, by an LRU of that many blocks. Needs `curve`."""
        assert self._newer is not None, "made without curve"
        return int(self._at_distance[:capacity_blocks].sum()) / max(1, self.input_tokens)

    def gap_quantiles_s(self, quantiles: Sequence[float]) -> list[float]:
        """Of the times between two uses, each weighted by its tokens; [] without any."""
        if not self._gaps:
            return []
        gaps, tokens = np.array(self._gaps), np.array(self._gap_tokens, dtype=np.float64)
        order = np.argsort(gaps, kind="stable")
        shares = np.cumsum(tokens[order]) / max(1.0, tokens.sum())
        at = np.minimum(np.searchsorted(shares, quantiles), len(gaps) - 1)
        return [float(gap) for gap in gaps[order][at]]

    def gap_shares(self) -> dict[str, float]:
        """Of the tokens used again, by the time since the last use."""
        gaps, tokens = np.array(self._gaps), np.array(self._gap_tokens, dtype=np.float64)
        counts = np.zeros(len(GAP_NAMES))
        np.add.at(counts, np.searchsorted(GAP_EDGES_S, gaps), tokens)
        return dict(zip(GAP_NAMES, (counts / max(1.0, tokens.sum())).tolist(), strict=True))


class _Window:
    """The number of different blocks used within the last `seconds`, and its peak."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.blocks = 0
        self.peak_blocks = 0
        self.left = False  # something was not used for so long
        self._first = 0  # the eldest request within

    def advance(self, now_s: float, times: Sequence[float], alive: Sequence[int]) -> None:
        while self._first < len(times) and times[self._first] <= now_s - self.seconds:
            self.blocks -= alive[self._first]
            self.left = self.left or alive[self._first] > 0
            self._first += 1

    def moved(self, request: int, blocks: int) -> None:
        """So many blocks that `request` touched last are touched again."""
        if request >= self._first:
            self.blocks -= blocks

    def grew(self, blocks: int) -> None:
        self.blocks += blocks
        self.peak_blocks = max(self.peak_blocks, self.blocks)


class _Counts:
    """A count for each request, and the sum over all later ones, in log time (a Fenwick tree)."""

    def __init__(self) -> None:
        self._tree = [0]
        self._total = 0

    def append(self, count: int) -> None:
        """The tree node of i sums the counts (i - lowest bit of i, i]."""
        at = len(self._tree)
        node, child = count, at - 1
        while child > at - (at & -at):
            node += self._tree[child]
            child -= child & -child
        self._tree.append(node)
        self._total += count

    def add(self, number: int, count: int) -> None:
        at = number + 1
        while at < len(self._tree):
            self._tree[at] += count
            at += at & -at
        self._total += count

    def after(self, number: int) -> int:
        at, upto = number + 1, 0
        while at > 0:
            upto += self._tree[at]
            at -= at & -at
        return self._total - upto
