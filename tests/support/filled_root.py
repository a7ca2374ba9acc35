"""A root with one small prompt in it, closed, and `kvstore fsck` on it. For tests."""

import contextlib
import io
import json
import stat
import warnings
from pathlib import Path
from typing import Any

from kvstore import Layout, LayoutWarning
from kvstore.cli import main
from tests.support.stores import cells_of, opened, prompt, until, write

BLOCKS = 20  # an extent of 16 and one of 4
POOL = "16MiB"

with warnings.catch_warnings():
    warnings.simplefilter("ignore", LayoutWarning)  # small on purpose
    LAYOUT = Layout(
        parts_by_layer=((("latent", 16 * 1152),),) * 3, model="m", block_tokens=16, extent_blocks=16
    )

Told = dict[str, Any]


def fill(root: Path) -> Path:
    """The prompt as a store writes it, layout.json and removed.ring with it."""
    with opened(root, pool=POOL) as store:
        kv = store.cache(LAYOUT)
        assert write(kv, kv.keys(prompt(BLOCKS)), cells_of(LAYOUT, BLOCKS)) == BLOCKS
        until(lambda: (root / kv.namespace / "layout.json").exists())
    return root


def extents(root: Path) -> list[Path]:
    """The longer one first."""
    return sorted(root.glob("*/???/*.kv"), key=lambda path: -path.stat().st_size)


def run_fsck(root: Path, *words: str) -> tuple[int, Told]:
    """(exit code, the report)."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = main(["fsck", str(root), "--json", *words])
    return code, json.loads(printed.getvalue())


def kinds(told: Told) -> set[str]:
    return {finding["kind"] for finding in told["findings"]}


def times(root: Path) -> dict[Path, tuple[int, int]]:
    """atime and mtime of every file."""
    found = {path: path.lstat() for path in root.rglob("*")}
    return {
        path: (seen.st_atime_ns, seen.st_mtime_ns)
        for path, seen in found.items()
        if stat.S_ISREG(seen.st_mode)
    }
