"""The connector's side in the scheduler: what is on disk, whether to load it, what to save when.

Invariants
  1. A lookup never waits: it answers, or asks to be asked again, at most for `lookup_timeout`.
  2. At least one token of a request is left to compute.
  3. A request whose load failed is computed: it is not looked up again.
  4. A lease protects what was promised until the request's load is over, or the request is.

Knows nothing of vLLM's classes: requests and scheduler outputs are taken as they come.
"""

import itertools
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvstore import Hit, Layout, Lease
from kvstore.chain import KEY_BYTES
from kvstore_vllm import shared
from kvstore_vllm.chains import Chains
from kvstore_vllm.gate import Gate
from kvstore_vllm.messages import LoadOrder, SaveOrder, StepOrders, WorkerNews
from kvstore_vllm.options import Options

PEER_POOL = "32MB"  # a scheduler without a worker in its process only looks up


@dataclass
class Tracked:
    """One request. saved: blocks before this number are on disk, or were ordered to be saved."""

    request: Any
    asked_s: float | None = None  # when it was first looked up, while names are being walked
    waited: bool = False  # for the names as long as it may, until the engine has room for it
    promised: Hit | None = None
    lease: Lease | None = None
    refused: bool | None = None  # by the gate; asked once, however long the engine has no room
    failed: bool = False
    rewind: bool = False
    stale: bool = False  # the engine dropped its caches while it ran: its pages are of two kinds
    saved: int = 0
    keys_sent: int = 0
    table_sent: int = 0


@dataclass
class _Step:
    """One that was ordered and did not come back yet. waited: requests that it loads for."""

    number: int
    began_s: float
    tokens: int
    loads: bool
    waited: list[str]


