"""What the phases do with the store and the model: the demo's one contact with both libraries.

Runs in the phases' processes only. Every function opens the store and closes it again; what one
phase leaves to the next is on disk.
"""

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import kvstore
from kvstore.load import LoadStats
from kvstore.raw_io import raw_read_ceiling
from kvstore_demo import figures, place
from mla_prefill import LayerRows, Model, PrefillResult, load_model
from mla_prefill import prefill as run_prefill
from mla_prefill.cache import StoreCache, model_layout
from mla_prefill.demo_model import demo_config, make_demo_model

Step = Callable[[int, int], None]

CAPACITY = "16GB"
POOL = "1GB"
PAGE = 4096
OWNER = "kvstore-demo"
RETAIN = "agent"
FLIPPED_BIT = 3


def make_model(model_dir: Path, size: str) -> figures.Model:
    """Make the model when it is absent; say what a token of it takes in the store."""
    if not (model_dir / "config.json").exists():
        make_demo_model(model_dir, demo_config(size))
    layout = _layout(model_dir)
    return figures.Model(
        compute_threads=torch.get_num_threads(),
        layers=layout.layers,
        token_bytes=layout.block_bytes // layout.block_tokens,
        block_tokens=layout.block_tokens,
    )


def prefill(
    model_dir: Path,
    store_dir: Path,
    ids: Sequence[int],
    *,
    exact: bool,
    save: Path | None,
    against: Path | None,
    step: Step,
) -> figures.Prefill:
    """One prefill with the store; returns when its puts are committed and flushed.

    The weights are in memory before the clock starts. Logits go to the file `save`, and are
    compared with those in the file `against`.
    """
    model = load_model(model_dir)
    model.preload()
    with _open(store_dir) as store:
        cache = _WatchedCache(store, model, exact=exact, step=step)
        begin = time.perf_counter()
        result = run_prefill(model, ids, cache, exact=exact)
        result.finish_writes()
        store.flush_blocking()
        acknowledged_s = time.perf_counter() - begin
        if save is not None:
            save_file({"logits": result.logits.contiguous()}, save)
        return _figures(
            result,
            acknowledged_s=acknowledged_s,
            quarantined=store.stats().quarantined_extents,
            direct=not any("direct" in root.lost for root in store.info().roots),
            against_cold=None if against is None else _difference(result.logits, against),
            timeline=cache.timeline(result, begin),
        )


def lookup(model_dir: Path, store_dir: Path, ids: Sequence[int]) -> figures.Lookup:
    """How much of a prompt the store has; loads nothing."""
    layout = _layout(model_dir)
    with _open(store_dir) as store:
        cache = store.cache(layout)
        hit = cache.find_blocking(cache.keys(ids))
        return figures.Lookup(blocks=hit.blocks, reason=hit.reason or "")


def load(
    model_dir: Path, store_dir: Path, ids: Sequence[int], *, rounds: int, step: Step
) -> figures.Load:
    """Load the prompt's blocks `rounds` times, cold, with the device's ceiling between them."""
    layout = _layout(model_dir)
    with _open(store_dir) as store:
        cache = store.cache(layout)
        chain = cache.keys(ids)
        files = sorted(extent_files(store_dir, layout, chain).values())
        measured, io_bytes = [], PAGE
        for done in range(rounds):
            store.drop_ram()
            seconds, blocks, stats = _one_load(cache, chain)
            io_bytes = _read_size(stats)
            ceiling = raw_read_ceiling(files, io_bytes)
            measured.append(
                figures.LoadRound(
                    gbps=(stats.disk_bytes + stats.ram_bytes) / seconds / 1e9,
                    ceiling_gbps=ceiling["gbps"],
                    ceiling_depth=ceiling["depth"],
                    ceiling_engine=ceiling["engine"],
                    blocks=blocks,
                    ram_bytes=stats.ram_bytes,
                )
            )
            step(done + 1, rounds)
        return figures.Load(
            bytes=len(chain) * layout.block_bytes,
            io_bytes=io_bytes,
            page_cache_bytes=place.bytes_in_page_cache(files),
            store=msgspec.to_builtins(store.info()),
            rounds=measured,
        )


def flip_one_bit(
    model_dir: Path, store_dir: Path, ids: Sequence[int], *, block: int
) -> figures.Damage:
    """Flip one bit of a stored value of `block`, in the middle layer, in the middle of its cell.

    An extent's regions lie at the end of its file, one per layer, each with the cells of all its
    blocks back to back.
    """
    layout = _layout(model_dir)
    with _open(store_dir) as store:
        chain = store.cache(layout).keys(ids)
    files = extent_files(store_dir, layout, chain)
    first = max(start for start in files if start <= block)
    blocks = min([start for start in files if start > first] + [len(chain)]) - first
    regions = [_whole_pages(blocks * layout.cell_bytes(i)) for i in range(layout.layers)]
    layer = layout.layers // 2
    offset = files[first].stat().st_size - sum(regions[layer:])
    offset += (block - first) * layout.cell_bytes(layer) + layout.cell_bytes(layer) // 2
    _flip_bit(files[first], offset)
    return figures.Damage(
        file=files[first].name,
        offset=offset,
        bit=FLIPPED_BIT,
        layer=layer,
        block=block,
        extent_block=first,
    )


