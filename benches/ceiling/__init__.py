"""The ceiling: the access pattern of a bench without a store, straight on the I/O engine and by
fio. A sample a round, so that it shares the rounds of what is divided by it.

Tools, by name: "fresh" fills memory round and round, as whoever keeps what it reads; "hot" reads
into `depth` buffers again and again (fio does that, too), which then stay in the processor's cache.
The tool and depth with the highest median is the denominator.
"""

import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ceiling import fio
from kvstore.raw_io import DEPTHS, PAGE, RawIo, Step
from measure import GIB, Figures, coverage_words, cpu_s, skip

FIO_SECONDS = 0.5  # shorter, and its first touch of its buffers is what it measures


class Top(NamedTuple):
    tool: str
    depth: int
    figures: Figures

    def __str__(self) -> str:
        return f"{self.figures} GB/s  {self.tool}, depth {self.depth}"


@dataclass
class Samples:
    """GB/s of every tool and depth, a value a round."""

    rounds: dict[tuple[str, int], list[float]] = field(default_factory=dict)
    cpu: dict[str, list[float]] = field(default_factory=dict)  # processor seconds per GiB
    coverage: dict[str, float] = field(default_factory=dict)  # of each tool's buffers, the least
    engine: str = ""
    registered: bool = False
    fio_note: str = ""

    def add(self, tool: str, depth: int, gbps: float, cpu: float) -> None:
        self.rounds.setdefault((tool, depth), []).append(gbps)
        self.cpu.setdefault(tool, []).append(cpu)

    def add_raw(self, tool: str, depth: int, raw: RawIo, seconds: float, steps: int = 0) -> None:
        before = sum(cpu_s())
        moved = raw.run(depth, seconds, steps=steps)
        cpu = (sum(cpu_s()) - before) / (moved.bytes / GIB)
        self.add(tool, depth, moved.gbps, cpu)

    def cover(self, tool: str, coverage: float) -> None:
        self.coverage[tool] = min(coverage, self.coverage.get(tool, 1.0))

    def take_raw(self, tool: str, raw: RawIo) -> None:
        self.engine, self.registered = raw.engine, raw.registered
        self.cover(tool, raw.huge_coverage)

    def best(self, *tools: str) -> Top:
        """Of these tools, of all when none is named."""
        every = [
            Top(tool, depth, Figures(values))
            for (tool, depth), values in self.rounds.items()
            if not tools or tool in tools
        ]
        return max(every, key=lambda top: top.figures.median)

    def tools(self) -> list[str]:
        return list(dict.fromkeys(tool for tool, _ in self.rounds))

    def facts(self) -> dict[str, Any]:
        tops = {tool: self.best(tool) for tool in self.tools()}
        return {
            "engine": self.engine,
            "registered": self.registered,
            "fio": self.fio_note or fio.version(),
            "best": self.best().tool,
            "tools": {
                tool: {
                    "depth": top.depth,
                    "huge_coverage": self.coverage.get(tool),
                    "gbps": top.figures.facts(),
                    "cpu_s_per_gib": Figures(self.cpu[tool]).facts(),
                }
                for tool, top in tops.items()
            },
        }

    def lines(self, what: str) -> list[str]:
        ring = "registered" if self.registered else "not registered"
        found = [f"{what} ceiling, {tool:<6} {self.best(tool)}" for tool in self.tools()]
        covered = [coverage_words(f"{tool} buffers", part) for tool, part in self.coverage.items()]
        return [
            *found,
            f"{what} ceiling by {self.engine} ({ring}); {', '.join(covered)}",
            *([f"{what} ceiling: {self.fio_note}"] if self.fio_note else []),
        ]


