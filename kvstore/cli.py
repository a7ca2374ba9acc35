"""The `kvstore` command: its words are the modules of `kvstore/commands/`.

Exit codes of every word unless its help says otherwise: 0 done, 1 it could not be done (the reason
is on stderr), 2 the command line is wrong.
"""

import logging
import sys
from collections.abc import Sequence

from kvstore.commands import explain, fsck, info, plan, quarantine, replay
from kvstore.commands.common import FAILED, Parser
from kvstore.errors import KvstoreError
from kvstore.version import VERSION

_WORDS = (info, explain, plan, replay, fsck, quarantine)


def main(arguments: Sequence[str] | None = None) -> int:
    """The entry point; returns the exit code."""
    options, unknown = parser().parse_known_args(arguments)
    if unknown:
        options.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    logging.getLogger("kvstore").addHandler(logging.NullHandler())  # `note` lines say it all
    try:
        code: int = options.run(options)
    except (KvstoreError, OSError, ValueError, KeyError) as error:
        told = error.args[0] if isinstance(error, KeyError) else error
        print(f"kvstore: {told}", file=sys.stderr)
        return FAILED
    return code


def parser() -> Parser:
    """Every word with its arguments."""
    whole = Parser(
        prog="kvstore", description="Keeps LLM KV-cache blocks on SSD and streams them back."
    )
    whole.add_argument("--version", action="version", version=f"kvstore {VERSION}")
    commands = whole.add_subparsers(dest="command", required=True)
    for word in _WORDS:
        word.add(commands)
    return whole


if __name__ == "__main__":
    sys.exit(main())
