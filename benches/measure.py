"""What benches share: the place they measure on, the device's ceiling, medians and spread.

Not here: what is measured. Every figure is a share of the ceiling of the same run, because disks
(virtual ones above all) change from hour to hour; see README.md.
"""

import json
import os
import platform
import shlex
import shutil
import statistics
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import kvstore
from kvstore import _core
from kvstore.testing import DEPTHS

MEMORY_FILE_SYSTEMS = ("tmpfs", "ramfs", "hugetlbfs")


FIO_FILES = 16  # more make its file list too long


@dataclass(frozen=True)
class Figures:
    """One quantity over the rounds of a run."""

    values: list[float]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def __str__(self) -> str:
        return f"{self.median:.2f} ({min(self.values):.2f} to {max(self.values):.2f})"


@dataclass
class Ceiling:
    """Raw reads of the same files in the same run, a sample of every depth in each round.

    Two kinds, by name: "fresh" fills memory_bytes round and round, as whoever keeps what it reads;
    "hot" reads into `depth` buffers again and again (fio does that, too), which then stay in the
    processor's cache.
    """

    paths: Sequence[Path]
    io_bytes: int
    memory_bytes: int
    seconds: float
    depths: Sequence[int] = DEPTHS
    samples: dict[tuple[str, int], list[float]] = field(default_factory=dict)
    fio_note: str = "fio is not installed"

    def __post_init__(self) -> None:
        names = [os.fsencode(path) for path in self.paths]
        self._readers = {
            kind: _core.RawReader(names, self.io_bytes, max(self.depths), memory)
            for kind, memory in (("fresh", self.memory_bytes), ("hot", 0))
        }
        self.engine = self._readers["fresh"].engine
        self.registered = self._readers["fresh"].registered

    def sample(self) -> None:
        """One round; on the thread that made this."""
        for kind, reader in self._readers.items():
            for depth in self.depths:
                moved, ns = reader.run(depth, round(self.seconds * 1e9))
                self.samples.setdefault((kind, depth), []).append(moved / ns)

    def sample_fio(self) -> None:
        """The same by fio, where it is installed and gets huge pages."""
        if shutil.which("fio") is None:
            return
        try:
            for depth in self.depths:
                gbps = fio_gbps(self.paths, self.io_bytes, depth, self.seconds)
                self.samples.setdefault(("fio", depth), []).append(gbps)
            self.fio_note = ""
        except (subprocess.SubprocessError, KeyError, ValueError) as error:
            said = str(getattr(error, "stderr", "") or error).strip().splitlines()
            self.fio_note = (
                f"fio could not run (are huge pages reserved?): {said[-1] if said else ''}"
            )

    def best(self, *kinds: str) -> tuple[str, int, Figures]:
        """(kind, depth, figures) of the highest median among these kinds."""
        every = [
            (kind, depth, Figures(values))
            for (kind, depth), values in self.samples.items()
            if kind in kinds
        ]
        return max(every, key=lambda one: one[2].median)


def fio_gbps(paths: Sequence[Path], io_bytes: int, depth: int, seconds: float) -> float:
    command = [
        "fio", "--name=ceiling", "--filename=" + ":".join(map(str, paths[:FIO_FILES])),
        "--rw=read",
        f"--bs={io_bytes}", f"--iodepth={depth}", "--ioengine=io_uring", "--direct=1",
        "--mem=mmaphuge", "--hugepage-size=2m", "--time_based", f"--runtime={max(1, seconds)}s",
        "--readonly", "--output-format=json",
    ]  # fmt: skip
    done = subprocess.run(command, check=True, capture_output=True, timeout=60, text=True)
    return float(json.loads(done.stdout)["jobs"][0]["read"]["bw_bytes"]) / 1e9


@dataclass(frozen=True)
class Place:
    """Where a bench ran."""

    device: str
    file_system: str
    mount_options: str
    kernel: str
    cpus: int


def place_of(path: Path) -> Place:
    """The device and file system of a directory, from /proc/self/mountinfo."""
    number = os.stat(path).st_dev
    wanted = f"{os.major(number)}:{os.minor(number)}"
    device = file_system = options = "unknown"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, after = line.split(" - ", 1)
        if before.split()[2] == wanted:
            file_system, device, options = after.split()[:3]
    with suppress(OSError):
        model = Path(f"/sys/dev/block/{wanted}/device/model").read_text().strip()
        device = f"{device} ({model})"
    return Place(device, file_system, options, platform.release(), os.cpu_count() or 1)


def check_place(path: Path, need_bytes: int) -> Place:
    """Refuses, with advice, a directory on which the figures would mean nothing."""
    place = place_of(path)
    if place.file_system in MEMORY_FILE_SYSTEMS:
        sys.exit(f"{path} is on {place.file_system}, which is memory: name a disk with --dir")
    free = shutil.disk_usage(path).free
    if free < need_bytes * 1.1:
        sys.exit(
            f"{path} has {free / 1e9:.1f} GB free, this needs {need_bytes * 1.1 / 1e9:.1f} GB:"
            " name another disk with --dir, or make the run smaller"
        )
    return place


def command_line() -> str:
    return shlex.join([Path(sys.executable).name, *sys.argv])


def pages_line(info: kvstore.Info) -> str:
    pool, root = info.pool, info.roots[0]
    ring = "registered" if root.registered else "not registered"
    return (
        f"{root.engine} ({info.build.liburing}, {ring}, depth {root.io_depth}), pool on"
        f" {pool.pages} pages ({pool.huge_coverage:.0%})"
    )
