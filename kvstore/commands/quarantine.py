"""`kvstore quarantine ls|rm ROOT`: what was moved aside because it was damaged.

Works beside a live store: names in quarantine/ are unlinked, nothing else is touched.
"""

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

from kvstore.commands.common import DONE, FAILED, Parser, declare, need_directory, to_json
from kvstore.fsck import need_store
from kvstore.quarantine import Moved, listing, moved_at, names, printable, remove
from kvstore.units import format_size, parse_duration

if TYPE_CHECKING:
    from kvstore.commands.common import Commands

_EXAMPLES = """
kvstore quarantine ls /nvme0/kv
kvstore quarantine rm /nvme0/kv --older 7d
kvstore quarantine rm /nvme0/kv --all
"""


def add(commands: "Commands") -> None:
    parser = declare(
        commands,
        "quarantine",
        run,
        "list or remove the files that were moved aside because they were damaged",
        _EXAMPLES,
    )
    parser.add_argument("do", choices=("ls", "rm"), help="ls verifies each file again")
    parser.add_argument("root", type=Path, metavar="ROOT", help="one directory of a store")
    parser.add_argument("names", nargs="*", metavar="NAME", help="rm: these, as ls names them")
    parser.add_argument("--all", action="store_true", help="rm: all of them")
    parser.add_argument(
        "--older", type=_seconds, metavar="TIME", help="rm: those moved longer ago (7d)"
    )


def run(options: argparse.Namespace) -> int:
    root = need_directory(options.root)
    need_store(root)
    chosen = [bool(options.names), options.all, options.older is not None]
    if sum(chosen) != (options.do == "rm"):
        parser: Parser = options.parser
        parser.error("rm takes names, --all or --older, one of the three; ls takes none")
    if options.do == "ls":
        found = listing(root)
        print(to_json(found) if options.json else _render(found))
        return DONE
    wanted = _wanted(options, names(root))
    removed = remove(root, wanted)
    missing = [printable(name) for name in wanted if name not in removed] if options.names else []
    removed = [printable(name) for name in removed]
    if options.json:
        print(to_json({"removed": removed, "missing": missing}))
    else:
        print("\n".join([f"removed {len(removed)}", *(f"not there: {name}" for name in missing)]))
    return FAILED if missing else DONE


def _seconds(text: str) -> int:
    return parse_duration(text) // 10**9


def _wanted(options: argparse.Namespace, there: list[str]) -> list[str]:
    if options.names:
        return list(options.names)
    if options.all:
        return there
    latest_s = time.time() - options.older
    return [name for name in there if 0 < moved_at(name) < latest_s]


def _render(found: list[Moved]) -> str:
    if not found:
        return "nothing in quarantine"
    return "\n".join(
        f"{moved.name}  {format_size(moved.bytes)}, moved {_when(moved.moved_s)},"
        f" namespace {moved.namespace or '?'}, {moved.why or 'nothing wrong with it'}"
        for moved in found
    )


def _when(seconds: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds)) if seconds else "?"
