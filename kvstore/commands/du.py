"""`kvstore du ROOT...`: bytes on disk by directory."""

import argparse
from typing import TYPE_CHECKING

from kvstore.commands.common import DONE, add_roots, declare, table, to_json
from kvstore.survey.sums import DEPTHS, Usage, usage, usage_by_class
from kvstore.units import format_size

if TYPE_CHECKING:
    from kvstore.commands.common import Commands

_EXAMPLES = """
kvstore du /nvme0/kv
kvstore du /nvme0/kv --class
kvstore du /nvme0/kv /nvme1/kv --depth 2 --bytes
"""


def add(commands: "Commands") -> None:
    parser = declare(
        commands,
        "du",
        run,
        "bytes on disk by namespace and directory",
        _EXAMPLES,
        more="Stats files and opens none, unless --class is given."
        "\nChanges nothing; works beside a live store.",
    )
    add_roots(parser)
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "--depth",
        type=int,
        choices=DEPTHS,
        default=1,
        help="0: the root alone; 1: namespaces and quarantine, too (the default); 2: their buckets",
    )
    how.add_argument(
        "--class",
        action="store_true",
        dest="by_class",
        help="extents by namespace and retention class: reads the header of each",
    )
    parser.add_argument("--bytes", action="store_true", help="exact numbers")


def run(options: argparse.Namespace) -> int:
    told: list[Usage] = []
    for root in options.roots:
        told += usage_by_class(root) if options.by_class else usage(root, options.depth)
    print(to_json(told) if options.json else _render(told, exact=options.bytes))
    return DONE


def _render(told: list[Usage], *, exact: bool) -> str:
    if not told:
        return "no extents"
    size = str if exact else format_size
    return table([[size(one.bytes), f"{one.files} files", one.path] for one in told], left=(2,))
