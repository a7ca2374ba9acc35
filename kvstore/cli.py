"""The `kvstore` command: its words are the modules of `kvstore/commands/`.

Exit codes of every word unless its help says otherwise: 0 done, 1 it could not be done (the reason
is on stderr, in one line), 2 the command line is wrong. Of all words: 130 Ctrl-C ended it, 141 who
read the output went away.
"""

import argparse
import logging
import os
import sys
from collections.abc import Sequence

from kvstore.commands import (
    du,
    explain,
    fsck,
    info,
    ls,
    plan,
    quarantine,
    replay,
    show,
    stat,
    top,
)
from kvstore.commands.common import FAILED, Parser, said
from kvstore.errors import KvstoreError
from kvstore.version import VERSION

_WORDS = (info, stat, ls, show, du, top, fsck, quarantine, plan, explain, replay)
INTERRUPTED, NO_READER = 130, 141  # as a shell has them: 128 and the number of the signal
CODES = "in the help of each word; of all: 130 Ctrl-C ended it, 141 nobody reads the output"


def main(arguments: Sequence[str] | None = None) -> int:
    """The entry point; returns the exit code."""
    try:
        try:
            return _main(arguments)
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # What is still buffered has nowhere to go; the interpreter would complain at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return NO_READER


def _main(arguments: Sequence[str] | None) -> int:
    options, unknown = parser().parse_known_args(arguments)
    if unknown:
        options.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    logging.getLogger("kvstore").addHandler(logging.NullHandler())  # `note` lines say it all
    try:
        code: int = options.run(options)
    except BrokenPipeError:
        raise
    except (KvstoreError, OSError, ValueError, KeyError, MemoryError) as error:
        print(f"kvstore: {said(error)}", file=sys.stderr)
        return FAILED
    return code


class _Help(argparse.HelpFormatter):
    """Leaves room for the longest word, so that each has one line."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog)
        self._action_max_length = max(len(word.__name__.rpartition(".")[2]) for word in _WORDS) + 4


def parser() -> Parser:
    """Every word with its arguments."""
    whole = Parser(
        formatter_class=_Help,
        prog="kvstore",
        description="Keeps LLM KV-cache blocks on SSD and streams them back.",
        epilog=f"kvstore WORD --help tells more, with examples. Exit codes: {CODES}.",
    )
    whole.add_argument("--version", action="version", version=f"kvstore {VERSION}")
    commands = whole.add_subparsers(dest="command", required=True, title="words", metavar="WORD")
    for word in _WORDS:
        word.add(commands)
    return whole


if __name__ == "__main__":
    sys.exit(main())
