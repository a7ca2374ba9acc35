"""The layer-major prefill of one prompt, with a cached prefix where there is one.

What it does: pushes all tokens that are not cached through layer i before layer i + 1, so that the
records of layer i are needed only when layer i starts and may be saved as soon as it ends. Cached
records come from a `PrefixCache`; this file knows nothing of the store behind it.
What it does not: decode, batch prompts, wait for a write before the logits are there.

Invariants:
1. At least one token is computed, for a fully cached prompt still needs its last token's logits.
2. Chunks lie on an absolute grid. In exact mode the grid is `chunk_tokens`, the same cold and warm;
   reuse is rounded down to it and only whole chunks are saved, so the logits are bitwise those of
   a cold run with the same torch, CPU and thread count.
3. A layer that comes back with fewer good records than planned ends the reuse there: the run starts
   again from that boundary, or from an earlier one when the store has set more aside, with a
   shorter load. The boundary only moves down, so this ends.
"""

import hashlib
import time
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import msgspec
import torch
from torch import Tensor

from mla_prefill.attention import Absorbed, Attention, Expanded
from mla_prefill.config import ConfigError
from mla_prefill.model import Model

BLOCK_TOKENS = 64
FAST_CHUNK_TOKENS = 256
ABSORB_BELOW_TOKENS = 160


class Found(msgspec.Struct, frozen=True):
    """Leading tokens of a prompt that are cached, and why it is not more."""

    tokens: int
    reason: str


class LayerRows(msgspec.Struct, frozen=True):
    """Outcome of one layer's load: the first `tokens` records are good in this and all layers
    before it; `waited_s` is the time spent waiting for the store, `ready_at` the moment when the
    store had the layer (as time.perf_counter counts), often long before it was asked for."""

    tokens: int
    reason: str
    waited_s: float
    ready_at: float


class Read(msgspec.Struct, frozen=True):
    """Bytes of records that came from the device and from the store's memory."""

    disk_bytes: int
    ram_bytes: int


class Saved(msgspec.Struct, frozen=True):
    """Whole blocks that a commit left resident, those of other writers included, and the bytes
    written for them."""

    blocks: int
    bytes: int


class PrefixCache(Protocol):
    """Where prefixes are kept. One prompt at a time; calls come in the order given here."""

    def find(self, token_ids: Sequence[int]) -> Found:
        """How much of this prompt is cached; asked again after a load came short."""

    def start_load(self, tokens: int) -> None:
        """Begin to stream the first `tokens` tokens, layer 0 first; replaces an earlier load."""

    def start_save(self, start: int, end: int) -> None:
        """Begin to save tokens start..end (block boundaries); replaces an earlier save."""

    def load_layer(self, layer: int, out: Tensor) -> LayerRows:
        """Wait for `layer` and fill `out` [tokens, width] with its records."""

    def save_layer(self, layer: int, records: Tensor) -> None:
        """Take the records [end - start, width] of `layer`; returns before they are written."""

    def finish_load(self) -> Read:
        """Let go of the cached prefix; returns what was read, restarts included."""

    def commit(self) -> Saved:
        """Publish what was saved; waits for the writes."""

    def abort(self) -> None:
        """Publish nothing of what was saved."""


class NoCache:
    """A PrefixCache that holds nothing and keeps nothing."""

    def find(self, token_ids: Sequence[int]) -> Found:
        """Nothing is cached."""
        return Found(0, "no store")

    def start_load(self, tokens: int) -> None:
        """Nothing to load."""

    def start_save(self, start: int, end: int) -> None:
        """Nothing is saved."""

    def load_layer(self, layer: int, out: Tensor) -> LayerRows:
        """Never asked for more than nothing."""
        return LayerRows(0, "no store", 0.0, 0.0)

    def save_layer(self, layer: int, records: Tensor) -> None:
        """Dropped."""

    def finish_load(self) -> Read:
        """No bytes."""
        return Read(0, 0)

    def commit(self) -> Saved:
        """Nothing."""
        return Saved(0, 0)

    def abort(self) -> None:
        """Nothing."""


class LayerTimes(msgspec.Struct):
    """Seconds since the prefill began. `load_ready_s` is when the store had the layer; for a cold
    layer, when the runner came to it."""

    layer: int
    store_wait_s: float
    load_ready_s: float
    compute_start_s: float
    compute_end_s: float


