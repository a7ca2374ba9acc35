"""What the store itself costs: loads from a device that costs nothing (kvstore.testing.NullDevice).

Reads complete at once and their bytes are in memory, as if a device had moved them; what is left is
planning, submission, completion, verification, delivery and Python. The prefix is that of
DeepSeek-V2 at 128K tokens, 9.06 GB; the mark is 20 GB/s on two cores, 0.45 s. Prints where the time
goes: the checksum alone over as much memory, the native threads, the Python thread.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import kvstore
from jobfile import layout_of, parse_number
from kvstore import Cache, Chain, Layout, Pages, Store, _core
from kvstore.testing import Injection, NullDevice
from measure import Figures, check_place, command_line, coverage_words, emit, store_words

MARK_GBPS = 20.0
PROMPT_TOKENS = 131_072
SUM_BYTES = 1 << 28  # of memory that the checksum alone is timed over
TASKS = Path("/proc/self/task")
Bytes = npt.NDArray[np.uint8]


def thread_cpu_s() -> dict[int, float]:
    """Seconds on a processor of every thread, by its id."""
    found = {}
    for task in TASKS.iterdir():
        try:
            found[int(task.name)] = int((task / "schedstat").read_text().split()[0]) / 1e9
        except OSError:
            continue  # it has just ended
    return found


@dataclass
class Cost:
    """Of one load. python_s: of the thread that called; native_s: of all others, summed up."""

    gbps: float
    wall_s: float
    python_s: float
    native_s: float


def patterned(rows: int, row_bytes: int) -> Bytes:
    """What every cell holds; see NullDevice."""
    memory = kvstore.alloc(rows * row_bytes)[: rows * row_bytes]
    memory.reshape(-1, len(NullDevice.PATTERN))[:] = np.frombuffer(NullDevice.PATTERN, np.uint8)
    return memory.reshape(rows, row_bytes)


@dataclass
class Bench:
    store: Store
    kv: Cache
    chain: Chain
    cells: Bytes  # [blocks, bytes of the largest cell]: of any layer, as all are the same

    @property
    def layout(self) -> Layout:
        return self.kv.layout

    @property
    def nbytes(self) -> int:
        return len(self.chain) * self.layout.block_bytes

    def parts(self, layer: int, first: int, end: int) -> dict[str, Bytes]:
        found, at = {}, 0
        for name, nbytes in self.layout.parts_by_layer[layer]:
            found[name] = self.cells[first:end, at : at + nbytes]
            at += nbytes
        return found

    def put(self) -> None:
        """Headers reach the disk, cells go nowhere."""
        step = self.layout.blocks_per_extent
        for first in range(0, len(self.chain), step):
            end = min(first + step, len(self.chain))
            with self.kv.writer(self.chain[:end], start=first) as writer:
                for layer in range(self.layout.layers):
                    writer.put(layer, (first, end), self.parts(layer, first, end))
                if writer.commit_blocking() != end - first:
                    raise SystemExit(f"blocks were dropped: {writer.stats()}")

    def load(self, into: Pages | None) -> Cost:
        self.store.drop_ram()
        hit = self.kv.match(self.chain)
        before, began = thread_cpu_s(), time.perf_counter()
        python = time.thread_time()
        with self.kv.load(hit, into=into, deadline="120s") as load:
            for layer in load:
                if layer.blocks != len(self.chain):
                    raise SystemExit(f"a load ended short: {layer} {layer.reasons}")
            wall_s, python_s = time.perf_counter() - began, time.thread_time() - python
            if load.stats().disk_bytes != self.nbytes:
                raise SystemExit(f"a load was not from the device: {load.stats()}")
            load.wait_drained()
        spent = sum(now - before.get(task, 0.0) for task, now in thread_cpu_s().items())
        return Cost(self.nbytes / wall_s / 1e9, wall_s, python_s, max(0.0, spent - python_s))

    def into(self) -> Pages:
        """Caller memory: all layers read into the same, which holds the pattern already."""
        layers = range(self.layout.layers)
        return Pages([self.parts(layer, 0, len(self.chain)) for layer in layers])


def checksum_gbps(piece_bytes: int) -> float:
    """XXH3 alone, a second of one processor, over memory that no cache holds."""
    memory = patterned(SUM_BYTES // piece_bytes, piece_bytes)
    began = time.thread_time()
    for row in memory:
        _core.xxh3(row)
    return memory.nbytes / (time.thread_time() - began) / 1e9


def rounds_of(bench: Bench, count: int) -> tuple[dict[str, list[Cost]], list[float]]:
    rows: dict[str, Callable[[], Pages | None]] = {"pool": lambda: None, "caller": bench.into}
    found: dict[str, list[Cost]] = {name: [] for name in rows}
    sums = []
    for number in range(count + 1):  # the first one warms up
        sums.append(checksum_gbps(bench.layout.cell_bytes(0)))
        for name, into in rows.items():
            cost = bench.load(into())
            if number:
                found[name].append(cost)
    return found, sums[1:]


def row_facts(costs: list[Cost], sums: list[float], nbytes: int) -> dict[str, Any]:
    """The parts of a load's processor time; together they are all of it."""
    checksum = Figures([nbytes / gbps / 1e9 for gbps in sums]).median
    native = Figures([cost.native_s for cost in costs]).median
    python = Figures([cost.python_s for cost in costs]).median
    return {
        "gbps": Figures([cost.gbps for cost in costs]).facts(),
        "gb_per_cpu_s": nbytes / (native + python) / 1e9,
        "wall_s": Figures([cost.wall_s for cost in costs]).facts(),
        "cpu_s": {
            "checksum_alone": checksum,
            "native_without_checksum": max(0.0, native - checksum),
            "python": python,
        },
    }


