"""What the words of the `kvstore` command share: how they are declared, print, and fail."""

import argparse
import errno
import os
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from kvstore.units import format_duration, parse_duration

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction["Parser"]

DONE, FAILED, WRONG_USAGE = 0, 1, 2
CODES = "0 done; 1 it could not be done, stderr says why; 2 the command line is wrong"
_WHAT_TO_DO = {
    errno.ENOENT: "check the path",
    errno.EACCES: "run it as the user that owns it",
    errno.EPERM: "run it as the user that owns it",
    errno.ENOSPC: "make room",
    errno.EIO: "look at the kernel's log for the disk's errors",
}


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line that says what to do, and whose exit code for
    them can be set. codes, examples: what --help tells of a word."""

    wrong_usage = WRONG_USAGE
    codes = CODES
    examples: tuple[str, ...] = ()

    def error(self, message: str) -> NoReturn:
        said = " ".join(message.split())
        self.exit(self.wrong_usage, f"{self.prog}: {said}; see {self.prog} --help\n")


def declare(
    commands: "Commands",
    word: str,
    run: Callable[[Any], int],
    help: str,
    examples: str,
    *,
    more: str = "",
    codes: str = CODES,
) -> Parser:
    """A parser for `word` with --json; its examples and exit codes stand below --help.

    run returns the exit code. help: a line in the list of words; more: what its own help adds.
    """
    lines = examples.strip().splitlines()
    parser = commands.add_parser(
        word,
        help=help,
        description=help[0].upper() + help[1:] + "." + (f"\n\n{more}" if more else ""),
        epilog="\n".join(["examples:", *(f"  {one}" for one in lines), "", f"exit codes: {codes}"]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.codes, parser.examples = codes, tuple(lines)
    parser.add_argument("--json", action="store_true", help="machine-readable")
    parser.set_defaults(run=run, parser=parser)
    return parser


def add_roots(parser: Parser) -> None:
    parser.add_argument("roots", nargs="+", type=Path, metavar="ROOT", help="directory of a store")


def argument(parse: Callable[[str], object]) -> Callable[[str], object]:
    """For `type=`: argparse shows the message of this error, and of no other."""

    def parsed(text: str) -> object:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parsed


def positive(text: str) -> int:
    """A whole number above zero."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


@argument
def seconds(text: str) -> int:
    """A duration in whole seconds."""
    return parse_duration(text) // 10**9


# ---- output --------------------------------------------------------------------------------------


def to_json(what: object) -> str:
    """Indented JSON of plain data and msgspec structs."""
    return msgspec.json.format(msgspec.json.encode(what)).decode()


def table(lines: Sequence[Sequence[str]], left: Collection[int] = (0,)) -> str:
    """Columns as wide as they need to be; those in `left` begin together, others end together."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if at in left else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def ago(time_s: float | None, now_s: float) -> str:
    """ "5 min ago"; "never" for None."""
    return "never" if time_s is None else f"{format_duration(max(0, now_s - time_s))} ago"


def clock(time_s: float) -> str:
    """Local time."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time_s))
    except (OverflowError, ValueError, OSError):
        return f"{time_s:.0f} s"


def said(error: Exception) -> str:
    """What went wrong, in one line, and what to do about it where that can be told."""
    if isinstance(error, KeyError) and error.args:
        told = str(error.args[0])
    elif isinstance(error, OSError) and error.filename is not None:
        hint = _WHAT_TO_DO.get(error.errno or 0)
        told = f"{os.fsdecode(error.filename)}: {error.strerror}" + (f"; {hint}" if hint else "")
    elif isinstance(error, MemoryError):
        told = str(error) or "out of memory"
    else:
        told = str(error)
    return " ".join(told.split())


def need_directory(path: Path) -> Path:
    """FileNotFoundError that says what to do, when `path` is no directory."""
    if not path.is_dir():
        raise FileNotFoundError(
            f"{path} is not a directory; make it (mkdir -p), or name a store's directory"
        )
    return path
