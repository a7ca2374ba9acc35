"""The device's ceiling by itself: bandwidth by size and depth, on the I/O engines and by fio.

    python benches/ceiling --bs 72k 1152k --ioengine io_uring io_uring_plain aio threads

Interleaved: every round samples each engine at each depth, and begins with another engine. Prints
medians and spread, shares of the first engine in the same round, processor time per operation, and
how much of each tool's buffers really lay on huge pages.
"""

import argparse
import resource
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a directory

import plots
from ceiling import Ceiling, ReadCeiling, WriteCeiling, layer_major
from jobfile import ENGINES, parse_number
from kvstore.raw_io import DEPTHS, PAGE
from measure import Figures, check_place, command_line, emit, ratios

CHUNK = 1 << 24


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class Row:
    """One engine at one size."""

    def __init__(self, engine: str, io_bytes: int, ceiling: Ceiling) -> None:
        self.engine, self.io_bytes, self.ceiling = engine, io_bytes, ceiling
        self.cpu_us: list[float] = []  # of one operation, a value a round; reads only

    def sample(self) -> None:
        if not isinstance(self.ceiling, ReadCeiling):
            self.ceiling.sample()
            return
        began, before = cpu_s(), self.ceiling.operations()
        self.ceiling.sample_raw()
        self.cpu_us.append((cpu_s() - began) * 1e6 / (self.ceiling.operations() - before))
        self.ceiling.sample_fio(self.ceiling.fio_depth)

    def facts(self, against: "Row") -> dict[str, Any]:
        mine, other = self.ceiling.samples, against.ceiling.samples
        by_depth = {
            f"{tool} {depth}": Figures(values).facts()
            for (tool, depth), values in mine.rounds.items()
        }
        of_first = ratios(mine.best("fresh").figures.values, other.best("fresh").figures.values)
        return {
            "asked_engine": self.engine,
            "io_bytes": self.io_bytes,
            "cpu_us": Figures(self.cpu_us).facts() if self.cpu_us else None,
            "of_first_engine": of_first.facts(),
            "by_depth": by_depth,
            **mine.facts(),
        }

    def lines(self, against: "Row") -> list[str]:
        mine, other = self.ceiling.samples, against.ceiling.samples
        found = [f"{self.io_bytes} bytes, {self.engine}"]
        for (tool, depth), values in mine.rounds.items():
            found.append(f"  {tool:<6} depth {depth:>3}  {Figures(values)} GB/s")
        if self is not against:
            of = ratios(mine.best("fresh").figures.values, other.best("fresh").figures.values)
            found.append(f"  {of} of {against.engine}")
        if self.cpu_us:
            found.append(f"  {Figures(self.cpu_us)} us of processor time an operation")
        return found + [f"  {line}" for line in mine.lines("best")]


def make_rows(options: argparse.Namespace, folder: Path) -> list[list[Row]]:
    """A list per size."""
    files = write_files(folder, options) if options.rw == "read" else []
    rows = []
    for size in options.bs:
        here = []
        for number, engine in enumerate(options.ioengine):
            layers = max(1, (options.size // options.files - PAGE) // size)
            with_fio = number == 0 and not options.no_fio
            if files:
                here.append(Row(engine, size, ReadCeiling(
                    files, layer_major(len(files), PAGE, [size] * layers),
                    memory_bytes=options.memory, seconds=options.seconds, depths=options.iodepth,
                    engine=ENGINES.get(engine, engine), with_fio=with_fio,
                )))  # fmt: skip
            else:
                here.append(Row(engine, size, WriteCeiling(
                    folder, files=options.files, regions=[size] * layers,
                    memory_bytes=options.memory, depths=options.iodepth,
                    engine=ENGINES.get(engine, engine), with_fio=with_fio,
                )))  # fmt: skip
        rows.append(here)
    return rows


def write_files(folder: Path, options: argparse.Namespace) -> list[Path]:
    """With something in them, past the page cache's help: reads are direct."""
    paths = [folder / f"{number}.raw" for number in range(options.files)]
    chunk = bytes(range(1, 256)) * (CHUNK // 255)
    for path in paths:
        with path.open("wb") as file:
            while file.tell() < options.size // options.files:
                file.write(chunk)
            file.flush()
    return paths


def run(options: argparse.Namespace, folder: Path) -> list[list[Row]]:
    rows = make_rows(options, folder)
    for here in rows:
        for row in here:
            row.ceiling.warm_up()
        for number in range(options.loops):
            turn = number % len(here)
            for row in here[turn:] + here[:turn]:
                row.sample()
    return rows


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else "")
    parser.add_argument("--rw", choices=("read", "write"), default="read")
    parser.add_argument("--bs", type=parse_number, nargs="+", default=[73_728, 1_179_648])
    parser.add_argument("--iodepth", type=int, nargs="+", default=list(DEPTHS))
    parser.add_argument("--ioengine", nargs="+", default=["auto"], help="the first is the measure")
    parser.add_argument("--size", type=parse_number, default=1 << 30, help="of all files")
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--memory", type=parse_number, default=1 << 28, help="filled by 'fresh'")
    parser.add_argument("--loops", type=int, default=0, help="rounds; 7, or 15 of writes")
    parser.add_argument("--seconds", type=float, default=0.3, help="of each depth and round")
    parser.add_argument("--directory", type=Path, default=Path.cwd())
    parser.add_argument("--no-fio", action="store_true")
    parser.add_argument("--small", action="store_true", help="seconds: does it work at all?")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--plot", type=Path, metavar="PNG", help="bandwidth by size and depth")
    options = parser.parse_args()
    options.loops = options.loops or (7 if options.rw == "read" else 15)
    if options.small:
        options.loops, options.seconds, options.size = 2, 0.02, 1 << 26
        options.iodepth, options.memory, options.files = [8, 32], 1 << 25, 2
    return options


def main() -> None:
    options = parse_arguments()
    place = check_place(options.directory, 2 * options.size)
    with tempfile.TemporaryDirectory(prefix="ceiling-", dir=options.directory) as name:
        rows = run(options, Path(name))
    if options.plot:
        lines = {
            f"{row.engine}, {row.io_bytes >> 10} KiB": {
                depth: Figures(values).median
                for (tool, depth), values in row.ceiling.samples.rounds.items()
                if tool == "fresh"
            }
            for here in rows
            for row in here
        }
        plots.bandwidth(options.plot, lines, f"raw {options.rw}s on {place.device}")
    facts = [row.facts(here[0]) for here in rows for row in here]
    words = [line for here in rows for row in here for line in row.lines(here[0])]
    emit(
        {
            "command": command_line(),
            "place": vars(place),
            "rows": facts,
        },
        "\n".join([f"$ {command_line()}", f"on {place}", *words]),
        as_json=options.json,
        output=None,
    )


if __name__ == "__main__":
    main()
