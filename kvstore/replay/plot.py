"""A result as a picture: hit rate by capacity, and how long ago what hits was used."""

from pathlib import Path

from kvstore.errors import KvstoreError
from kvstore.replay.result import Result


class PlotError(KvstoreError):
    """matplotlib is missing, or does not know the kind of picture."""


def need_matplotlib(path: Path) -> None:
    """PlotError that says what to do; before a long replay, not after it."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
    except ImportError:
        raise PlotError(
            "--plot needs matplotlib: pip install 'kvstore-nvme[cli]', or leave it out"
        ) from None
    kinds = FigureCanvasAgg.filetypes
    if path.suffix.removeprefix(".") not in kinds:
        raise PlotError(f"{path}: a picture ends in one of {', '.join(sorted(kinds))}")
    if not path.parent.is_dir():
        raise PlotError(f"{path}: its directory is not there; make it (mkdir -p)")


def draw(result: Result, path: Path) -> None:
    """Writes the picture; its format is that of the name's ending. OSError, ValueError."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    curve = result.curve or []
    left.plot(
        [point.capacity_blocks for point in curve],
        [point.hit_rate_tokens for point in curve],
        marker="o",
        label="LRU, one-block extents",
    )
    left.axhline(result.ideal_hit_rate_tokens, linestyle="--", color="gray", label="endless room")
    left.plot(
        [result.capacity_blocks or result.unique_blocks],
        [result.hit_rate_tokens],
        marker="*",
        markersize=14,
        linestyle="none",
        label="this replay" if result.capacity_bytes is None else "this replay (at all blocks)",
    )
    left.set(xscale="log", xlabel="capacity (blocks)", ylabel="input tokens hit", ylim=(0, 1))
    left.legend(loc="lower right")
    left.set_title(f"{Path(result.trace).name}: {result.requests:,} requests", fontsize=10)
    right.bar(list(result.reuse_gap_share), list(result.reuse_gap_share.values()))
    right.set(xlabel="time since the last use", ylabel="share of the tokens used again")
    figure.savefig(path)
