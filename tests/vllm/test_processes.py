"""Engines in processes of their own: scheduler and workers apart, kill -9, tensor parallelism."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from engines import prompt, running, transfer

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PROMPTS = [prompt(700, 41), prompt(353, 42)]
APART = {"distributed_executor_backend": "mp"}  # the worker is not in the scheduler's process
pytestmark = pytest.mark.timeout(300)


class Process:
    """`engine_process.py` at work. Ends with the block, by SIGKILL of its whole session."""

    def __init__(self, **job: Any) -> None:
        self.child = subprocess.Popen(
            [sys.executable, str(HERE / "engine_process.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env=os.environ
            | {
                "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "python")]),
                "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
                "VLLM_CPU_OMP_THREADS_BIND": "nobind",
                "VLLM_CPU_KVCACHE_SPACE": "1",
            },
        )
        assert self.child.stdin is not None
        self.child.stdin.write(json.dumps(job))
        self.child.stdin.close()

    def answer(self) -> dict[str, Any]:
        assert self.child.stdout is not None
        for line in self.child.stdout:
            if line.startswith("ANSWER "):
                found: dict[str, Any] = json.loads(line.removeprefix("ANSWER "))
                return found
        raise AssertionError("the engine ended without an answer")

    def kill(self) -> None:
        """All of its processes at once, as when the machine's patience ends."""
        try:
            os.killpg(self.child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.child.wait()

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def committed(root: Path, extents: int) -> None:
    """Until that many files have their names."""
    until = time.monotonic() + 60
    while len([p for p in root.glob("*/*/*") if p.parent.name != "tmp"]) < extents:
        assert time.monotonic() < until, list(root.glob("*/*/*"))
        time.sleep(0.05)


def test_what_was_saved_is_a_hit_after_kill_9_of_the_engine(model_of, tmp_path):
    """Scheduler (a peer) and worker (the owner) are two processes, and both die."""
    model = str(model_of("llama"))
    with running(model_of("llama")) as plain:
        expected = plain.tokens(PROMPTS)
    job = {"model": model, "kv": transfer(tmp_path), "words": APART, "prompts": PROMPTS}
    with Process(**job, stay=True) as first:
        cold = first.answer()
        committed(tmp_path, 2)
        first.kill()
    with Process(**job) as second:
        warm = second.answer()
    assert cold["tokens"] == warm["tokens"] == expected
    assert cold["cached"] == [0, 0]
    assert warm["cached"] == [640, 256]
    assert warm["from_disk"] == 640 + 256


@pytest.mark.parametrize(("kind", "cached"), [("llama", [640, 256]), ("deepseek_v3", [688, 352])])
def test_two_tensor_parallel_ranks_hit_what_both_saved(model_of, tmp_path, kind, cached):
    """Heads are sharded: a namespace per rank. A latent is not: one copy, loaded by both ranks."""
    job = {"model": str(model_of(kind)), "prompts": PROMPTS, "words": {"tensor_parallel_size": 2}}
    # The second round comes after the pause in which the owner learns of what the peer wrote.
    with Process(**job, kv=transfer(tmp_path), rounds=2, pause_s=3) as engine:
        cold, warm = engine.answer(), engine.answer()
    assert cold["tokens"] == warm["tokens"]
    assert warm["cached"] == cached
    assert warm["from_disk"] == sum(cached)
    namespaces = [path.parent for path in tmp_path.glob("*/layout.json")]
    assert len(namespaces) == (2 if kind == "llama" else 1)
