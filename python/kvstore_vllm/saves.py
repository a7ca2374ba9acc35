"""Saving of one worker: copies of whole pages go to kvstore writers, layer by layer.

A page is copied when its layer was computed, so the engine may reuse it at once: preemption and
abort need nothing. Copies that wait for the writer are bounded; above the bound blocks are lost,
and counted.

Invariant: nothing is committed that was computed from a page which did not load, here or on another
rank. Pages that failed are `bad` until they are loaded or computed again; blocks whose prefix
touches a bad page are not saved, and are bad themselves. A rank computes with what the others
loaded, so with several of them a commit waits until all have told how its steps went. At worst a
good block is not saved.
"""

import logging
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from kvstore import Cache, Chain, KvstoreError, Writer
from kvstore.chain import KEY_BYTES
from kvstore_vllm.messages import LoadOrder, SaveOrder, StepOrders
from kvstore_vllm.pages import PART, EnginePages

CLOSE_S = 10.0  # what a commit may take while the engine shuts down

_log = logging.getLogger(__name__)


@dataclass
class _Request:
    """What is known of a request across steps."""

    keys: bytes = b""
    table: list[int] = field(default_factory=list)
    writer: Writer | None = None
    end: int = 0  # blocks [.., end) were put
    step: int = 0  # number of the last step that put


@dataclass
class _StepSave:
    """One order while its step runs. layers: those that are still to be put."""

    order: SaveOrder
    table: list[int]
    layers: set[int]


@dataclass(frozen=True)
class _Held:
    """A writer that is committed once it is known how that step went on all ranks."""

    request_id: str
    step: int
    writer: Writer


