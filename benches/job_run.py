"""One job from its prepared store to its result: rounds of ceiling and store in turn."""

import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ceiling import Ceiling, ReadCeiling, WriteCeiling, layer_major
from fio_json import Result, Side, p99_ms, times_ns
from jobfile import Job
from kvstore import Layout, Store
from kvstore.report import StageLatency
from measure import GIB, Figures, coverage_words, cpu_s, ratios, store_words
from mixed import FILES, Mixed
from rounds import Round, Rounds
from subject import Subject

FULL_ROUNDS = 4  # what a full store holds, in rounds' bytes


def blocks_of(job: Job, layout: Layout) -> int:
    """Of one prefix; of a whole session where there are turns."""
    if not job.turns:
        return job.blocks(layout)
    return job.turns * -(-job.turn_tokens // layout.block_tokens)


def round_bytes(job: Job, layout: Layout) -> int:
    prefixes = 1 if job.rw == "randread" else job.numjobs
    return prefixes * blocks_of(job, layout) * layout.block_bytes


def capacity_bytes(job: Job, layout: Layout) -> int:
    """A read needs its prefixes, a write all that it puts; full and agents' stores evict."""
    rounds = {"read": 1, "randread": 1, "write": job.rounds + 1, "rw": FULL_ROUNDS}[job.rw]
    wanted = round_bytes(job, layout) * (FULL_ROUNDS if job.full else rounds)
    return wanted * 21 // 20 + (64 << 20)  # headers, and files rounded up


def need_bytes(job: Job, layout: Layout) -> int:
    """Of the disk: the store, and what the ceiling writes beside it."""
    raw = 2 * FILES * layout.blocks_per_extent * layout.block_bytes if job.write_rate else 0
    return capacity_bytes(job, layout) + 2 * round_bytes(job, layout) + raw


class How(NamedTuple):
    """The ceiling of reads: seconds of raw reads at each depth in each round."""

    seconds: float
    depths: Sequence[int]
    with_fio: bool


class JobRun:
    """A context manager: removes the files that only the ceiling uses."""

    def __init__(self, job: Job, store: Store, layout: Layout, folder: Path, *, how: How) -> None:
        self.job, self.store, self.layout, self.folder = job, store, layout, folder
        self.how = how
        self.subject = Subject(store, layout, into=job.into)
        self.rounds = Rounds(job, self.subject, blocks_of(job, layout))
        self.links = tempfile.TemporaryDirectory(dir=folder, prefix="ceiling-")
        self.mixed: Mixed | None = None
        self.done: list[Round] = []
        self.user_s = self.system_s = 0.0
        self.cpu_s: list[float] = []  # of each round
        self.loop_us: list[float] = []  # of the event loop's thread in loads, per read
        self.stages: dict[str, tuple[list[int], float]] = {}

    def __enter__(self) -> "JobRun":
        return self

    def __exit__(self, *_: object) -> None:
        if self.mixed is not None:
            self.mixed.folder.cleanup()
        self.links.cleanup()

    async def measure(self) -> Result:
        await self.rounds.prepare()
        ceiling = self.ceiling()
        if self.job.write_rate:
            self.mixed = Mixed(self.job, self.subject, self.folder)
            self.rounds.writer_gbps = self.mixed.writer_gbps
        began = time.monotonic()
        ceiling.warm_up()
        await self.rounds.kind()()  # opens files, faults code in
        for _ in range(self.job.rounds):
            ceiling.sample()
            if self.mixed is not None and isinstance(ceiling, ReadCeiling):
                self.mixed.sample(ceiling)
            await self.one_round()
            if self.job.runtime and time.monotonic() - began > self.job.runtime:
                break
        if self.job.verify:
            await self.rounds.check()
        return self.result(ceiling)

    async def one_round(self) -> None:
        stages, cpu = self.store.latency(), cpu_s()
        self.done.append(await self.rounds.kind()())
        user_s, system_s = cpu_s()
        self.user_s += user_s - cpu[0]
        self.system_s += system_s - cpu[1]
        self.cpu_s.append(user_s - cpu[0] + system_s - cpu[1])
        after = self.store.latency()
        reads = sum(after["read"].counts) - sum(stages["read"].counts)
        self.loop_us.append(self.done[-1].loop_s * 1e6 / max(1, reads))
        for name, stage in after.items():
            self.add_stage(name, stages[name], stage)

    def add_stage(self, name: str, before: StageLatency, after: StageLatency) -> None:
        counts, sum_s = self.stages.get(name, ([0] * len(after.counts), 0.0))
        fresh = [x + y - z for x, y, z in zip(counts, after.counts, before.counts, strict=True)]
        self.stages[name] = (fresh, sum_s + after.sum_s - before.sum_s)

    def ceiling(self) -> Ceiling:
        regions = self.subject.regions
        memory = min(round_bytes(self.job, self.layout), self.store.info().pool.bytes)
        if self.job.rw == "write":
            extents = self.rounds.blocks // self.layout.blocks_per_extent * self.job.numjobs
            return WriteCeiling(
                self.folder,
                files=max(1, extents),
                regions=regions,
                memory_bytes=memory,
                engine=self.job.ioengine,
                with_fio=self.how.with_fio,
            )
        paths = self.linked_files()
        pieces = [sum(regions)] if self.job.rw == "randread" else regions
        return ReadCeiling(
            paths,
            layer_major(len(paths), paths[0].stat().st_size - sum(regions), pieces),
            memory_bytes=memory,
            seconds=self.how.seconds,
            depths=self.how.depths,
            engine=self.job.ioengine,
            with_fio=self.how.with_fio,
        )

    def linked_files(self) -> list[Path]:
        """The whole extents, under names that eviction does not take away."""
        files = self.subject.extent_files()
        whole = max(path.stat().st_size for path in files)
        found = []
        for number, path in enumerate(path for path in files if path.stat().st_size == whole):
            found.append(Path(self.links.name, f"{number}.kv"))
            os.link(path, found[-1])
        return found

    # ---- what comes out ----

    def cpu(self) -> Figures:
        """Processor seconds per GiB moved, all threads, a value a round."""
        moved = [one.read_bytes + one.write_bytes for one in self.done]
        return Figures([s / (n / GIB) for s, n in zip(self.cpu_s, moved, strict=True)])

    def completions(self) -> Figures:
        """How much longer the slowest load of a round took than the quickest."""
        times = [[load.whole_ns for load in one.loads] or [1] for one in self.done]
        return Figures([max(some) / min(some) for some in times])

    def side(self, name: str) -> Side:
        rounds = self.done
        if name == "read":
            pairs = [(one.read_bytes, one.read_s, one.read_gbps) for one in rounds]
        else:
            pairs = [(one.write_bytes, one.write_s, one.write_gbps) for one in rounds]
        counts, sum_s = self.stages[name]
        nbytes, seconds = sum(pair[0] for pair in pairs), sum(pair[1] for pair in pairs)
        rates = [pair[2] for pair in pairs] if nbytes else []
        return Side(nbytes, seconds, rates, counts if nbytes else [], sum_s)

    def result(self, ceiling: Ceiling) -> Result:
        read, write = self.side("read"), self.side("write")
        main = write if self.job.rw == "write" else read
        share = ratios(main.gbps, ceiling.samples.best().figures.values)
        fresh = ratios(main.gbps, ceiling.samples.best("fresh").figures.values)
        return Result(
            job=self.job,
            read=read,
            write=write,
            share=share,
            elapsed_s=read.seconds + write.seconds,
            user_s=self.user_s,
            system_s=self.system_s,
            kv=self.facts(ceiling, fresh),
            lines=self.lines(ceiling, read, write, share, fresh),
        )

    def facts(self, ceiling: Ceiling, fresh: Figures) -> dict[str, Any]:
        info, loads = self.store.info(), [load for one in self.done for load in one.loads]
        raw_counts = ceiling.latency_counts() if isinstance(ceiling, ReadCeiling) else []
        return {
            "blocks": self.rounds.blocks,
            "extent_blocks": self.layout.blocks_per_extent,
            "block_bytes": self.layout.block_bytes,
            "region_bytes": max(self.subject.regions),
            "rounds": len(self.done),
            "of_fresh": fresh.facts(),
            "cpu_s_per_gib": self.cpu().facts(),
            "loop_us_per_read": Figures(self.loop_us).facts(),
            "completions": self.completions().facts(),
            "delivered_bytes": sum(one.delivered_bytes for one in self.done),
            "layer0_ns": times_ns([load.layer0_ns for load in loads]),
            "load_ns": times_ns([load.whole_ns for load in loads]),
            "evicted_extents": self.store.stats().evicted_extents,
            "ceiling": ceiling.samples.facts(),
            "raw_counts": raw_counts,
            "store": store_words(info),
            "huge_coverage": info.pool.huge_coverage,
            "fallbacks": info.fallbacks,
            **(self.mixed.facts(self.done) if self.mixed else {}),
        }

    def lines(
        self, ceiling: Ceiling, read: Side, write: Side, share: Figures, fresh: Figures
    ) -> list[str]:
        info, loads = self.store.info(), [load for one in self.done for load in one.loads]
        found = [
            f"{name:<11} {Figures(side.gbps)} GB/s"
            for name, side in (("read", read), ("write", write))
            if side.gbps
        ]
        found.append(f"ceiling     {share} of the best, {fresh} of fresh")
        if loads:
            whole = Figures([load.whole_ns / 1e6 for load in loads])
            layer0 = [load.layer0_ns for load in loads]
            found.append(
                f"load        {whole} ms; layer 0 median {Figures(layer0).median / 1e6:.1f} ms,"
                f" p99 {p99_ms(layer0):.1f} ms ({len(loads)} loads)"
            )
            moved = read.nbytes / max(1, sum(one.delivered_bytes for one in self.done))
            found.append(f"delivered   each byte for {moved:.2f} read")
            found.append(f"completion  last over first {self.completions()}")
        raw = ", ".join(
            f"{tool} {Figures(v).median:.3f}" for tool, v in ceiling.samples.cpu.items()
        )
        found.append(f"processor   {self.cpu():.3f} s per GiB; raw: {raw}")
        if any(self.loop_us):
            found.append(f"event loop  {Figures(self.loop_us)} us per read of the device")
        found += self.mixed.lines(self.done) if self.mixed else []
        found.append(f"evicted     {self.store.stats().evicted_extents} extents")
        found += ceiling.samples.lines("write" if self.job.rw == "write" else "read")
        coverage_words("pool", info.pool.huge_coverage)
        found.append(f"store       {store_words(info)}")
        return found + [f"note        {note}" for note in info.fallbacks]
