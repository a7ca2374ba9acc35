"""The demo's phases in their order: runs each as a process and gathers the figures.

Judges nothing (checks.py does) and prints one line per phase (report.py prints the rest).
"""

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from kvstore_demo import children
from kvstore_demo.figures import Damage, Demo, Load, Lookup, Model, Prefill
from kvstore_demo.prompt import BLOCK_TOKENS, middle, prompts
from kvstore_demo.report import one_line, size

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Where a run plays.

    `work` holds its store and saved logits, new for each run. Exact and default mode have
    namespaces of their own in that store and never share blocks.
    """

    console: Console
    model: Path
    model_size: str
    work: Path
    tokens: int
    file_system: str


def play(stage: Stage) -> Demo:
    """Run every phase; returns all figures. Raises children.PhaseFailed."""
    begin = time.monotonic()
    model, _ = _phase(stage, "demo model", "model", Model, "--model-size", stage.model_size)
    cold, cold_exit_code = _cold(stage)
    warm = _prefill(stage, "warm, exact mode", "--against", "cold", "--exact")
    cold_default = _prefill(stage, "cold, default mode", "--save", "cold-default")
    warm_default = _prefill(stage, "warm, default mode", "--against", "cold-default")
    load = _load(stage)
    at_start = _lookup(stage, "token changed at the start", "changed-at-start")
    in_middle = _lookup(stage, "token changed in the middle", "changed-in-middle")
    next_turn = _prefill(stage, "next turn", "--exact", prompt="next-turn")
    damage, _ = _phase(stage, "flip one bit", "damage", Damage, *_in_store(stage))
    after_damage = _prefill(stage, "after the flipped bit", "--against", "cold", "--exact")
    return Demo(
        session=prompts(stage.tokens).session,
        file_system=stage.file_system,
        cpus=len(os.sched_getaffinity(0)),
        model=model,
        cold=cold,
        cold_exit_code=cold_exit_code,
        warm=warm,
        cold_default=cold_default,
        warm_default=warm_default,
        load=load,
        changed_at_start=at_start,
        changed_in_middle=in_middle,
        changed_token_block=middle(stage.tokens) // BLOCK_TOKENS,
        next_turn=next_turn,
        damage=damage,
        after_damage=after_damage,
        total_s=time.monotonic() - begin,
    )


def _cold(stage: Stage) -> tuple[Prefill, int]:
    """The first prefill; its process is killed once it has said that its puts are acknowledged."""
    arguments = [*_in_store(stage), "--save", str(stage.work / "cold"), "--exact"]
    run, code = _phase(stage, "cold, exact mode", "prefill", Prefill, *arguments, kill=True)
    _say(stage, "cold, exact mode", one_line(run))
    _say(stage, "", f"{run.blocks_put} blocks, {size(run.bytes_written)} written, then SIGKILL")
    return run, code


def _prefill(stage: Stage, title: str, *options: str, prompt: str = "first") -> Prefill:
    """`options` are flags, and names of files in the work directory."""
    paths = [o if o.startswith("--") else str(stage.work / o) for o in options]
    arguments = [*_in_store(stage, prompt=prompt), *paths]
    run, _ = _phase(stage, title, "prefill", Prefill, *arguments)
    _say(stage, title, one_line(run))
    return run


def _load(stage: Stage) -> Load:
    load, _ = _phase(stage, "load without compute", "load", Load, *_in_store(stage))
    gbps, share = load.median_gbps(), load.median_share()
    _say(stage, "load without compute", f"{gbps:.2f} GB/s, {share:.0%} of the device's ceiling")
    return load


def _lookup(stage: Stage, title: str, prompt: str) -> Lookup:
    found, _ = _phase(stage, title, "lookup", Lookup, *_in_store(stage, prompt=prompt))
    _say(stage, title, f"{found.blocks} blocks hit")
    return found


def _in_store(stage: Stage, *, prompt: str = "first") -> list[str]:
    return ["--store", str(stage.work / "store"), "--prompt", prompt]


def _phase(
    stage: Stage, title: str, name: str, figures: type[T], *arguments: str, kill: bool = False
) -> tuple[T, int]:
    """Run one phase under a progress bar; returns its figures and exit code."""
    common = ["--model", str(stage.model), "--prompt-tokens", str(stage.tokens)]
    columns = (
        TextColumn("  {task.description:<28}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    shown = stage.console.is_terminal
    with Progress(*columns, console=stage.console, transient=True, disable=not shown) as bars:
        task = bars.add_task(title, total=None)
        value, code = children.run(
            name,
            [*common, *arguments],
            log=stage.work / "phase.log",
            kill=kill,
            progress=lambda step: bars.update(task, completed=step.done, total=step.total),
        )
    return msgspec.json.decode(value, type=figures), code


def _say(stage: Stage, title: str, fact: str) -> None:
    stage.console.print(f"  {title:<28}{fact}", highlight=False)
