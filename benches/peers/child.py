"""A worker process as its driver sees it: asked in JSON lines, answered within a time or killed."""

import json
import select
import subprocess
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benches.peers.work import Work

ROOT = Path(__file__).parents[2]
ANSWER_S = 120.0


class PeerFailed(Exception):
    """The peer raised, died or did not answer; the text says which."""


class Child:
    def __init__(
        self, python: Path, module: str, folder: Path, work: Work, mode: str,
        variables: Mapping[str, str],
    ) -> None:  # fmt: skip
        self.facts: dict[str, Any] = {}
        self.log = folder.with_suffix(".log")
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    python,
                    "-m",
                    "benches.peers.worker",
                    module,
                    folder,
                    json.dumps(asdict(work)),
                    mode,
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**variables, "PYTHONPATH": str(ROOT)},
                text=True,
                bufsize=1,
            )

    def start(self) -> None:
        self.facts = self._answer()["ready"]

    def ask(self, **told: Any) -> dict[str, Any]:
        """PeerFailed when the answer is an error or none comes in time."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(told) + "\n")
        except BrokenPipeError:
            raise PeerFailed(f"it is gone: {self._last_words()}") from None
        return self._answer()

    def close(self) -> None:
        try:
            self.ask(op="close")
        except PeerFailed:
            pass  # it is ended below whatever it says
        self.kill()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None and not pipe.closed:
                try:
                    pipe.close()
                except BrokenPipeError:
                    pass

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], ANSWER_S)[0]:
            raise PeerFailed(f"no answer within {ANSWER_S:.0f} s")
        line = self.process.stdout.readline()
        if not line:
            raise PeerFailed(f"it died: {self._last_words()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise PeerFailed(answer["error"])
        return answer

    def _last_words(self) -> str:
        words = (
            self.log.read_text(errors="replace").strip().splitlines() if self.log.exists() else []
        )
        return words[-1] if words else "it said nothing"