class Scheduler:
    """Made before the engine's memory is known; answers "nothing" until `attach`."""

    def __init__(self, options: Options, *, loads: bool, saves: bool) -> None:
        self.options = options
        self.store = shared.acquire(options, role="peer", pool=PEER_POOL)
        self.gate = Gate(
            on=options.gate,
            bytes_per_s=options.load_gbps and options.load_gbps * 1e9,
            tokens_per_s=options.prefill_tps,
            overhead_s=options.request_overhead_s,
        )
        self.counts: Counter[str] = Counter()
        self._loading, self._saving = loads, saves
        self._layouts: list[Layout] = []
        self._tracked: dict[str, Tracked] = {}
        self._orders: list[LoadOrder] = []
        self._ended: list[str] = []
        self._numbers = itertools.count(1)
        self._steps: deque[_Step] = deque()
        self._last_output_s = 0.0
        self._sure = 0
        self._spoiled: frozenset[str] = frozenset()

    def attach(self, layouts: Sequence[Layout], *, own_keys: bool) -> None:
        """layouts: one per rank, equal ones may repeat; a hit is what all of them hold."""
        self._workers = len(layouts)
        self._layouts = list(dict.fromkeys(layouts))
        self._cache = self.store.cache(self._layouts[0])
        self._chains = Chains(self._cache, own=own_keys)
        self._block_tokens = self._layouts[0].block_tokens
        self._block_bytes = sum(layout.block_bytes for layout in layouts)  # that all ranks load

    # ------------------------------------------------------------------------------- look up

    def matched_tokens(self, request: Any, computed_tokens: int) -> int | None:
        """How many tokens after `computed_tokens` would be loaded; None: ask again. Changes nothing
        but what is remembered of the request."""
        if not self._layouts:
            return 0
        tracked = self._tracked.setdefault(request.request_id, Tracked(request))
        tracked.promised = None
        tracked.stale = False
        tracked.keys_sent = tracked.table_sent = 0
        if tracked.failed:
            return 0
        hit = self._look_up(tracked)
        if hit is None:
            return None
        tracked.saved = hit.blocks
        local = computed_tokens // self._block_tokens
        usable = min(hit.blocks, (request.num_tokens - 1) // self._block_tokens)
        if usable <= local or not self._loading:
            return 0
        promised = hit[local:usable]
        if tracked.refused is None:
            nbytes = promised.blocks * self._block_bytes
            tracked.refused = self.gate.refuses(promised.tokens, nbytes)
            self.counts["skips:gate"] += tracked.refused
        if tracked.refused:
            return 0
        tracked.promised = promised
        return promised.tokens

    def _look_up(self, tracked: Tracked) -> Hit | None:
        chain = self._chains.of(tracked.request)
        others = self._layouts[1:]
        hit = self._cache.match(chain, layouts=others)
        if not hit.pending:
            tracked.asked_s = None
            return hit
        now = time.monotonic()
        if tracked.asked_s is None:
            tracked.asked_s = now
            self.counts["lookups"] += 1
            for layout in self._layouts:  # begins to walk; does not wait
                self.store.cache(layout).find_blocking(chain, timeout=0)
            hit = self._cache.match(chain, layouts=others)
        if hit.pending and not tracked.waited:
            if now - tracked.asked_s < self.options.lookup_timeout_s:
                return None
            tracked.waited = True
            self.counts["skips:lookup_timeout"] += 1
        return hit

    def allocated(self, request: Any, block_ids: list[int], external_tokens: int) -> None:
        """The engine has pages for what was promised (or for a part of it)."""
        tracked = self._tracked.get(request.request_id)
        if tracked is None:
            return
        tracked.refused, tracked.asked_s, tracked.waited = None, None, False
        if tracked.promised is None or external_tokens == 0:
            return
        hit = tracked.promised[: external_tokens // self._block_tokens]
        tracked.promised = None
        self._release(tracked)
        tracked.lease = self._cache.lease(hit, owner=request.request_id)
        self._orders.append(
            LoadOrder(
                request_id=request.request_id,
                hit=hit,
                block_ids=list(block_ids[hit.start : hit.end]),
                waits=self.options.mode == "layerwise",
            )
        )
        self.counts["hit_tokens"] += hit.tokens

    # ---------------------------------------------------------------------------- one step

    def orders(self, output: Any) -> StepOrders:
        """For the step that `output` schedules."""
        saves = []
        if self._saving and self._layouts:
            for request_id, tokens in output.num_scheduled_tokens.items():
                tracked = self._tracked.get(request_id)
                if tracked is None or tracked.stale:
                    continue
                if order := self._save_order(tracked, tokens, output):
                    saves.append(order)
        waited = [order.request_id for order in self._orders if order.waits]
        loads = bool(self._orders)
        number = next(self._numbers)
        self._steps.append(
            _Step(number, time.monotonic(), output.total_num_scheduled_tokens, loads, waited)
        )
        orders = StepOrders(
            number,
            sure=self._sure if self._layouts and self._workers > 1 else number,
            spoiled=self._spoiled,
            loads=self._orders,
            saves=saves,
            ended=self._ended,
        )
        self._orders, self._ended, self._spoiled = [], [], frozenset()
        return orders

    def _save_order(self, tracked: Tracked, tokens: int, output: Any) -> SaveOrder | None:
        size = self._block_tokens
        request = tracked.request
        computed = request.num_computed_tokens
        if tracked.rewind:
            tracked.saved = 0  # damage takes a whole file; what is still there is skipped
            tracked.rewind = False
        prompt_blocks = request.num_prompt_tokens // size
        end = (computed + tokens) // size
        if not self.options.save_decode:
            end = min(end, prompt_blocks)
        if end <= tracked.saved:
            return None
        chain = self._chains.of(request)
        end = min(end, len(chain))
        if end <= tracked.saved:
            return None
        (table,) = output.kv_connector_block_state.get_block_ids(request.request_id)
        table = table[: -(-(computed + tokens) // size)]
        order = SaveOrder(
            request_id=request.request_id,
            first=tracked.saved,
            end=end,
            step_from=-(-computed // size),
            prompt_blocks=prompt_blocks,
            keys_from=tracked.keys_sent,
            keys=chain.keys[tracked.keys_sent * KEY_BYTES :],
            table_from=tracked.table_sent,
            table=list(table[tracked.table_sent :]),
        )
        tracked.saved = end
        tracked.keys_sent = len(chain)
        tracked.table_sent = end  # the page after may change
        return order

    def stepped(self, news: WorkerNews) -> None:
        """A step came back. Steps before it that never told anything are over, too."""
        now = time.monotonic()
        while self._steps and self._steps[0].number <= news.number:
            step = self._steps.popleft()
            self._learn(step, now - max(step.began_s, self._last_output_s), news)
            for request_id in step.waited:
                self.loaded(request_id)
        self._last_output_s = now
        self._sure = news.number
        self._spoiled |= news.spoiled
        for request_id in news.spoiled:
            self.failed(request_id)

    def _learn(self, step: _Step, seconds: float, news: WorkerNews) -> None:
        if step.number != news.number:
            return
        if step.waited:
            self.gate.saw_loading_step(step.tokens, news.loaded_bytes, seconds, news.load_s)
        elif news.load_s:
            self.gate.saw_load(news.loaded_bytes, news.load_s)
        elif not step.loads and not news.spoiled:
            self.gate.saw_step(step.tokens, seconds)

    def failed(self, request_id: str) -> None:
        """A load of the request lost blocks: they are computed and saved again."""
        tracked = self._tracked.get(request_id)
        if tracked is not None:
            tracked.failed = tracked.rewind = True
            self._release(tracked)

    def loaded(self, request_id: str) -> None:
        """The request's load is over."""
        tracked = self._tracked.get(request_id)
        if tracked is not None:
            self._release(tracked)

    def finished(self, request_id: str) -> None:
        """The request is done, aborted or refused."""
        tracked = self._tracked.pop(request_id, None)
        if tracked is not None:
            self._release(tracked)
            self._ended.append(request_id)

    def reset(self) -> None:
        """The engine drops its caches, as it does when its weights are replaced: nothing that was
        saved is a hit from now on. Requests under way save nothing until they start again."""
        if self._layouts:
            self._chains.renew()
        for request_id, tracked in self._tracked.items():
            tracked.stale = True
            self._ended.append(request_id)

    def take_counts(self) -> Counter[str]:
        """Counters since the last call."""
        taken, self.counts = self.counts, Counter()
        return taken

    def close(self) -> None:
        for tracked in self._tracked.values():
            self._release(tracked)
        self._tracked.clear()
        shared.release(self.store)

    def _release(self, tracked: Tracked) -> None:
        if tracked.lease is not None:
            tracked.lease.release()
            tracked.lease = None
