"""The only file that talks to kvstore: a PrefixCache over one namespace of a store.

What it does: names the namespace after everything that changes a stored number, finds a prompt's
blocks, streams them in layer by layer, and hands new blocks to a writer.
What it does not: compute, decide how much to reuse, or retry.

Invariants:
1. The namespace covers the architecture, every weight byte, the rotation, the dtype and, in exact
   mode, all that may change the last bit of a result (chunk grid, torch, CPU, threads). Exact and
   fast runs never read each other's blocks.
2. The store's views are released as soon as their rows are copied; one layer is held at a time.
"""

import contextlib
import hashlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import kvstore
from mla_prefill.config import ConfigError
from mla_prefill.model import Model
from mla_prefill.prefill import BLOCK_TOKENS, Found, LayerRows, Read, Saved

PART = "latent"

# A load runs as long as the layers before its last one compute, a commit as long as a slow disk
# takes; both end by themselves when something is wrong, the store's deadlines come on top.
LOAD_DEADLINE = "30m"
COMMIT_TIMEOUT = "10m"


class StoreCache:
    """One prompt's dealings with the store; make a new one for each prompt."""

    def __init__(self, cache: kvstore.Cache, *, retain: str, write: bool = True) -> None:
        self._cache = cache
        self._retain = retain
        self._write = write
        self._lease: kvstore.Lease | None = None
        self._load: kvstore.Load | None = None
        self._writer: kvstore.Writer | None = None
        self._read = Read(0, 0)
        self._save_blocks = (0, 0)

    def find(self, token_ids: Sequence[int]) -> Found:
        """Walk the prompt's chain; waits for the names, not for data."""
        self._chain = self._cache.keys(np.asarray(token_ids, dtype=np.int32))
        self._hit = self._cache.find_blocking(self._chain)
        return Found(self._hit.blocks * BLOCK_TOKENS, self._hit.reason or "")

    def start_load(self, tokens: int) -> None:
        """Lease and submit the blocks that hold the first `tokens` tokens."""
        self.finish_load()
        self._lease = self._cache.lease(self._hit[: _blocks(tokens)], retain=self._retain)
        self._load = self._cache.load(self._lease, deadline=LOAD_DEADLINE)

    def load_layer(self, layer: int, out: Tensor) -> LayerRows:
        """Wait for one layer and copy its rows into `out` [tokens, width]."""
        assert self._load is not None
        asked = time.perf_counter()
        with self._load.wait(layer) as loaded:
            waited_s = time.perf_counter() - asked
            rows = out.view(torch.uint8).numpy()
            for span in loaded.spans:
                first = span.first_block * BLOCK_TOKENS
                source = span.cells.reshape(-1, rows.shape[1])[: len(rows) - first]
                rows[first : first + len(source)] = source
            tokens = min(loaded.blocks * BLOCK_TOKENS, len(out))
            ready_at = _boot_to_perf_counter(loaded.ready_ns)
            return LayerRows(tokens, loaded.reason or "", waited_s, ready_at)

    def finish_load(self) -> Read:
        """End the load and the lease; returns what was read so far."""
        if self._load is not None:
            stats = self._load.stats()
            self._read = Read(
                self._read.disk_bytes + stats.disk_bytes, self._read.ram_bytes + stats.ram_bytes
            )
            self._load.close()
        if self._lease is not None:
            self._lease.release()
        self._load = self._lease = None
        return self._read

    def start_save(self, start: int, end: int) -> None:
        """Open a writer for the blocks of tokens start..end; drops an earlier one."""
        self.abort()
        self._save_blocks = (_blocks(start), _blocks(end))
        if self._write and start < end:
            chain = self._chain[: _blocks(end)]
            self._writer = self._cache.writer(chain, start=_blocks(start), retain=self._retain)

    def save_layer(self, layer: int, records: Tensor) -> None:
        """Hand the rows [end - start, width] of one layer to the writer, which keeps them alive
        until they are written; does not wait."""
        if self._writer is None:
            return
        cells = records.contiguous().view(torch.uint8).numpy()
        cells = cells.reshape(-1, BLOCK_TOKENS, cells.shape[1])
        self._writer.put(layer, self._save_blocks, {PART: cells})

    def commit(self) -> Saved:
        """Publish the blocks in chain order; waits for their writes."""
        if self._writer is None:
            return Saved(0, 0)
        writer, self._writer = self._writer, None
        blocks = writer.commit_blocking(COMMIT_TIMEOUT)
        return Saved(blocks, writer.stats().bytes_written)

    def abort(self) -> None:
        """Publish nothing of what was handed to the writer."""
        if self._writer is not None:
            self._writer.abort()
        self._writer = None


@contextlib.contextmanager
def open_cache(
    path: str | Path,
    model: Model,
    *,
    exact: bool,
    chunk_tokens: int = BLOCK_TOKENS,
    retain: str = "agent",
    write: bool = True,
    capacity: str = "20GB",
    pool: str = "1GB",
    engine: str = "auto",
) -> Iterator[StoreCache]:
    """Open the store at `path` for one prompt of `model`; closes it at the end.

    `write=False` reads the store and saves nothing.
    Reads every weight byte once to name the namespace (the digest is kept beside the weights).
    Raises ConfigError with kvstore's own sentence when the store refuses.
    """
    layout = model_layout(model, exact=exact, chunk_tokens=chunk_tokens)
    try:
        with kvstore.open_blocking(path, capacity=capacity, pool=pool, engine=engine) as store:
            cache = StoreCache(store.cache(layout), retain=retain, write=write)
            try:
                yield cache
            finally:
                cache.finish_load()
                cache.abort()
    except kvstore.KvstoreError as error:
        raise ConfigError(str(error)) from error


def model_layout(model: Model, *, exact: bool, chunk_tokens: int = BLOCK_TOKENS) -> kvstore.Layout:
    """The namespace of this model and mode."""
    config = model.config
    return kvstore.Layout.mla(
        model=config.name,
        revision=f"config {config.fingerprint()} weights {model.content_digest()}",
        layers=config.layers,
        latent=config.kv_lora,
        rope=config.rope_dim,
        dtype=config.dtype,
        block_tokens=BLOCK_TOKENS,
        rope_words=config.rope_words(),
        words={"numerics": exact_words(chunk_tokens) if exact else "fast"},
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


def _boot_to_perf_counter(boot_ns: int) -> float:
    """A moment of CLOCK_BOOTTIME, in nanoseconds, as the seconds time.perf_counter() counts."""
    age_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - boot_ns
    return time.perf_counter() - age_ns / 1e9


def _blocks(tokens: int) -> int:
    return -(-tokens // BLOCK_TOKENS)
