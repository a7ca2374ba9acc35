"""Real file systems that stop under load: ext4 and xfs, three ways to stop, two kinds of load.

Each round: a process writes, loads, evicts and flushes on a loop mount (crash_load.py); at a random
moment the file system is shut down, the process killed, the image mounted again (its journal is
replayed) and opened by an ordinary store. Every byte that it gives is right; what a flush had
acknowledged is there. How old the oldest put is that was acknowledged and lost is printed.

Simulated cuts, which tear and reorder single writes, are in test_power_cut.py.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kvstore.store import open_blocking
from tests.support.crash_load import LAYOUT, loaded
from tests.support.loop_mount import LoopMount, Stop, loop_mount
from tests.support.prompts import eventually

pytestmark = [
    pytest.mark.slow,
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root for loop mounts"),
]
REPOSITORY = Path(__file__).resolve().parent.parent


@dataclass
class Log:
    """What the process said before it was killed."""

    begun: dict[str, int] = field(default_factory=dict)  # name -> blocks
    done: dict[str, int] = field(default_factory=dict)  # name -> when
    kept: dict[str, int] = field(default_factory=dict)
    flush_started: int = 0  # of the last one that was acknowledged
    wrong: list[str] = field(default_factory=list)

    @property
    def covered(self) -> set[str]:
        """What must be there: put before a flush that was acknowledged, and not to be evicted."""
        return {name for name, when in self.kept.items() if when < self.flush_started}

    def promises(self, style: str) -> bool:
        return bool(self.covered if style == "busy" else self.kept)

    @classmethod
    def read(cls, path: Path) -> Log:
        log = cls()
        for line in path.read_text().splitlines() if path.exists() else ():
            kind, when, *words = line.split()
            if kind == "begin":
                log.begun[words[0]] = int(words[1])
            elif kind == "flush":
                log.flush_started = int(words[0])
            elif kind == "wrong":
                log.wrong.append(words[0])
            else:
                log.done[words[0]] = int(when)
                if kind == "kept":
                    log.kept[words[0]] = int(when)
        return log


@contextmanager
def working(root: Path, log: Path, seed: int, style: str) -> Iterator[None]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.crash_load", str(root), str(log), str(seed),
         style],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"ready\n"
        yield
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()


@dataclass
class Round:
    puts: int
    found: int
    lost: int
    oldest_lost_s: float
    covered: int  # by a flush, and leased
    quarantined: int


def one_round(
    mounted: LoopMount, folder: Path, seed: int, stop: Stop, style: str, seconds: float
) -> Round:
    rng = random.Random(seed)
    root, path = mounted.path / "kv", folder / f"log-{seed}"
    with working(root, path, seed, style):
        eventually(lambda: Log.read(path).promises(style), "something was put, or flushed", 60)
        time.sleep(rng.uniform(0.0, seconds))
        stopped_ns = time.monotonic_ns()
        mounted.stop(stop)
    mounted.unmount()
    mounted.mount()
    return judge(root, Log.read(path), stopped_ns)


def judge(root: Path, log: Log, stopped_ns: int) -> Round:
    assert not log.wrong, "wrong bytes before the file system stopped"
    with open_blocking(root, capacity="1GB", pool="64MB") as store:
        eventually(lambda: not store.info().roots[0].warming, "the scan ended")
        kv = store.cache(LAYOUT)
        whole = set()
        for name, blocks in log.begun.items():
            count, right = loaded(kv, name, blocks)
            assert right, f"wrong bytes: {name}"
            if count == blocks:
                whole.add(name)
        quarantined = store.stats().quarantined_extents
    assert log.covered <= whole, "a flush had covered these"
    lost = [when for name, when in log.kept.items() if name not in whole and when < stopped_ns]
    oldest_s = (stopped_ns - min(lost)) / 1e9 if lost else 0.0
    return Round(len(log.done), len(whole), len(lost), oldest_s, len(log.covered), quarantined)


ABANDONED = """
import sys, time
from pathlib import Path
from tests.support.loop_mount import loop_mount
with loop_mount("ext4", Path(sys.argv[1])) as mounted:
    (mounted.path / "open").open("w").write("x")
    print(mounted.device, flush=True)
    sys.stdin.read()
"""


def test_a_killed_test_leaves_no_mount_and_no_loop_device(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", ABANDONED, str(tmp_path)], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, cwd=REPOSITORY,
    )  # fmt: skip
    assert process.stdout is not None
    device = Path(process.stdout.readline().decode().strip())
    backing = Path("/sys/block", device.name, "loop/backing_file")
    assert str(tmp_path) in Path("/proc/self/mounts").read_text()
    assert str(tmp_path) in backing.read_text()
    process.kill()
    process.communicate()
    eventually(lambda: str(tmp_path) not in Path("/proc/self/mounts").read_text(), "unmounted")
    eventually(lambda: not backing.exists() or str(tmp_path) not in backing.read_text(), "detached")


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    given = request.config.getoption("--seed")
    return random.randrange(1 << 32) if given is None else given


@pytest.mark.parametrize("style", ["busy", "quiet"])
@pytest.mark.parametrize("kind", ["ext4", "xfs"])
def test_a_file_system_that_stops_costs_only_what_no_flush_covered(
    kind: str, style: str, seed: int, request: pytest.FixtureRequest,
    tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    print(f"replay with --seed {seed}")
    rounds = request.config.getoption("--rounds")
    seconds = request.config.getoption("--seconds")
    with loop_mount(kind, tmp_path) as mounted:
        for stop in Stop:
            done = [
                one_round(mounted, tmp_path, seed + 10 * number + stop, stop, style, seconds)
                for number in range(rounds)
            ]
            with capsys.disabled():
                print(
                    f"\n{kind}, {style}, {line(done)}, reached the disk: {stop.name.lower()}",
                    end="",
                )


def line(rounds: list[Round]) -> str:
    lost = [one.oldest_lost_s for one in rounds]
    return (
        f"{len(rounds)} rounds, {sum(one.puts for one in rounds)} puts, "
        f"{sum(one.covered for one in rounds)} covered by a flush and 0 of them lost, "
        f"{sum(one.lost for one in rounds)} others lost, the oldest {max(lost):.1f} s old, "
        f"{sum(one.quarantined for one in rounds)} quarantined, wrong bytes: 0"
    )
