"""Server processes: started with their output in a file, waited for, stopped with their children.

A server belongs to its own process group, so that a stop reaches the engine's worker processes.
Every wait has a bound; what did not come up says so with the end of its log.
"""

import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

START_S = 900.0
STOP_S = 30.0
CHILDREN_S = 10.0
LOG_LINES = 25


class ServerError(Exception):
    """A server that did not come up, or went away; says what it printed last."""


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """One running server process and what it prints."""

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str], log: Path, *, stop_s: float = STOP_S
    ) -> None:
        self.command = list(command)
        self.log = log
        self.stop_s = stop_s
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                self.command,
                env={**os.environ, **env},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def group(self) -> int:
        """The process group of it and all its children."""
        return self._process.pid

    def wait_for(self, url: str) -> None:
        """Until `url` answers with success. Raises ServerError after START_S, or when it ended."""
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise ServerError(f"ended with {self._process.returncode}:\n{self.last_lines()}")
            try:
                with urllib.request.urlopen(url, timeout=5):
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(0.25)
        raise ServerError(f"not up within {START_S:.0f} s:\n{self.last_lines()}")

    def last_lines(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()
        return "\n".join(lines[-LOG_LINES:])

    def stop(self) -> None:
        """As Ctrl-C would, so that caches write what they have; what is left then, by force.

        The children get time, too: one of them removes the others' shared memory.
        """
        with suppress(subprocess.TimeoutExpired):
            self._process.send_signal(signal.SIGINT)
            self._process.wait(self.stop_s)
        deadline = time.monotonic() + min(CHILDREN_S, self.stop_s)
        with suppress(ProcessLookupError):
            while time.monotonic() < deadline:
                os.killpg(self._process.pid, 0)
                time.sleep(0.05)
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
