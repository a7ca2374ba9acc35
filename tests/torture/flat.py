"""The judge of a soak's table: what must not grow does not.

Memory wobbles, so its trend over the second half counts: the least-squares line may not rise by
more than a bound. What is counted is looked at when all rest: leases and regions are none,
descriptors and threads no more in the second half than in the first. One more is let pass: the
queue of an event loop that ended is closed when the next one asks, a thread that was joined may be
seen for a moment longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

GROWTH_BYTES = 4 << 20  # over the second half


@dataclass(frozen=True)
class Sample:
    """One process at one moment. descriptors: without the files that the store keeps open."""

    seconds: float
    name: str
    resting: bool
    rss: int
    descriptors: int
    open_files: int
    threads: int
    leases: int
    regions: int


def growth(points: Sequence[tuple[float, float]]) -> float:
    """How far the least-squares line rises from the first to the last point."""
    if len(points) < 3:
        return 0.0
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    return slope * (points[-1][0] - points[0][0])


def judge(samples: Sequence[Sample]) -> list[str]:
    """What is not flat, in words; empty when all is."""
    findings = []
    for name in dict.fromkeys(sample.name for sample in samples):
        of_it = [sample for sample in samples if sample.name == name]
        findings += [f"{name}: {finding}" for finding in judge_one(of_it)]
    return findings


def judge_one(samples: Sequence[Sample]) -> list[str]:
    findings = []
    middle = (samples[0].seconds + samples[-1].seconds) / 2
    late = [(s.seconds, float(s.rss)) for s in samples if s.seconds >= middle and not s.resting]
    grown = growth(late)
    if grown > GROWTH_BYTES:
        findings.append(f"memory grew by {grown / 1e6:.1f} MB over the second half")
    rests = [sample for sample in samples if sample.resting]
    if not rests:
        return [*findings, "never at rest"]
    for rest in rests:
        for what in ("leases", "regions"):
            if getattr(rest, what):
                findings.append(f"at rest {rest.seconds:.0f} s: {getattr(rest, what)} {what}")
    for what, slack in (("descriptors", 1), ("threads", 1)):
        early = max(getattr(rest, what) for rest in rests[: (len(rests) + 1) // 2])
        late_on = max(getattr(rest, what) for rest in rests[len(rests) // 2 :])
        if late_on > early + slack:
            findings.append(f"{what} at rest: {early} in the first half, then {late_on}")
    return findings
