"""`kvstore fsck ROOT`: checks a root and everything in it; repairs it when asked to.

Exit codes are those of fsck(8), added up: 0 clean, 1 errors corrected, 4 errors left, 8 it could
not be checked, 16 the command line is wrong, 32 cancelled by the user.
"""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from kvstore.commands.common import declare, need_directory, said, seconds, to_json
from kvstore.fsck.check import check
from kvstore.fsck.report import OPERATIONAL, USAGE, render
from kvstore.units import format_size

if TYPE_CHECKING:
    from kvstore.commands.common import Commands

_EXAMPLES = """
kvstore fsck /nvme0/kv
kvstore fsck /nvme0/kv --deep --json > report.json
kvstore fsck /nvme0/kv --repair
"""
_CODES = (
    "those of fsck(8), added up: 0 clean; 1 corrected; 4 errors left; 8 it could not be"
    " checked; 16 the command line is wrong; 32 cancelled"
)
_PROGRESS_S = 0.2


def add(commands: "Commands") -> None:
    parser = declare(
        commands,
        "fsck",
        run,
        "check a root, and repair it when asked to",
        _EXAMPLES,
        more="Names, headers, lengths, times, modes. Beside a live store it only reads.",
        codes=_CODES,
    )
    parser.wrong_usage = USAGE
    parser.add_argument("root", type=Path, metavar="ROOT", help="one directory of a store")
    parser.add_argument("--deep", action="store_true", help="read and verify every cell, too")
    parser.add_argument(
        "--repair",
        action="store_true",
        help="move what is damaged to quarantine/, remove leftovers, set modes and times right;"
        " refused while the root has an owner",
    )
    parser.add_argument(
        "--ttl",
        type=seconds,
        default=0,
        metavar="TIME",
        help="the longest time to live of any class in use, where no file shows it (30d)",
    )


def run(options: argparse.Namespace) -> int:
    try:
        report = check(
            need_directory(options.root),
            deep=options.deep,
            repair=options.repair,
            longest_ttl_s=options.ttl,
            progress=_progress() if sys.stderr.isatty() else lambda extents, read_bytes: None,
        )
    except BlockingIOError as busy:
        print(
            f"kvstore: {options.root} is in use by {busy}: close that store first; without --repair"
            " it can be checked as it is",
            file=sys.stderr,
        )
        return OPERATIONAL
    except (OSError, ValueError) as error:  # ValueError: a path that cannot be one
        print(f"kvstore: {said(error)}", file=sys.stderr)
        return OPERATIONAL
    if sys.stderr.isatty():
        print("\033[K", end="", file=sys.stderr)
    print(to_json(report) if options.json else render(report))
    return report.code


def _progress() -> Callable[[int, int], None]:
    """Draws one line over and over, some times a second."""
    last = time.monotonic()

    def draw(extents: int, read_bytes: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= _PROGRESS_S:
            last = now
            line = f"{extents} extents, {format_size(read_bytes)} of cells"
            print(f"\r{line}\033[K\r", end="", file=sys.stderr, flush=True)

    return draw
