"""Time to first token against its bound, with real reads and compute paced by published rates.

    TTFT = max over layers k of (loads of layers 0..k + computes of layers k..)

A prefix is loaded layer by layer while `suffix` new tokens are "computed": layer i begins when its
cache is there and layer i - 1 is done, and keeps its views until its time is over. The bound takes
each layer's load at the ceiling's speed in the same round. It also says what bandwidth 128K
tokens need to be answered in half a second. The rates and their sources are in prefill_rates.py.
"""

import argparse
import asyncio
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kvstore
import plots
from ceiling import ReadCeiling, layer_major
from jobfile import layout_of, parse_number
from kvstore import Layout
from measure import Figures, check_place, command_line, emit, ratios, store_words
from prefill_rates import RATES
from subject import DEADLINE, Subject

TARGET_S = 0.5
LONG_TOKENS = 131_072


def bound_s(load_s: Sequence[float], compute_s: Sequence[float]) -> float:
    """Of a two-stage pipeline: seconds per layer of each stage."""
    loaded, left, worst = 0.0, sum(compute_s), 0.0
    for load, compute in zip(load_s, compute_s, strict=True):
        loaded += load
        worst = max(worst, loaded + left)
        left -= compute
    return worst


def needed_gbps(layer_bytes: int, layers: int, compute_s: float, target_s: float) -> float:
    """Bandwidth at which the bound of equal layers meets the target; inf: compute alone exceeds it.

    With equal layers the bound is at its first or its last layer.
    """
    load_s = min(target_s - layers * compute_s, (target_s - compute_s) / layers)
    return layer_bytes / load_s / 1e9 if load_s > 0 else float("inf")


@dataclass
class Timeline:
    """Seconds since the load was asked for. spans: when each layer was computed."""

    loaded_s: list[float]
    spans: list[tuple[float, float]]

    @property
    def ttft_s(self) -> float:
        return self.spans[-1][1]


async def one_prefill(subject: Subject, compute_s: float) -> Timeline:
    """The clock of layers that are ready is the store's (CLOCK_BOOTTIME), so that a loop that wakes
    late costs nothing that a GPU would not have paid."""
    subject.store.drop_ram()
    hit = subject.kv.match(subject.chains[0])
    began = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    done = Timeline([], [])
    end_s = 0.0
    async with subject.kv.load(hit, deadline=DEADLINE) as load:
        async for layer in load:
            if layer.blocks != hit.blocks:
                raise SystemExit(f"a load ended short: {layer} {layer.reasons}")
            done.loaded_s.append((layer.ready_ns - began) / 1e9)
            start_s = max(end_s, done.loaded_s[-1])
            end_s = start_s + compute_s
            done.spans.append((start_s, end_s))
            now_s = (time.clock_gettime_ns(time.CLOCK_BOOTTIME) - began) / 1e9
            await asyncio.sleep(max(0.0, end_s - now_s))
    return done


