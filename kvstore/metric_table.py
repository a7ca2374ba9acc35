"""What is exported to Prometheus: one row per metric, and where in a store's reports it comes from.

Pure: reads reports, knows no store and not prometheus-client (kvstore.metrics turns rows into its
families). Names are stable: dashboards and alerts are built on them. docs/METRICS.md has the rows
as a table, which a test compares.

Conventions: counters end in _total and count since the store was opened; base units, bytes and
seconds; every value that a label can take is always there, so that rate() sees its first event.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from kvstore import _core
from kvstore.report import LATENCY_EDGES_S, ClassStats, Info, RootInfo, StageLatency, Stats

MISS_REASONS = _core.REASONS[1:]
WHOLE = "none"  # the reason of what is not short of anything


@dataclass(frozen=True)
class Snapshot:
    """All that a store says of itself at one moment."""

    stats: Stats
    info: Info
    latency: dict[str, StageLatency]
    ttls_s: dict[str, float]


Sample = tuple[tuple[str, ...], float]
Read = Callable[[Snapshot], Iterator[Sample]]


class Metric(NamedTuple):
    """kind: "counter" or "gauge". labels: without the store's. read: (label values, value) each."""

    name: str
    kind: str
    labels: tuple[str, ...]
    meaning: str
    read: Read


class Histogram(NamedTuple):
    """Seconds per value of one label."""

    name: str
    label: str
    meaning: str

    def read(self, snapshot: Snapshot) -> Iterator[tuple[str, list[tuple[str, float]], float]]:
        """(label value, cumulative buckets by upper edge, sum)."""
        edges = [*map(repr, LATENCY_EDGES_S), "+Inf"]
        for stage, latency in snapshot.latency.items():
            total, buckets = 0, list[tuple[str, float]]()
            for edge, count in zip(edges, latency.counts, strict=True):
                total += count
                buckets.append((edge, total))
            yield stage, buckets, latency.sum_s


def _stat(name: str, kind: str, value: Callable[[Stats], float], meaning: str) -> Metric:
    return Metric(name, kind, (), meaning, lambda at: iter([((), value(at.stats))]))


def _stats(
    name: str, kind: str, label: str, values: Callable[[Stats], Mapping[str, float]], meaning: str
) -> Metric:
    return Metric(
        name, kind, (label,), meaning,
        lambda at: (((key,), value) for key, value in values(at.stats).items()),
    )  # fmt: skip


def _root(name: str, kind: str, value: Callable[[RootInfo], float], meaning: str) -> Metric:
    return Metric(
        f"kvstore_root_{name}", kind, ("root",), meaning,
        lambda at: (((root.path,), value(root)) for root in at.info.roots),
    )  # fmt: skip


def _class(name: str, kind: str, value: Callable[[ClassStats], float], meaning: str) -> Metric:
    return Metric(
        f"kvstore_class_{name}", kind, ("class",), meaning,
        lambda at: (((key,), value(one)) for key, one in at.stats.retention.items()),
    )  # fmt: skip


def _by_reason(found: dict[str, int]) -> dict[str, float]:
    return {reason: found.get(reason, 0) for reason in MISS_REASONS}


def _loads(stats: Stats) -> dict[str, float]:
    short = _by_reason(stats.loads_by_reason)
    return {WHOLE: stats.loads - sum(short.values())} | short


def _removed(stats: Stats) -> dict[str, float]:
    return {
        "evicted": stats.evicted_extents,
        "expired": stats.expired_extents,
        "deleted": stats.deleted_extents,
        "damaged": stats.quarantined_extents,
    }


def _root_facts(at: Snapshot) -> Iterator[Sample]:
    for root in at.info.roots:
        role = "owner" if root.is_owner else "peer"
        registered = "yes" if root.registered else "no"
        yield (root.path, root.engine, root.file_system, role, registered), 1


def _pool_facts(at: Snapshot) -> Iterator[Sample]:
    yield (at.info.pool.pages, "yes" if at.info.pool.cuda else "no"), 1


def _build_facts(at: Snapshot) -> Iterator[Sample]:
    yield (at.info.build.version, at.info.build.liburing), 1


def _fallbacks(at: Snapshot) -> Iterator[Sample]:
    """By what they are of: a path, or the word before the colon."""
    counts = dict.fromkeys(["pool", "files", "clock", *(root.path for root in at.info.roots)], 0)
    for text in at.info.fallbacks:
        roots = [root.path for root in at.info.roots if text.startswith(f"{root.path}: ")]
        where = max(roots, key=len, default=text.partition(":")[0])
        counts[where] = counts.get(where, 0) + 1
    yield from (((where,), count) for where, count in counts.items())


