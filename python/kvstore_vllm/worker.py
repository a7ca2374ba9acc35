"""The connector's side in a worker: its pages, its store, one step after the other.

Order within a step: `begin_step`, `start_loads`, per layer `wait_layer` and `save_layer`,
`end_step`, then what is told; but `end_step` comes last when a draft model runs after what is told
(speculative decoding). Knows nothing of vLLM's classes.
"""

import atexit
import logging
from collections import Counter

from kvstore import Layout
from kvstore_vllm import shared
from kvstore_vllm.identity import strangers
from kvstore_vllm.loads import Loading, Loads
from kvstore_vllm.messages import LoadOrder, StepOrders, WorkerNews
from kvstore_vllm.options import Options
from kvstore_vllm.pages import EnginePages
from kvstore_vllm.saves import Saves

_log = logging.getLogger(__name__)


class Worker:
    """saves: whether this rank writes (of several with the same pages one does)."""

    def __init__(self, options: Options, *, saves: bool, owner: bool) -> None:
        self.options = options
        self.store = shared.acquire(
            options, role=options.role if owner or options.role != "owner" else "peer",
            pool=options.pool,
        )  # fmt: skip
        self._saving = saves
        self._closed = False
        self.layout: Layout | None = None
        # After the store's own, so before it: an engine that is not shut down still commits.
        atexit.register(self.close)

    def attach(self, pages: EnginePages, layout: Layout) -> None:
        """The engine's memory is there: from now on it can be loaded into and saved from."""
        cache = self.store.cache(layout)
        self.layout = layout
        self.pages = pages
        self._saves = Saves(
            cache, pages, retain=self.options.retain, writes=self._saving,
            buffer_bytes=self.options.save_buffer_bytes,
        )  # fmt: skip
        self._loads = Loads(cache, pages, deadline=self.options.deadline, on_bad=self._saves.on_bad)
        for line in strangers(self.options.paths, layout):
            _log.info("blocks of this model are no hits here: %s", line)

    # ---------------------------------------------------------------------------- one step

    def begin_step(self, orders: StepOrders) -> None:
        self._orders = orders
        for request_id in orders.ended:
            self._loads.cancel(request_id)
        self._saves.begin_step(orders)

    @property
    def ordered_loads(self) -> list[LoadOrder]:
        """Of this step."""
        return self._orders.loads

    @property
    def loading(self) -> list[Loading]:
        """Loads that this step computes with."""
        return self._loads.step

    def start_loads(self) -> None:
        """Submits all loads of the step and returns."""
        self._loads.start(self._orders.loads)

    def wait_layer(self, name: str) -> None:
        """Until the layer's blocks are verified in their pages, or given up."""
        self._loads.wait_layer(self.pages.index_of[name])

    def save_layer(self, name: str) -> None:
        self._saves.save_layer(self.pages.index_of[name])

    def end_step(self) -> None:
        self._loads.end_step()
        self._saves.end_step()

    # ------------------------------------------------------------------------ what is told

    def parked_over(self) -> set[str]:
        """Parked requests whose load is over, well or not."""
        return self._loads.take_over()

    def bad_pages(self) -> set[int]:
        """Of all loads that this step computed with: a later answer would come after its tokens."""
        self._loads.end_step()
        return self._loads.take_bad_ids()

    def news(self) -> WorkerNews:
        """For the scheduler, once a step: also when nothing happened, it learns which one ended."""
        spoiled = self._saves.take_spoiled()
        loaded, seconds = self._loads.take_loaded()
        number = self._orders.number
        return WorkerNews(number, spoiled=spoiled, loaded_bytes=loaded, load_s=seconds)

    def wait_saved(self, timeout: float = 60.0) -> None:
        """Until what was committed so far can be hit; for tests and for who shuts down."""
        self._saves.wait_saved(timeout)

    def counts(self) -> Counter[str]:
        """Counters since the last call."""
        counts = self._loads.counts + self._saves.counts
        self._loads.counts.clear()
        self._saves.counts.clear()
        return counts

    def close(self) -> None:
        """Commits what was put and lets the store go. Idempotent."""
        atexit.unregister(self.close)
        if self._closed:
            return
        self._closed = True
        if self.layout is not None:
            self._loads.close()
            self._saves.close()
        shared.release(self.store)
