"""One round of each kind of job. What a round moved and how long it took; nothing is printed here.

read: the prefixes are loaded, all at the same time. randread: the blocks of one are got, one by
one. write: as many new ones are put. turns: a new agent's session, turn by turn. mixed: loads
alone, then beside a writer that keeps to its pace.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from jobfile import Job
from kvstore import Chain, Lease
from subject import Load, Subject

MIXED_LOADS = 8  # alone, and as many beside the writer
LEASE = "1d"
WRITER_BLOCKS = 16  # that the writer puts at once


@dataclass
class Round:
    """Bytes the device moved for it, and the seconds in which it did; the loads in it."""

    read_bytes: int = 0
    read_s: float = 0
    write_bytes: int = 0
    write_s: float = 0
    delivered_bytes: int = 0
    loop_s: float = 0  # of it the event loop's thread was busy; loads only
    loads: list[Load] = field(default_factory=list)
    idle_loads: list[Load] = field(default_factory=list)  # mixed: alone, in the same round
    idle_gbps: float = 0

    @property
    def read_gbps(self) -> float:
        return self.read_bytes / self.read_s / 1e9 if self.read_s else 0

    @property
    def write_gbps(self) -> float:
        return self.write_bytes / self.write_s / 1e9 if self.write_s else 0


def device_bytes(subject: Subject) -> tuple[int, int]:
    roots = subject.store.info().roots
    return sum(r.device_read_bytes for r in roots), sum(r.device_written_bytes for r in roots)


class Rounds:
    """Prefixes that later rounds put get numbers of their own, so that they are new.

    writer_gbps: the pace of a mixed job's writer.
    """

    def __init__(self, job: Job, subject: Subject, blocks: int) -> None:
        self.job, self.subject, self.blocks = job, subject, blocks
        self.block_tokens = subject.layout.block_tokens
        self.common_blocks = job.common_tokens // self.block_tokens
        self.numbers = count()
        self.leases: list[Lease] = []  # what is loaded again and again is not to be evicted
        self.writer_gbps = 0.0
        self.order = np.random.default_rng(0)

    def new_chain(self, blocks: int) -> Chain:
        return self.subject.chain(next(self.numbers), blocks, self.common_blocks)

    async def prepare(self) -> None:
        """Puts what is loaded, and leases it; where the job wants it, fills the store."""
        prefixes = {"write": 0, "randread": 1}.get(self.job.rw, self.job.numjobs)
        for _ in range(prefixes):
            chain = self.new_chain(self.blocks)
            await self.subject.put(chain)
            self.subject.chains.append(chain)
            hit = self.subject.kv.match(chain)
            self.leases.append(self.subject.kv.lease(hit, timeout=LEASE))
        while self.job.full and not self.subject.store.stats().evicted_extents:
            chain = self.new_chain(self.blocks)
            await self.subject.put(chain)

    async def check(self) -> None:
        """Every byte of every prefix."""
        for chain in self.subject.chains:
            self.subject.store.drop_ram()
            await self.subject.load(chain, check=True)
            for block in range(self.blocks if self.job.rw == "randread" else 0):
                await self.subject.get(chain, block, check=True)

    def kind(self) -> Callable[[], Awaitable[Round]]:
        if self.job.rw == "read":
            return self.read
        if self.job.rw == "randread":
            return self.gets
        if self.job.rw == "write":
            return self.write
        return self.turns if self.job.turns else self.mixed

    async def read(self) -> Round:
        done = await self.timed_loads()
        wanted = self.blocks * self.subject.layout.block_bytes
        if done.read_bytes < wanted:
            raise SystemExit(f"a load was not cold: {done.read_bytes} of {wanted} bytes read")
        return done

    async def timed_loads(self) -> Round:
        return await self.timed(
            lambda: asyncio.gather(*map(self.subject.load, self.subject.chains))
        )

    async def gets(self) -> Round:
        """All blocks, in random order, numjobs of them at the same time."""
        chain = self.subject.chains[0]
        order = iter(self.order.permutation(self.blocks).tolist())

        async def one_after_the_other() -> list[Load]:
            return [await self.subject.get(chain, block) for block in order]

        async def all_blocks() -> list[Load]:
            done = await asyncio.gather(*(one_after_the_other() for _ in range(self.job.numjobs)))
            return [load for part in done for load in part]

        return await self.timed(all_blocks)

    async def timed(self, loads_of: Callable[[], Awaitable[list[Load]]]) -> Round:
        """Cold."""
        self.subject.store.drop_ram()
        before = device_bytes(self.subject)[0]
        began, loop = time.perf_counter(), time.thread_time()
        loads = await loads_of()
        took, loop = time.perf_counter() - began, time.thread_time() - loop
        return Round(
            read_bytes=device_bytes(self.subject)[0] - before,
            read_s=took,
            loop_s=loop,
            delivered_bytes=sum(load.nbytes for load in loads),
            loads=loads,
        )

    async def write(self) -> Round:
        new = [self.new_chain(self.blocks) for _ in range(self.job.numjobs)]
        began = time.perf_counter()
        put = await asyncio.gather(*(self.subject.put(chain) for chain in new))
        return Round(write_bytes=sum(put), write_s=time.perf_counter() - began)

    async def turns(self) -> Round:
        done = Round()
        step = -(-self.job.turn_tokens // self.block_tokens)
        chain = self.new_chain(step * self.job.turns)
        for turn in range(self.job.turns):
            known = chain[: turn * step]
            self.subject.store.drop_ram()
            if turn:
                began = time.perf_counter()
                done.loads.append(await self.subject.load(known))
                done.read_s += time.perf_counter() - began
                done.read_bytes += done.loads[-1].nbytes
            began = time.perf_counter()
            more = chain[: (turn + 1) * step]
            done.write_bytes += await self.subject.put(more, start=len(known))
            done.write_s += time.perf_counter() - began
        done.delivered_bytes = done.read_bytes
        return done

    async def mixed(self) -> Round:
        idle = await self.many_loads()
        written = device_bytes(self.subject)[1]
        began = time.perf_counter()
        stop = asyncio.Event()
        writer = asyncio.create_task(self.paced_writer(stop))
        try:
            done = await self.many_loads()
        finally:
            stop.set()
            await writer
        done.write_s = time.perf_counter() - began
        done.write_bytes = device_bytes(self.subject)[1] - written
        done.idle_loads, done.idle_gbps = idle.loads, idle.read_gbps
        return done

    async def many_loads(self) -> Round:
        rounds = [await self.timed_loads() for _ in range(MIXED_LOADS)]
        return Round(
            read_bytes=sum(one.read_bytes for one in rounds),
            read_s=sum(one.read_s for one in rounds),
            delivered_bytes=sum(one.delivered_bytes for one in rounds),
            loads=[load for one in rounds for load in one.loads],
        )

    async def paced_writer(self, stop: asyncio.Event) -> None:
        began, put = time.perf_counter(), 0
        while not stop.is_set():
            chain = self.new_chain(WRITER_BLOCKS)
            put += await self.subject.put(chain)
            ahead = put / self.writer_gbps / 1e9 - (time.perf_counter() - began)
            if ahead > 0:
                await asyncio.sleep(ahead)
