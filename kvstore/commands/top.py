"""`kvstore top ROOT...`: what happens in a store's directories, look by look.

On a terminal one picture that is drawn over (with rich), else the looks one after another.
"""

import argparse
import os
import select
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from kvstore.commands.common import (
    DONE,
    add_roots,
    argument,
    declare,
    positive,
    table,
)
from kvstore.survey.watch import Look, SpaceLook, Watch
from kvstore.units import format_size, parse_duration

if TYPE_CHECKING:
    from kvstore.commands.common import Commands

_EXAMPLES = """
kvstore top /nvme0/kv
kvstore top /nvme0/kv /nvme1/kv --interval 5s
kvstore top /nvme0/kv --json --count 10 > looks.jsonl
kvstore top /nvme0/kv --once
"""
_INTERVAL_MIN_S = 0.01

_Show = Callable[[str], None]


class Looks(msgspec.Struct, frozen=True, kw_only=True):
    """One line of `kvstore top --json`."""

    time_s: float
    roots: list[Look]


def add(commands: "Commands") -> None:
    parser = declare(
        commands,
        "top",
        run,
        "watch a store: what comes, leaves and is used",
        _EXAMPLES,
        more="Ends with q or Ctrl-C. With --json an object a line and look. Reasons of removal come"
        "\nwithin a minute, as the owner writes them; device: all traffic, whoever makes it."
        "\nChanges nothing; works beside a live store.",
    )
    add_roots(parser)
    parser.add_argument(
        "--interval", type=argument(_interval_s), default=1.0, metavar="TIME",
        help="between looks (1s)",
    )  # fmt: skip
    count = parser.add_mutually_exclusive_group()
    count.add_argument("--count", type=positive, metavar="N", help="end after N looks")
    count.add_argument(
        "--once", action="store_const", const=1, dest="count", help="one look: no rates"
    )


def run(options: argparse.Namespace) -> int:
    watches = [Watch(root) for root in options.roots]
    looks = _looks(watches)
    left = options.count
    try:
        with _shown(options.json) as show, _waiting() as wait:
            while True:
                told = next(looks)
                show(msgspec.json.encode(told).decode() if options.json else render(told))
                left = left and left - 1
                if left == 0 or wait(options.interval):
                    return DONE
    except KeyboardInterrupt:
        return DONE  # that is how it ends


def _interval_s(text: str) -> float:
    wanted_s = parse_duration(text) / 1e9
    if wanted_s < _INTERVAL_MIN_S:
        raise ValueError(f"an interval is {_INTERVAL_MIN_S} s or more")
    return wanted_s


def _looks(watches: Sequence[Watch]) -> Iterator[Looks]:
    while True:
        yield Looks(time_s=time.time(), roots=[watch.look() for watch in watches])


# ---- terminal ------------------------------------------------------------------------------------


@contextmanager
def _shown(plain: bool) -> Iterator[_Show]:
    """What prints a look: over the last one where that can be done."""
    try:
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text
    except ImportError:
        plain = True
    if plain or not sys.stdout.isatty():
        yield lambda text: print(text, flush=True)
        return
    with Live(console=Console(), auto_refresh=False) as live:
        yield lambda text: live.update(Text(text, no_wrap=True, overflow="crop"), refresh=True)


@contextmanager
def _waiting() -> Iterator[Callable[[float], bool]]:
    """What waits some seconds, and says whether q was pressed meanwhile."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        yield _slept
        return
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield _q_pressed
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _slept(seconds: float) -> bool:
    time.sleep(seconds)
    return False


def _q_pressed(seconds: float) -> bool:
    end_s = time.monotonic() + seconds
    while (left_s := end_s - time.monotonic()) > 0:
        if select.select([sys.stdin], [], [], left_s)[0]:
            typed = os.read(sys.stdin.fileno(), 64)
            if not typed or b"q" in typed.lower():
                return True
    return False


# ---- words ---------------------------------------------------------------------------------------


def render(looks: Looks) -> str:
    """For people."""
    return "\n\n".join(_root(look) for look in looks.roots) + "\n"


def _root(look: Look) -> str:
    removed = ", ".join(f"{count:,} {reason}" for reason, count in look.removed.items())
    device = look.device
    rates = (
        f", device {device.name}: {format_size(round(device.read))}/s read,"
        f" {format_size(round(device.written))}/s written"
        if device
        else ""
    )
    lines = [
        f"root     {look.root}",
        f"owner    {look.owner or 'none: nobody has it open'}",
        f"written  {format_size(round(look.written_bytes_per_s))}/s{rates}",
        f"free     {format_size(look.free_bytes)} of {format_size(look.file_system_bytes)}",
        f"removed  {removed + ', since the start' if removed else 'nothing yet'}",
        table(
            [
                ["namespace", "extents", "on disk", "new", "blocks", "removed", "used"],
                *(_cells(name, space) for name, space in look.namespaces.items()),
            ]
        ),
    ]
    return "\n".join(lines)


def _cells(name: str, space: SpaceLook) -> list[str]:
    return [
        f"{name[:8]} {space.model or '?'}",
        f"{space.extents:,}",
        format_size(space.bytes),
        f"{space.new:,}" + (f" ({format_size(space.new_bytes)})" if space.new else ""),
        f"{space.new_blocks:,}",
        f"{space.removed:,}" + (f" ({format_size(space.removed_bytes)})" if space.removed else ""),
        f"{space.used:,}",
    ]
