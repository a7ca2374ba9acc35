"""What a run leaves: the samples as they were taken, and the table made of them. Pure.

A ratio is always between two answers of the same round: a busy minute then hits both. Nothing is
left out: a variant that could not run is in the report with what it said.
"""

from collections.abc import Mapping, Sequence

import msgspec

from measure import Figures
from ttft.prompts import Case

BASELINE = "recompute"


class Sample(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One request. hit: percent of the prompt that was stored before. expected_tokens: what of it
    this variant can give back, whole blocks only."""

    variant: str
    tokens: int
    hit: int
    round: int
    ttft_s: float
    cached_tokens: int
    expected_tokens: int
    answer: str

    @property
    def case(self) -> Case:
        return Case(self.tokens, self.hit)


class Run(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """All samples of one model. settings, commands and counters: by variant."""

    model: str
    what: str
    dtype: str
    kv_bytes_per_token: int
    block_tokens: int
    commands: dict[str, str]
    errors: dict[str, str] = {}
    samples: list[Sample] = []
    counters: dict[str, dict[str, float]] = {}


class Report(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    command: str
    machine: dict[str, str]
    versions: dict[str, str]
    runs: list[Run] = []


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the table. of_recompute: TTFT as a share of the baseline's in the same round; no
    values where the baseline is missing."""

    case: Case
    variant: str
    ttft_ms: Figures
    of_recompute: Figures
    cached: Figures
    expected: int

    @property
    def slower(self) -> bool:
        """A hit that took longer than computing all of the prompt."""
        shares = self.of_recompute.values
        return bool(self.case.hit and shares and self.of_recompute.median > 1)


def rows(run: Run) -> list[Row]:
    """By length, hit rate, and variant in the order in which they were started."""
    baseline = {
        (s.tokens, s.round): s.ttft_s for s in run.samples if s.variant == BASELINE and not s.hit
    }
    cells: dict[tuple[Case, int, str], list[Sample]] = {}
    order = {name: place for place, name in enumerate(run.commands)}
    for sample in run.samples:
        if sample.variant != BASELINE or not sample.hit:
            cells.setdefault((sample.case, order[sample.variant], sample.variant), []).append(
                sample
            )
    return [
        Row(
            case=case,
            variant=variant,
            ttft_ms=Figures([sample.ttft_s * 1e3 for sample in samples]),
            of_recompute=Figures(
                [
                    sample.ttft_s / baseline[sample.tokens, sample.round]
                    for sample in samples
                    if (sample.tokens, sample.round) in baseline
                ]
            ),
            cached=Figures([float(sample.cached_tokens) for sample in samples]),
            expected=samples[0].expected_tokens,
        )
        for (case, _, variant), samples in sorted(cells.items())
    ]


def same_answers(run: Run) -> dict[str, tuple[int, int]]:
    """By variant: how many of its answers are the baseline's to the same prompt, of how many."""
    base = {(s.case, s.round): s.answer for s in run.samples if s.variant == BASELINE}
    found: dict[str, tuple[int, int]] = {}
    for sample in run.samples:
        if sample.variant != BASELINE and (sample.case, sample.round) in base:
            same, of = found.get(sample.variant, (0, 0))
            equal = sample.answer == base[sample.case, sample.round]
            found[sample.variant] = (same + equal, of + 1)
    return found


def render(report: Report) -> str:
    lines = [f"$ {report.command}", *_words(report.machine), *_words(report.versions)]
    for run in report.runs:
        lines += ["", *_render_run(run)]
    return "\n".join(lines)


def _render_run(run: Run) -> list[str]:
    lines = [
        f"== {run.model}: {run.what}; {run.dtype}, {run.kv_bytes_per_token:,} bytes of KV a token,"
        f" blocks of {run.block_tokens} tokens",
        f"{'tokens':>6} {'hit':>5}  {'variant':<22}  {'TTFT ms, median (low to high)':<32}"
        f"  {'of recompute':<21}  cached tokens",
    ]
    lines += [_line(row) for row in rows(run)]
    for variant, (same, of) in same_answers(run).items():
        lines.append(f"{variant}: {same} of {of} answers are those of {BASELINE}")
    for variant, counters in run.counters.items():
        lines += [f"{variant}: {', '.join(told)}"] if (told := _told(counters)) else []
    lines += [f"{variant}: $ {command}" for variant, command in run.commands.items()]
    for variant, error in run.errors.items():
        lines.append(f"{variant} COULD NOT RUN: {error}")
    return lines


def _told(counters: Mapping[str, float]) -> list[str]:
    """Of the engine's counters those of the connector and where cached tokens came from."""
    return [
        f"{name.removeprefix('vllm:').replace('_total', '')} {value:.6g}"
        for name, value in counters.items()
        if "kvstore" in name or "by_source" in name
    ]


def _line(row: Row) -> str:
    share = str(row.of_recompute) if row.of_recompute.values else "-"
    low, high = min(row.cached.values), max(row.cached.values)
    cached = f"{low:.0f}" if low == high else f"{low:.0f} to {high:.0f}"
    return (
        f"{row.case.tokens:>6} {row.case.hit:>3} %  {row.variant:<22}  {_ms(row.ttft_ms):<32}"
        f"  {share:<21}  {cached} of {row.expected}{'  SLOWER' if row.slower else ''}"
    )


def _ms(figures: Figures) -> str:
    values = figures.values
    return f"{figures.median:,.0f} ({min(values):,.0f} to {max(values):,.0f}, n={len(values)})"


def _words(named: Mapping[str, str]) -> Sequence[str]:
    return [", ".join(f"{name} {value}" for name, value in named.items())]
