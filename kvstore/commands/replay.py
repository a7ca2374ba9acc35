"""`kvstore replay TRACE`: what of a trace a store of some size would have had."""

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from kvstore import _core
from kvstore.commands.common import DONE, argument, declare, positive, to_json
from kvstore.commands.progress import progress
from kvstore.errors import KvstoreError
from kvstore.layout import EXTENT_BLOCKS_ALLOWED, Layout
from kvstore.options import RETENTION, write_budget_bytes
from kvstore.replay.plot import draw, need_matplotlib
from kvstore.replay.report import render
from kvstore.replay.run import Plan, replay
from kvstore.replay.traces import Options, Trace
from kvstore.units import parse_duration, parse_size

if TYPE_CHECKING:
    from kvstore.commands.common import Commands

_EXAMPLES = """
kvstore replay trace.jsonl.gz --curve
kvstore replay trace.jsonl.zst --capacity 2TB --layout config.json --price-hit 0.02 --price-miss 0.2
kvstore replay sessions.jsonl --capacity-blocks 50000 --extent-blocks 16 --ttl agent=3d --speed 72
kvstore replay trace.jsonl --admission second-hit --capacity-blocks 20000 --json
kvstore replay trace.jsonl --write-budget 2TB/day --capacity 8TB
kvstore replay trace.jsonl --io real --root /nvme0/try --requests 200 --capacity 20GB
"""


def add(commands: "Commands") -> None:
    parser = declare(
        commands,
        "replay",
        run,
        "what of a trace of requests a store would have had",
        _EXAMPLES,
        more="What hits, what is written, what more or less capacity would do.",
    )
    parser.add_argument(
        "trace", type=Path, metavar="TRACE", help="Mooncake or Bailian JSONL, Weka or token"
        " sessions; plain, gzip or zstd; or a directory of session files",
    )  # fmt: skip
    room = parser.add_mutually_exclusive_group()
    _option(room, "--capacity", argument(parse_size), "SIZE", "on disk, like 2TB; default: all")
    _option(room, "--capacity-blocks", positive, "N", "the same in blocks")
    parser.add_argument(
        "--extent-blocks", type=int, choices=EXTENT_BLOCKS_ALLOWED,
        help="most blocks in a file; default: as the layout chooses",
    )  # fmt: skip
    _option(parser, "--block-tokens", positive, "N", "of token sessions (64), or of hash ids")
    _option(
        parser, "--ttl", argument(_ttl), "TTL", "agent=3d,chat=7d (the default), or one for all"
    )
    parser.add_argument("--class", dest="retain", metavar="NAME", help="class of every request")
    _option(parser, "--speed", _above_zero, "X", "the trace's clock runs that fast", 1.0)
    _option(
        parser,
        "--stagger",
        _not_negative,
        "S",
        "Weka sessions start S seconds apart; 0: together",
        0.0,
    )
    parser.add_argument("--set", metavar="NAME", help="of token sessions: only those of this set")
    parser.add_argument(
        "--admission", choices=tuple(_core.ADMISSIONS), default="always",
        help="second-hit: stored when it is asked for once more",
    )  # fmt: skip
    _option(
        parser, "--write-budget", argument(_write_budget), "SIZE/day", "bytes written a day at most"
    )
    parser.add_argument(
        "--io", choices=("none", "real"), default="none",
        help="none: the store's index and LRU without devices; real: write and load extents",
    )  # fmt: skip
    _option(parser, "--root", Path, "DIR", "where --io real writes, empty; default: temporary")
    _option(parser, "--pool", argument(parse_size), "SIZE", "memory of --io real; default: 256MB")
    _option(parser, "--layout", Path, "FILE", "the model's config.json: bytes of a block")
    _option(parser, "--requests", positive, "N", "the first N only")
    parser.add_argument("--curve", action="store_true", help="the hit rate at every capacity")
    _option(parser, "--price-hit", _not_negative, "P", "of a million input tokens that hit")
    _option(parser, "--price-miss", _not_negative, "P", "of a million that missed")
    _option(parser, "--plot", Path, "FILE", "draw it, for example to out.png")


