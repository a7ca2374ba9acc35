"""The `kvstore` command. `kvstore info [DIR ...]` tells what a store would run on; nothing is made.

Exit codes: 0 done, 1 a directory cannot be opened as a store, 2 the command line is wrong.
"""

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from kvstore.errors import KvstoreError
from kvstore.report import Info, build_info, render, render_build
from kvstore.store import open_blocking
from kvstore.version import VERSION

_POOL = "64MiB"  # enough to see what kind of memory a store gets


def main(arguments: Sequence[str] | None = None) -> int:
    """The entry point; returns the exit code."""
    options = _parser().parse_args(arguments)
    logging.getLogger("kvstore").addHandler(logging.NullHandler())  # `note` lines say it all
    if not options.roots:
        build = build_info(VERSION)
        print(_json(build) if options.json else render_build(build))
        return 0
    try:
        info = _info(options.roots)
    except (KvstoreError, OSError) as error:
        print(f"kvstore: {error}", file=sys.stderr)
        return 1
    print(_json(info) if options.json else render(info))
    return 0


def _info(roots: Sequence[Path]) -> Info:
    """Opens the directories as a peer, which evicts nothing, and asks."""
    for root in roots:
        if not root.is_dir():
            raise FileNotFoundError(
                f"{root} is not a directory; make it (mkdir -p), or name a store's directory"
            )
    with open_blocking(*roots, role="peer", pool=_POOL) as store:
        return store.info()


def _json(what: object) -> str:
    return msgspec.json.format(msgspec.json.encode(what)).decode()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kvstore", description="Keeps LLM KV-cache blocks on SSD and streams them back."
    )
    parser.add_argument("--version", action="version", version=f"kvstore {VERSION}")
    commands = parser.add_subparsers(dest="command", required=True)
    info = commands.add_parser(
        "info", help="what this build and these directories run on, and every slower path taken"
    )
    info.add_argument("roots", nargs="*", type=Path, metavar="DIR", help="directories of a store")
    info.add_argument("--json", action="store_true", help="machine-readable")
    return parser


if __name__ == "__main__":
    sys.exit(main())
