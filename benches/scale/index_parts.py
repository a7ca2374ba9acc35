"""What is kept in memory per block and how long a lookup takes, at any number of blocks.

A store without devices (kvstore._core.Replay) is filled with chains of random keys: the index, the
table of extents, recency and expiry are the store's own. Nothing is read or written.
"""

import gc
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from kvstore import _core

CHAIN_BLOCKS = 2048
SAMPLES = 256  # chains that are looked up
PAGE_BYTES = 4096
CLASSES = [(b"chat", 7 * 86_400)]


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES


@dataclass
class Filled:
    """A store of `blocks` blocks in extents of extent_blocks, and some of its chains' keys."""

    blocks: int
    extent_blocks: int
    replay: _core.Replay
    chains: Sequence[bytes]
    rss_bytes: int
    """By which the process grew."""
    put_us: list[float] = field(default_factory=list)
    """Of each chain, an extent."""

    @property
    def index_bytes(self) -> int:
        return int(self.replay.report()["stats"]["index_bytes"])


def replay_of(extent_blocks: int, capacity_blocks: int) -> _core.Replay:
    charges = np.arange(1, extent_blocks + 1, dtype=np.uint64)
    always = _core.ADMISSIONS["always"]
    return _core.Replay(CLASSES, charges.tobytes(), capacity_blocks, always, 0, 0)


def keys_of_chains(count: int, kept: Sequence[bytes]) -> Iterator[bytes]:
    """The kept ones evenly among `count`."""
    random = np.random.Generator(np.random.SFC64(1))
    every = max(1, count // len(kept))
    for number in range(count):
        at, rest = divmod(number, every)
        known = rest == 0 and at < len(kept)
        yield kept[at] if known else random.bytes(CHAIN_BLOCKS * 32)


def fill(blocks: int, extent_blocks: int) -> Filled:
    count = blocks // CHAIN_BLOCKS
    random = np.random.Generator(np.random.SFC64(2))
    kept = [random.bytes(CHAIN_BLOCKS * 32) for _ in range(min(SAMPLES, count))]
    replay = replay_of(extent_blocks, 1 << 60)
    extents = CHAIN_BLOCKS // extent_blocks
    gc.collect()
    before, put_us = resident_bytes(), []
    for number, keys in enumerate(keys_of_chains(count, kept)):
        began = time.perf_counter()
        replay.request(number * 1000, keys, 0)
        put_us.append((time.perf_counter() - began) * 1e6 / extents)
    grown = resident_bytes() - before
    return Filled(count * CHAIN_BLOCKS, extent_blocks, replay, kept, grown, put_us)


def match_us(filled: Filled, rounds: int) -> list[float]:
    """Of a chain of CHAIN_BLOCKS blocks, each asked for once a round and then not for a while."""
    took = []
    for _ in range(rounds):
        for keys in filled.chains:
            began = time.perf_counter()
            blocks, _reason = filled.replay.match(keys)
            took.append((time.perf_counter() - began) * 1e6)
            if blocks != CHAIN_BLOCKS:
                raise SystemExit(f"{blocks} of {CHAIN_BLOCKS} blocks are resident")
    return took


def churn_us(extents: int, extent_blocks: int, chains: int) -> list[float]:
    """Of a put, an extent, in a full store of so many extents: each evicts one."""
    replay = replay_of(extent_blocks, extents * extent_blocks)
    random = np.random.Generator(np.random.SFC64(3))
    per_chain = CHAIN_BLOCKS // extent_blocks
    took = []
    for number in range(extents // per_chain + chains):
        keys = random.bytes(CHAIN_BLOCKS * 32)
        began = time.perf_counter()
        replay.request(number * 1000, keys, 0)
        took.append((time.perf_counter() - began) * 1e6 / per_chain)
    report = replay.report()
    if report["evicted_blocks"] < (chains - 1) * CHAIN_BLOCKS:
        raise SystemExit("the store was not full")
    return took[-chains:]
