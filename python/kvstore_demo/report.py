"""Prints the demo's figures as tables. Pure rendering: it measures and judges nothing.

Needs rich (the `cli` extra).
"""

import statistics
from collections.abc import Callable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from kvstore_demo.checks import Check
from kvstore_demo.figures import Demo, Load, Prefill
from kvstore_demo.place import Place
from kvstore_demo.projection import V3_PROMPT_TOKENS, deepseek_v3
from kvstore_demo.timeline import overlap_s


def size(count: float) -> str:
    """Bytes as MB or GB of ten, three digits or so."""
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def one_line(run: Prefill) -> str:
    """A prefill in one sentence, for the moment when its phase ends."""
    return (
        f"{run.used_tokens:,} reused, {run.computed_tokens:,} computed, "
        f"first token {run.ttft_s:.1f} s"
    )


def print_opening(console: Console, *, tokens: int, place: Place) -> None:
    """What is going to run, and where."""
    console.print(
        f"[bold]kvstore demo[/]: {tokens:,} tokens of a real coding agent's prompt, prefilled once "
        f"and streamed from {place.path} ({place.file_system}) ever after"
    )


def print_report(console: Console, demo: Demo, checks: Sequence[Check]) -> None:
    """All tables, the checks, and the closing lines on what this proves and what not."""
    console.print()
    console.print(_prefills(demo))
    console.print(_pipeline_line(demo.warm))
    console.print(_loads(demo.load))
    console.print(_lookups(demo))
    console.print(_damage_line(demo))
    console.print(_checks(checks))
    for line in closing_lines(demo):
        console.print(line)


def closing_lines(demo: Demo) -> list[str]:
    """What the run proves, and DeepSeek-V3's prompt projected from the measured disk."""
    gbps = demo.load.median_gbps()
    v3 = deepseek_v3(gbps)
    return [
        "The weights are random and the compute is a CPU: this proves equality and overlap, "
        "not a GPU speed-up.",
        f"Computed from this disk's {gbps:.2f} GB/s, not measured: DeepSeek-V3's prompt of "
        f"{V3_PROMPT_TOKENS:,} tokens ({size(v3.prompt_bytes)}) would load in {v3.seconds:.1f} s "
        f"here; half a second needs {v3.needed_gbps:.1f} GB/s.",
    ]


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    table.add_column(columns[0])
    for column in columns[1:]:
        table.add_column(column, justify="right")
    return table


def _prefills(demo: Demo) -> Table:
    """A column per prefill: eleven figures side by side would not fit a terminal."""
    runs = {
        "cold,\nexact": demo.cold,
        "warm,\nexact": demo.warm,
        "cold,\ndefault": demo.cold_default,
        "warm,\ndefault": demo.warm_default,
        "next turn,\nexact": demo.next_turn,
        "bit flipped,\nexact": demo.after_damage,
    }
    model = demo.model
    title = (
        f"Prefills, each a new process: {model.layers} layers, {model.token_bytes:,} bytes a "
        f"token, computed on {model.compute_threads} of {demo.cpus} cores"
    )
    table = _table(title, "", *runs)
    for label, figure in PREFILL_ROWS.items():
        table.add_row(label, *(figure(run) for run in runs.values()))
    return table


def _against_cold(run: Prefill) -> str:
    difference = run.against_cold
    if difference is None:
        return "-"
    if difference.bitwise:
        return "bitwise\nequal"
    argmax = "same token" if difference.same_argmax else "other token"
    return f"max {difference.max_abs:.2g},\n{argmax}"


PREFILL_ROWS: dict[str, Callable[[Prefill], str]] = {
    "prompt tokens": lambda run: f"{run.prompt_tokens:,}",
    "hit": lambda run: f"{run.hit_tokens:,}",
    "used": lambda run: f"{run.used_tokens:,}",
    "computed": lambda run: f"{run.computed_tokens:,}",
    "blocks put": lambda run: f"{run.blocks_put}",
    "written": lambda run: size(run.bytes_written),
    "read": lambda run: size(run.bytes_read),
    "waited for store": lambda run: f"{run.store_wait_s:.3f} s",
    "first token": lambda run: f"{run.ttft_s:.2f} s",
    "logits vs cold": _against_cold,
}


def _pipeline_line(warm: Prefill) -> str:
    return (
        f"Warm pipeline: the first layer was computing for {overlap_s(warm.timeline):.3f} s "
        f"before the last layer had arrived; the prefill waited {warm.store_wait_s:.3f} s "
        "for the store in all.\n"
    )


def _loads(load: Load) -> Table:
    table = _table(
        f"The load without compute: {size(load.bytes)}, O_DIRECT, RAM emptied before each round",
        "round", "load GB/s", "ceiling GB/s", "at depth", "share",
    )  # fmt: skip
    for number, r in enumerate(load.rounds, 1):
        table.add_row(
            str(number),
            f"{r.gbps:.2f}",
            f"{r.ceiling_gbps:.2f}",
            f"{r.ceiling_depth} ({r.ceiling_engine})",
            f"{r.share:.0%}",
        )
    table.add_section()
    table.add_row(
        "median",
        _spread([r.gbps for r in load.rounds]),
        _spread([r.ceiling_gbps for r in load.rounds]),
        f"reads of\n{load.io_bytes / 1024:.0f} KiB",
        f"{load.median_share():.0%}\n({min(r.share for r in load.rounds):.0%}.."
        f"{max(r.share for r in load.rounds):.0%})",
        style="bold",
    )
    return table


def _spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f}\n({min(values):.2f}..{max(values):.2f})"


def _lookups(demo: Demo) -> Table:
    table = _table("Lookups of an edited prompt", "one token changed", "blocks hit", "reason")
    table.add_row("at the start", f"{demo.changed_at_start.blocks}", demo.changed_at_start.reason)
    table.add_row(
        f"in block {demo.changed_token_block}",
        f"{demo.changed_in_middle.blocks}",
        demo.changed_in_middle.reason,
    )
    return table


def _damage_line(demo: Demo) -> str:
    hurt, run = demo.damage, demo.after_damage
    return (
        f"Damage: bit {hurt.bit} of byte {hurt.offset:,} flipped in {hurt.file} "
        f"(layer {hurt.layer}, block {hurt.block}); extents quarantined: {run.quarantined}, "
        f"{run.computed_tokens:,} of {run.prompt_tokens:,} tokens computed again.\n"
    )


def _checks(checks: Sequence[Check]) -> Table:
    table = Table(title="Promises", title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for column in ("", "promise", "fact"):
        table.add_column(column)
    for c in checks:
        mark = "[green]kept[/]" if c.kept else "[bold red]BROKEN[/]"
        table.add_row(mark, c.promise, c.fact)
    return table
