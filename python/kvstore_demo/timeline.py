"""Draws the layer pipeline of one prefill as a PNG: the load of each layer over its compute.

Needs matplotlib (the `cli` extra). Draws without a display.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from kvstore_demo.figures import LayerSpan

LANE_HEIGHT = 0.7
LOAD_LANE, COMPUTE_LANE = 1.0, 0.0
NARROWEST_LABEL = 0.02


def draw(spans: Sequence[LayerSpan], path: Path, *, title: str) -> None:
    """Write the two lanes to `path`: time in seconds since the prefill began, colour by layer."""
    figure = Figure(figsize=(11, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    end = max(span.compute_end for span in spans)
    for span, colour in zip(spans, _colours(len(spans)), strict=True):
        if span.load_end > span.load_start:
            _bar(axes, LOAD_LANE, span.load_start, span.load_end, colour)
        _bar(axes, COMPUTE_LANE, span.compute_start, span.compute_end, colour)
        if span.compute_end - span.compute_start > NARROWEST_LABEL * end:
            middle = (span.compute_start + span.compute_end) / 2
            axes.text(middle, COMPUTE_LANE, str(span.layer), ha="center", va="center", fontsize=7)
    _mark_overlap(axes, spans)
    axes.set_yticks([COMPUTE_LANE, LOAD_LANE], ["compute", "load"])
    axes.set_ylim(-0.6, 1.9)
    axes.set_xlim(0, end * 1.01)
    axes.set_xlabel("seconds since the prefill began (colour: layer)")
    axes.set_title(title, fontsize=10, loc="left")
    axes.spines[["top", "right", "left"]].set_visible(False)
    figure.savefig(path, dpi=150)


def overlap_s(spans: Sequence[LayerSpan]) -> float:
    """Seconds from the first layer's compute start to the last layer's arrival; 0: no overlap."""
    loaded = [span.load_end for span in spans if span.load_end > span.load_start]
    if not loaded:
        return 0.0
    return max(0.0, max(loaded) - min(span.compute_start for span in spans))


def _bar(axes: Any, lane: float, start: float, end: float, colour: tuple[float, ...]) -> None:
    axes.broken_barh(
        [(start, end - start)],
        (lane - LANE_HEIGHT / 2, LANE_HEIGHT),
        facecolors=[colour],
        edgecolors="white",
        linewidth=0.4,
    )


def _mark_overlap(axes: Any, spans: Sequence[LayerSpan]) -> None:
    """Two lines: where compute begins, and where the last layer has arrived."""
    loaded = [span.load_end for span in spans if span.load_end > span.load_start]
    if not loaded:
        return
    for moment, label, height in (
        (min(span.compute_start for span in spans), "first compute", 1.72),
        (max(loaded), "last layer loaded", 1.48),
    ):
        axes.axvline(moment, color="0.35", linewidth=0.8, linestyle="--")
        axes.text(moment, height, f" {label} {moment:.3f} s", fontsize=8, color="0.25")


def _colours(count: int) -> list[tuple[float, ...]]:
    """From a light blue to a light orange, so that black labels stay readable on all of them."""
    first, last = (0.62, 0.78, 0.93), (0.98, 0.75, 0.50)
    steps = [i / max(1, count - 1) for i in range(count)]
    return [tuple(a + (b - a) * step for a, b in zip(first, last, strict=True)) for step in steps]
