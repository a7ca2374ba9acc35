"""What a store says of itself: counters, and what it runs on. Plain data, msgspec-encodable."""

import os
import platform
from collections.abc import Sequence
from typing import Any

import msgspec

from kvstore import _core
from kvstore.units import format_size

LOST_WORDS = {
    "direct": "no O_DIRECT: reads go through the page cache",
    "noatime": "files of another user: last use may be rewritten by reads",
    "tmpfile": "no O_TMPFILE: temporary names are used while writing",
    "allocate": "no fallocate: space is not reserved before writing",
    "atime": "last use is not kept: after a restart the time of renewal stands for it",
    "write": "read-only: nothing is stored, renewed or evicted here",
}
LATENCY_EDGES_S = tuple(ns / 1e9 for ns in _core.LATENCY_EDGES_NS)
COVERAGE_WANTED = 0.9
CLOCK_STEP_S = 3600  # the core follows less at once
OPEN_FILES_WANTED = 1024


class ClassStats(msgspec.Struct, frozen=True, kw_only=True):
    """Effective retention of one class: extents removed, how many of them evicted before their time
    to live passed, and the age in seconds of those, in sum and mean (0 when there were none)."""

    removed: int
    evicted_before_ttl: int
    evicted_age_s: int
    mean_evicted_age_s: float


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """Counters since open. Bytes are of cells; misses_by_reason counts blocks.

    loads_by_reason: loads that ended short, by why their first lost block was lost. disk_tokens,
    ram_tokens: what loads got from where, cells counted as their part of a block's tokens.
    loads_waiting: for a share of the pool. puts_queued: ranges that were put and wait for the
    copier. writes_in_progress: regions of extents that wait for a device, or are on it.
    refused_blocks: offered to writers and not written, by why: "first_offer" (admission
    "second-hit"), or "write_budget".
    clock_step_s: how far the wall clock was stepped, while the store does not follow it; 0: not.
    """

    lookups: int
    hit_blocks: int
    missed_blocks: int
    hit_tokens: int
    missed_tokens: int
    loads: int
    loads_short: int
    disk_bytes: int
    ram_bytes: int
    disk_tokens: int
    ram_tokens: int
    loads_running: int
    loads_waiting: int
    puts_queued: int
    writes_in_progress: int
    reads: int
    puts_bytes: int
    written_bytes: int
    lost_to_eexist_bytes: int
    dropped_blocks: int
    published_extents: int
    evicted_extents: int
    expired_extents: int
    deleted_extents: int
    quarantined_extents: int
    quarantine_deleted: int
    clock_steps: int
    clock_step_s: int
    scrub_bytes: int
    scrub_extents: int
    scrub_damaged: int
    scrub_passes: int
    extents: int
    blocks: int
    leases: int
    open_files: int
    regions: int
    pool_bytes: int
    pool_free_bytes: int
    pool_cached_bytes: int
    index_bytes: int
    retention: dict[str, ClassStats]
    refused_blocks: dict[str, int]
    misses_by_reason: dict[str, int]
    loads_by_reason: dict[str, int]


class StageLatency(msgspec.Struct, frozen=True, kw_only=True):
    """Times of one stage since open: counts[i] took at most LATENCY_EDGES_S[i] seconds (and more
    than the edge before), the last longer than every edge."""

    counts: list[int]
    sum_s: float


BREAKER_STATES = ("up", "down", "probing")


class RootInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One root. engine_why: what better engines said. lost: what the file system cannot do.

    state: "up"; "down": its device is in trouble and left alone, lookups miss with "root_down";
    "probing": down and being tried. trouble: why, or why it was the last time; "" when never.
    down_s, probe_in_s: for how long, and until the next try. trips: how often it went down.
    scrub_bytes_per_s: 0 is off; scrub_pass_extents: looked at in its pass, or the last one.
    write_budget_bytes: of cells a day, 0 is no bound; write_budget_left_bytes: what of it can be
    written now: what was saved up, for a day at most.
    device_*: what the device moved since open: cells, what was scrubbed, headers written.
    used_bytes: of extents and of quarantine_bytes.
    """

    path: str
    engine: str
    engine_why: str
    file_system: str
    registered: bool
    register_error: str
    is_owner: bool
    warming: bool
    lost: list[str]
    io_depth: int
    capacity_bytes: int
    used_bytes: int
    reserve_bytes: int
    free_bytes: int
    quarantine_files: int
    quarantine_bytes: int
    reads_in_flight_max: int
    ops_in_flight: int
    bytes_in_flight: int
    reads_queued: int
    read_bytes_queued: int
    device_read_bytes: int
    device_written_bytes: int
    device_errors: int
    state: str
    trouble: str
    down_s: float
    probe_in_s: float
    trips: int
    write_budget_bytes: int
    write_budget_left_bytes: int
    scrub_bytes_per_s: int
    scrub_pass_extents: int


class FilesInfo(msgspec.Struct, frozen=True, kw_only=True):
    """descriptor_limit: RLIMIT_NOFILE, raised as far as it goes. open_max: extents kept open."""

    descriptor_limit: int
    open_max: int


class PoolInfo(msgspec.Struct, frozen=True, kw_only=True):
    """pages: "small", "transparent huge" or "hugetlb"; huge_coverage: the share really backed."""

    bytes: int
    pages: str
    huge_coverage: float
    cuda: bool
    cuda_why: str


class BuildInfo(msgspec.Struct, frozen=True, kw_only=True):
    """How this build came about."""

    version: str
    liburing: str
    python: str
    kernel: str


class Info(msgspec.Struct, frozen=True, kw_only=True):
    """fallbacks: everything that is slower or weaker than it could be, in plain words.
    keeps_token_ids: what is put here can be read as text by whoever can read the roots.
    admission: as opened; a root's write budget is with the root."""

    build: BuildInfo
    pool: PoolInfo
    files: FilesInfo
    roots: list[RootInfo]
    fallbacks: list[str]
    keeps_token_ids: bool
    admission: str


