"""`kvstore info [DIR ...]`: what a store would run on there. Nothing is made or changed."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kvstore.commands.common import DONE, declare, need_directory, to_json
from kvstore.report import Info, build_info, render, render_build
from kvstore.store import open_blocking
from kvstore.version import VERSION

if TYPE_CHECKING:
    from kvstore.commands.common import Commands

_POOL = "64MiB"  # enough to see what kind of memory a store gets


def add(commands: "Commands") -> None:
    parser = declare(
        commands,
        "info",
        run,
        "what a store would run on, and what is slower there",
        "kvstore info\nkvstore info /nvme0/kv /nvme1/kv --json",
        more="Without directories: of this build. Nothing is made or changed.",
    )
    parser.add_argument("roots", nargs="*", type=Path, metavar="DIR", help="directories of a store")


def run(options: argparse.Namespace) -> int:
    if not options.roots:
        build = build_info(VERSION)
        print(to_json(build) if options.json else render_build(build))
        return DONE
    info = _info(options.roots)
    print(to_json(info) if options.json else render(info))
    return DONE


def _info(roots: Sequence[Path]) -> Info:
    """Opens the directories as a peer, which evicts nothing, and asks."""
    for root in roots:
        need_directory(root)
    with open_blocking(*roots, role="peer", pool=_POOL) as store:
        return store.info()
