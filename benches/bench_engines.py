"""The I/O engines against each other: raw O_DIRECT reads of one file, no store involved.

Interleaved: every round runs each engine once, each round begins with another, into memory of the
same kind (the pool's), so that a busy disk hits all of them. Prints shares of plain io_uring in the
same round, and CPU per read of the whole process, workers included. Verifies nothing.
"""

import argparse
import json
import os
import resource
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kvstore import _core
from measure import Figures, Place, check_place, command_line

ENGINES = ("io_uring", "io_uring_plain", "aio", "threads")
AGAINST = "io_uring_plain"
CHUNK_BYTES = 1 << 24


@dataclass
class Row:
    """One engine at one size. shares: of AGAINST in the same round."""

    engine: str
    io_bytes: int
    gbps: list[float] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)


def write_file(path: Path, nbytes: int) -> None:
    with path.open("wb") as file:
        for _ in range(nbytes // CHUNK_BYTES):
            file.write(os.urandom(CHUNK_BYTES))
        os.fsync(file.fileno())


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def measure(
    path: Path, io_bytes: int, *, depth: int, rounds: int, seconds: float, memory: int
) -> list[Row]:
    """A row per engine; OSError for one that this machine refuses."""
    readers = {
        engine: _core.RawReader([os.fsencode(path)], io_bytes, depth, memory, engine)
        for engine in ENGINES
    }
    rows = {engine: Row(engine, io_bytes) for engine in ENGINES}
    for number in range(rounds + 1):  # the first one warms up
        for engine in ENGINES[number % len(ENGINES) :] + ENGINES[: number % len(ENGINES)]:
            before = cpu_s()
            moved, ns = readers[engine].run(depth, round(seconds * 1e9))
            if number:
                rows[engine].gbps.append(moved / ns)
                rows[engine].cpu_us.append((cpu_s() - before) * 1e6 / (moved / io_bytes))
    for row in rows.values():
        against = rows[AGAINST].gbps
        row.shares = [mine / other for mine, other in zip(row.gbps, against, strict=True)]
    return list(rows.values())


def render(rows: Sequence[Row], place: Place, depth: int) -> str:
    lines = [
        f"$ {command_line()}",
        f"{place.file_system} on {place.device}, Linux {place.kernel}, depth {depth}",
    ]
    for row in rows:
        lines.append(
            f"{row.io_bytes:>8} bytes  {row.engine:<15} {Figures(row.gbps)} GB/s,"
            f" {Figures(row.shares)} of {AGAINST}, {Figures(row.cpu_us)} us CPU a read"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, default=Path.cwd(), help="where, on the disk measured")
    parser.add_argument("--bytes", type=int, default=1 << 30, help="of the file")
    parser.add_argument("--sizes", type=int, nargs="+", default=[73_728, 1 << 20])
    parser.add_argument("--depth", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.4, help="of each engine in each round")
    parser.add_argument("--memory", type=int, default=1 << 28, help="filled round and round")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.bytes < CHUNK_BYTES or options.rounds < 1:
        parser.error(f"--bytes is at least {CHUNK_BYTES}, --rounds at least 1")
    place = check_place(options.dir, options.bytes)
    with tempfile.TemporaryDirectory(dir=options.dir) as folder:
        path = Path(folder, "file")
        write_file(path, options.bytes)
        rows = [
            row
            for io_bytes in options.sizes
            for row in measure(
                path,
                io_bytes,
                depth=options.depth,
                rounds=options.rounds,
                seconds=options.seconds,
                memory=options.memory,
            )
        ]
    if options.json:
        print(json.dumps([vars(row) for row in rows], indent=2))
    else:
        print(render(rows, place, options.depth))


if __name__ == "__main__":
    main()
