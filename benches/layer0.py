"""Time to layer 0 of a load: how long before an engine can begin to compute.

Warm: the store's files are open. Bound: raw reads of the same bytes into as much memory at depth
32, in the same round. Cold: no file is open and the kernel has forgotten names and inodes (as root;
else it is said that it has not). Held against what one would write by hand: a pool of threads, each
of which opens a file and reads header and layer 0 in one call into huge pages, nothing verified, by
the number of threads that was best. Its files are the store's.
"""

import argparse
import asyncio
import itertools
import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Barrier
from typing import Any

import kvstore
from jobfile import parse_number
from kvstore import Cache, Chain, Layout
from kvstore.raw_io import RawIo, Step
from measure import (
    Figures,
    check_place,
    command_line,
    coverage_words,
    emit,
    ratios,
    skip,
    store_words,
)
from subject import DEADLINE, Subject, huge

DEPTH = 32
THREADS = (4, 8, 16, 32)
WARM_LOADS = 5  # a round; the median counts
REST_S = 0.1  # before each sample: what a host lets through at once may depend on what went before
DROP_CACHES = Path("/proc/sys/vm/drop_caches")
DENTRIES_AND_INODES = "2"


def kernel_forgets() -> bool:
    """Names and inodes that nobody uses, after a rest; False where that is not ours to ask."""
    time.sleep(REST_S)
    try:
        DROP_CACHES.write_text(DENTRIES_AND_INODES)
    except OSError:
        return False
    return True


