"""`kvstore stat ROOT...`: sums of what lies in a store's directories."""

import argparse
import time
from typing import TYPE_CHECKING

from kvstore.commands.common import DONE, add_roots, ago, declare, table, to_json
from kvstore.survey.sums import RootStat, Space, root_stat
from kvstore.units import format_size

if TYPE_CHECKING:
    from kvstore.commands.common import Commands

_EXAMPLES = """
kvstore stat /nvme0/kv
kvstore stat /nvme0/kv /nvme1/kv --json
"""


def add(commands: "Commands") -> None:
    parser = declare(
        commands,
        "stat",
        run,
        "sum up what lies in a store's directories",
        _EXAMPLES,
        more="Extents, blocks, bytes and ages by namespace and retention class, what left and why,"
        "\nfree space, and who has it open. Changes nothing; works beside a live store.",
    )
    add_roots(parser)


def run(options: argparse.Namespace) -> int:
    told = [root_stat(root) for root in options.roots]
    now_s = time.time()
    print(to_json(told) if options.json else "\n\n".join(render(one, now_s) for one in told))
    return DONE


def render(told: RootStat, now_s: float) -> str:
    """For people."""
    removed = ", ".join(f"{count:,} {reason}" for reason, count in told.removed.items())
    lines = [
        ["", "extents", "blocks", "tokens", "on disk", "expired", "least used", "last used"],
        *(
            _cells(f"{name} {told.models.get(name) or '?'}", space, now_s)
            for name, space in told.namespaces.items()
        ),
        *(_cells(f"class {name or '?'}", told.classes[name], now_s) for name in told.classes),
        _cells("all", told.total, now_s),
    ]
    unreadable = told.total.unreadable
    return "\n".join(
        [
            f"root        {told.root}",
            f"owner       {told.owner or 'none: nobody has it open'}",
            f"free        {format_size(told.free_bytes)} of {format_size(told.file_system_bytes)}",
            f"quarantine  {told.quarantine_files} files, {format_size(told.quarantine_bytes)}",
            f"removed     {removed + ' blocks, of late' if removed else 'nothing known'}",
            *([f"unreadable  {unreadable} extents: see kvstore fsck"] if unreadable else []),
            "",
            table(lines),
        ]
    )


def _cells(name: str, space: Space, now_s: float) -> list[str]:
    return [
        name,
        f"{space.extents:,}",
        f"{space.blocks:,}",
        f"{space.tokens:,}",
        format_size(space.bytes),
        f"{space.expired:,}",
        ago(space.oldest_use_s, now_s),
        ago(space.newest_use_s, now_s),
    ]
