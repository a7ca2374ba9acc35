"""A whole replay: requests out of a trace into a cache, and everything that is counted about them.

Time: the trace's clock, begun at 0 and multiplied by `speed`, is the store's clock. So a trace of
one hour at speed 72 tells what a time to live of 3 d does on three days that look like it.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from kvstore.errors import KvstoreError
from kvstore.layout import Layout
from kvstore.replay.files import TraceError
from kvstore.replay.real import Real, small_layout
from kvstore.replay.request import Request
from kvstore.replay.result import Beside, ClassResult, Money, Point, Result
from kvstore.replay.reuse import Reuse
from kvstore.replay.simulated import (
    FIRST_NS,
    Answer,
    Cache,
    Simulated,
    block_charges,
    file_charges,
)  # fmt: skip
from kvstore.replay.traces import Trace

CURVE_SHARES = (0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0)
GAP_QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
LONGEST_NS = 2**61  # of the store's clock: 73 years
_TICK = 64  # requests between two calls of progress


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to replay against. ttl_s: by class, on the scaled clock. capacity: one of both, or
    neither for no limit. retain: class of every request; None: by the kind of the trace. layout:
    of so many tokens a block and blocks an extent (None: as it chooses). real: on disk, in
    real_root or for the time of the replay. admission, write_budget (bytes of cells a day): as of
    `open`. requests: at most. prices: hit and miss, per million
    tokens."""

    ttl_s: Mapping[str, int]
    capacity_bytes: int | None = None
    capacity_blocks: int | None = None
    extent_blocks: int | None = None
    speed: float = 1.0
    retain: str | None = None
    admission: str = "always"
    write_budget: int | None = None
    real: bool = False
    real_root: Path | None = None
    pool: int | str = "256MB"
    requests: int | None = None
    curve: bool = False
    prices: tuple[float, float] | None = None
    layout: Callable[[int, int | None], Layout] | None = None

    def layout_of(self, block_tokens: int) -> Layout:
        if self.layout is not None:
            return self.layout(block_tokens, self.extent_blocks)
        if self.real:
            return small_layout(block_tokens, self.extent_blocks)
        return Layout.mla(
            model="DeepSeek-V3 (61 layers, bfloat16)", layers=61, block_tokens=block_tokens,
            extent_blocks=self.extent_blocks,
        )  # fmt: skip


@dataclass
class Tally:
    """Tokens of one class, or of all."""

    requests: int = 0
    hit_tokens: int = 0
    input_tokens: int = 0

    def add(self, request: Request, hit_blocks: int) -> None:
        self.requests += 1
        self.hit_tokens += request.tokens_of(hit_blocks)
        self.input_tokens += request.input_tokens

    @property
    def rate(self) -> float:
        return self.hit_tokens / max(1, self.input_tokens)


@dataclass
class Counted:
    """One cache and what it answered."""

    cache: Cache
    all: Tally = field(default_factory=Tally)
    classes: dict[str, Tally] = field(default_factory=dict)
    reasons: Counter[str] = field(default_factory=Counter)
    hit_blocks: int = 0
    ram_tokens: int = 0
    stored: int = 0
    dropped: int = 0

    def request(self, now_ns: int, request: Request, retain: str) -> Answer:
        blocks = len(request.blocks)
        answer = self.cache.request(now_ns, request, retain)
        self.all.add(request, answer.hit_blocks)
        self.classes.setdefault(retain, Tally()).add(request, answer.hit_blocks)
        self.reasons[answer.reason or ""] += blocks - answer.hit_blocks
        self.hit_blocks += answer.hit_blocks
        self.ram_tokens += request.tokens_of(answer.ram_blocks)
        self.stored += answer.stored_blocks
        self.dropped += answer.dropped_blocks
        return answer


def replay(
    trace: Trace, plan: Plan, progress: Callable[[float], None] = lambda fraction: None
) -> Result:
    """Runs it. progress is called with what is done, 0 to 1. TraceError, OpenError, ValueError."""
    return Replay(trace, plan).run(progress)


