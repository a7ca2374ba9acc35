"""What benches share: figures over rounds, percentiles, the place they measure on, its words.

Not here: what is measured, and against what (ceiling/). Every figure is a share of a ceiling of the
same run, because disks (virtual ones above all) change from hour to hour; see README.md.
"""

import json
import os
import platform
import resource
import shlex
import shutil
import statistics
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kvstore

MEMORY_FILE_SYSTEMS = ("tmpfs", "ramfs", "hugetlbfs")
GIB = 2**30
COVERAGE_WANTED = 0.95  # with less on huge pages, a virtual disk is measured and not the store
PERCENTILES = (1, 5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 99, 99.5, 99.9, 99.95, 99.99)  # fio's


@dataclass(frozen=True)
class Figures:
    """One quantity over the rounds of a run; at least one."""

    values: Sequence[float]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def facts(self) -> dict[str, Any]:
        """As it stands in JSON."""
        return {
            "median": self.median,
            "low": min(self.values),
            "high": max(self.values),
            "rounds": list(self.values),
        }

    def __str__(self) -> str:
        return format(self, ".2f")

    def __format__(self, form: str) -> str:
        form = form or ".2f"
        low, high = min(self.values), max(self.values)
        return f"{self.median:{form}} ({low:{form}} to {high:{form}})"


def ratios(these: Sequence[float], those: Sequence[float]) -> Figures:
    """Round by round, so that what disturbed a whole round falls out."""
    return Figures([mine / other for mine, other in zip(these, those, strict=True)])


def cpu_s() -> tuple[float, float]:
    """(user, system) of this process so far, all threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime, used.ru_stime


def percentile(values: Sequence[float], percent: float) -> float:
    """The nearest rank: the smallest value that so many percent do not exceed."""
    ordered = sorted(values)
    rank = -(-len(ordered) * percent // 100)
    return ordered[max(0, int(rank) - 1)]


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """With fio's keys. Empty without values."""
    return {f"{percent:.6f}": percentile(values, percent) for percent in PERCENTILES if values}


def bucket_percentiles(counts: Sequence[int], edges_ns: Sequence[float]) -> dict[str, int]:
    """Of a histogram: the upper edge of the bucket that holds the rank; of the last, which has no
    edge, the edge before. Empty without counts."""
    found: dict[str, int] = {}
    total = sum(counts)
    for percent in PERCENTILES if total else ():
        left = -(-total * percent // 100)
        for count, edge in zip(counts, [*edges_ns, edges_ns[-1]], strict=False):
            left -= count
            if left <= 0:
                found[f"{percent:.6f}"] = int(edge)
                break
    return found


@dataclass(frozen=True)
class Place:
    """Where a bench ran."""

    device: str
    file_system: str
    mount_options: str
    kernel: str
    cpus: int

    def __str__(self) -> str:
        return (
            f"{self.device}, {self.file_system} ({self.mount_options}), Linux {self.kernel},"
            f" {self.cpus} cpus"
        )


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
        sys.exit(f"{path} is on {place.file_system}, which is memory: name a disk instead")
    free = shutil.disk_usage(path).free
    if free < need_bytes * 1.1:
        sys.exit(
            f"{path} has {free / 1e9:.1f} GB free, this needs {need_bytes * 1.1 / 1e9:.1f} GB:"
            " name another disk with --dir, or make the run smaller"
        )
    return place


def command_line() -> str:
    return shlex.join([Path(sys.executable).name, *sys.argv])


def warn(words: str) -> None:
    """To stderr: what a reader of the figures must know, whatever the output's format."""
    print(f"warning: {words}", file=sys.stderr)


def skip(words: str) -> None:
    print(f"SKIPPED: {words}", file=sys.stderr)


def coverage_words(what: str, coverage: float) -> str:
    """Warns where it makes the figures those of small pages."""
    if coverage < COVERAGE_WANTED:
        warn(f"{what}: only {coverage:.0%} on huge pages; reads are up to 3 times slower so")
    return f"{what} on huge pages: {coverage:.0%}"


def store_words(info: kvstore.Info) -> str:
    pool, root = info.pool, info.roots[0]
    ring = "registered" if root.registered else "not registered"
    return (
        f"{root.engine} ({info.build.liburing}, {ring}, depth {root.io_depth}), pool on"
        f" {pool.pages} pages ({pool.huge_coverage:.0%})"
    )


def emit(facts: Mapping[str, Any], words: str, *, as_json: bool, output: Path | None) -> None:
    """One of the two, to a file or to stdout."""
    text = json.dumps(facts, indent=2) if as_json else words
    if output is None:
        print(text)
    else:
        output.write_text(text + "\n")
