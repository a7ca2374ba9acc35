"""Results in the shape of fio's JSON, so that what reads fio's reads these. Pure.

A job is a section of the job file, all its loads together (fio's group_reporting). "read" and
"write" are what the device moved; clat_ns are single operations of it, from the store's histogram,
so percentiles are upper edges of buckets that double. What fio has no word for stands below "kv".
"ceiling_share" (at the top of a job) is the one key that is a share.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jobfile import Job
from kvstore.report import LATENCY_EDGES_S
from measure import Figures, bucket_percentiles, percentile, percentiles

EDGES_NS = [edge * 1e9 for edge in LATENCY_EDGES_S]
BINS = (2, 4, 10, 20, 50, 100, 250, 500, 750, 1000)  # fio's
UNITS_NS = (("ns", 1), ("us", 1e3), ("ms", 1e6))
VERSION = "kvfio-1 (fio-3.33 JSON)"


@dataclass
class Side:
    """One direction. gbps: a value a round; counts, sum_s: of its operations (StageLatency)."""

    nbytes: int = 0
    seconds: float = 0
    gbps: Sequence[float] = ()
    counts: Sequence[int] = ()
    sum_s: float = 0

    @property
    def operations(self) -> int:
        return sum(self.counts)


@dataclass
class Result:
    """Of one job. share: of the ceiling, a value a round. kv: what fio has no words for."""

    job: Job
    read: Side
    write: Side
    share: Figures
    elapsed_s: float
    user_s: float
    system_s: float
    kv: dict[str, Any] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)  # for people


def times_ns(values: Sequence[float]) -> dict[str, Any]:
    """A latency object of fio's, from single times."""
    if not values:
        return {"min": 0, "max": 0, "mean": 0.0, "stddev": 0.0, "N": 0}
    mean = sum(values) / len(values)
    variance = sum((value - mean) ** 2 for value in values) / len(values)
    return {
        "min": min(values),
        "max": max(values),
        "mean": mean,
        "stddev": variance**0.5,
        "N": len(values),
        "percentile": percentiles(values),
    }


def histogram_ns(counts: Sequence[int], sum_s: float) -> dict[str, Any]:
    """The same from a histogram; min, max and stddev are those of its buckets' upper edges."""
    edges = [*EDGES_NS, EDGES_NS[-1]][: len(counts)]
    used = [(count, edge) for count, edge in zip(counts, edges, strict=False) if count]
    total = sum(counts)
    mean = sum_s * 1e9 / total if total else 0.0
    spread = sum(count * (edge - mean) ** 2 for count, edge in used)
    return {
        "min": int(used[0][1]) if used else 0,
        "max": int(used[-1][1]) if used else 0,
        "mean": mean,
        "stddev": (spread / total) ** 0.5 if total else 0.0,
        "N": total,
        "percentile": bucket_percentiles(counts, EDGES_NS),
    }


def distributions(counts: Sequence[int]) -> dict[str, dict[str, float]]:
    """fio's latency_ns, latency_us and latency_ms: percent of all operations per bin. A bucket of
    the histogram counts where its upper edge falls."""
    found: dict[str, dict[str, float]] = {}
    edges = [(f"latency_{unit}", str(edge), edge * ns) for unit, ns in UNITS_NS for edge in BINS]
    edges += [("latency_ms", "2000", 2e9), ("latency_ms", ">=2000", float("inf"))]
    for unit, name, _ in edges:
        found.setdefault(unit, {})[name] = 0.0
    for count, top in zip(counts, [*EDGES_NS, float("inf")], strict=False):
        unit, name = next((unit, name) for unit, name, edge in edges if top <= edge)
        found[unit][name] += 100.0 * count / max(1, sum(counts))
    return found


def side_facts(side: Side) -> dict[str, Any]:
    rate = side.nbytes / side.seconds if side.seconds else 0.0
    samples = [gbps * 1e9 / 1024 for gbps in side.gbps]
    operations = side.operations
    return {
        "io_bytes": side.nbytes,
        "io_kbytes": side.nbytes // 1024,
        "bw_bytes": int(rate),
        "bw": int(rate / 1024),
        "iops": operations / side.seconds if side.seconds else 0.0,
        "runtime": round(side.seconds * 1000),
        "total_ios": operations,
        "short_ios": 0,
        "drop_ios": 0,
        "slat_ns": times_ns([]),
        "clat_ns": histogram_ns(side.counts, side.sum_s),
        "lat_ns": histogram_ns(side.counts, side.sum_s),
        "bw_min": int(min(samples, default=0)),
        "bw_max": int(max(samples, default=0)),
        "bw_agg": 100.0 if samples else 0.0,
        "bw_mean": sum(samples) / len(samples) if samples else 0.0,
        "bw_dev": times_ns(samples)["stddev"],
        "bw_samples": len(samples),
        "iops_min": 0,
        "iops_max": 0,
        "iops_mean": 0.0,
        "iops_stddev": 0.0,
        "iops_samples": 0,
    }


def job_facts(result: Result, number: int) -> dict[str, Any]:
    elapsed = max(result.elapsed_s, 1e-9)
    main = result.write if result.job.rw == "write" else result.read
    return {
        "jobname": result.job.name,
        "groupid": number,
        "error": 0,
        "eta": 0,
        "elapsed": round(result.elapsed_s),
        "job options": {"bs": str(result.kv.get("region_bytes", 0)), **result.job.options()},
        "read": side_facts(result.read),
        "write": side_facts(result.write),
        "trim": side_facts(Side()),
        "sync": {"total_ios": 0, "lat_ns": times_ns([])},
        "job_runtime": round((result.read.seconds + result.write.seconds) * 1000),
        "usr_cpu": result.user_s / elapsed * 100,
        "sys_cpu": result.system_s / elapsed * 100,
        **distributions(main.counts),
        "ceiling_share": result.share.median,
        "kv": result.kv | {"ceiling_rounds": result.share.facts()},
    }


def document(
    results: Sequence[Result], skipped: Mapping[str, str], command: str, place: str
) -> dict[str, Any]:
    """skipped: job name -> why."""
    now = time.time()
    return {
        "fio version": VERSION,
        "timestamp": int(now),
        "timestamp_ms": int(now * 1000),
        "time": time.ctime(now),
        "command": command,
        "place": place,
        "jobs": [job_facts(result, number) for number, result in enumerate(results)],
        "skipped": dict(skipped),
        "disk_util": [],
    }


def p99_ms(values: Sequence[float]) -> float:
    return percentile(values, 99) / 1e6
