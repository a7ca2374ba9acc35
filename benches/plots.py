"""Pictures of results, as PNG. Needs matplotlib (`pip install kvstore-nvme[cli]`); says so."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fio_json import EDGES_NS, Result


def figure() -> tuple[Any, Any]:
    try:
        import matplotlib
    except ImportError:
        sys.exit("--plot needs matplotlib: pip install 'kvstore-nvme[cli]'")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot.subplots(figsize=(8, 5), layout="constrained")


def save(path: Path, picture: Any) -> None:
    from matplotlib import pyplot

    picture.savefig(path, dpi=120)
    pyplot.close(picture)
    print(f"wrote {path}", file=sys.stderr)


def cumulated(counts: Sequence[int]) -> list[float]:
    total, sums, so_far = sum(counts), [], 0
    for count in counts:
        so_far += count
        sums.append(so_far / total if total else 0.0)
    return sums


def latency_cdf(path: Path, results: Sequence[Result]) -> None:
    """Share of single device reads (or writes) done within a time, each job's and its ceiling's."""
    picture, axes = figure()
    edges_ms = [edge / 1e6 for edge in EDGES_NS]
    for result in results:
        main = result.write if result.job.rw == "write" else result.read
        line = axes.step(edges_ms, cumulated(main.counts)[: len(edges_ms)], label=result.job.name)
        raw = result.kv["raw_counts"]
        if raw:
            axes.step(
                edges_ms, cumulated(raw)[: len(edges_ms)], linestyle=":",
                color=line[0].get_color(), label=f"{result.job.name}: raw, all depths",
            )  # fmt: skip
    axes.set(
        xscale="log", xlabel="ms of one operation of the device", ylabel="done within", ylim=(0, 1)
    )
    axes.legend()
    save(path, picture)


def bandwidth(path: Path, rows: Mapping[str, Mapping[int, float]], title: str) -> None:
    """rows: line -> depth -> GB/s."""
    picture, axes = figure()
    for name, by_depth in rows.items():
        axes.plot(list(by_depth), list(by_depth.values()), marker="o", label=name)
    axes.set(xscale="log", xlabel="operations in flight", ylabel="GB/s", title=title)
    axes.set_xticks(sorted({depth for row in rows.values() for depth in row}))
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.legend()
    save(path, picture)


def timeline(
    path: Path, loaded_s: Sequence[float], spans: Sequence[tuple[float, float]], title: str
) -> None:
    """Per layer: when it was loaded, and when it was computed (start, end); seconds."""
    picture, axes = figure()
    layers = list(range(len(loaded_s)))
    axes.barh(layers, [end - start for start, end in spans], left=[start for start, _ in spans],
              color="tab:orange", label="computed")  # fmt: skip
    axes.plot(loaded_s, layers, marker=".", linestyle="", color="tab:blue", label="loaded")
    axes.set(xlabel="seconds since the request", ylabel="layer", title=title, xlim=(0, None))
    axes.invert_yaxis()
    axes.legend()
    save(path, picture)