class Saves:
    """All writers of a worker. retain: retention class of what is saved. writes: False on a rank
    whose pages another one saves; it must say all the same what its failed loads spoil."""

    def __init__(
        self, cache: Cache, pages: EnginePages, *, retain: str | None, writes: bool,
        buffer_bytes: int,
    ) -> None:  # fmt: skip
        self._cache = cache
        self._pages = pages
        self._retain = retain
        self._layers = range(pages.layers if writes else 0)
        self._buffer_bytes = buffer_bytes
        self._orders = StepOrders()
        self._requests: dict[str, _Request] = {}
        self._step: dict[str, _StepSave] = {}
        self._bad: set[int] = set()
        self._spoiled: set[str] = set()
        self._held: list[_Held] = []
        self._commits: deque[Any] = deque()  # handles
        self._waiting: deque[tuple[Any, int]] = deque()  # handles of puts, and their bytes
        self._waiting_bytes = 0
        self.counts: Counter[str] = Counter()

    # ------------------------------------------------------------------------------ one step

    def begin_step(self, orders: StepOrders) -> None:
        """Before the first hook of a step."""
        self._step.clear()
        self._orders = orders
        self._drop(orders.spoiled)
        self._end_requests(orders.ended)
        self._commit_what_is_sure()
        for load in orders.loads:
            self._bad.difference_update(load.block_ids)
        for order in sorted(orders.saves, key=lambda order: order.step_from):
            self._begin(order)

    def _begin(self, order: SaveOrder) -> None:
        request = self._requests.setdefault(order.request_id, _Request())
        request.keys = request.keys[: order.keys_from * KEY_BYTES] + order.keys
        request.table[order.table_from :] = order.table
        if self._bad.isdisjoint(request.table[: order.step_from]):
            self._bad.difference_update(request.table[order.step_from :])
            self._step[order.request_id] = _StepSave(order, list(request.table), set(self._layers))
        else:
            self._spoil(order.request_id, request.table[order.step_from :])

    def on_bad(self, load: LoadOrder, bad_ids: list[int]) -> None:
        """Pages of a load failed. What this step computes after them is not to be trusted, and the
        scheduler must hear of it: else it would order the same load again and again."""
        self._bad.update(bad_ids)
        self._spoiled.add(load.request_id)
        for request_id, save in list(self._step.items()):
            touched = [i for i, page in enumerate(save.table) if page in self._bad]
            if touched:
                del self._step[request_id]
                self._spoil(request_id, save.table[touched[0] :])

    def _spoil(self, request_id: str, pages: list[int]) -> None:
        """The request's blocks of this step are not saved, and nobody's that build on them."""
        self._bad.update(pages)
        self._spoiled.add(request_id)
        self.counts["saves_spoiled"] += 1
        self._abort(self._requests[request_id])

    def save_layer(self, layer: int) -> None:
        """The layer was computed: its pages are copied and put."""
        for save in self._step.values():
            if layer in save.layers:
                save.layers.discard(layer)
                self._put(save, layer)

    def end_step(self) -> None:
        """Puts what no hook was called for, and commits prompts that are complete. After the
        step's loads ended, so that what failed is known."""
        for layer in self._layers:
            self.save_layer(layer)
        for request_id, save in self._step.items():
            request = self._requests[request_id]
            if request.writer is not None and request.end >= save.order.prompt_blocks:
                self._commit_prompt(request, save.order)
        self._step.clear()
        self._commit_what_is_sure()
        self._let_go()

    def take_spoiled(self) -> frozenset[str]:
        spoiled, self._spoiled = frozenset(self._spoiled), set()
        return spoiled

    # ------------------------------------------------------------------------------- writers

    def _end_requests(self, request_ids: Sequence[str]) -> None:
        """What was put is to be committed, and the requests are forgotten."""
        for request_id in request_ids:
            request = self._requests.pop(request_id, None)
            if request is not None:
                self._hold(request_id, request)

    def _drop(self, request_ids: frozenset[str]) -> None:
        """They were spoiled: what was put of them and is not committed never will be."""
        for request_id in request_ids & self._requests.keys():
            self._abort(self._requests[request_id])
        for held in self._held:
            if held.request_id in request_ids:
                held.writer.abort()
        self._held = [held for held in self._held if held.request_id not in request_ids]

    def wait_saved(self, timeout: float) -> None:
        """Until what was committed so far can be hit, each commit at most `timeout` seconds."""
        while self._commits:
            self._note_commit(self._commits.popleft(), timeout)

    def close(self) -> None:
        self._end_requests(list(self._requests))
        self._commit_what_is_sure()
        for held in self._held:
            held.writer.abort()
        self._held.clear()
        self.wait_saved(CLOSE_S)
        self._waiting.clear()

    def _put(self, save: _StepSave, layer: int) -> None:
        order = save.order
        request = self._requests[order.request_id]
        if self._waiting_bytes > self._buffer_bytes:
            self._let_go()
        if self._waiting_bytes > self._buffer_bytes:
            self.counts["cells_not_saved_busy"] += order.end - order.first
            return
        cells = self._pages.gather(layer, save.table[order.first : order.end])
        try:
            writer = self._writer(request, order)
            handle = writer.put(layer, range(order.first, order.end), {PART: cells})
        except (KvstoreError, OSError, MemoryError) as error:
            self._failed(error)
            return
        self._waiting.append((handle, cells.nbytes))
        self._waiting_bytes += cells.nbytes
        self.counts["saved_bytes"] += cells.nbytes

    def _writer(self, request: _Request, order: SaveOrder) -> Writer:
        """Goes on with the request's writer; another one when there is a gap."""
        writer = request.writer
        if writer is not None and not writer.start <= order.first <= request.end:
            self._hold(order.request_id, request)
            writer = None
        length = max(order.end, order.prompt_blocks)
        if writer is None:
            chain = self._chain(request, length)
            writer = self._cache.writer(chain, start=order.first, retain=self._retain)
            self.counts["writers"] += 1
        elif len(writer.chain) < order.end:
            writer.extend(self._chain(request, order.end))
        request.writer = writer
        request.end = order.end
        request.step = self._orders.number
        return writer

    def _chain(self, request: _Request, blocks: int) -> Chain:
        return Chain(request.keys[: blocks * KEY_BYTES], self._cache.layout.block_tokens)

    def _commit_prompt(self, request: _Request, order: SaveOrder) -> None:
        """Once the prompt is whole, others may hit it; what is generated gets its own writer."""
        assert request.writer is not None
        if request.writer.start < order.prompt_blocks:
            self._hold(order.request_id, request)

    def _hold(self, request_id: str, request: _Request) -> None:
        """The writer takes no more; it is committed as soon as that is sure to be right."""
        writer, request.writer = request.writer, None
        if writer is not None:
            self._held.append(_Held(request_id, request.step, writer))

    def _abort(self, request: _Request) -> None:
        writer, request.writer = request.writer, None
        if writer is not None:
            writer.abort()

    def _commit_what_is_sure(self) -> None:
        """Asks for it; does not wait."""
        sure = [held for held in self._held if held.step <= self._orders.sure]
        self._held = [held for held in self._held if held.step > self._orders.sure]
        for held in sure:
            try:
                self._commits.append(held.writer.begin_commit())
            except (KvstoreError, OSError, MemoryError) as error:
                self._failed(error)

    def _failed(self, error: Exception) -> None:
        """A lost save is a miss later; the engine goes on."""
        self.counts["saves_failed"] += 1
        _log.warning("blocks are not saved: %s", error)

    def _let_go(self) -> None:
        while self._waiting and self._waiting[0][0].done:
            self._waiting_bytes -= self._waiting.popleft()[1]
        while self._commits and self._commits[0].done:
            self._note_commit(self._commits.popleft(), 0)

    def _note_commit(self, handle: Any, timeout: float) -> None:
        try:
            self.counts["saved_blocks"] += handle.wait(timeout)
        except (KvstoreError, OSError) as error:
            self._failed(error)