def run(options: argparse.Namespace) -> int:
    if options.plot:
        need_matplotlib(options.plot)
    plan = _plan(options)
    trace = Trace(
        options.trace,
        Options(block_tokens=options.block_tokens, stagger_s=options.stagger, only_set=options.set),
    )
    with progress("replaying") as tell:
        result = replay(trace, plan, tell)
    print(to_json(result) if options.json else render(result))
    if options.plot:
        draw(result, options.plot)
    return DONE


def _plan(options: argparse.Namespace) -> Plan:
    classes = _classes(options.ttl or {})
    if options.retain is not None and options.retain not in classes:
        options.parser.error(f"--class {options.retain} is none of {', '.join(classes)}")
    if (options.price_hit is None) != (options.price_miss is None):
        options.parser.error("--price-hit and --price-miss go together")
    _check_real(options)
    prices = None if options.price_hit is None else (options.price_hit, options.price_miss)
    return Plan(
        ttl_s=classes,
        capacity_bytes=options.capacity,
        capacity_blocks=options.capacity_blocks,
        extent_blocks=options.extent_blocks,
        speed=options.speed,
        retain=options.retain,
        admission=options.admission,
        write_budget=options.write_budget,
        real=options.io == "real",
        real_root=options.root,
        pool="256MB" if options.pool is None else options.pool,
        requests=options.requests,
        curve=options.curve or options.plot is not None,
        prices=prices,
        layout=None if options.layout is None else _layout_from(options.layout),
    )


def _check_real(options: argparse.Namespace) -> None:
    """Nothing given is ignored, and no temporary directory takes a whole trace unasked."""
    if options.io == "none":
        for word in ("root", "pool"):
            if getattr(options, word) is not None:
                options.parser.error(f"--{word} is for --io real")
    elif options.root is None and options.capacity is None and options.capacity_blocks is None:
        options.parser.error(
            "--io real in a temporary directory needs a --capacity, like 20GB: without one all"
            " of the trace is written there; or name a --root"
        )


def _write_budget(text: str) -> int:
    budget = write_budget_bytes(text)
    if budget == 0:
        raise ValueError("a write budget is above 0 bytes a day")
    return budget


def _layout_from(config: Path) -> Callable[[int, int | None], Layout]:
    def layout(block_tokens: int, extent_blocks: int | None) -> Layout:
        try:
            return Layout.from_config(
                config, model=str(config), block_tokens=block_tokens, extent_blocks=extent_blocks
            )
        except (KeyError, TypeError, ValueError) as error:
            raise KvstoreError(f"{config} is no config.json known here: {error}") from error

    return layout


def _classes(given: dict[str, int]) -> dict[str, int]:
    """Seconds by class: those given, over the defaults. "": all of them."""
    defaults = {name: parse_duration(ttl) // 10**9 for name, ttl in RETENTION.items()}
    everywhere = given.pop("", None)
    if everywhere is not None:
        defaults = dict.fromkeys(defaults, everywhere)
    return defaults | given


def _ttl(text: str) -> dict[str, int]:
    found = {}
    for part in text.split(","):
        name, _, ttl = part.rpartition("=")
        found[name.strip()] = parse_duration(ttl, "--ttl") // 10**9
        if found[name.strip()] < 1:
            raise ValueError("a time to live is a second or more")
    return found


# ---- arguments -----------------------------------------------------------------------------------


def _option(
    parser: argparse._ActionsContainer, name: str, kind: Callable[[str], object], metavar: str,
    help: str, default: object = None,
) -> None:  # fmt: skip
    parser.add_argument(name, type=kind, metavar=metavar, help=help, default=default)


def _not_negative(text: str) -> float:
    if not 0 <= float(text) < math.inf:
        raise ValueError
    return float(text)


def _above_zero(text: str) -> float:
    if not 0 < float(text) < math.inf:
        raise ValueError
    return float(text)