class PrefillResult(msgspec.Struct, kw_only=True):
    """The logits of the last token and how they came about.

    `hit_tokens` were cached, `used_tokens` of them were reused after rounding and loading;
    `computed_tokens[i]` went through layer i, restarts included. `bytes_read` came from disk,
    `ram_bytes` from the store's memory. `blocks_put` and `bytes_written`
    are 0 until `finish_writes()` was called: without it nothing is published.
    """

    logits: Tensor
    ttft_s: float
    prompt_tokens: int
    hit_tokens: int
    used_tokens: int
    computed_tokens: list[int]
    restarts: int
    exact: bool
    chunk_tokens: int
    attention: str
    reason: str
    find_s: float
    store_wait_s: float
    bytes_read: int
    ram_bytes: int
    layers: list[LayerTimes]
    write_handle: PrefixCache
    blocks_put: int = 0
    bytes_written: int = 0
    write_wait_s: float = 0.0

    def finish_writes(self) -> Saved:
        """Wait until the saved blocks are published; call it once, after the logits are used."""
        started = time.perf_counter()
        saved = self.write_handle.commit()
        self.write_wait_s = time.perf_counter() - started
        self.blocks_put, self.bytes_written = saved.blocks, saved.bytes
        return saved

    def figures(self) -> dict[str, Any]:
        """Everything but the tensor and the handle, ready for JSON; the logits as a digest."""
        fields = msgspec.structs.asdict(self)
        logits = fields.pop("logits")
        del fields["write_handle"]
        digest = hashlib.sha256(logits.contiguous().view(torch.uint8).numpy().tobytes())
        fields["next_token"] = int(logits.argmax())
        fields["logits_sha256"] = digest.hexdigest()
        figures: dict[str, Any] = msgspec.to_builtins(fields)
        return figures


