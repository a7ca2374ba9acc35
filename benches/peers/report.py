"""From records to a table: medians, spreads, shares of the ceiling, ratios in the same round. Pure.

A record is one timed operation: phase, peer, kind, round, bytes, seconds, cpu_s, and first_s or
sync_s. Records of kind "ceiling" hold gbps by memory and depth instead. A ratio compares figures of
one round only, because the device is another one in the next.
"""

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

Record = dict[str, Any]
# What a kind is compared with: blocks by key with blocks put by key, everything else with chains.
REFERENCES = {"keys": "kvstore single", "bulk": "kvstore", "layers": "kvstore", "put": "kvstore"}
HEAD = (
    f"{'':<24} {'GB/s: median [min..max]':<26} {'best':>5} {'fresh':>5}"
    f" {'x kvstore [min..max]':<22} {'CPU s/GB':>8}"
)


def spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f} [{min(values):.2f}..{max(values):.2f}]"


def gbps(record: Record) -> float:
    return float(record["bytes"]) / float(record["seconds"]) / 1e9


def rows_of(records: Iterable[Record], kind: str) -> dict[str, list[Record]]:
    """Records of a kind by peer, fastest median first."""
    rows: dict[str, list[Record]] = {}
    for record in records:
        if record["kind"] == kind:
            rows.setdefault(record["peer"], []).append(record)
    return dict(
        sorted(rows.items(), key=lambda row: -statistics.median(gbps(one) for one in row[1]))
    )


def ratios(mine: Sequence[Record], others: Sequence[Record]) -> list[float]:
    """Speed of mine over that of others, round by round; rounds that both have."""
    by_round = {one["round"]: gbps(one) for one in others}
    return [gbps(one) / by_round[one["round"]] for one in mine if one["round"] in by_round]


def row_line(
    peer: str, records: Sequence[Record], reference: Sequence[Record], tops: dict[str, float]
) -> str:
    speeds = [gbps(one) for one in records]
    median = statistics.median(speeds)
    against = ratios(records, reference)
    cpu = statistics.median(one["cpu_s"] / one["bytes"] * 1e9 for one in records)
    shares = [f"{median / tops[name]:5.2f}" if name in tops else " " * 5 for name in SHARES]
    line = (
        f"{peer:<24} {spread(speeds):<26} {shares[0]} {shares[1]}"
        f" {spread(against) if against else '-':<22} {cpu:8.3f}"
    )
    if records[0]["kind"] == "layers":
        line += f"  first layer {statistics.median(one['first_s'] for one in records) * 1e3:.1f} ms"
    if records[0]["kind"] == "put":
        synced = [one["bytes"] / (one["seconds"] + one["sync_s"]) / 1e9 for one in records]
        line += f"  with sync {spread(synced)}"
    return line


SHARES = ("best", "fresh")


def kind_lines(records: Sequence[Record], kind: str, tops: dict[str, float]) -> list[str]:
    """A table of one kind, and who was faster than kvstore in it."""
    rows = rows_of(records, kind)
    name = REFERENCES[kind]
    reference = rows.get(name, [])
    if kind == "put":
        tops = {}  # the ceiling is of reads
    lines = [row_line(peer, one, reference, tops) for peer, one in rows.items()]
    faster = [
        f"{peer} {spread(found)}"
        for peer, one in rows.items()
        if not peer.startswith("kvstore")
        and (found := ratios(one, reference))
        and statistics.median(found) > 1
    ]
    lines.append(f"faster than {name}: {', '.join(faster) or 'none'}")
    return lines


def ceilings(records: Iterable[Record]) -> dict[str, float]:
    """Highest median GB/s over depths: of all ("best"), and of reads into as much memory as a load
    fills ("fresh")."""
    found: dict[tuple[str, int], list[float]] = {}
    for one in records:
        if one["kind"] == "ceiling":
            found.setdefault((one["memory"], one["depth"]), []).append(one["gbps"])
    medians = {key: statistics.median(values) for key, values in found.items()}
    tops = {}
    if medians:
        tops["best"] = max(medians.values())
    fresh = [value for (memory, _), value in medians.items() if memory == "fresh"]
    if fresh:
        tops["fresh"] = max(fresh)
    return tops


def phase_lines(title: str, records: Sequence[Record]) -> list[str]:
    tops = ceilings(records)
    lines = ["", f"== {title}"]
    lines.append("   ceiling GB/s: " + ", ".join(f"{k} {v:.2f}" for k, v in tops.items()))
    for kind in REFERENCES:
        if any(one["kind"] == kind for one in records):
            lines += [f"-- {kind}", HEAD, *kind_lines(records, kind, tops)]
    return lines