def _flip_bit(file: Path, offset: int) -> None:
    """As rot would do it: the file's times stay, for they say how long the extent is valid."""
    before = file.stat()
    with file.open("r+b") as stream:
        stream.seek(offset)
        (value,) = stream.read(1)
        stream.seek(offset)
        stream.write(bytes([value ^ 1 << FLIPPED_BIT]))
        stream.flush()
        os.fsync(stream.fileno())
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def extent_files(store_dir: Path, layout: kvstore.Layout, chain: kvstore.Chain) -> dict[int, Path]:
    """The chain's extents on disk: number of the first block -> file, named by that block's key."""
    position = {chain[number].hex(): number for number in range(len(chain))}
    found = (store_dir / layout.namespace).rglob("*.kv")
    return {position[file.stem]: file for file in found if file.stem in position}


def leave_a_core_to_the_store() -> None:
    """Compute on all cores but one. Threads that wait for each other at every product lose far
    more than they win as soon as something else, the store included, needs one of their cores."""
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) - 1))


def _layout(model_dir: Path) -> kvstore.Layout:
    return model_layout(load_model(model_dir), exact=True)


def _open(store_dir: Path) -> kvstore.Store:
    return kvstore.open_blocking(store_dir, capacity=CAPACITY, pool=POOL)


def _one_load(cache: kvstore.Cache, chain: kvstore.Chain) -> tuple[float, int, LoadStats]:
    """Find, lease and read all layers, each released at once: seconds, good blocks, counters."""
    begin = time.perf_counter()
    hit = cache.find_blocking(chain)
    with cache.lease(hit, owner=OWNER) as lease, cache.load(lease) as running:
        good = min(layer.blocks for layer in running)
        return time.perf_counter() - begin, good, running.stats()


def _read_size(stats: LoadStats) -> int:
    """Mean size of the load's reads, in whole pages, for the ceiling to use the same."""
    return _whole_pages(stats.disk_bytes // max(1, stats.reads))


def _whole_pages(size: int) -> int:
    return -(-size // PAGE) * PAGE


def _difference(logits: Tensor, cold_file: Path) -> figures.Difference:
    cold = load_file(cold_file)["logits"]
    return figures.Difference(
        bitwise=torch.equal(logits.view(torch.uint8), cold.view(torch.uint8)),
        max_abs=float((logits.float() - cold.float()).abs().max()),
        same_argmax=bool(logits.argmax() == cold.argmax()),
    )


def _figures(
    result: PrefillResult,
    *,
    acknowledged_s: float,
    quarantined: int,
    direct: bool,
    against_cold: figures.Difference | None,
    timeline: list[figures.LayerSpan],
) -> figures.Prefill:
    return figures.Prefill(
        exact=result.exact,
        prompt_tokens=result.prompt_tokens,
        hit_tokens=result.hit_tokens,
        used_tokens=result.used_tokens,
        computed_by_layer=result.computed_tokens,
        restarts=result.restarts,
        ttft_s=result.ttft_s,
        store_wait_s=result.store_wait_s,
        acknowledged_s=acknowledged_s,
        bytes_read=result.bytes_read,
        blocks_put=result.blocks_put,
        bytes_written=result.bytes_written,
        quarantined=quarantined,
        direct=direct,
        logits_sha256=result.figures()["logits_sha256"],
        against_cold=against_cold,
        timeline=timeline,
    )


class _WatchedCache(StoreCache):
    """The runner's cache, which also reports progress and notes when the store had each layer."""

    def __init__(self, store: kvstore.Store, model: Model, *, exact: bool, step: Step) -> None:
        super().__init__(store.cache(model_layout(model, exact=exact)), retain=RETAIN)
        self._layer_count = model.config.layers
        self._step = step
        self._ready_s: list[float] = []

    def start_load(self, tokens: int) -> None:
        """A restart begins a new pipeline."""
        super().start_load(tokens)
        self._ready_s = []

    def load_layer(self, layer: int, out: Tensor) -> LayerRows:
        """The store's own time counts: the runner may ask long after the layer was there."""
        assert self._load is not None
        rows = super().load_layer(layer, out)
        self._ready_s.append(_boot_to_perf_counter(self._load.wait(layer).ready_ns))
        self._step(layer, self._layer_count)
        return rows

    def save_layer(self, layer: int, records: Tensor) -> None:
        """A cold prefill has no other sign of life."""
        super().save_layer(layer, records)
        self._step(layer + 1, self._layer_count)

    def timeline(self, result: PrefillResult, begin: float) -> list[figures.LayerSpan]:
        """A layer's load is drawn from the arrival of the layer before it to its own."""
        arrivals = [ready - begin for ready in self._ready_s] or [0.0] * self._layer_count
        starts = [result.find_s if self._ready_s else 0.0, *arrivals]
        return [
            figures.LayerSpan(
                layer=times.layer,
                load_start=start,
                load_end=max(start, end),
                compute_start=times.compute_start_s,
                compute_end=times.compute_end_s,
            )
            for times, start, end in zip(result.layers, starts, arrivals, strict=False)
        ]


def _boot_to_perf_counter(boot_ns: int) -> float:
    """A moment of CLOCK_BOOTTIME, in nanoseconds, as the seconds time.perf_counter() counts."""
    return time.perf_counter() - (time.clock_gettime_ns(time.CLOCK_BOOTTIME) - boot_ns) / 1e9
