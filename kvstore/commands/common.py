"""What the words of the `kvstore` command share: how they are declared, print, and fail."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

DONE, FAILED = 0, 1


def declare(
    commands: "Commands",
    word: str,
    run: Callable[[Any], int],
    help: str,
    examples: str,
) -> argparse.ArgumentParser:
    """A parser for `word` with --json and its examples below --help. run returns the exit code."""
    parser = commands.add_parser(
        word,
        help=help,
        description=help[0].upper() + help[1:] + ".",
        epilog="examples:\n" + "\n".join(f"  {line}" for line in examples.strip().splitlines()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="machine-readable")
    parser.set_defaults(run=run)
    return parser


def to_json(what: object) -> str:
    """Indented JSON of plain data and msgspec structs."""
    return msgspec.json.format(msgspec.json.encode(what)).decode()


def need_directory(path: Path) -> Path:
    """FileNotFoundError that says what to do, when `path` is no directory."""
    if not path.is_dir():
        raise FileNotFoundError(
            f"{path} is not a directory; make it (mkdir -p), or name a store's directory"
        )
    return path
