"""A process that works a store until its file system is taken away: writers, a loader, flushes.

    python -m tests.support.crash_load ROOT LOG SEED STYLE

STYLE busy: as fast as it goes, with evictions and flushes. quiet: now and then a small put, without
both; a file system in a hurry for room commits more often than it would by itself.

LOG lies elsewhere. Each line is written at once: a kind, the time (monotonic ns), and words.
    begin NAME BLOCKS     a put began
    done NAME BLOCKS      its commit was acknowledged: all is resident
    kept NAME BLOCKS      the same, and no rule may evict it: it is leased, or there is room for all
    flush STARTED         a flush that began then was acknowledged now
    wrong NAME            a load gave wrong bytes
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from kvstore import Layout
from kvstore.cache import Cache
from kvstore.chain import Chain
from kvstore.store import Store, open_blocking

LAYERS, CELL = 4, 32 * 4096
BLOCK_TOKENS = 4
WRITERS = 3
CAPACITY = {"busy": 96 << 20, "quiet": 280 << 20}
KEPT_MAX, QUIET_MAX = 24 << 20, 240 << 20
LAYOUT = Layout(
    parts_by_layer=((("latent", CELL),),) * LAYERS, model="crash", block_tokens=BLOCK_TOKENS
)


def chain_of(kv: Cache, name: str, blocks: int) -> Chain:
    rng = random.Random(name)
    return kv.keys([rng.randrange(1 << 20) for _ in range(blocks * BLOCK_TOKENS)])


def cells_of(chain: Chain, layer: int) -> np.ndarray:
    """[blocks, bytes]: they follow from the keys, so that another process can judge them."""
    rows = [
        np.random.default_rng([layer, *chain[block]]).integers(0, 256, CELL, dtype=np.uint8)
        for block in range(len(chain))
    ]
    return np.stack(rows)


def loaded(kv: Cache, name: str, blocks: int) -> tuple[int, bool]:
    """(leading blocks that could be read, whether all of them are right)."""
    chain = chain_of(kv, name, blocks)
    hit = kv.find_blocking(chain)
    count, right = hit.blocks, True
    if not hit.blocks:
        return 0, True
    with kv.load(hit) as load:
        for layer in load:
            count = layer.blocks
            wanted = cells_of(chain, layer.index)
            if count:
                right = right and np.array_equal(layer.gather("latent"), wanted[:count])
    return count, right


class Work:
    def __init__(self, store: Store, log: Path, seed: int, style: str) -> None:
        self.store, self.kv, self.seed = store, store.cache(LAYOUT), seed
        self.busy = style == "busy"
        self.log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.done: list[tuple[str, int]] = []
        self.kept_bytes = 0
        self.leases: list[object] = []

    def note(self, kind: str, *words: object) -> None:
        line = " ".join(map(str, (kind, time.monotonic_ns(), *words)))
        os.write(self.log, line.encode() + b"\n")

    def write(self, number: int) -> None:
        rng = random.Random(f"{self.seed} {number}")
        for turn in range(1_000_000):
            while not self.busy and self.kept_bytes > QUIET_MAX:
                time.sleep(1)
            if not self.busy:
                time.sleep(rng.uniform(0.3, 1.2))
            name, blocks = f"{self.seed}-{number}-{turn}", rng.randint(1, 20 if self.busy else 2)
            chain = chain_of(self.kv, name, blocks)
            self.note("begin", name, blocks)
            with self.kv.writer(chain) as writer:
                for layer in range(LAYERS):
                    writer.put(layer, range(blocks), [cells_of(chain, layer)])
                if writer.commit_blocking() < blocks:
                    continue
            self.note(self.kept(chain, rng), name, blocks)
            self.done.append((name, blocks))

    def kept(self, chain: Chain, rng: random.Random) -> str:
        nbytes = len(chain) * LAYOUT.block_bytes
        if not self.busy:
            self.kept_bytes += nbytes
            return "kept"
        if rng.random() < 0.5 or self.kept_bytes + nbytes > KEPT_MAX:
            return "done"
        hit = self.kv.match(chain)
        if hit.blocks < len(chain):
            return "done"
        lease = self.kv.lease(hit, timeout="1h")
        if self.kv.match(chain).blocks < len(chain):
            return "done"  # evicted in between
        self.leases.append(lease)
        self.kept_bytes += nbytes
        return "kept"

    def read(self) -> None:
        rng = random.Random(self.seed)
        while True:
            if not self.done:
                time.sleep(0.01)
                continue
            name, blocks = rng.choice(self.done)
            if not loaded(self.kv, name, blocks)[1]:
                self.note("wrong", name)

    def flush(self) -> None:
        rng = random.Random(self.seed)
        while True:
            time.sleep(rng.uniform(0.1, 0.6))
            started = time.monotonic_ns()
            self.store.flush_blocking()
            self.note("flush", started)


def endless(work: Callable[[], None]) -> threading.Thread:
    """Its errors are what happens to a process whose disk goes away: it stops."""

    def run() -> None:
        try:
            work()
        except OSError:
            pass

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def main(root: str, log: str, seed: str, style: str) -> None:
    store = open_blocking(root, capacity=CAPACITY[style], pool="64MB")
    work = Work(store, Path(log), int(seed), style)
    for number in range(WRITERS):
        endless(lambda number=number: work.write(number))
    endless(work.read)
    if work.busy:
        endless(work.flush)
    print("ready", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
