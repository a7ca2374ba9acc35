"""The only file that talks to kvstore: a PrefixCache over one namespace of a store.

What it does: names the namespace after everything that changes a stored number, finds a prompt's
blocks, streams them in layer by layer, and hands new blocks to a writer.
What it does not: compute, decide how much to reuse, or retry.

Invariants:
1. The namespace covers the architecture, every weight byte, the rotation, the dtype and, in exact
   mode, all that may change the last bit of a result (chunk grid, torch, CPU, threads). Exact and
   fast runs never read each other's blocks.
2. A store's views are released as soon as their rows are copied; one layer is held at a time.
3. A source of a write is kept alive until its handle is done: the writer's handles are kept here.
"""

import contextlib
import hashlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import kvstore
import numpy as np
import torch
from torch import Tensor

from mla_prefill.model import Model
from mla_prefill.prefill import BLOCK_TOKENS, Found, LayerRows, Saved

PART = "latent"


class StoreCache:
    """One prompt's dealings with the store; make a new one for each prompt."""

    def __init__(
        self, store: kvstore.BlockingStore, layout: kvstore.Layout, *, retain: str, owner: str, write: bool
    ) -> None:
        self._cache = store.cache(layout)
        self._retain = retain
        self._owner = owner
        self._write = write
        self._lease: kvstore.Lease | None = None
        self._load: kvstore.Load | None = None
        self._writer: kvstore.Writer | None = None
        self._handles: list[kvstore.PutHandle] = []
        self._bytes_read = 0
        self._saved_tokens = (0, 0)
        self._row_bytes = 0
        self._layers = 0

    def find(self, token_ids: Sequence[int]) -> Found:
        """Walk the prompt's chain; waits for the names, not for data."""
        self._chain = self._cache.keys(np.asarray(token_ids, dtype=np.int32))
        self._hit = self._cache.find_blocking(self._chain)
        return Found(self._hit.blocks * BLOCK_TOKENS, self._hit.reason)

    def start_load(self, tokens: int) -> None:
        """Lease and submit the blocks that hold the first `tokens` tokens."""
        self.finish_load()
        hit = self._hit[: _blocks(tokens)]
        self._lease = self._cache.lease(hit, owner=self._owner, retain=self._retain)
        self._load = self._cache.load(self._lease)

    def load_layer(self, layer: int, out: Tensor) -> LayerRows:
        """Wait for one layer and copy its rows into `out` [tokens, width]."""
        assert self._load is not None
        asked = time.perf_counter()
        loaded = self._load.wait(layer)
        waited_s = time.perf_counter() - asked
        rows = out.view(torch.uint8).numpy()
        for first_block, cells in loaded.spans:
            first = first_block * BLOCK_TOKENS
            source = cells.reshape(-1, rows.shape[1])[: len(rows) - first]
            rows[first : first + len(source)] = source
        tokens = min(loaded.blocks * BLOCK_TOKENS, len(out))
        reason = "; ".join(str(reason) for reason in loaded.reasons)
        loaded.release()
        return LayerRows(tokens, reason, waited_s)

    def finish_load(self) -> int:
        """End the load and the lease; returns the bytes read so far."""
        if self._load is not None:
            self._bytes_read += self._load.stats().bytes_read
            self._load.close()
        if self._lease is not None:
            self._lease.release()
        self._load = self._lease = None
        return self._bytes_read

    def start_save(self, start: int, end: int) -> None:
        """Open a writer for the blocks of tokens start..end; drops an earlier one."""
        self.abort()
        self._saved_tokens = (start, end)
        if self._write and start < end:
            self._writer = self._cache.writer(
                self._chain[: _blocks(end)], start=_blocks(start), retain=self._retain
            )

    def save_layer(self, layer: int, records: Tensor) -> None:
        """Hand the rows [end - start, width] of one layer to the writer; does not wait."""
        if self._writer is None:
            return
        start, end = self._saved_tokens
        cells = records.contiguous().view(torch.uint8).numpy()
        cells = cells.reshape(-1, BLOCK_TOKENS, cells.shape[1])
        self._row_bytes, self._layers = cells.shape[2], layer + 1
        blocks = (_blocks(start), _blocks(end))
        self._handles.append(self._writer.put(layer, blocks, {PART: cells}))

    def commit(self) -> Saved:
        """Publish the blocks in chain order; waits for their writes."""
        if self._writer is None:
            return Saved(0, 0)
        blocks = self._writer.commit_blocking()
        self._writer = None
        self._handles.clear()
        return Saved(blocks, blocks * BLOCK_TOKENS * self._row_bytes * self._layers)

    def abort(self) -> None:
        """Publish nothing of what was handed to the writer."""
        if self._writer is not None:
            self._writer.abort()
        for handle in self._handles:
            handle.wait()
        self._writer = None
        self._handles.clear()


@contextlib.contextmanager
def open_cache(
    path: str | Path,
    model: Model,
    *,
    exact: bool,
    chunk_tokens: int = BLOCK_TOKENS,
    retain: str = "agent",
    owner: str = "mla-prefill",
    write: bool = True,
    capacity: str = "20GB",
    pool: str = "1GB",
) -> Iterator[StoreCache]:
    """Open the store at `path` for one prompt of `model`; closes it at the end.

    `write=False` reads the store and saves nothing.
    Reads every weight byte once to name the namespace (kept beside the weights afterwards).
    kvstore's own errors of open pass through; their text says what to do.
    """
    layout = model_layout(model, exact=exact, chunk_tokens=chunk_tokens)
    with kvstore.open_blocking(str(path), capacity=capacity, pool=pool) as store:
        cache = StoreCache(store, layout, retain=retain, owner=owner, write=write)
        try:
            yield cache
        finally:
            cache.finish_load()
            cache.abort()


def model_layout(model: Model, *, exact: bool, chunk_tokens: int = BLOCK_TOKENS) -> kvstore.Layout:
    """The namespace of this model and mode."""
    config = model.config
    numerics = exact_words(chunk_tokens) if exact else "fast"
    return kvstore.Layout.mla(
        model=config.name,
        revision=f"{config.fingerprint()} {model.content_digest()} {numerics}",
        layers=config.layers,
        latent=config.kv_lora,
        rope=config.rope_dim,
        dtype=config.dtype,
        block_tokens=BLOCK_TOKENS,
        rope_words=config.rope_words(),
    )


def exact_words(chunk_tokens: int) -> str:
    """All besides model and tokens that the last bit of an exact run depends on."""
    cpu = hashlib.sha256(_cpu_flags().encode()).hexdigest()[:16]
    return (
        f"exact chunk={chunk_tokens} torch={torch.__version__} threads={torch.get_num_threads()} "
        f"isa={torch.backends.cpu.get_cpu_capability()} cpu={cpu}"
    )


def _cpu_flags() -> str:
    """Model and feature flags of the first CPU, empty where the kernel does not tell."""
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().split("\n\n", 1)[0].splitlines()
        return "\n".join(line for line in lines if line.startswith(("model", "flags", "Features")))
    return ""


def _blocks(tokens: int) -> int:
    return -(-tokens // BLOCK_TOKENS)
