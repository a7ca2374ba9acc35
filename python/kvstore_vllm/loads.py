"""Loads of one worker: started together, waited for layer by layer or polled.

Invariants
  1. `wait_layer` returns when every load that this step computes with has that layer verified in
     its pages, or has given the rest up; the load's deadline bounds it.
  2. A load is over only when it is drained: then nothing writes its pages any more.
  3. Whatever goes wrong is a number of leading good blocks; nothing raises for data.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable

from kvstore import Cache, KvstoreError, Layer, Load
from kvstore_vllm.messages import LoadOrder
from kvstore_vllm.pages import PART, EnginePages

DRAIN_S = 30.0  # far more than any copy takes: reads never write pages themselves

_log = logging.getLogger(__name__)


class Loading:
    """One load into the pages of one request. `good`: leading blocks that may still be right;
    `reason`: why not all are."""

    def __init__(self, cache: Cache, pages: EnginePages, order: LoadOrder, deadline: float | str):
        self.order = order
        self.good = len(order.block_ids)
        self.told = self.good  # what others know of `good`
        self.reason: str | None = None
        self._pages = pages
        self._next = 0  # first layer that was not waited for
        self._load: Load | None = None
        try:
            into = pages.target(order.block_ids)
            self._load = cache.load(order.hit.of(cache.layout), into=into, deadline=deadline)
        except (KvstoreError, OSError, ValueError) as error:
            self._lose(0, str(error))

    @property
    def bad_ids(self) -> list[int]:
        """Pages that do not hold what they should."""
        return self.order.block_ids[self.good :]

    def wait(self, layer: int, timeout: float | None = None) -> bool:
        """Until layers up to this one are in the pages, or lost. False when `timeout` passed."""
        while self._next <= layer and self.good and self._load is not None:
            try:
                with self._load.wait(self._next, timeout) as ready:
                    self._copy(ready)
            except TimeoutError:
                return False
            except (KvstoreError, OSError, ValueError) as error:  # the store was closed
                self._lose(0, str(error))
                break
            if ready.blocks < self.good:
                self._lose(ready.blocks, ready.reason or "lost")
            self._next += 1
        return True

    def cancel(self) -> None:
        if self._load is not None:
            self._load.cancel()

    def drained(self, timeout: float) -> bool:
        return self._load is None or self._load.wait_drained(timeout)

    def close(self) -> tuple[int, float]:
        """(bytes that came, seconds that it took). After it was drained."""
        if self._load is None:
            return 0, 0.0
        stats = self._load.stats()
        self._load.close()
        self._load = None
        ended_ns = stats.finished_ns or time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        return stats.disk_bytes + stats.ram_bytes, (ended_ns - stats.opened_ns) / 1e9

    def _lose(self, good: int, reason: str) -> None:
        """Later layers cannot make more blocks good; when none is left the load ends."""
        self.good = good
        self.reason = reason
        if good == 0:
            self.cancel()

    def _copy(self, ready: Layer) -> None:
        """From the pool into pages that the load does not write itself."""
        if not self._pages.through_pool:
            return
        for span, cells in zip(ready.spans, ready.part(PART), strict=True):
            at = span.first_block - self.order.hit.start
            ids = self.order.block_ids[at : at + span.blocks]
            self._pages.scatter(ready.index, ids, cells)


class Loads:
    """All loads of a worker. on_bad: told of pages that turned out bad, once that is known."""

    def __init__(
        self,
        cache: Cache,
        pages: EnginePages,
        *,
        deadline: float | str,
        on_bad: Callable[[LoadOrder, list[int]], None],
    ) -> None:
        self._cache = cache
        self._pages = pages
        self._deadline = deadline
        self._on_bad = on_bad
        self.step: list[Loading] = []
        self._parked: dict[str, Loading] = {}
        self._bad_ids: set[int] = set()
        self._loaded_bytes = 0
        self._load_s = 0.0
        self.counts: Counter[str] = Counter()

    def start(self, orders: Iterable[LoadOrder]) -> None:
        """Submits everything and returns."""
        for order in orders:
            loading = Loading(self._cache, self._pages, order, self._deadline)
            self.counts["loads"] += 1
            if order.waits:
                self.step.append(loading)
            else:
                self._parked[order.request_id] = loading

    def wait_layer(self, layer: int) -> None:
        """For the loads that this step computes with."""
        if not self.step:
            return
        began = time.monotonic()
        for loading in self.step:
            loading.wait(layer)
            self._tell(loading)
        self.counts["layer_wait_us"] += round((time.monotonic() - began) * 1e6)

    def end_step(self) -> None:
        """Ends the step's loads; afterwards none of them writes. RuntimeError: one would not end,
        and its pages cannot be given back."""
        self.wait_layer(self._pages.layers - 1)
        for loading in self.step:
            if not loading.drained(DRAIN_S):
                raise RuntimeError(f"a load does not drain within {DRAIN_S} s")
            self._close(loading)
        self.step.clear()

    def cancel(self, request_id: str) -> None:
        """Of a parked request; it is over, and told by `take_over`, once it is drained."""
        if request_id in self._parked:
            self._parked[request_id].cancel()

    def take_over(self) -> set[str]:
        """Parked requests whose load is over; never waits."""
        over = set()
        for request_id, loading in list(self._parked.items()):
            if not loading.wait(self._pages.layers - 1, 0) or not loading.drained(0):
                continue
            self._tell(loading)
            self._close(loading)
            del self._parked[request_id]
            over.add(request_id)
        return over

    def take_bad_ids(self) -> set[int]:
        """Pages that failed since the last call."""
        bad, self._bad_ids = self._bad_ids, set()
        return bad

    def take_loaded(self) -> tuple[int, float]:
        """(bytes, seconds) of the loads that ended since the last call."""
        taken = self._loaded_bytes, self._load_s
        self._loaded_bytes, self._load_s = 0, 0.0
        return taken

    def close(self) -> None:
        for loading in (*self.step, *self._parked.values()):
            loading.cancel()
            loading.drained(DRAIN_S)
            loading.close()
        self.step.clear()
        self._parked.clear()

    def _tell(self, loading: Loading) -> None:
        if loading.good < loading.told:
            loading.told = loading.good
            self._on_bad(loading.order, loading.bad_ids)

    def _close(self, loading: Loading) -> None:
        nbytes, seconds = loading.close()
        self._loaded_bytes += nbytes
        self._load_s += seconds
        self.counts["loaded_bytes"] += nbytes
        self.counts["loaded_blocks"] += loading.good
        if bad := loading.bad_ids:
            self._bad_ids.update(bad)
            self.counts["lost_blocks"] += len(bad)
            _log.warning(
                "request %s: %d of %d blocks are computed again: %s",
                loading.order.request_id, len(bad), len(loading.order.block_ids), loading.reason,
            )  # fmt: skip
