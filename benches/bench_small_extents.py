"""Loads over chains of small extents, as chats leave them behind, against loads of full ones.

A chat adds a few blocks a turn and each turn's put makes extents of its own, so a long prompt comes
back from many short files. Here requests are put the way they arrive, each its new blocks alone: by
a trace that `kvstore replay` reads, or by a model of one. Then the longest prompts are loaded cold,
in turn with prompts of the same lengths that one writer put, and with raw reads of the same files.
The figure is small over full within a round: what the disk does at that moment is in both.
"""

import argparse
import itertools
import json
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import kvstore
from ceiling import ReadCeiling
from kvstore import Cache, Chain, Layout, Store
from kvstore.raw_io import whole_files
from kvstore.replay.request import keys_of_numbers
from kvstore.replay.traces import Options, Trace
from measure import Figures, check_place, command_line, store_words

KEY_BYTES = 32
TURNS = 40  # of a modelled chat
Keys = list[bytes]
Cells = npt.NDArray[np.uint8]


def modelled(turn_blocks: float) -> Iterator[tuple[int, Keys]]:
    """(tokens a block, keys) of requests: chats, one after the other, that grow by so many blocks a
    turn on average."""
    rng = np.random.default_rng(1)
    for chat in range(1 << 20):
        numbers = chat << 20 | np.arange(1 << 12, dtype=np.int64)
        blocks = 0
        for _ in range(TURNS):
            blocks += 1 + int(rng.poisson(turn_blocks - 1))
            yield 64, split(keys_of_numbers(numbers[:blocks]))


def traced(path: Path, only_set: str | None, stagger_s: float) -> Iterator[tuple[int, Keys]]:
    for request in Trace(path, Options(only_set=only_set, stagger_s=stagger_s)):
        whole = request.input_tokens // request.block_tokens
        yield request.block_tokens, split(request.block_keys())[:whole]


def split(keys: bytes) -> Keys:
    return [keys[at : at + KEY_BYTES] for at in range(0, len(keys), KEY_BYTES)]


def cells_for(blocks: int, layout: Layout) -> Cells:
    """Random rows: block b of layer l holds row b + l, of any prompt."""
    rows, cell_bytes = blocks + layout.layers, layout.cell_bytes(0)
    memory = kvstore.alloc(rows * cell_bytes)
    np.copyto(memory, np.random.default_rng(0).integers(0, 256, memory.size, dtype=np.uint8))
    return memory[: rows * cell_bytes].reshape(-1, cell_bytes)


class Side:
    """One way to have put prompts: its cache, and what it wrote."""

    def __init__(self, store: Store, layout: Layout, cells: Cells) -> None:
        self.store, self.kv, self.cells = store, store.cache(layout), cells
        self.puts = self.blocks = self.extents = 0
        self.rates: list[float] = []

    def put(self, chain: Chain) -> None:
        """What is missing of the chain, layer after layer."""
        with self.kv.writer(chain) as writer:
            for layer in range(self.kv.layout.layers):
                writer.put(layer, (0, len(chain)), [self.cells[layer : layer + len(chain)]])
            if writer.commit_blocking() != len(chain):
                raise SystemExit(f"a put was short: {writer.stats()}")
            made = len(chain) - writer.stats().blocks_skipped
            self.extents += writer.stats().extents
        self.puts += made > 0
        self.blocks += made

    def load(self, chain: Chain) -> float:
        """Seconds of a cold load."""
        self.store.drop_ram()
        began = time.perf_counter()
        with self.kv.load(self.kv.match(chain), deadline="120s") as load:
            for layer in load:
                if layer.blocks != len(chain):
                    raise SystemExit(f"{layer.blocks} blocks were loaded: {layer.reason}")
            took = time.perf_counter() - began
            if load.stats().disk_bytes != len(chain) * self.kv.layout.block_bytes:
                raise SystemExit("a load was not cold")
        return took


def sample(pairs: list[tuple[Side, list[Chain]]]) -> None:
    """GB/s of each side, over all of its prompts, which take turns with those of the other."""
    took = [0.0 for _ in pairs]
    for number in range(len(pairs[0][1])):
        for at in (0, 1) if number % 2 else (1, 0):
            side, chains = pairs[at]
            took[at] += side.load(chains[number])
    for (side, chains), seconds in zip(pairs, took, strict=True):
        side.rates.append(sum(map(len, chains)) * side.kv.layout.block_bytes / seconds / 1e9)


def fill(requests: Iterator[tuple[int, Keys]], side: Side, blocks_max: int) -> list[Chain]:
    """Puts requests until so many blocks lie there; the chains that none of the others goes on."""
    chains: list[Keys] = []
    for _, keys in requests:
        if side.blocks + len(keys) > blocks_max:
            break
        if keys:
            side.put(wrapped(side.kv, keys))
            chains.append(keys)
    covered: set[bytes] = set()
    longest: list[Keys] = []
    for keys in sorted(chains, key=len, reverse=True):
        if keys[-1] not in covered:
            covered.update(keys)
            longest.append(keys)
    return [wrapped(side.kv, keys) for keys in longest]


def wrapped(kv: Cache, keys: Keys, *, salt: bytes = b"") -> Chain:
    return kv.wrap(keys, salt=salt)


