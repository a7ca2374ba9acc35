"""What a restart takes with many extents on disk: until the first hit, and until all are known."""

import resource
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from scale import extent_files


@dataclass
class Restarts:
    extents: int
    make_s: float
    open_ms: list[float] = field(default_factory=list)
    first_hit_ms: list[float] = field(default_factory=list)
    """From before open to the verified bytes of a block of which only the disk knows."""
    scan_s: list[float] = field(default_factory=list)
    scan_cpu_s: list[float] = field(default_factory=list)
    """Of the whole process."""


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def first_hit(root: Path, number: int, out: Restarts, *, scan: bool) -> None:
    began, cpu_began = time.perf_counter(), cpu_s()
    with extent_files.opened(root) as store:
        out.open_ms.append((time.perf_counter() - began) * 1e3)
        kv = store.cache(extent_files.LAYOUT)
        hit = kv.find_blocking(extent_files.known_chain(number))
        with kv.load(hit) as load:
            for layer in load:
                if layer.blocks != 1 or layer.spans[0].cells.any():
                    raise SystemExit(f"not the block that was put: {layer}")
        out.first_hit_ms.append((time.perf_counter() - began) * 1e3)
        while scan and store.info().roots[0].warming:
            time.sleep(0.02)
        if scan:
            out.scan_s.append(time.perf_counter() - began)
            out.scan_cpu_s.append(cpu_s() - cpu_began)
            if store.stats().extents != out.extents:
                raise SystemExit(f"{store.stats().extents} of {out.extents} extents were found")


def restarts(directory: Path, extents: int, rounds: int, scans: int) -> Restarts:
    """Makes the files below `directory`, opens them round after round, and removes them."""
    with tempfile.TemporaryDirectory(dir=directory, prefix="scale-") as folder:
        root = Path(folder)
        began = time.perf_counter()
        extent_files.make(root, extents)
        out = Restarts(extents, time.perf_counter() - began)
        for number in range(rounds):
            known = number % min(extent_files.KNOWN, extents)
            first_hit(root, known, out, scan=number < scans)
    return out
