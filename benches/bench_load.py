"""Loading one long prefix from disk, as a share of what the disk gives at that moment.

A 4 GiB-class prefix of DeepSeek-V3 (61 layers, cells of 73,728 bytes, 960 blocks = 61,440 tokens)
is put, then loaded cold through asyncio in rounds that alternate with raw reads of the same files.
Rows: through the pool, into caller memory, and the put. Every cell is verified by the store on each
load, and held against what was put once. Run by hand or by `make bench`.
"""

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import kvstore
from kvstore import Cache, Chain, Hit, Layout, Pages, Store
from measure import Ceiling, Figures, check_place, command_line, pages_line

LAYERS = 61
CELL_BYTES = 73_728
PUT_SLICES = 6  # as many puts as figures of the put row
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Bench:
    store: Store
    kv: Cache
    chain: Chain
    cells: Bytes  # [blocks + layers, CELL_BYTES]: block b of layer l holds row b + l
    memory: Bytes | None  # [layers, blocks, CELL_BYTES] for loads into caller memory

    @property
    def nbytes(self) -> int:
        return len(self.chain) * LAYERS * CELL_BYTES


def source_cells(blocks: int) -> Bytes:
    """Random rows on huge pages, so that puts read what an engine's pinned memory would give."""
    rows = blocks + LAYERS
    memory = kvstore.alloc(rows * CELL_BYTES)
    np.copyto(memory, np.random.default_rng(0).integers(0, 256, memory.size, dtype=np.uint8))
    return memory[: rows * CELL_BYTES].reshape(rows, CELL_BYTES)


async def put_slice(bench: Bench, first: int, end: int) -> float:
    """Puts blocks [first, end), layer after layer as a prefill would; GB/s until published."""
    began = time.perf_counter()
    writer = bench.kv.writer(bench.chain[:end], start=first)
    for layer in range(LAYERS):
        await writer.put(layer, (first, end), [bench.cells[first + layer : end + layer]])
    published = await writer.commit()
    took = time.perf_counter() - began
    if published != end - first:
        raise SystemExit(f"only {published} of {end - first} blocks were put: {writer.stats()}")
    return (end - first) * LAYERS * CELL_BYTES / took / 1e9