class ModelRun:
    """One model: its prefix on disk, its rounds, its facts."""

    def __init__(self, model: str, options: argparse.Namespace) -> None:
        self.model, self.options = model, options
        self.layout: Layout = layout_of(model)
        extent = self.layout.blocks_per_extent
        self.blocks = max(1, options.tokens // self.layout.block_tokens // extent) * extent
        self.nbytes = self.blocks * self.layout.block_bytes
        self.rate = RATES[model]
        seconds = options.suffix / self.rate.tokens_per_s
        self.compute_s = seconds / self.layout.layers
        self.timelines: list[Timeline] = []
        self.ceilings: list[float] = []

    async def run(self, folder: Path) -> dict[str, Any]:
        options = self.options
        store = await kvstore.open(
            folder, capacity=2 * self.nbytes, pool=options.pool, engine=options.engine, reserve=0
        )
        async with store:
            subject = Subject(store, self.layout)
            subject.chains.append(subject.chain(0, self.blocks))
            await subject.put(subject.chains[0])
            files = subject.extent_files()
            header = files[0].stat().st_size - sum(subject.regions)
            ceiling = ReadCeiling(
                files,
                layer_major(len(files), header, subject.regions),
                memory_bytes=min(self.nbytes, store.info().pool.bytes),
                seconds=options.seconds,
                with_fio=False,
            )
            ceiling.warm_up()
            await one_prefill(subject, self.compute_s)
            for _ in range(options.rounds):
                ceiling.sample()
                self.timelines.append(await one_prefill(subject, self.compute_s))
            self.ceilings = list(ceiling.samples.best("fresh", "hot").figures.values)
            return self.facts(store_words(store.info()))

    def bounds(self) -> list[float]:
        layers = self.layout.layers
        loads = [self.nbytes / layers / gbps / 1e9 for gbps in self.ceilings]
        return [bound_s([load] * layers, [self.compute_s] * layers) for load in loads]

    def facts(self, store: str) -> dict[str, Any]:
        layers, blocks = self.layout.layers, LONG_TOKENS // self.layout.block_tokens
        ttft = [timeline.ttft_s for timeline in self.timelines]
        long_bytes = blocks * self.layout.block_bytes
        return {
            "model": self.model,
            "layers": layers,
            "bytes": self.nbytes,
            "prefill_source": self.rate.source,
            "prefill_tokens_per_s": self.rate.tokens_per_s,
            "layer_compute_s": self.compute_s,
            "cold_s": self.blocks * self.layout.block_tokens / self.rate.tokens_per_s,
            "ttft_s": Figures(ttft).facts(),
            "bound_s": Figures(self.bounds()).facts(),
            "ttft_of_bound": ratios(ttft, self.bounds()).facts(),
            "ceiling_gbps": Figures(self.ceilings).facts(),
            "long_bytes": long_bytes,
            "target_gbps": needed_gbps(long_bytes // layers, layers, self.compute_s, TARGET_S),
            "store": store,
        }


def words(facts: dict[str, Any]) -> str:
    lines = [f"$ {facts['command']}", f"on {facts['place']}"]
    for row in facts["models"]:
        ttft, bound = Figures(row["ttft_s"]["rounds"]), Figures(row["bound_s"]["rounds"])
        of_bound = Figures(row["ttft_of_bound"]["rounds"])
        lines += [
            "",
            f"{row['model']}: {row['bytes'] / 1e9:.2f} GB in {row['layers']} layers, a layer is"
            f" computed in {row['layer_compute_s'] * 1e3:.2f} ms",
            f"  first token   {ttft} s, {of_bound} of the bound {bound} s;"
            f" all computed: {row['cold_s']:.1f} s",
            f"  ceiling       {Figures(row['ceiling_gbps']['rounds'])} GB/s",
            f"  128K tokens   {row['long_bytes'] / 1e9:.2f} GB need"
            f" {row['target_gbps']:.1f} GB/s for {TARGET_S:g} s",
            f"  compute by    {row['prefill_source']}",
            f"  store         {row['store']}",
        ]
    return "\n".join(lines)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else "")
    parser.add_argument("--model", nargs="+", choices=list(RATES), default=list(RATES))
    parser.add_argument("--tokens", type=parse_number, default=16_384, help="of the prefix")
    parser.add_argument("--suffix", type=parse_number, default=1024, help="new tokens to compute")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.2, help="of raw reads per depth, round")
    parser.add_argument("--pool", default="1GB")
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--directory", type=Path, default=Path.cwd())
    parser.add_argument("--small", action="store_true", help="seconds: does it work at all?")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--plot", type=Path, metavar="PNG", help="layers of the first model")
    options = parser.parse_args()
    if options.small:
        options.tokens, options.suffix, options.rounds = 2048, 64, 2
        options.seconds, options.pool = 0.02, "256MB"
    return options


def main() -> None:
    options = parse_arguments()
    found = []
    for model in options.model:
        run = ModelRun(model, options)
        place = check_place(options.directory, run.nbytes)
        with tempfile.TemporaryDirectory(prefix="pipeline-", dir=options.directory) as folder:
            found.append(asyncio.run(run.run(Path(folder))))
        if options.plot and model == options.model[0]:
            last = run.timelines[-1]
            plots.timeline(options.plot, last.loaded_s, last.spans, f"{model}, last round")
    facts = {"command": command_line(), "place": str(place), "models": found}
    emit(facts, words(facts), as_json=options.json, output=None)


if __name__ == "__main__":
    main()