def _ttls(at: Snapshot) -> Iterator[Sample]:
    yield from (((name,), ttl_s) for name, ttl_s in at.ttls_s.items())


def _open_files_max(at: Snapshot) -> Iterator[Sample]:
    yield (), at.info.files.open_max


def _huge_coverage(at: Snapshot) -> Iterator[Sample]:
    yield (), at.info.pool.huge_coverage


LATENCY = Histogram(
    "kvstore_stage_seconds",
    "stage",
    "how long each stage took; stages: see below",
)

METRICS = (
    # ---- lookups
    _stat("kvstore_lookups_total", "counter", lambda s: s.lookups, "calls of match and find"),
    _stat("kvstore_hit_blocks_total", "counter", lambda s: s.hit_blocks,
          "blocks that lookups found"),
    _stats("kvstore_missed_blocks_total", "counter", "reason",
           lambda s: _by_reason(s.misses_by_reason), "blocks that lookups did not find, by why"),
    _stat("kvstore_hit_tokens_total", "counter", lambda s: s.hit_tokens,
          "tokens of the blocks found"),
    _stat("kvstore_missed_tokens_total", "counter", lambda s: s.missed_tokens,
          "tokens of the blocks not found"),
    # ---- loads
    _stats("kvstore_loads_total", "counter", "reason", _loads,
           f'loads that ended, by why their first lost block was lost; "{WHOLE}": nothing was'),
    _stats("kvstore_loads_in_progress", "gauge", "state",
           lambda s: {"running": s.loads_running, "waiting": s.loads_waiting},
           "loads that run, or wait for a share of the pool"),
    _stats("kvstore_loaded_bytes_total", "counter", "tier",
           lambda s: {"ram": s.ram_bytes, "disk": s.disk_bytes},
           "bytes of cells that loads got, by where they were"),
    _stats("kvstore_loaded_tokens_total", "counter", "tier",
           lambda s: {"ram": s.ram_tokens, "disk": s.disk_tokens},
           "the same in tokens: a cell counts as its part of its block"),
    _stat("kvstore_load_reads_total", "counter", lambda s: s.reads,
          "read operations that loads sent to devices"),
    # ---- writes
    _stat("kvstore_put_bytes_total", "counter", lambda s: s.puts_bytes,
          "bytes of cells that callers put"),
    _stat("kvstore_written_bytes_total", "counter", lambda s: s.written_bytes,
          "bytes of cells that devices took"),
    _stat("kvstore_duplicate_bytes_total", "counter", lambda s: s.lost_to_eexist_bytes,
          "bytes written for nothing: another writer was first"),
    _stat("kvstore_dropped_blocks_total", "counter", lambda s: s.dropped_blocks,
          "blocks that were put and not stored: no room, or trouble of the device"),
    _stats("kvstore_refused_blocks_total", "counter", "reason", lambda s: s.refused_blocks,
           "blocks that were offered and not written: at their first offer, or by the budget"),
    _stat("kvstore_published_extents_total", "counter", lambda s: s.published_extents,
          "extents that got their name"),
    _stat("kvstore_puts_queued", "gauge", lambda s: s.puts_queued,
          "puts that wait for the copier"),
    _stat("kvstore_writes_in_progress", "gauge", lambda s: s.writes_in_progress,
          "regions that wait for a device, or are being written"),
    # ---- removal
    _stats("kvstore_removed_extents_total", "counter", "reason", _removed,
           "extents that left the store, by why"),
    _stat("kvstore_quarantine_deleted_files_total", "counter", lambda s: s.quarantine_deleted,
          "files of quarantine that went, since it has a bound"),
    Metric("kvstore_class_ttl_seconds", "gauge", ("class",), "time to live as opened", _ttls),
    _class("removed_extents_total", "counter", lambda c: c.removed,
           "extents of the class that were evicted or expired"),
    _class("evicted_early_extents_total", "counter", lambda c: c.evicted_before_ttl,
           "of them, evicted before their time to live had passed"),
    _class("evicted_age_seconds_total", "counter", lambda c: c.evicted_age_s,
           "sum of the ages of evicted extents: divided by the line above, effective retention"),
    # ---- scrub
    _stat("kvstore_scrub_bytes_total", "counter", lambda s: s.scrub_bytes,
          "bytes that the scrub read"),
    _stat("kvstore_scrub_extents_total", "counter", lambda s: s.scrub_extents,
          "extents that the scrub verified"),
    _stat("kvstore_scrub_damaged_total", "counter", lambda s: s.scrub_damaged,
          "extents that the scrub found damaged"),
    _stat("kvstore_scrub_passes_total", "counter", lambda s: s.scrub_passes,
          "passes of the scrub over a whole root"),
    # ---- what is held
    _stat("kvstore_extents", "gauge", lambda s: s.extents, "extents in the index"),
    _stat("kvstore_blocks", "gauge", lambda s: s.blocks, "blocks in the index"),
    _stat("kvstore_index_bytes", "gauge", lambda s: s.index_bytes,
          "memory of the index and the table of extents"),
    _stat("kvstore_leases", "gauge", lambda s: s.leases, "leases that protect blocks"),
    _stat("kvstore_open_files", "gauge", lambda s: s.open_files, "extents kept open"),
    Metric("kvstore_open_files_max", "gauge", (), "as many may be", _open_files_max),
    _stat("kvstore_pool_bytes", "gauge", lambda s: s.pool_bytes, "size of the pool"),
    _stat("kvstore_pool_free_bytes", "gauge", lambda s: s.pool_free_bytes,
          "of it, used for nothing"),
    _stat("kvstore_pool_cached_bytes", "gauge", lambda s: s.pool_cached_bytes,
          "of it, the RAM tier: given up when room is needed"),
    _stat("kvstore_pool_regions", "gauge", lambda s: s.regions, "pieces of it in use"),
    Metric("kvstore_pool_huge_ratio", "gauge", (), "share of it on huge pages", _huge_coverage),
    # ---- roots
    _root("capacity_bytes", "gauge", lambda r: r.capacity_bytes, "budget"),
    _root("used_bytes", "gauge", lambda r: r.used_bytes, "of the budget, in use"),
    _root("free_bytes", "gauge", lambda r: r.free_bytes,
          "free on the file system, as last looked at"),
    _root("quarantine_bytes", "gauge", lambda r: r.quarantine_bytes,
          "of the bytes in use, damaged files moved aside"),
    _root("quarantine_files", "gauge", lambda r: r.quarantine_files, "as many"),
    _root("reserve_bytes", "gauge", lambda r: r.reserve_bytes, "of that, left to others"),
    _root("read_bytes_total", "counter", lambda r: r.device_read_bytes,
          "bytes read from the device, the scrub's too; without headers"),
    _root("written_bytes_total", "counter", lambda r: r.device_written_bytes,
          "bytes written to the device, with headers: what its endurance pays for"),
    _root("write_budget_bytes", "gauge", lambda r: r.write_budget_bytes,
          "bytes of cells that may be written a day; 0: no bound"),
    _root("write_budget_left_bytes", "gauge", lambda r: r.write_budget_left_bytes,
          "of it, what can be written now"),
    _root("errors_total", "counter", lambda r: r.device_errors, "operations that failed"),
    _root("io_depth", "gauge", lambda r: r.io_depth, "operations in flight at most"),
    _root("ops_in_flight", "gauge", lambda r: r.ops_in_flight, "operations in flight"),
    _root("in_flight_bytes", "gauge", lambda r: r.bytes_in_flight, "their bytes"),
    _root("reads_queued", "gauge", lambda r: r.reads_queued,
          "reads planned and not wholly handed to the device"),
    _root("queued_bytes", "gauge", lambda r: r.read_bytes_queued, "their bytes not handed over"),
    _root("down", "gauge", lambda r: r.state != "up",
          "1: its breaker is open, since its device is in trouble: its blocks are misses"),
    _root("trips_total", "counter", lambda r: r.trips, "times that its breaker opened"),
    _root("owner", "gauge", lambda r: r.is_owner, "1: this process owns the root"),
    _root("warming", "gauge", lambda r: r.warming, "1: the scan after open is under way"),
    # ---- the clock
    _stat("kvstore_clock_steps_total", "counter", lambda s: s.clock_steps,
          "steps of the wall clock by more than an hour"),
    _stat("kvstore_clock_step_seconds", "gauge", lambda s: s.clock_step_s,
          "how far it was stepped, while the store does not follow it; 0: it does"),
    # ---- what it runs on
    Metric("kvstore_root_info", "gauge", ("root", "engine", "file_system", "role", "registered"),
           "always 1", _root_facts),
    Metric("kvstore_pool_info", "gauge", ("pages", "cuda"), "always 1", _pool_facts),
    Metric("kvstore_build_info", "gauge", ("version", "liburing"), "always 1", _build_facts),
    Metric("kvstore_fallbacks", "gauge", ("where",),
           "what is slower or weaker than it could be, counted; `kvstore info DIR` and the log"
           " have the words", _fallbacks),
)  # fmt: skip