async def put_all(bench: Bench) -> Figures:
    grid = bench.kv.layout.blocks_per_extent
    blocks = len(bench.chain)
    step = max(grid, blocks // PUT_SLICES // grid * grid)
    return Figures(
        [await put_slice(bench, i, min(i + step, blocks)) for i in range(0, blocks, step)]
    )


def cold_hit(bench: Bench) -> Hit:
    bench.store.drop_ram()
    hit = bench.kv.match(bench.chain)
    if hit.blocks != len(bench.chain):
        raise SystemExit(f"{hit.blocks} of {len(bench.chain)} blocks are resident: {hit.reason}")
    return hit


def check_load(bench: Bench, load: kvstore.Load) -> None:
    stats = load.stats()
    if stats.failed_blocks or stats.disk_bytes != bench.nbytes:
        raise SystemExit(f"the load was short, or not cold: {stats}")


async def load_pool(bench: Bench) -> float:
    """GB/s from the call of `load` to the last verified layer, each layer released in turn."""
    hit = cold_hit(bench)
    began = time.perf_counter()
    async with bench.kv.load(hit, deadline="120s") as load:
        async for _ in load:
            pass
        took = time.perf_counter() - began
        check_load(bench, load)
    return bench.nbytes / took / 1e9


async def load_caller(bench: Bench) -> float:
    """The same straight into memory of the caller."""
    assert bench.memory is not None
    hit = cold_hit(bench)
    into = Pages([{"latent": layer} for layer in bench.memory])
    began = time.perf_counter()
    async with bench.kv.load(hit, into=into, deadline="120s") as load:
        for layer in range(LAYERS):
            await load.layer(layer)
        took = time.perf_counter() - began
        check_load(bench, load)
        await load.drained
    return bench.nbytes / took / 1e9


async def check_bytes(bench: Bench) -> None:
    """Once, not timed: every byte of every layer against what was put."""
    async with bench.kv.load(cold_hit(bench), deadline="120s") as load:
        async for layer in load:
            for span in layer.spans:
                at = span.first_block + layer.index
                if not np.array_equal(span.cells, bench.cells[at : at + span.blocks]):
                    raise SystemExit(f"layer {layer.index} holds other bytes than were put")


async def measure(bench: Bench, ceiling: Ceiling, rounds: int) -> dict[str, Figures]:
    """Rows by name. The ceiling is sampled in turn with the loads."""
    rows: dict[str, Callable[[Bench], Awaitable[float]]] = {"pool": load_pool}
    if bench.memory is not None:
        rows["caller memory"] = load_caller
    found: dict[str, list[float]] = {name: [] for name in rows}
    await load_pool(bench)  # opens the files, faults code in
    for _ in range(rounds):
        ceiling.sample()
        for name, load in rows.items():
            found[name].append(await load(bench))
    ceiling.sample_fio()
    return {name: Figures(values) for name, values in found.items()}


def report(
    bench: Bench, ceiling: Ceiling, rows: dict[str, Figures], put: Figures, place: Any
) -> dict[str, Any]:
    info = bench.store.info()
    tops = {"best": ceiling.best("hot", "fresh", "fio"), "fresh": ceiling.best("fresh")}
    return {
        "command": command_line(),
        "bytes": bench.nbytes,
        "blocks": len(bench.chain),
        "place": asdict(place),
        "store": pages_line(info),
        "huge_coverage": info.pool.huge_coverage,
        "fallbacks": info.fallbacks,
        "ceilings": {
            name: {"who": who, "depth": depth, "gbps": best.median, "rounds": best.values}
            for name, (who, depth, best) in tops.items()
        },
        "raw": {
            "io_bytes": ceiling.io_bytes,
            "engine": ceiling.engine,
            "registered": ceiling.registered,
            "fio": ceiling.fio_note or "ran",
        },
        "loads": {
            name: {
                "gbps": row.median,
                "share": row.median / tops["best"][2].median,
                "share_of_fresh": row.median / tops["fresh"][2].median,
                "rounds": row.values,
            }
            for name, row in rows.items()
        },
        "put": {"gbps": put.median, "rounds": put.values},
    }


def render(found: dict[str, Any]) -> str:
    raw, place = found["raw"], found["place"]
    lines = [
        f"{found['blocks']} blocks, {found['bytes'] / 2**30:.2f} GiB; GB/s: median (low to high)",
        *(
            f"ceiling, {name:<6}{Figures(top['rounds'])}  {top['who']}, depth {top['depth']}"
            for name, top in found["ceilings"].items()
        ),
    ]
    for name, row in found["loads"].items():
        lines.append(
            f"{name:<15}{Figures(row['rounds'])}  share {row['share']:.3f} of the best,"
            f" {row['share_of_fresh']:.3f} of fresh"
        )
    lines += [
        f"put            {Figures(found['put']['rounds'])}  until published, no fsync",
        f"raw reads      {raw['io_bytes']} bytes, {raw['engine']}"
        f" ({'registered' if raw['registered'] else 'not registered'}); {raw['fio']}",
        f"store          {found['store']}",
        f"on             {place['device']}, {place['file_system']} ({place['mount_options']}),"
        f" Linux {place['kernel']}, {place['cpus']} cpus",
        *(f"note           {note}" for note in found["fallbacks"]),
        f"command        {found['command']}",
    ]
    return "\n".join(lines)


async def run(options: argparse.Namespace) -> dict[str, Any]:
    layout = Layout.mla(model="deepseek-ai/DeepSeek-V3", layers=LAYERS)
    nbytes = options.blocks * layout.block_bytes
    place = check_place(options.dir, nbytes)
    with tempfile.TemporaryDirectory(prefix="kvstore-bench-", dir=options.dir) as folder:
        store = await kvstore.open(
            folder, capacity=2 * nbytes, pool=options.pool, engine=options.engine
        )
        async with store:
            kv = store.cache(layout)
            tokens = np.arange(options.blocks * layout.block_tokens, dtype=np.int32)
            memory = None if options.no_caller else kvstore.alloc(nbytes)[:nbytes]
            bench = Bench(
                store,
                kv,
                kv.keys(tokens),
                source_cells(options.blocks),
                None if memory is None else memory.reshape(LAYERS, options.blocks, CELL_BYTES),
            )
            put = await put_all(bench)
            await check_bytes(bench)
            paths = sorted(Path(folder).glob("*/*/*.kv"))
            ceiling = Ceiling(
                paths,
                layout.blocks_per_extent * CELL_BYTES,
                memory_bytes=min(nbytes, store.info().pool.bytes),
                seconds=options.seconds,
            )
            rows = await measure(bench, ceiling, options.rounds)
            return report(bench, ceiling, rows, put, place)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, default=Path.cwd(), help="where, on the disk measured")
    parser.add_argument("--blocks", type=int, default=960, help="64 tokens, 4.5 MB each")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--seconds", type=float, default=0.2, help="of raw reads per depth and kind"
    )
    parser.add_argument("--pool", default="1GB")
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--no-caller", action="store_true", help="without the caller-memory row")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.blocks < 1 or options.rounds < 1:
        parser.error("--blocks and --rounds are at least 1")
    found = asyncio.run(run(options))
    print(json.dumps(found, indent=2) if options.json else render(found))


if __name__ == "__main__":
    main()