def words(facts: dict[str, Any]) -> str:
    lines = [
        f"$ {facts['command']}",
        f"{facts['model']}, {facts['blocks']} blocks, {facts['bytes'] / 1e9:.2f} GB,"
        f" {facts['roots']} root(s); mark {MARK_GBPS:g} GB/s",
    ]
    for name, row in facts["loads"].items():
        parts = row["cpu_s"]
        whole = sum(parts.values())
        split = ", ".join(f"{part} {s:.3f} s ({s / whole:.0%})" for part, s in parts.items())
        lines += [
            f"{name:<7} {Figures(row['gbps']['rounds'])} GB/s,"
            f" {Figures(row['wall_s']['rounds'])} s",
            f"        {row['gb_per_cpu_s']:.1f} GB a second of one processor: {split}",
        ]
    lines += [
        f"checksum alone: {Figures(facts['checksum_gbps'])} GB a second of one processor",
        f"store   {facts['store']}",
        f"on      {facts['place']}",
    ]
    return "\n".join(lines)


def run(options: argparse.Namespace) -> dict[str, Any]:
    layout = layout_of(options.model)
    extent = layout.blocks_per_extent
    blocks = max(1, options.tokens // layout.block_tokens // extent) * extent
    nbytes = blocks * layout.block_bytes
    place = check_place(options.directory, nbytes)
    with tempfile.TemporaryDirectory(prefix="null-", dir=options.directory) as folder:
        roots = [Path(folder, str(number)) for number in range(options.roots)]
        for root in roots:
            root.mkdir()
        devices = Injection(devices=[NullDevice() for _ in roots])
        with kvstore.open_blocking(
            *roots, capacity=2 * nbytes, pool=options.pool, reserve=0, _testing=devices
        ) as store:
            kv = store.cache(layout)
            chain = kv.keys(np.arange(blocks * layout.block_tokens, dtype=np.int32))
            largest = max(map(layout.cell_bytes, range(layout.layers)))
            bench = Bench(store, kv, chain, patterned(blocks, largest))
            bench.put()
            found, sums = rounds_of(bench, options.rounds)
            info = store.info()
    coverage_words("pool", info.pool.huge_coverage)
    return {
        "command": command_line(),
        "model": options.model,
        "blocks": blocks,
        "bytes": nbytes,
        "roots": options.roots,
        "mark_gbps": MARK_GBPS,
        "loads": {name: row_facts(costs, sums, nbytes) for name, costs in found.items()},
        "checksum_gbps": sums,
        "store": store_words(info),
        "place": str(place),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="DeepSeek-V2", help="one that `kvstore plan` knows")
    parser.add_argument("--tokens", type=parse_number, default=PROMPT_TOKENS)
    parser.add_argument("--roots", type=int, default=2, help="each has an I/O thread that verifies")
    parser.add_argument("--pool", default="1GB")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--directory", type=Path, default=Path.cwd(), help="for the headers")
    parser.add_argument("--small", action="store_true", help="seconds: does it work at all?")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.small:
        options.tokens, options.rounds, options.pool = 8192, 2, "128MB"
    facts = run(options)
    emit(facts, words(facts), as_json=options.json, output=None)


if __name__ == "__main__":
    main()