class ByHand:
    """What a loop without a store does to get layer 0 of files it knows by name."""

    def __init__(self, files: list[Path], head_bytes: int) -> None:
        self.files = list(map(str, files))
        self.memory = huge(len(files), head_bytes)

    def seconds(self, threads: int) -> float:
        numbers = itertools.count()
        opened: list[int] = []
        ready = Barrier(threads + 1)

        def reader() -> None:
            ready.wait()
            while (number := next(numbers)) < len(self.files):
                fd = os.open(self.files[number], os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
                opened.append(fd)
                if os.preadv(fd, [self.memory[number]], 0) != self.memory.shape[1]:
                    raise SystemExit(f"{self.files[number]} is short")

        with ThreadPoolExecutor(threads) as pool:
            readers = [pool.submit(reader) for _ in range(threads)]
            ready.wait()
            began = time.perf_counter()
            for one in readers:
                one.result()
            took = time.perf_counter() - began
        for fd in opened:
            os.close(fd)
        return took


def to_layer0(kv: Cache, chain: Chain) -> float:
    """Seconds. The rest of the load is given up, and waited for."""
    hit = kv.match(chain)
    if hit.blocks != len(chain):
        raise SystemExit(f"{hit.blocks} of {len(chain)} blocks are resident: {hit.reason}")
    began = time.perf_counter()
    with kv.load(hit, deadline=DEADLINE) as load:
        layer = load.wait(0)
        took = time.perf_counter() - began
        if layer.blocks != len(chain):
            raise SystemExit(f"a load ended short: {layer} {layer.reasons}")
        load.cancel()
        load.wait_drained(DEADLINE)
    return took


@dataclass
class Bench:
    """One prefix on disk. Times in seconds, a value a round."""

    folder: Path
    layout: Layout
    chain: Chain
    pool: str
    raw: RawIo
    by_hand: ByHand
    cold: list[float] = field(default_factory=list)
    warm: list[float] = field(default_factory=list)
    bound: list[float] = field(default_factory=list)
    hand: dict[int, list[float]] = field(default_factory=dict)
    forgets: bool = True
    store: str = ""

    def one_round(self, number: int) -> None:
        """The store is opened anew, so it has no file open; that is not timed."""
        with kvstore.open_blocking(self.folder, pool=self.pool, reserve=0) as store:
            kv = store.cache(self.layout)
            self.store = store_words(store.info())
            while store.info().roots[0].warming:
                time.sleep(0.01)

            def store_cold() -> None:
                self.forgets &= kernel_forgets()
                self.cold.append(to_layer0(kv, self.chain))

            turns: list[Callable[[], None]] = [store_cold]
            turns += [partial(self.hand_cold, threads) for threads in THREADS]
            at = number % len(turns)  # each of them is first in its turn
            for turn in turns[at:] + turns[:at]:
                turn()
            self.warm_and_bound(store, kv)

    def hand_cold(self, threads: int) -> None:
        self.forgets &= kernel_forgets()
        self.hand.setdefault(threads, []).append(self.by_hand.seconds(threads))

    def warm_and_bound(self, store: kvstore.Store, kv: Cache) -> None:
        layer_bytes = len(self.chain) * self.layout.cell_bytes(0)
        warm, bound = [], []
        for _ in range(WARM_LOADS):
            store.drop_ram()
            time.sleep(REST_S)
            warm.append(to_layer0(kv, self.chain))
            time.sleep(REST_S)
            moved = self.raw.run(DEPTH, 60, steps=len(self.by_hand.files))
            bound.append(layer_bytes / moved.gbps / 1e9)
        self.warm.append(Figures(warm).median)
        self.bound.append(Figures(bound).median)

    def facts(self) -> dict[str, Any]:
        best = min(self.hand, key=lambda threads: Figures(self.hand[threads]).median)
        over = [warm - bound for warm, bound in zip(self.warm, self.bound, strict=True)]
        return {
            "blocks": len(self.chain),
            "files": len(self.by_hand.files),
            "layer_bytes": len(self.chain) * self.layout.cell_bytes(0),
            "warm_s": Figures(self.warm).facts(),
            "bound_s": Figures(self.bound).facts(),
            "warm_over_bound_s": Figures(over).facts(),
            "cold_s": Figures(self.cold).facts(),
            "by_hand_s": {str(n): Figures(self.hand[n]).facts() for n in self.hand},
            "by_hand_threads": best,
            "cold_of_by_hand": ratios(self.cold, self.hand[best]).facts(),
            "kernel_forgot": self.forgets,
            "store": self.store,
            "raw_huge_coverage": self.raw.huge_coverage,
        }


def ms(figures: dict[str, Any]) -> str:
    return f"{Figures([value * 1e3 for value in figures['rounds']])} ms"


def words(facts: dict[str, Any]) -> str:
    hand, best = facts["by_hand_s"], facts["by_hand_threads"]
    lines = [
        f"$ {facts['command']}",
        f"on {facts['place']}",
        f"store: {facts['store']}",
        coverage_words("memory of raw reads", facts["raw_huge_coverage"]),
        f"{facts['blocks']} blocks in {facts['files']} files, layer 0 is"
        f" {facts['layer_bytes'] / 1e6:.1f} MB; median (low to high)",
        f"files open      {ms(facts['warm_s'])}",
        f"bound           {ms(facts['bound_s'])}",
        f"over the bound  {ms(facts['warm_over_bound_s'])}",
        f"cold            {ms(facts['cold_s'])}",
    ]
    lines += [f"by hand, {int(n):>2}     {ms(hand[n])}" for n in hand]
    of_hand = Figures(facts["cold_of_by_hand"]["rounds"])
    return "\n".join([*lines, f"cold / by hand  {of_hand} with {best} threads"])


async def put(folder: Path, layout: Layout, blocks: int, pool: str) -> tuple[Chain, list[Path]]:
    """The chain, and its files with layer 0 of its blocks in order."""
    capacity = 2 * blocks * layout.block_bytes
    async with await kvstore.open(folder, capacity=capacity, pool=pool, reserve=0) as store:
        subject = Subject(store, layout)
        chain = subject.chain(0, blocks)
        await subject.put(chain)
        names = {path.stem: path for path in subject.extent_files()}
        keys = [bytes(key).hex() for key in chain]
        return chain, [names[key] for key in keys if key in names]


def run(options: argparse.Namespace) -> dict[str, Any]:
    layout = Layout.mla(model="layer0", layers=options.layers, extent_blocks=options.extent_blocks)
    extent = layout.blocks_per_extent
    blocks = max(1, options.blocks // extent) * extent
    place = check_place(options.dir, blocks * layout.block_bytes)
    with tempfile.TemporaryDirectory(prefix="layer0-", dir=options.dir) as name:
        folder = Path(name)
        chain, files = asyncio.run(put(folder, layout, blocks, options.pool))
        regions = [
            -(-extent * layout.cell_bytes(layer) // 4096) * 4096 for layer in range(layout.layers)
        ]
        header = files[0].stat().st_size - sum(regions)
        # Layer 0 only: a host may have in its memory what is read again and again.
        steps = [Step(number, header, regions[0]) for number in range(len(files))]
        raw = RawIo(files, steps, depth_max=DEPTH, memory_bytes=len(files) * regions[0])
        by_hand = ByHand(files, header + regions[0])
        bench = Bench(folder, layout, chain, options.pool, raw, by_hand)
        bench.one_round(0)  # faults code in
        for values in (bench.cold, bench.warm, bench.bound, *bench.hand.values()):
            values.clear()
        for number in range(options.rounds):
            bench.one_round(number)
        facts = bench.facts()
    if not facts["kernel_forgot"]:
        skip("cold means only that no file was open: root may have the kernel forget names")
    return {"command": command_line(), "place": str(place), **facts}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else "")
    parser.add_argument("--dir", type=Path, default=Path.cwd(), help="where, on the disk measured")
    parser.add_argument("--blocks", type=parse_number, default=960, help="of the prefix")
    parser.add_argument("--layers", type=int, default=61, help="of the model (DeepSeek-V3)")
    parser.add_argument("--extent-blocks", type=int, help="blocks in a file; default: chosen")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--pool", default="512MB")
    parser.add_argument("--small", action="store_true", help="seconds: does it work at all?")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.small:
        options.blocks, options.layers, options.rounds = min(options.blocks, 64), 8, 2
        options.pool = "64MB"
    if min(options.rounds, options.blocks, options.layers) < 1:
        parser.error("--rounds, --blocks and --layers are at least 1")
    facts = run(options)
    emit(facts, words(facts), as_json=options.json, output=None)


if __name__ == "__main__":
    main()