class Ceiling:
    """What reads and writes have in common: fio at the depth that was best in the warm-up, a clean
    start after it."""

    def __init__(self, depths: Sequence[int], with_fio: bool) -> None:
        self.depths = depths
        self.samples = Samples()
        self.fio_depth = max(depths)
        if not with_fio:
            self.samples.fio_note = "fio was not asked for"
            return
        try:
            fio.version()
        except fio.Refused as error:
            self.refuse_fio(str(error))

    def warm_up(self) -> None:
        """Every depth once; what it measures only chooses fio's depth."""
        self.sample_raw()
        for depth in self.depths:
            self.sample_fio(depth)
        if "fio" in self.samples.tools():
            self.fio_depth = self.samples.best("fio").depth
        self.samples.rounds.clear()
        self.samples.cpu.clear()

    def sample(self) -> None:
        """One round; on the thread that made this."""
        self.sample_raw()
        self.sample_fio(self.fio_depth)

    def sample_fio(self, depth: int) -> None:
        if self.samples.fio_note:
            return
        try:
            run = self.fio_run(depth)
        except fio.Refused as error:
            self.refuse_fio(str(error))
            return
        self.samples.add("fio", depth, run.gbps, run.cpu)
        # Seen from outside, at moments: what it had once, it has.
        best = max(run.huge_coverage, self.samples.coverage.get("fio", 0.0))
        self.samples.coverage["fio"] = best

    def refuse_fio(self, why: str) -> None:
        """For good, so that every round has the same tools."""
        skip(why)
        self.samples.fio_note = why
        for key in [key for key in self.samples.rounds if key[0] == "fio"]:
            del self.samples.rounds[key]
        self.samples.cpu.pop("fio", None)

    def sample_raw(self) -> None:
        raise NotImplementedError

    def fio_run(self, depth: int) -> fio.Run:
        raise NotImplementedError


class ReadCeiling(Ceiling):
    """Reads of the steps, `seconds` at each depth and tool.

    memory_bytes: what "fresh" fills round and round.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        steps: Sequence[Step],
        *,
        memory_bytes: int,
        seconds: float,
        depths: Sequence[int] = DEPTHS,
        engine: str = "auto",
        with_fio: bool = True,
    ) -> None:
        super().__init__(depths, with_fio)
        self.paths, self.steps, self.seconds = paths, steps, seconds
        self.io_bytes = max(step.bytes for step in steps)
        self.raw = {
            tool: RawIo(paths, steps, depth_max=max(depths), memory_bytes=memory, engine=engine)
            for tool, memory in (("fresh", memory_bytes), ("hot", 0))
        }
        for tool, raw in self.raw.items():
            self.samples.take_raw(tool, raw)

    def sample_raw(self) -> None:
        for tool, raw in self.raw.items():
            for depth in self.depths:
                self.samples.add_raw(tool, depth, raw, self.seconds)

    def fio_run(self, depth: int) -> fio.Run:
        return fio.read(
            self.paths,
            self.io_bytes,
            depth,
            max(self.seconds, FIO_SECONDS),
            offset=min(step.offset for step in self.steps),
        )

    def operations(self) -> int:
        """Raw reads so far."""
        return sum(sum(raw.latency_counts()) for raw in self.raw.values())

    def latency_counts(self) -> list[int]:
        """Of single reads that keep what they read, at all depths, in all samples so far."""
        return self.raw["fresh"].latency_counts()


class WriteCeiling(Ceiling):
    """Writes of fresh, preallocated files below `folder`, made and removed in every sample.

    Making them is not timed; a put has to make its own, and that is part of what it costs.
    """

    def __init__(
        self,
        folder: Path,
        *,
        files: int,
        regions: Sequence[int],
        memory_bytes: int,
        depths: Sequence[int] = (16, 64),
        engine: str = "auto",
        with_fio: bool = True,
    ) -> None:
        super().__init__(depths, with_fio)
        self.folder, self.files, self.regions = folder, files, regions
        self.memory_bytes, self.engine = memory_bytes, engine
        self.file_bytes = PAGE + sum(regions)

    def sample_raw(self) -> None:
        for depth in self.depths:
            with tempfile.TemporaryDirectory(dir=self.folder) as name:
                paths = fresh_files(Path(name), self.files, self.file_bytes)
                raw = RawIo(
                    paths,
                    layer_major(len(paths), PAGE, self.regions),
                    writes=True,
                    depth_max=depth,
                    memory_bytes=self.memory_bytes,
                    engine=self.engine,
                )
                steps = len(paths) * len(self.regions)
                self.samples.add_raw("fresh", depth, raw, 600, steps)
                self.samples.take_raw("fresh", raw)

    def fio_run(self, depth: int) -> fio.Run:
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        try:
            files = min(self.files, fio.FILES_MAX)
            return fio.write(folder, files, sum(self.regions), max(self.regions), depth)
        finally:
            shutil.rmtree(folder)


def layer_major(files: int, header_bytes: int, regions: Sequence[int]) -> list[Step]:
    """Layer after layer, in each of them file after file: the order of a load and of a put."""
    steps, offset = [], header_bytes
    for region in regions:
        steps += [Step(number, offset, region) for number in range(files)]
        offset += region
    return steps


def fresh_files(folder: Path, count: int, nbytes: int) -> list[Path]:
    """With their final length allocated, and nothing in them."""
    paths = [folder / f"{number}.raw" for number in range(count)]
    for path in paths:
        with path.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, nbytes)
    return paths
