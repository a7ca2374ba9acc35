"""What a mixed job adds to its rounds: the writer's pace, and how raw reads fare beside raw writes.

The pace is a share of what the device writes in this run. The raw pair is sampled in the same
rounds, so that what the device itself loses to writes is not laid at the store's door.
"""

import tempfile
from pathlib import Path
from typing import Any

from ceiling import ReadCeiling, WriteCeiling
from ceiling.paced import PacedWriter
from fio_json import p99_ms, times_ns
from jobfile import Job
from measure import Figures, ratios
from rounds import Round
from subject import Subject

FILES = 4  # that raw writes go to
SECONDS = 1.0  # of raw reads, alone and beside


class Mixed:
    """Made once per job, where its store lives. A context manager that removes its files."""

    def __init__(self, job: Job, subject: Subject, folder: Path) -> None:
        self.folder = tempfile.TemporaryDirectory(dir=folder, prefix="raw-")
        here = Path(self.folder.name)
        writes = WriteCeiling(
            here, files=FILES, regions=subject.regions, memory_bytes=0, with_fio=False
        )
        for _ in range(3):
            writes.sample()
        self.device_gbps = writes.samples.best().figures.median
        self.writer_gbps = self.device_gbps * job.write_rate / 100
        self.regions = subject.regions
        self.alone: list[float] = []
        self.beside: list[float] = []

    def sample(self, ceiling: ReadCeiling) -> None:
        raw, depth = ceiling.raw["fresh"], ceiling.samples.best("fresh").depth
        self.alone.append(raw.run(depth, SECONDS).gbps)
        with PacedWriter(Path(self.folder.name), self.regions, self.writer_gbps):
            self.beside.append(raw.run(depth, SECONDS).gbps)

    def facts(self, rounds: list[Round]) -> dict[str, Any]:
        idle = [load.layer0_ns for one in rounds for load in one.idle_loads]
        busy = [load.layer0_ns for one in rounds for load in one.loads]
        kept = ratios([one.read_gbps for one in rounds], [one.idle_gbps for one in rounds])
        return {
            "device_write_gbps": self.device_gbps,
            "writer_gbps": self.writer_gbps,
            "idle_gbps": Figures([one.idle_gbps for one in rounds]).facts(),
            "reads_kept": kept.facts(),
            "raw_reads_kept": ratios(self.beside, self.alone).facts(),
            "idle_layer0_ns": times_ns(idle),
            "layer0_p99_of_idle": p99_ms(busy) / p99_ms(idle),
        }

    def lines(self, rounds: list[Round]) -> list[str]:
        idle = [load.layer0_ns for one in rounds for load in one.idle_loads]
        busy = [load.layer0_ns for one in rounds for load in one.loads]
        kept = ratios([one.read_gbps for one in rounds], [one.idle_gbps for one in rounds])
        return [
            f"reads kept  {kept} of those of the same round without writes;"
            f" by raw reads {ratios(self.beside, self.alone)}",
            f"layer 0     p99 {p99_ms(busy):.1f} ms beside writes, {p99_ms(idle):.1f} ms alone"
            f" ({len(busy)} loads each)",
            f"pace        {self.writer_gbps:.2f} of {self.device_gbps:.2f} GB/s of raw writes",
        ]

    def __enter__(self) -> "Mixed":
        return self

    def __exit__(self, *_: object) -> None:
        self.folder.cleanup()