class Grid(msgspec.Struct, frozen=True):
    """How the positions of a prompt are cut."""

    chunk_tokens: int
    exact: bool

    def reusable(self, cached_tokens: int, prompt_tokens: int) -> int:
        """Tokens to take from the cache: never all, and whole chunks in exact mode."""
        tokens = min(cached_tokens, prompt_tokens - 1)
        return tokens // self.chunk_tokens * self.chunk_tokens if self.exact else tokens

    def savable(self, prompt_tokens: int) -> int:
        """Tokens worth saving. A chunk cut short by the end of the prompt is computed with other
        shapes than the whole one, so exact mode keeps whole chunks only."""
        unit = self.chunk_tokens if self.exact else BLOCK_TOKENS
        return prompt_tokens // unit * unit

    def chunks(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """(first, last + 1) of the pieces of start..end between multiples of chunk_tokens."""
        while start < end:
            stop = min(start // self.chunk_tokens * self.chunk_tokens + self.chunk_tokens, end)
            yield start, stop
            start = stop


def exact_grid(chunk_tokens: int = BLOCK_TOKENS) -> Grid:
    """The grid of exact mode. Raises ConfigError unless chunk_tokens is a multiple of 64."""
    if chunk_tokens < BLOCK_TOKENS or chunk_tokens % BLOCK_TOKENS:
        raise ConfigError(
            f"chunk_tokens is {chunk_tokens}: it must be a positive multiple of {BLOCK_TOKENS}"
        )
    return Grid(chunk_tokens, exact=True)


@torch.inference_mode()
def prefill(
    model: Model,
    token_ids: Sequence[int],
    cache: PrefixCache | None = None,
    *,
    exact: bool = False,
    chunk_tokens: int = BLOCK_TOKENS,
) -> PrefillResult:
    """Compute the logits of the last token of `token_ids`.

    With `cache`, cached tokens are reused and new whole blocks are handed to it. `exact` makes the
    result independent, to the last bit, of how much was reused; `chunk_tokens` is its grid.
    Raises ConfigError for an empty prompt or ids outside the vocabulary.
    """
    started = time.perf_counter()
    grid = exact_grid(chunk_tokens) if exact else Grid(FAST_CHUNK_TOKENS, exact=False)
    return _Run(model, token_ids, cache or NoCache(), grid, started).result()


class _Run:
    """One prefill under way."""

    def __init__(
        self,
        model: Model,
        token_ids: Sequence[int],
        cache: PrefixCache,
        grid: Grid,
        started: float,
    ) -> None:
        self.model, self.cache, self.grid, self.started = model, cache, grid, started
        self.token_ids = token_ids
        self.ids = _checked(token_ids, model.config.vocab)
        self.computed = [0] * model.config.layers
        self.times: list[LayerTimes] = []
        self.store_wait_s = 0.0
        self.restarts = 0
        self.reason = ""

    def result(self) -> PrefillResult:
        """Find, load, compute; the clock stops when the logits are there."""
        found = self.cache.find(self.token_ids)
        find_s = self._now()
        self.reason = found.reason
        try:
            used, last_row = self._run(found.tokens)
            logits = self.model.logits(last_row)
        except BaseException:
            self.cache.abort()
            raise
        finally:
            ttft_s = self._now()
            read = self.cache.finish_load()
        return PrefillResult(
            logits=logits,
            ttft_s=ttft_s,
            prompt_tokens=len(self.ids),
            hit_tokens=found.tokens,
            used_tokens=used,
            computed_tokens=self.computed,
            restarts=self.restarts,
            exact=self.grid.exact,
            chunk_tokens=self.grid.chunk_tokens,
            attention="absorbed" if self._absorbs(used) else "expanded",
            reason=self.reason,
            find_s=find_s,
            store_wait_s=self.store_wait_s,
            bytes_read=read.disk_bytes,
            ram_bytes=read.ram_bytes,
            layers=self.times,
            write_handle=self.cache,
        )

    def _run(self, cached: int) -> tuple[int, Tensor]:
        """Try with `cached` tokens, then with what proved good, until every layer delivers."""
        while True:
            used = self.grid.reusable(cached, len(self.ids))
            good, last_row = self._attempt(cached, used)
            if last_row is not None:
                return used, last_row
            assert good < used
            still_there = self.cache.find(self.token_ids).tokens
            cached = self.grid.reusable(min(good, still_there), len(self.ids))
            self.restarts += 1

    def _attempt(self, cached: int, used: int) -> tuple[int, Tensor | None]:
        """All layers with `used` tokens reused: (used, last hidden row [1, hidden]), or (good
        tokens, None) at the first layer that delivers fewer."""
        model, tokens = self.model, len(self.ids)
        save = (min(cached, self.grid.savable(tokens)), self.grid.savable(tokens))
        if used:
            self.cache.start_load(used)
        self.cache.start_save(*save)
        form = Absorbed if self._absorbs(used) else Expanded
        attention = form(model.config, tokens, model.dtype)
        prefix = torch.empty(used, model.config.row_width, dtype=model.dtype)
        hidden = model.embed(self.ids[used:])
        self.times = []
        for index in range(model.config.layers):
            rows = LayerRows(used, "", 0.0, time.perf_counter())
            if used:
                rows = self.cache.load_layer(index, prefix)
                self.store_wait_s += rows.waited_s
            if rows.tokens < used:
                self.reason = rows.reason
                return rows.tokens, None
            begun = self._now()
            records = self._layer(index, attention, prefix, hidden)
            self.times.append(
                LayerTimes(index, rows.waited_s, rows.ready_at - self.started, begun, self._now())
            )
            if save[0] < save[1]:
                self.cache.save_layer(index, records[save[0] - used : save[1] - used])
        return used, hidden[-1:]

    def _layer(self, index: int, attention: Attention, prefix: Tensor, hidden: Tensor) -> Tensor:
        """Replace `hidden` [n, hidden] by its rows after layer `index`; returns their records."""
        layer, used = self.model.layer(index), len(prefix)
        attention.start_layer(layer.attention)
        for start, end in self.grid.chunks(0, used):
            attention.add(start, prefix[start:end])
        new_records = []
        for start, end in self.grid.chunks(used, len(self.ids)):
            rows = hidden[start - used : end - used]
            rows[:], records = self.model.run_chunk(layer, attention, start, rows)
            new_records.append(records)
        self.computed[index] += len(hidden)
        return torch.cat(new_records)

    def _absorbs(self, used: int) -> bool:
        return not self.grid.exact and len(self.ids) - used < ABSORB_BELOW_TOKENS

    def _now(self) -> float:
        return time.perf_counter() - self.started


def _checked(token_ids: Sequence[int], vocab: int) -> Tensor:
    ids = torch.tensor(token_ids, dtype=torch.int64)
    if ids.dim() != 1 or not len(ids):
        raise ConfigError("the prompt is empty: give at least one token id")
    if int(ids.min()) < 0 or int(ids.max()) >= vocab:
        raise ConfigError(
            f"token ids must lie in 0..{vocab - 1} for this model, "
            f"found {int(ids.min())}..{int(ids.max())}: was the prompt made for another tokenizer?"
        )
    return ids
