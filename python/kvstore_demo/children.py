"""Runs one phase of the demo as a process of its own and follows what it says.

A phase prints one JSON object per line on stdout: Progress while it works, one Result at its end.
Everything else it prints goes to a log file. A phase is never waited for longer than PHASE_LIMIT_S.
"""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

PHASES = "kvstore_demo.phases"
PHASE_LIMIT_S = 1800.0
# Read by torch's OpenMP when it is loaded: its threads sleep while they wait for each other and
# leave the cores to the store.
QUIET_WAITS = {"OMP_WAIT_POLICY": "passive"}


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """`done` of `total` steps (layers, rounds or files) are finished."""

    done: int
    total: int


class Result(msgspec.Struct, frozen=True, tag="result"):
    """The phase's figures. A prefill says this only when its puts are acknowledged."""

    value: msgspec.Raw


class PhaseFailed(Exception):
    """A phase ended without a result; the message has the end of its log."""


def run(
    phase: str,
    arguments: list[str],
    *,
    log: Path,
    kill: bool = False,
    progress: Callable[[Progress], None] = lambda _: None,
) -> tuple[bytes, int]:
    """Run `python -m PHASES phase arguments`; returns its result's JSON and its exit code.

    With `kill` the phase waits after its result and is ended by SIGKILL (exit code -9).
    Raises PhaseFailed when it ends, or is ended by the limit, without a result.
    """
    command = [sys.executable, "-m", PHASES, phase, *arguments]
    if kill:
        command.append("--linger")
    with (
        log.open("wb") as errors,
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=os.environ | QUIET_WAITS,
        ) as child,
    ):
        assert child.stdout is not None
        limit = threading.Timer(PHASE_LIMIT_S, child.kill)
        limit.start()
        try:
            result = _follow(child.stdout, progress)
            if kill and result is not None:
                child.send_signal(signal.SIGKILL)
            code = child.wait()
        finally:
            limit.cancel()
            child.kill()
    if result is None or code != (-signal.SIGKILL if kill else 0):
        raise PhaseFailed(f"the phase {phase} ended with code {code}\n{_tail(log)}")
    return bytes(result.value), code


def _follow(lines: Iterable[bytes], progress: Callable[[Progress], None]) -> Result | None:
    for line in lines:
        said = msgspec.json.decode(line, type=Progress | Result)
        if isinstance(said, Result):
            return said
        progress(said)
    return None


def _tail(log: Path, lines: int = 15) -> str:
    text = log.read_text(errors="replace").splitlines()
    return "\n".join([f"the end of {log}:", *text[-lines:]])
