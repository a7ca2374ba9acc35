"""What grows with the number of blocks: keys, lookup, memory, eviction, restart.

Absolute figures, because what they are held against is: each is a median with its spread over one
run, with the machine's load beside it. On a machine that others keep busy only the least of a
spread says something. `--small` ends in seconds and judges nothing.

`match` for N blocks fills a store without devices: 31 bytes a block, so 50 million take 1.6 GB.
`disk` makes files that take 4 KiB each below --dir, and removes them.
"""

import argparse
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from kvstore.chain import chain_of_tokens
from measure import Figures, command_line, place_of
from scale import disk_parts, index_parts

Rows = list[tuple[str, Figures]]
"""(what with its unit, its values)."""

CHAIN_TOKENS = 131_072


def keys(options: argparse.Namespace) -> Rows:
    tokens = np.arange(CHAIN_TOKENS, dtype=np.int32)
    took = []
    for _ in range(options.rounds * 10):
        began = time.perf_counter()
        chain = chain_of_tokens(tokens, block_tokens=64)
        took.append((time.perf_counter() - began) * 1e3)
    return [(f"keys of {CHAIN_TOKENS} tokens ({len(chain)} blocks), ms", Figures(took))]


def match(options: argparse.Namespace) -> Rows:
    rows: Rows = []
    for blocks in options.blocks:
        for extent_blocks in options.extent_blocks:
            filled = index_parts.fill(blocks, extent_blocks)
            what = f"{filled.blocks:,} blocks in extents of {extent_blocks}"
            per_block = [filled.rss_bytes / filled.blocks]
            took = index_parts.match_us(filled, options.rounds)
            rows += [
                (f"{what}: memory by which the process grew, bytes a block", Figures(per_block)),
                (
                    f"{what}: of it by the store's own account, bytes a block",
                    Figures([filled.index_bytes / filled.blocks]),
                ),
                (f"{what}: match of {index_parts.CHAIN_BLOCKS} blocks, us", Figures(took)),
                (f"{what}: put, us an extent, mean of a chain", Figures(filled.put_us)),
            ]
    return rows


def churn(options: argparse.Namespace) -> Rows:
    rows: Rows = []
    medians = []
    for extents in options.extents:
        took = Figures(index_parts.churn_us(extents, 16, options.rounds * 20))
        medians.append(took.median)
        rows.append((f"put that evicts, {extents:,} extents of 16, us an extent", took))
    rows.append(("the most extents to the fewest, ratio", Figures([medians[-1] / medians[0]])))
    return rows


def disk(options: argparse.Namespace) -> Rows:
    done = disk_parts.restarts(options.dir, options.files, options.rounds, options.scans)
    rates = [done.extents / took * 60 for took in done.scan_s]
    cpu_us = [cpu / done.extents * 1e6 for cpu in done.scan_cpu_s]
    what = f"{done.extents:,} extents on disk"
    return [
        (f"{what}: made (not the store's work), s", Figures([done.make_s])),
        (f"{what}: open, ms", Figures(done.open_ms)),
        (f"{what}: open to the first hit's bytes, ms", Figures(done.first_hit_ms)),
        (f"{what}: full index, extents a minute", Figures(rates)),
        (f"{what}: full index, us of processor an extent", Figures(cpu_us)),
    ]


PARTS: dict[str, Callable[[argparse.Namespace], Rows]] = {
    "keys": keys,
    "match": match,
    "churn": churn,
    "disk": disk,
}


def render(rows: Sequence[tuple[str, Figures]], directory: Path) -> str:
    place = place_of(directory)
    lines = [
        f"$ {command_line()}",
        f"{place.cpus} processors, load {os.getloadavg()[0]:.1f}, {place.file_system} on"
        f" {place.device}, Linux {place.kernel}",
    ]
    return "\n".join(lines + [f"{what}: {figures}" for what, figures in rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--small", action="store_true", help="small numbers of everything")
    parser.add_argument("--dir", type=Path, default=Path.cwd(), help="for the files of `disk`")
    parser.add_argument("--blocks", type=int, nargs="+", default=[1_000_000])
    parser.add_argument("--extent-blocks", type=int, nargs="+", default=[16, 1])
    parser.add_argument("--extents", type=int, nargs="+", default=[10_000, 1_000_000])
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--scans", type=int, default=3, help="rounds of `disk` that wait for it")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.small:
        options.blocks, options.extents, options.files = [65_536], [1_000, 10_000], 500
        options.rounds, options.scans = 3, 1
    rows = [row for part in options.parts for row in PARTS[part](options)]
    if options.json:
        print(json.dumps({what: figures.values for what, figures in rows}, indent=2))
    else:
        print(render(rows, options.dir))


if __name__ == "__main__":
    main()