class Replay:
    """One run of a trace."""

    def __init__(self, trace: Trace, plan: Plan) -> None:
        self.trace, self.plan = trace, plan
        windows = [seconds / plan.speed for seconds in plan.ttl_s.values()]
        self.reuse = Reuse(windows, curve=plan.curve)
        self.output_tokens = 0

    def run(self, progress: Callable[[float], None]) -> Result:
        started = time.monotonic()
        requests = islice(iter(self.trace), self.plan.requests)
        first = next(requests, None)
        if first is None:
            raise TraceError(f"{self.trace.path}: no requests")
        self.layout = self.plan.layout_of(first.block_tokens)
        self.start_s = first.at_s
        with self._caches() as caches:
            self._feed(first, caches)
            for number, request in enumerate(requests):
                self._feed(request, caches)
                if number % _TICK == 0:
                    progress(self.trace.fraction)
            progress(1.0)
            return result_of(self, caches, time.monotonic() - started)

    def _feed(self, request: Request, caches: "Mapping[str, Counted]") -> None:
        if request.block_tokens != self.layout.block_tokens:
            raise TraceError(
                f"{self.trace.path}: blocks of {self.layout.block_tokens} tokens, and then of"
                f" {request.block_tokens}: a replay has one size"
            )
        since_ns = (request.at_s - self.start_s) * self.plan.speed * 1e9
        if not 0 <= since_ns < LONGEST_NS:
            raise TraceError(
                f"{self.trace.path}: a request is {request.at_s - self.start_s:g} s after the"
                f" first, at speed {self.plan.speed:g}: that is beyond the"
                f" {LONGEST_NS // 10**9:,} s of a replay; check its times, or take a lower --speed"
            )
        now_ns = FIRST_NS + round(since_ns)
        retain = self.plan.retain or request.kind
        retain = retain if retain in self.plan.ttl_s else next(iter(self.plan.ttl_s))
        try:
            self.reuse.add(request)
        except ValueError as error:
            raise TraceError(f"{self.trace.path}: {error}: its ids are no prefix hashes") from None
        for counted in caches.values():
            counted.request(now_ns, request, retain)
        self.output_tokens += request.output_tokens

    # ---- caches ------------------------------------------------------------------------------

    @contextmanager
    def _caches(self) -> Iterator[dict[str, Counted]]:
        """The one asked for, and those it is compared with."""
        plan, size = self.plan, self.layout.blocks_per_extent
        picky = plan.admission != "always" or plan.write_budget is not None
        limited = plan.capacity_blocks is not None or plan.capacity_bytes is not None
        with ExitStack() as stack:
            main: Cache = self._real(stack) if plan.real else self._simulated(self.layout, plan)
            caches = {"main": Counted(main)}
            if picky:
                every = replace(plan, admission="always", write_budget=None)
                caches["always"] = Counted(self._simulated(self.layout, every))
            if size > 1 and limited and not plan.real:
                single = msgspec.structs.replace(self.layout, extent_blocks=1)
                caches["one block"] = Counted(self._simulated(single, plan))
            yield caches

    def _simulated(self, layout: Layout, plan: Plan) -> Simulated:
        charges, capacity = block_charges(layout.blocks_per_extent), plan.capacity_blocks
        if plan.capacity_bytes is not None:
            charges, capacity = file_charges(layout), plan.capacity_bytes
        return Simulated(
            plan.ttl_s,
            charges,
            capacity,
            admission=plan.admission,
            write_budget=plan.write_budget,
            block_bytes=layout.block_bytes,
        )

    def _real(self, stack: ExitStack) -> Real:
        plan = self.plan
        if plan.real_root and plan.real_root.is_dir() and any(plan.real_root.iterdir()):
            raise KvstoreError(
                f"{plan.real_root} is not empty: what lies there would be evicted, and hit; name a"
                " directory of its own"
            )
        root = plan.real_root or Path(stack.enter_context(TemporaryDirectory(prefix="kvstore-")))
        capacity = plan.capacity_bytes
        if plan.capacity_blocks is not None:
            whole, rest = divmod(plan.capacity_blocks, self.layout.blocks_per_extent)
            charges = file_charges(self.layout)
            capacity = whole * charges[-1] + (charges[rest - 1] if rest else 0)
        real = Real(
            root, self.layout, plan.ttl_s, capacity=capacity, pool=plan.pool,
            admission=plan.admission, write_budget=plan.write_budget,
        )  # fmt: skip
        return stack.enter_context(real)


# ---- what came of it -----------------------------------------------------------------------------