def report(
    options: argparse.Namespace, sides: dict[str, Side], chains: list[Chain], ceiling: ReadCeiling
) -> dict[str, Any]:
    store = sides["small"].store
    top, fresh = ceiling.samples.best(), ceiling.samples.best("fresh").figures
    best = top.figures
    small, full = sides["small"].rates, sides["full"].rates
    return {
        "command": command_line(),
        "place": asdict(check_place(options.dir, 0)),
        "store": store_words(store.info()),
        "prompts": [len(chain) for chain in chains],
        "ceiling": {
            "who": top.tool,
            "depth": top.depth,
            "gbps": best.median,
            "fresh": fresh.median,
        },
        "ratio": [one / other for one, other in zip(small, full, strict=True)],
        "sides": {
            name: {
                "blocks_per_put": side.blocks / max(1, side.puts),
                "blocks_per_extent": side.blocks / max(1, side.extents),
                "extents": side.extents,
                "rounds": side.rates,
                "share": Figures(side.rates).median / best.median,
                "share_of_fresh": Figures(side.rates).median / fresh.median,
            }
            for name, side in sides.items()
        },
    }


def render(found: dict[str, Any]) -> str:
    prompts, top, place = found["prompts"], found["ceiling"], found["place"]
    lines = [
        f"{len(prompts)} prompts of {min(prompts)} to {max(prompts)} blocks; GB/s: median (low to"
        " high)",
        f"ceiling   {top['gbps']:.2f} ({top['who']}, depth {top['depth']}),"
        f" fresh {top['fresh']:.2f}",
    ]
    for name, side in found["sides"].items():
        lines.append(
            f"{name:<9} {Figures(side['rounds'])}  share {side['share']:.3f} of the best,"
            f" {side['share_of_fresh']:.3f} of fresh; {side['blocks_per_put']:.1f} blocks a put,"
            f" {side['blocks_per_extent']:.1f} an extent ({side['extents']:,} extents)"
        )
    lines += [
        f"small / full  {Figures(found['ratio'])}",
        f"store     {found['store']}",
        f"on        {place['device']}, {place['file_system']}, Linux {place['kernel']},"
        f" {place['cpus']} cpus",
        f"command   {found['command']}",
    ]
    return "\n".join(lines)


def run(options: argparse.Namespace) -> dict[str, Any]:
    requests = (
        traced(options.trace, options.set, options.stagger)
        if options.trace
        else modelled(options.turn)
    )
    first = next(requests)

    def layout_of(model: str) -> Layout:
        return Layout.mla(model=model, layers=options.layers, block_tokens=first[0])

    layout = layout_of("small")
    blocks_max = round(options.gib * 2**30 / layout.block_bytes)
    room = 2 * options.gib * 2**30
    check_place(options.dir, round(room))
    with tempfile.TemporaryDirectory(prefix="kvstore-bench-", dir=options.dir) as folder:
        with kvstore.open_blocking(folder, capacity=round(1.2 * room), pool=options.pool) as store:
            cells = cells_for(blocks_max, layout)
            small = Side(store, layout, cells)
            full = Side(store, layout_of("full"), cells)
            chains = fill(itertools.chain([first], requests), small, blocks_max)[: options.prompts]
            if not chains:
                raise SystemExit("the first request is larger than --gib: name more")
            while len(chains) > 1 and sum(map(len, chains)) > blocks_max:
                chains.pop()  # together they have more blocks than were put: they share some
            twins = [
                wrapped(full.kv, list(chain), salt=str(number).encode())
                for number, chain in enumerate(chains)
            ]
            for twin in twins:
                full.put(twin)
            paths = sorted(Path(folder).glob("*/*/*.kv"))[:512]
            region_bytes = layout.blocks_per_extent * layout.cell_bytes(0)
            ceiling = ReadCeiling(
                paths,
                list(whole_files(paths, region_bytes)),
                memory_bytes=store.info().pool.bytes,
                seconds=options.seconds,
                with_fio=not options.small,
            )
            ceiling.warm_up()
            pairs = [(small, chains), (full, twins)]
            sample(pairs)  # faults code in
            for side, _ in pairs:
                side.rates.clear()
            for _ in range(options.rounds):
                ceiling.sample()
                pairs.reverse()
                sample(pairs)
            return report(options, {"small": small, "full": full}, chains, ceiling)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, default=Path.cwd(), help="where, on the disk measured")
    parser.add_argument("--trace", type=Path, help="requests to put; default: a model of chats")
    parser.add_argument("--set", help="of token sessions: only those of this set")
    parser.add_argument("--stagger", type=float, default=0.0, help="s between Weka sessions")
    parser.add_argument("--layers", type=int, default=61, help="of the model")
    parser.add_argument("--turn", type=float, default=6.6, help="blocks a turn of the model adds")
    parser.add_argument("--gib", type=float, default=4.0, help="put at most so much, twice")
    parser.add_argument("--prompts", type=int, default=8, help="load so many, the longest")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--seconds", type=float, default=0.1, help="of raw reads per depth and kind"
    )
    parser.add_argument("--pool", default="1GB")
    parser.add_argument("--small", action="store_true", help="half a GiB, three rounds: a try")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.small:
        options.gib, options.rounds, options.pool = min(options.gib, 0.5), 3, "256MB"
    if options.rounds < 1 or options.prompts < 1 or options.turn < 1 or options.gib <= 0:
        parser.error("--rounds, --prompts, --turn and --gib are at least 1, --gib above 0")
    found = run(options)
    print(json.dumps(found, indent=2) if options.json else render(found))


if __name__ == "__main__":
    main()