def build_info(version: str) -> BuildInfo:
    return BuildInfo(
        version=version,
        liburing=_core.liburing_kind(),
        python=platform.python_version(),
        kernel=platform.release(),
    )


def stats_of(core: _core.Store, class_names: Sequence[str]) -> Stats:
    raw = core.stats()
    early, ages = raw.pop("evicted_before_ttl"), raw.pop("evicted_age_s_sum")
    removed, misses = raw.pop("removed_in_class"), raw.pop("misses_by_reason")
    short, refused = raw.pop("loads_by_reason"), raw.pop("refused_blocks")
    retention = {
        name: ClassStats(
            removed=removed[i],
            evicted_before_ttl=early[i],
            evicted_age_s=ages[i],
            mean_evicted_age_s=ages[i] / early[i] if early[i] else 0.0,
        )
        for i, name in enumerate(class_names)
    }
    return Stats(
        **raw,
        retention=retention,
        refused_blocks=refused_by_name(refused),
        misses_by_reason=_by_reason(misses),
        loads_by_reason=_by_reason(short),
    )


def refused_by_name(counts: Sequence[int]) -> dict[str, int]:
    """All names; without number 0, which is no refusal."""
    return dict(list(zip(_core.REFUSALS, counts, strict=True))[1:])


def _by_reason(counts: Sequence[int]) -> dict[str, int]:
    """Without number 0, which is no reason."""
    return {
        name: count for name, count in zip(_core.REASONS, counts, strict=True) if name and count
    }


def latency_of(core: _core.Store) -> dict[str, StageLatency]:
    raw = {name: core.stage_latency(stage) for stage, name in enumerate(_core.STAGES)}
    return {
        name: StageLatency(counts=stage["counts"], sum_s=stage["sum_ns"] / 1e9)
        for name, stage in raw.items()
    }


def info_of(
    core: _core.Store, version: str, cuda_why: str, *, keeps_token_ids: bool, admission: str
) -> Info:
    raw = core.pool_info()
    pool = PoolInfo(
        bytes=raw["bytes"],
        pages=_core.PAGE_KINDS[raw["page_kind"]],
        huge_coverage=raw["huge_coverage"],
        cuda=not cuda_why,
        cuda_why=cuda_why,
    )
    roots = [_root(core.root_info(i)) for i in range(raw["root_count"])]
    files = FilesInfo(**core.files_info())
    fallbacks = _fallbacks(pool, files, roots)
    step_s = core.stats()["clock_step_s"]
    if step_s:
        fallbacks.append(clock_step_words(step_s))
    return Info(
        build=build_info(version),
        pool=pool,
        files=files,
        roots=roots,
        fallbacks=fallbacks,
        keeps_token_ids=keeps_token_ids,
        admission=admission,
    )


def clock_step_words(step_s: int) -> str:
    return (
        f"clock: the wall clock was stepped by {step_s:+d} s: times to live go on as before,"
        " nothing expired is unlinked; it is followed when it has lasted an hour"
    )


