"""`kvstore show ROOT... KEY`: where a block lies, or why it does not any more."""

import argparse
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kvstore.commands.common import DONE, FAILED, add_roots, ago, clock, declare, to_json
from kvstore.commands.ls import numbers
from kvstore.survey.blocks import PREFIX_DIGITS, TAG_DIGITS, Block, Found, find_block
from kvstore.survey.extents import Extent
from kvstore.units import format_duration, format_size

if TYPE_CHECKING:
    from kvstore.commands.common import Commands

_EXAMPLES = """
kvstore show /nvme0/kv 8d5f0b1e
kvstore show /nvme0/kv /nvme1/kv 8d5f0b1e6a7c2d90 --json
"""
_CODES = (
    "0 it is there; 1 it is not, or it could not be done, stderr says why;"
    " 2 the command line is wrong"
)
_SHOWN = 20  # of a list


def add(commands: "Commands") -> None:
    parser = declare(
        commands,
        "show",
        run,
        "where a block lies and what is around it",
        _EXAMPLES,
        more="Every extent that holds it, the chain above and below, what branches off; for a block"
        "\nthat is not there: why and when it left, and whether it is in quarantine."
        "\nChanges nothing; works beside a live store.",
        codes=_CODES,
    )
    add_roots(parser)
    parser.add_argument(
        "key",
        metavar="KEY",
        help=f"its first {PREFIX_DIGITS} or more hex digits; {TAG_DIGITS} also tell why it left",
    )


def run(options: argparse.Namespace) -> int:
    found = find_block(options.roots, options.key)
    print(to_json(found) if options.json else render(found, time.time()))
    return DONE if found.blocks else FAILED


def render(found: Found, now_s: float) -> str:
    """For people."""
    lines = [line for block in found.blocks for line in _block(block, now_s)]
    if not found.blocks:
        lines.append(f"not here    {found.asked}")
    lines += [
        f"left        {one.root} {one.namespace}: {one.reason} {ago(one.time_s, now_s)}"
        f" ({clock(one.time_s)})"
        for one in found.left
    ]
    lines += [f"quarantine  {path}" for path in found.quarantined]
    if not (found.blocks or found.left or found.quarantined):
        short = len(found.asked) < TAG_DIGITS
        lines.append(
            f"            why is not known: {TAG_DIGITS} digits of the key would tell more"
            if short
            else "            and nothing is known of it: it never was, or it left long ago"
        )
    return "\n".join(lines)


def _block(block: Block, now_s: float) -> Iterator[str]:
    number = "?" if block.number is None else block.number
    yield f"block       {block.key}"
    yield f"            number {number} of its chain, in {block.namespace} {block.model or '?'}"
    for extent in block.held:
        yield f"held in     {extent.root}/{extent.path}"
        yield f"            {_what(extent)}, {extent.layers} layers"
        yield f"            {_when(extent, now_s)}"
    for word, extents in (
        ("above", block.above),
        ("below", block.below),
        ("beside", block.siblings),
    ):
        for at, extent in enumerate(extents[:_SHOWN]):
            yield f"{'' if at else word:<12}{extent.key[:16]}  {_what(extent)}"
        if len(extents) > _SHOWN:
            yield f"            and {len(extents) - _SHOWN} more (all of them with --json)"
        if not extents:
            yield f"{word:<12}nothing here"


def _what(extent: Extent) -> str:
    return (
        f"blocks {numbers(extent)}, {extent.tokens:,} tokens, class {extent.retention or '?'},"
        f" {format_size(extent.bytes)}"
    )


def _when(extent: Extent, now_s: float) -> str:
    left_s = extent.valid_until_s - now_s
    valid = f"valid for {format_duration(left_s)}" if left_s > 0 else "expired"
    return (
        f"put {ago(extent.created_s, now_s)}, last use {ago(extent.last_use_s, now_s)},"
        f" {valid} (until {clock(extent.valid_until_s)}),"
        f" class keeps it for {format_duration(extent.ttl_s or 0)}"
    )