def result_of(run: Replay, caches: Mapping[str, Counted], wall_s: float) -> Result:
    plan, reuse, layout, main = run.plan, run.reuse, run.layout, caches["main"]
    removed = main.cache.removed()
    real = main.cache.stats() if isinstance(main.cache, Real) else None
    gaps = reuse.gap_quantiles_s(list(GAP_QUANTILES.values()))
    hits = main.all.hit_tokens
    return Result(
        trace=str(run.trace.path),
        format=run.trace.format,
        io="real" if plan.real else "none",
        admission=plan.admission,
        write_budget_bytes=plan.write_budget,
        speed=plan.speed,
        requests=reuse.requests,
        out_of_order=run.trace.out_of_order,
        duration_s=reuse.duration_s,
        input_tokens=reuse.input_tokens,
        output_tokens=run.output_tokens,
        block_tokens=layout.block_tokens,
        block_bytes=layout.block_bytes,
        layout=layout.model,
        extent_blocks=layout.blocks_per_extent,
        capacity_blocks=plan.capacity_blocks,
        capacity_bytes=plan.capacity_bytes,
        block_refs=reuse.block_refs,
        unique_blocks=reuse.unique_blocks,
        hit_tokens=hits,
        missed_tokens=reuse.input_tokens - hits,
        hit_rate_tokens=main.all.rate,
        ideal_hit_rate_tokens=reuse.ideal_rate,
        hit_tokens_by_tier={"ram": main.ram_tokens, "disk": hits - main.ram_tokens},
        classes=_classes(run, main),
        missed_blocks_by_reason={name: count for name, count in main.reasons.items() if count},
        blocks_stored=main.stored,
        blocks_without_room=main.dropped,
        blocks_refused=removed.refused_blocks,
        evicted_extents=removed.evicted_extents,
        expired_extents=removed.expired_extents,
        evicted_blocks=removed.evicted_blocks,
        expired_blocks=removed.expired_blocks,
        bytes_written=real.written_bytes if real else main.stored * layout.block_bytes,
        bytes_read=real.disk_bytes if real else main.hit_blocks * layout.block_bytes,
        reuse_gap_s=dict(zip(GAP_QUANTILES, gaps, strict=False)),
        reuse_gap_share=reuse.gap_shares(),
        one_block_extents=_beside(caches.get("one block"), layout),
        always_admitted=_beside(caches.get("always"), layout),
        money=_money(plan.prices, main.all),
        curve=_curve(run) if plan.curve else None,
        real=real,
        wall_s=wall_s,
    )


def _classes(run: Replay, main: Counted) -> dict[str, ClassResult]:
    removed = main.cache.removed()
    found = {}
    for (name, ttl_s), window in zip(run.plan.ttl_s.items(), run.reuse.windows, strict=True):
        tally = main.classes.get(name, Tally())
        found[name] = ClassResult(
            ttl_s=ttl_s,
            requests=tally.requests,
            hit_tokens=tally.hit_tokens,
            missed_tokens=tally.input_tokens - tally.hit_tokens,
            hit_rate_tokens=tally.rate,
            evicted_before_ttl_extents=removed.evicted_before_ttl.get(name, 0),
            evicted_idle_s=removed.evicted_idle_s.get(name, {}),
            kept_for_ttl_blocks=window.peak_blocks,
            kept_for_ttl_bytes=window.peak_blocks * run.layout.block_bytes,
            whole_trace=not window.left,
        )
    return found


def _beside(counted: Counted | None, layout: Layout) -> Beside | None:
    if counted is None:
        return None
    return Beside(
        hit_tokens=counted.all.hit_tokens,
        hit_rate_tokens=counted.all.rate,
        blocks_stored=counted.stored,
        bytes_written=counted.stored * layout.block_bytes,
    )


def _money(prices: tuple[float, float] | None, tally: Tally) -> Money | None:
    if prices is None:
        return None
    hit, miss = prices
    missed = tally.input_tokens - tally.hit_tokens
    paid = (tally.hit_tokens * hit + missed * miss) / 1e6
    without = tally.input_tokens * miss / 1e6
    return Money(with_hits=paid, without=without, saved=without - paid)


def _curve(run: Replay) -> list[Point]:
    unique = run.reuse.unique_blocks
    sizes = {max(1, round(share * unique)) for share in CURVE_SHARES}
    if run.plan.capacity_blocks is not None:
        sizes.add(run.plan.capacity_blocks)
    return [
        Point(
            capacity_blocks=size,
            share_of_unique=size / max(1, unique),
            hit_rate_tokens=run.reuse.hit_rate_at(size),
        )
        for size in sorted(sizes)
    ]
