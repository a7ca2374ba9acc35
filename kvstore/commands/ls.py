"""`kvstore ls ROOT...`: the extents of a store, a line each."""

import argparse
import time
from collections.abc import Callable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from kvstore.commands.common import (
    DONE,
    add_roots,
    ago,
    argument,
    declare,
    positive,
    table,
    to_json,
)
from kvstore.survey.extents import Extent, survey, with_headers
from kvstore.units import format_duration, format_size

if TYPE_CHECKING:
    from kvstore.commands.common import Commands

_EXAMPLES = """
kvstore ls /nvme0/kv --limit 20
kvstore ls /nvme0/kv --namespace 5f3c --sort start
kvstore ls /nvme0/kv /nvme1/kv --expired --sort size --json
"""

# What comes first, and whether its header is needed to know that.
_ORDERS: dict[str, tuple[Callable[[Extent], Any], bool]] = {
    "use": (lambda extent: extent.last_use_s, False),
    "size": (lambda extent: -extent.bytes, False),
    "expiry": (lambda extent: extent.valid_until_s, False),
    "age": (lambda extent: extent.created_s or 0, True),
    "start": (lambda extent: (extent.namespace, extent.start is None, extent.start or 0), True),
}


def add(commands: "Commands") -> None:
    parser = declare(
        commands,
        "ls",
        run,
        "list extents, a line each",
        _EXAMPLES,
        more="key: its first 16 digits, for kvstore show. blocks: the numbers in their chain."
        "\nChanges nothing; works beside a live store.",
    )
    add_roots(parser)
    parser.add_argument(
        "--namespace", type=argument(_digits), metavar="HEX",
        help="only those whose name begins so",
    )  # fmt: skip
    parser.add_argument(
        "--sort",
        choices=tuple(_ORDERS),
        default="use",
        help="what comes first. use: the least recently used, as they are evicted (the default);"
        " age: the oldest; size: the largest; expiry: what expires next; start: by place in the"
        " chain",
    )
    parser.add_argument("--limit", type=positive, metavar="N", help="only the first N")
    parser.add_argument("--expired", action="store_true", help="only what is not served any more")


def run(options: argparse.Namespace) -> int:
    now_s = time.time()
    found: list[Extent] = [
        extent
        for extent in chain.from_iterable(survey(root) for root in options.roots)
        if extent.namespace.startswith(options.namespace or "")
        and (extent.expired(now_s) or not options.expired)
    ]
    first, needs_header = _ORDERS[options.sort]
    if needs_header:
        found = list(with_headers(found))
    found = sorted(found, key=first)[: options.limit]
    if not needs_header:
        found = list(with_headers(found))
    print(to_json(found) if options.json else render(found, now_s))
    return DONE


def _digits(text: str) -> str:
    if not text or set(text.lower()) - set("0123456789abcdef"):
        raise ValueError(f"{text!r} is not the beginning of a namespace: hex digits, as ls shows")
    return text.lower()


def render(found: Sequence[Extent], now_s: float) -> str:
    """For people."""
    if not found:
        return "no extents"
    head = ["key", "namespace", "blocks", "class", "size", "last use", "valid for"]
    return table([head, *(_cells(extent, now_s) for extent in found)], left=(0, 1))


def _cells(extent: Extent, now_s: float) -> list[str]:
    left_s = extent.valid_until_s - now_s
    return [
        extent.key[:16],
        extent.namespace[:8],
        numbers(extent),
        extent.trouble or extent.retention or "?",
        format_size(extent.bytes),
        ago(extent.last_use_s, now_s),
        format_duration(left_s) if left_s > 0 else "expired",
    ]


def numbers(extent: Extent) -> str:
    """ "16-31": which blocks of their chain; "4" for four whose place is not known."""
    if extent.blocks is None:
        return "?"
    if extent.start is None:
        return f"{extent.blocks} somewhere"
    return f"{extent.start}-{extent.start + extent.blocks - 1}"
