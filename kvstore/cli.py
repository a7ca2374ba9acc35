"""The `kvstore` command: its words are the modules of `kvstore/commands/`.

Exit codes of every word unless its help says otherwise: 0 done, 1 it could not be done (the reason
is on stderr), 2 the command line is wrong.
"""

import argparse
import logging
import sys
from collections.abc import Sequence

from kvstore.commands import info, replay
from kvstore.commands.common import FAILED
from kvstore.errors import KvstoreError
from kvstore.version import VERSION

_WORDS = (info, replay)


def main(arguments: Sequence[str] | None = None) -> int:
    """The entry point; returns the exit code."""
    options = parser().parse_args(arguments)
    logging.getLogger("kvstore").addHandler(logging.NullHandler())  # `note` lines say it all
    try:
        code: int = options.run(options)
    except (KvstoreError, OSError) as error:
        print(f"kvstore: {error}", file=sys.stderr)
        return FAILED
    return code


def parser() -> argparse.ArgumentParser:
    """Every word with its arguments."""
    whole = argparse.ArgumentParser(
        prog="kvstore", description="Keeps LLM KV-cache blocks on SSD and streams them back."
    )
    whole.add_argument("--version", action="version", version=f"kvstore {VERSION}")
    commands = whole.add_subparsers(dest="command", required=True)
    for word in _WORDS:
        word.add(commands)
    return whole


if __name__ == "__main__":
    sys.exit(main())
