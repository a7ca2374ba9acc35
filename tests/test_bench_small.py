"""Every bench runs, seconds each, and prints JSON of its shape. No figure is asserted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import jobfile

BENCHES = Path(__file__).parents[1] / "benches"
JOBS = sorted((BENCHES / "jobs").glob("*.fio"))

pytestmark = pytest.mark.bench


def bench(name: str, *words: str) -> dict[str, Any]:
    """What it printed; it must end with 0."""
    command = [sys.executable, str(BENCHES / name), "--small", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    sys.stderr.write(done.stderr)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.stem)
def test_kvfio_runs_every_job_or_says_why_not(path: Path, tmp_path: Path) -> None:
    picture = tmp_path / "cdf.png"
    found = bench(
        "kvfio.py",
        str(path),
        "--output-format=json",
        f"--directory={tmp_path}",
        f"--plot={picture}",
    )
    ran = [job["jobname"] for job in found["jobs"]]
    asked = {job.name: job for job in jobfile.read([path])}
    assert sorted([*ran, *found["skipped"]]) == sorted(asked)
    assert all(asked[name].filesystem for name in found["skipped"])
    for job in found["jobs"]:
        assert job["ceiling_share"] > 0
        moved = "write" if asked[job["jobname"]].rw == "write" else "read"
        assert job[moved]["bw_bytes"] > 0 and job[moved]["iops"] > 0
        assert job[moved]["clat_ns"]["percentile"]["99.000000"] > 0
        assert job["kv"]["cpu_s_per_gib"]["low"] > 0 and job["kv"]["completions"]["low"] >= 1
        assert job["kv"]["ceiling"]["tools"]["fresh"]["huge_coverage"] >= 0
        assert job["kv"]["ceiling"]["tools"]["fresh"]["cpu_s_per_gib"]["median"] > 0
    assert picture.exists() or not ran


@pytest.mark.parametrize("direction", ["read", "write"])
def test_the_ceiling_by_itself(direction: str, tmp_path: Path) -> None:
    picture = tmp_path / "bandwidth.png"
    words = (f"--rw={direction}", f"--directory={tmp_path}", f"--plot={picture}", "--json")
    found = bench("ceiling", *words, "--ioengine", "auto", "threads", "--bs", "72k")
    assert [row["asked_engine"] for row in found["rows"]] == ["auto", "threads"]
    assert all(row["tools"]["fresh"]["gbps"]["median"] > 0 for row in found["rows"])
    assert found["place"]["kernel"] and picture.exists()


def test_null_tells_where_the_time_goes(tmp_path: Path) -> None:
    found = bench("null.py", "--json", f"--directory={tmp_path}")
    assert set(found["loads"]) == {"pool", "caller"}
    for row in found["loads"].values():
        parts = {"checksum_alone", "native_without_checksum", "python"}
        assert row["gbps"]["median"] > 0 and set(row["cpu_s"]) == parts


def test_the_pipeline_has_a_bound_for_every_model(tmp_path: Path) -> None:
    picture = tmp_path / "timeline.png"
    found = bench("pipeline.py", "--json", f"--directory={tmp_path}", f"--plot={picture}")
    assert len(found["models"]) == 6 and picture.exists()
    for row in found["models"]:
        assert row["ttft_s"]["median"] > 0 and row["bound_s"]["median"] > 0
        assert row["prefill_source"] and row["target_gbps"] > 0


@pytest.mark.parametrize("extent", ["16", "1"])
def test_layer_0_warm_and_cold_has_its_bounds(extent: str, tmp_path: Path) -> None:
    found = bench("layer0.py", "--json", f"--dir={tmp_path}", f"--extent-blocks={extent}")
    assert found["files"] == found["blocks"] / int(extent)
    for what in ("warm_s", "bound_s", "cold_s", "cold_of_by_hand"):
        assert found[what]["median"] > 0, what
    assert set(found["by_hand_s"]) == {"4", "8", "16", "32"}


def test_small_extents_are_held_against_full_ones(tmp_path: Path) -> None:
    found = bench("bench_small_extents.py", "--json", f"--dir={tmp_path}")
    assert (
        found["sides"]["small"]["blocks_per_extent"] < found["sides"]["full"]["blocks_per_extent"]
    )
    assert all(ratio > 0 for ratio in found["ratio"])


def test_peers_run_or_are_listed(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benches.peers.run", "--small", f"--dir={tmp_path}"]
    done = subprocess.run(command, cwd=BENCHES.parent, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    assert "kvstore single" in done.stdout and "ceiling GB/s" in done.stdout


def test_scale_prints_every_part(tmp_path: Path) -> None:
    found = bench("bench_scale.py", "--json", f"--dir={tmp_path}")
    for what in ("keys of", "match of", "put", "first hit"):
        assert any(what in row and min(values) > 0 for row, values in found.items()), what
