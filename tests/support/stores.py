"""Small layouts, prompts and their cells for tests that open a store."""

import asyncio
import os
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

import kvstore
from kvstore import Cache, Chain, Layout, Store
from kvstore.store import open_blocking
from kvstore.testing import FaultDevice

T = TypeVar("T")
Cells = list[dict[str, npt.NDArray[np.uint8]]]

BLOCK_TOKENS = 16
LAYERS = 4
PART_BYTES = 32 * 4096  # per block and layer: four layers make a block of 512 KiB
POOL = "64MiB"


def layout(model: str = "test", **words: Any) -> Layout:
    """One part "latent" per layer."""
    parts = ((("latent", PART_BYTES),),) * LAYERS
    return Layout(parts_by_layer=parts, model=model, block_tokens=BLOCK_TOKENS, **words)


def two_part_layout(model: str = "gqa") -> Layout:
    """Parts "k" and "v" of different sizes that are no multiples of 4096; layer 2 has none."""
    pair = (("k", 16 * 8_448), ("v", 16 * 656))
    parts = (pair, pair, (), pair, pair)
    return Layout(parts_by_layer=parts, model=model, block_tokens=BLOCK_TOKENS)


def cells_of(of: Layout, blocks: int, seed: int = 1) -> Cells:
    """Random cells: per layer and part [blocks, part_bytes]."""
    rng = np.random.default_rng(seed)
    return [
        {name: rng.integers(0, 256, (blocks, size), dtype=np.uint8) for name, size in parts}
        for parts in of.parts_by_layer
    ]


def prompt(blocks: int, seed: int = 0) -> list[int]:
    """Token ids of that many blocks, and a few more."""
    return [(seed * 7919 + 31 * i) % 100_000 for i in range(blocks * BLOCK_TOKENS + 5)]


@contextmanager
def opened(*roots: Path, **words: Any) -> Iterator[Store]:
    """A store on the real clock, closed at the end."""
    with open_blocking(*roots, **({"pool": POOL} | words)) as store:
        yield store


def write(kv: Cache, chain: Chain, cells: Cells, *, start: int = 0, **words: Any) -> int:
    """Puts blocks start.. of the chain, layer by layer, and commits."""
    with kv.writer(chain, start=start, **words) as writer:
        for layer, parts in enumerate(cells):
            if parts:
                here = {name: array[start:] for name, array in parts.items()}
                writer.put(layer, (start, len(chain)), here)
        return writer.commit_blocking()


def check_load(load: kvstore.Load, cells: Cells, blocks: int) -> None:
    """Every layer gives `blocks` blocks, equal to what was written."""
    for layer in load:
        assert (layer.blocks, layer.reason) == (blocks, None)
        for name, array in cells[layer.index].items():
            expected = array[load.start : load.start + blocks]
            assert np.array_equal(layer.gather(name), expected), f"{layer} {name}"


def until(condition: Callable[[], object], seconds: float = 30) -> None:
    """Polls until the condition holds; AssertionError when it does not in time."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition did not come true"
        time.sleep(0.001)


def fork() -> int:
    """os.fork(). The allocator of a sanitizer, other than the C library's, does not survive a fork
    while another thread allocates: there the child may hang before it reaches any code of ours. So
    under one the fork waits until the store's threads sleep."""
    if "asan" in os.environ.get("LD_PRELOAD", ""):
        for _ in range(3):
            until(other_threads_sleep)
    return os.fork()


def other_threads_sleep() -> bool:
    mine = str(threading.get_native_id())
    stats = [path / "stat" for path in Path("/proc/self/task").iterdir() if path.name != mine]
    try:
        return all(stat.read_text().rpartition(") ")[2].startswith("S") for stat in stats)
    except (FileNotFoundError, ProcessLookupError):  # one has just ended
        return False


def reads_in_flight(device: FaultDevice) -> bool:
    return any(record.completed_ns < 0 and record.io_kind == 0 for record in device.log())


def run(coroutine: Coroutine[Any, Any, T], seconds: float = 60) -> T:
    """In a fresh event loop; a hang is a TimeoutError."""

    async def limited() -> T:
        return await asyncio.wait_for(coroutine, seconds)

    return asyncio.run(limited())