def _root(raw: dict[str, Any]) -> RootInfo:
    error = raw["register_error"]
    return RootInfo(
        path=os.fsdecode(raw["path"]),
        engine=raw["engine"].decode(),
        engine_why=raw["engine_why"].decode(errors="replace"),
        file_system=raw["file_system"].decode(),
        registered=bool(raw["registered"]),
        register_error=os.strerror(-error) if error else "",
        is_owner=bool(raw["is_owner"]),
        warming=bool(raw["warming"]),
        lost=[word for word, bit in _core.LOST.items() if raw["lost"] & bit],
        io_depth=raw["io_depth"],
        capacity_bytes=raw["capacity_bytes"],
        used_bytes=raw["used_bytes"],
        reserve_bytes=raw["reserve_bytes"],
        free_bytes=raw["free_bytes"],
        quarantine_files=raw["quarantine_files"],
        quarantine_bytes=raw["quarantine_bytes"],
        reads_in_flight_max=raw["reads_in_flight_max"],
        ops_in_flight=raw["ops_in_flight"],
        bytes_in_flight=raw["bytes_in_flight"],
        reads_queued=raw["reads_queued"],
        read_bytes_queued=raw["read_bytes_queued"],
        device_read_bytes=raw["device_read_bytes"],
        device_written_bytes=raw["device_written_bytes"],
        device_errors=raw["device_errors"],
        state=BREAKER_STATES[raw["breaker_state"]],
        trouble=raw["trouble"].decode(errors="replace"),
        down_s=raw["down_ns"] / 1e9,
        probe_in_s=raw["probe_in_ns"] / 1e9,
        trips=raw["breaker_trips"],
        write_budget_bytes=raw["write_budget_bytes"],
        write_budget_left_bytes=raw["write_budget_left_bytes"],
        scrub_bytes_per_s=raw["scrub_bytes_per_s"],
        scrub_pass_extents=raw["scrub_pass_extents"],
    )


def _fallbacks(pool: PoolInfo, files: FilesInfo, roots: Sequence[RootInfo]) -> list[str]:
    found = []
    if pool.pages == "small" or pool.huge_coverage < COVERAGE_WANTED:
        found.append(
            f"pool: {pool.huge_coverage:.0%} of it on huge pages: reads are up to 3 times slower;"
            " free memory, or reserve huge pages (vm.nr_hugepages)"
        )
    if pool.cuda_why.startswith("cuda"):
        found.append(f"pool: not pinned for CUDA copies: {pool.cuda_why}")
    if files.open_max < OPEN_FILES_WANTED:
        found.append(
            f"files: {files.open_max} extents are kept open, the limit on open files is"
            f" {files.descriptor_limit}: long loads open the others again for each layer; raise it"
            f" (ulimit -n) to {4 * OPEN_FILES_WANTED}"
        )
    for root in roots:
        if root.engine_why:
            found.append(f"{root.path}: engine {root.engine}: {root.engine_why}")
        if root.register_error and root.engine == "io_uring":
            found.append(
                f"{root.path}: the pool is not registered with the ring ({root.register_error}):"
                " more CPU per read; raise the memlock limit (ulimit -l)"
            )
        if root.state != "up":
            found.append(
                f"{root.path}: down for {root.down_s:.0f} s, {root.trips} times so far:"
                f" {root.trouble}; its blocks are misses, it is tried again"
                + (f" in {root.probe_in_s:.0f} s" if root.state == "down" else " now")
            )
        found.extend(f"{root.path}: {LOST_WORDS[word]}" for word in root.lost)
    return found


def render_build(build: BuildInfo) -> str:
    return f"kvstore {build.version}, {build.liburing}, Python {build.python}, Linux {build.kernel}"


def render(info: Info) -> str:
    """For people; `kvstore info` prints it."""
    pool = info.pool
    cuda = "pinned for CUDA" if pool.cuda else f"CUDA: no ({pool.cuda_why})"
    lines = [
        render_build(info.build),
        f"pool  {format_size(pool.bytes)}, {pool.pages} pages ({pool.huge_coverage:.0%}), {cuda}",
    ]
    for root in info.roots:
        role = "owner" if root.is_owner else "peer"
        ring = "registered" if root.registered else "not registered"
        lines.append(
            f"root  {root.path}: {root.file_system}, {role}, {root.engine} ({ring},"
            f" depth {root.io_depth}), {format_size(root.used_bytes)} of"
            f" {format_size(root.capacity_bytes)} used, {format_size(root.free_bytes)} free"
            + (", warming" if root.warming else "")
            + (f", {root.state.upper()}" if root.state != "up" else "")
        )
        if root.write_budget_bytes:
            lines.append(
                f"write {root.path}: at most {format_size(root.write_budget_bytes)} a day,"
                f" {format_size(root.write_budget_left_bytes)} of it now"
            )
    if info.admission != "always":
        lines.append(f"admit {info.admission}: what is offered for the first time is not stored")
    if info.keeps_token_ids:
        lines.append("ids   token ids are kept on disk: prompts can be read there")
    lines += [f"note  {fallback}" for fallback in info.fallbacks]
    return "\n".join(lines)
