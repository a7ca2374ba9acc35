"""`kvstore plan`: does a disk pay for this model, at this bandwidth and prefill speed."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kvstore import plan as planning
from kvstore.commands.common import (
    DONE,
    argument,
    declare,
    need_directory,
    positive,
    table,
    to_json,
)
from kvstore.footprint import Footprint, footprint_of
from kvstore.layout import read_config
from kvstore.models import MODELS, model_footprint
from kvstore.plan import Plan, Row
from kvstore.units import format_size, parse_duration, parse_size

if TYPE_CHECKING:
    from kvstore.commands.common import Commands


def add(commands: "Commands") -> None:
    parser = declare(
        commands,
        "plan",
        run,
        "does loading from disk pay for a model",
        "kvstore plan\n"
        "kvstore plan --config model/config.json --gbps 7 --prefill-tps 20000\n"
        'kvstore plan --model "Llama-2-7B" --prompt 32768 --measure /nvme0',
        more="The break-even table. Money and hit rates: kvstore replay.",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--config", type=Path, metavar="FILE", help="the model's config.json")
    what.add_argument("--model", help="a published model; without any of these three, all known")
    what.add_argument(
        "--bytes-per-token", type=argument(_size), metavar="SIZE", help="of the whole cache"
    )
    parser.add_argument("--dtype", help="of the cache, with --config; else the model's")
    parser.add_argument(
        "--gbps",
        type=float,
        nargs="+",
        metavar="GB/S",
        help="bandwidths in 1e9 bytes a second (default: 7 14 28 50)",
    )
    parser.add_argument(
        "--measure", type=Path, metavar="DIR", help="take the bandwidth of this directory's disk"
    )
    parser.add_argument(
        "--prefill-tps",
        type=float,
        default=planning.PREFILL_TPS,
        metavar="N",
        help="tokens a second that the engine prefills (default: 131072 in 13 s)",
    )
    parser.add_argument(
        "--prompt",
        type=positive,
        default=planning.PROMPT_TOKENS,
        metavar="N",
        help="tokens (131072)",
    )
    parser.add_argument(
        "--target", type=argument(_duration_s), default=0.5, metavar="TIME",
        help="to load the prompt in (0.5s)",
    )  # fmt: skip
    parser.add_argument(
        "--block-tokens", type=positive, default=planning.BLOCK_TOKENS, metavar="N", help="64"
    )


def run(options: argparse.Namespace) -> int:
    gbps = list(options.gbps or planning.GBPS)
    if options.measure:
        gbps = [planning.measure_gbps(need_directory(options.measure))]
    made = planning.plan(
        _footprints(options),
        gbps=gbps,
        prompt_tokens=options.prompt,
        prefill_tps=options.prefill_tps,
        target_s=options.target,
        block_tokens=options.block_tokens,
    )
    print(to_json(made) if options.json else render(made))
    return DONE


def _size(text: str) -> int:
    size = parse_size(text)
    if not size:
        raise ValueError("a token takes a byte or more")
    return size


def _duration_s(text: str) -> float:
    return parse_duration(text) / 1e9


def _footprints(options: argparse.Namespace) -> Mapping[str, Footprint]:
    if options.config:
        config = read_config(options.config)
        name = config.get("_name_or_path") or options.config.parent.name or "model"
        return {name: footprint_of(config, options.dtype)}
    if options.bytes_per_token:
        given = Footprint(
            attention="given", layers=0, full_layers=0, bytes_per_token=options.bytes_per_token
        )
        return {"model": given}
    names: Sequence[str] = [options.model] if options.model else list(MODELS)
    return {name: model_footprint(name) for name in names}


def render(made: Plan) -> str:
    """The table, and a verdict for each model when they are few."""
    first = made.rows[0]
    head = [
        "model", "cache", "B/token", "block", "prompt",
        *(f"{speed:.3g} GB/s" for speed in first.gbps),
        "break even", f"{made.target_s:g} s needs",
    ]  # fmt: skip
    lines = [head, *(_cells(row) for row in made.rows)]
    told = [
        f"{made.prompt_tokens:,} tokens; computing them takes {first.prefill_s:.2f} s"
        f" ({made.prefill_tps:,.0f} tokens a second). * : computing is faster.",
        "",
        table(lines, left=(0, 1)),
    ]
    if len(made.rows) <= 3:
        told += ["", *map(planning.verdict, made.rows)]
    return "\n".join(told)


def _cells(row: Row) -> list[str]:
    loads = [
        f"{seconds:.2f} s" + ("" if pays else " *")
        for seconds, pays in zip(row.load_s, row.pays, strict=True)
    ]
    return [
        row.model,
        row.attention,
        f"{row.bytes_per_token:,}",
        f"{row.block_bytes / 2**20:.2f} MiB",
        format_size(row.prompt_bytes),
        *loads,
        f"{row.break_even_gbps:.2f} GB/s",
        f"{row.target_gbps:.1f} GB/s",
    ]
