"""What the words of the `kvstore` command share: how they are declared, print, and fail."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction["Parser"]

DONE, FAILED, WRONG_USAGE = 0, 1, 2


class Parser(argparse.ArgumentParser):
    """An argument parser whose exit code for a wrong command line can be set."""

    wrong_usage = WRONG_USAGE

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(self.wrong_usage, f"{self.prog}: error: {message}\n")


def declare(
    commands: "Commands",
    word: str,
    run: Callable[[Any], int],
    help: str,
    examples: str,
) -> Parser:
    """A parser for `word` with --json and its examples below --help. run returns the exit code."""
    parser = commands.add_parser(
        word,
        help=help,
        description=help[0].upper() + help[1:] + ".",
        epilog="examples:\n" + "\n".join(f"  {line}" for line in examples.strip().splitlines()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="machine-readable")
    parser.set_defaults(run=run, parser=parser)
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
