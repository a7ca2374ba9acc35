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
    """Write the two lanes to `path`: time in seconds since the prefill began, colour by layer.

    A second row shows the time of loading alone where that is a small part of the whole.
    """
    end = max(span.compute_end for span in spans)
    loading = min(end, 1.5 * max(span.load_end for span in spans))
    windows = [end, loading] if 0 < loading < end / 2 else [end]
    figure = Figure(figsize=(11, 2.9 * len(windows)), layout="constrained")
    FigureCanvasAgg(figure)
    for row, window in enumerate(windows):
        axes = figure.add_subplot(len(windows), 1, row + 1)
        _draw_lanes(axes, spans, window)
        axes.set_title(title if row == 0 else "The same while it loads", fontsize=10, loc="left")
    axes.set_xlabel("seconds since the prefill began (colour and number: layer)")
    figure.savefig(path, dpi=150)


def overlap_s(spans: Sequence[LayerSpan]) -> float:
    """Seconds from the first layer's compute start to the last layer's arrival; 0: no overlap."""
    loaded = [span.load_end for span in spans if span.load_end > span.load_start]
    if not loaded:
        return 0.0
    return max(0.0, max(loaded) - min(span.compute_start for span in spans))


def _draw_lanes(axes: Any, spans: Sequence[LayerSpan], window: float) -> None:
    for span, colour in zip(spans, _colours(len(spans)), strict=True):
        bars = (
            (LOAD_LANE, span.load_start, span.load_end),
            (COMPUTE_LANE, span.compute_start, min(span.compute_end, window)),
        )
        for lane, start, end in bars:
            if end > start:
                _bar(axes, lane, start, end, colour)
            if end - start > NARROWEST_LABEL * window:
                axes.text(
                    (start + end) / 2, lane, str(span.layer), ha="center", va="center", fontsize=7
                )
    _mark_overlap(axes, spans)
    axes.set_yticks([COMPUTE_LANE, LOAD_LANE], ["compute", "load"])
    axes.set_ylim(-0.6, 1.9)
    axes.set_xlim(0, window)
    axes.spines[["top", "right", "left"]].set_visible(False)


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
