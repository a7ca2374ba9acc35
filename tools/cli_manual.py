"""Prints docs/CLI.md, made from the parser of the `kvstore` command. In the root of a checkout:

    python -m tools.cli_manual > docs/CLI.md

tests/test_cli.py holds that the file is current. Text of argparse's own making is not used: it
differs from one Python to the next, and with the width of the terminal.
"""

import argparse
import sys
from collections.abc import Iterator

from kvstore.cli import CODES, parser
from kvstore.commands.common import Parser

HEAD = """# The command line

Made from the code: `python -m tools.cli_manual > docs/CLI.md`. `kvstore WORD --help` says the same.

- `--json` is there for every word; what people read may change, the fields of JSON are kept.
- Sizes are written like `2TB` (powers of 1000) and `512MiB` (powers of 1024), durations like `30s`,
  `10m`, `3d`.
- Errors are one line on stderr that says what to do. Colours and progress go to terminals alone.
- `stat`, `ls`, `show`, `du`, `top`, `fsck` without `--repair` and `quarantine ls` change nothing,
  also not what was used when, and work beside a live store.
"""


def words(whole: Parser) -> dict[str, tuple[Parser, str]]:
    """Each word with its parser and its line in the list."""
    (commands,) = (a for a in whole._actions if isinstance(a, argparse._SubParsersAction))
    lines = {action.dest: action.help or "" for action in commands._choices_actions}
    return {word: (found, lines[word]) for word, found in commands.choices.items()}


def manual() -> str:
    found = words(parser())
    lines = [HEAD, "| word | what it does |", "| --- | --- |"]
    lines += [f"| [`{word}`](#kvstore-{word}) | {line} |" for word, (_, line) in found.items()]
    lines += ["", f"Exit codes: {CODES}.", ""]
    for word, (one, _) in found.items():
        lines += _word(word, one)
    return "\n".join(lines)


def _word(word: str, one: Parser) -> Iterator[str]:
    # --help is everybody's, and told above.
    actions = [a for a in one._actions if not isinstance(a, argparse._HelpAction)]
    operands = [a for a in actions if not a.option_strings]
    synopsis = " ".join(["kvstore", word, *map(_operand, operands), "[OPTION ...]"])
    yield from [f"## kvstore {word}", "", f"    {synopsis}", "", *str(one.description).split("\n")]
    yield from ["", "| argument | |", "| --- | --- |"]
    for action in [*operands, *(a for a in actions if a.option_strings)]:
        told = (action.help or "").replace("|", "\\|")
        yield f"| `{_name(action)}` | {told} |"
    yield ""
    for group in one._mutually_exclusive_groups:
        together = ", ".join(f"`{a.option_strings[0]}`" for a in group._group_actions)
        yield from [f"At most one of {together}.", ""]
    yield from [*(f"    {line}" for line in one.examples), "", f"Exit codes: {one.codes}.", ""]


def _name(action: argparse.Action) -> str:
    return f"{', '.join(action.option_strings)} {_value(action)}".strip()


def _operand(action: argparse.Action) -> str:
    value = _value(action)
    return f"[{value}]" if action.nargs in ("*", "?") else value


def _value(action: argparse.Action) -> str:
    if action.nargs == 0:
        return ""
    if action.choices is not None:
        value = "{" + ",".join(map(str, action.choices)) + "}"
    else:
        value = str(action.metavar or action.dest.upper())
    return f"{value} ..." if action.nargs in ("*", "+") else value


if __name__ == "__main__":
    sys.stdout.write(manual())
