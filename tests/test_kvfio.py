"""The benches' own parts: job files, fio's JSON, statistics, the bound of a pipeline.

Whole benches run small in test_bench_small.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import fio_json
import jobfile
from ceiling import Samples, layer_major
from fio_json import Result, Side
from job_run import capacity_bytes, need_bytes, round_bytes
from jobfile import READS, Job, JobError
from kvfio import SMALL
from measure import Figures, bucket_percentiles, percentile, percentiles, ratios
from pipeline import bound_s, needed_gbps
from prefill_rates import RATES

JOBS = Path(__file__).parents[1] / "benches" / "jobs"

# What fio 3.33 writes of one direction with `--output-format=json`.
FIO_SIDE = {
    *("io_bytes", "io_kbytes", "bw_bytes", "bw", "iops", "runtime", "total_ios", "short_ios"),
    *("drop_ios", "slat_ns", "clat_ns", "lat_ns", "bw_min", "bw_max", "bw_agg", "bw_mean"),
    *("bw_dev", "bw_samples", "iops_min", "iops_max", "iops_mean", "iops_stddev", "iops_samples"),
}
FIO_JOB = {
    *("jobname", "groupid", "error", "eta", "elapsed", "job options", "read", "write", "trim"),
    *("sync", "job_runtime", "usr_cpu", "sys_cpu", "latency_ns", "latency_us", "latency_ms"),
}


# ---- job files -----------------------------------------------------------------------------------


def test_a_section_has_what_global_says_unless_it_says_otherwise() -> None:
    jobs = jobfile.parse(
        "; why\n[global]\nlayout=DeepSeek-V2\niodepth=8\n[a]\nrw=read\n[b]\niodepth=16\nverify\n"
    )
    assert [(job.name, job.iodepth, job.verify, job.layout) for job in jobs] == [
        ("a", 8, 0, "DeepSeek-V2"),
        ("b", 16, 1, "DeepSeek-V2"),
    ]


def test_words_of_the_command_line_hold_for_every_job() -> None:
    jobs = jobfile.parse("[a]\nloops=9\n[b]\n", {"loops": "3", "ioengine": "libaio"})
    assert [(job.rounds, job.ioengine) for job in jobs] == [(3, "aio"), (3, "aio")]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("4096", 4096),
        ("4k", 4096),
        ("72KiB", 73728),
        ("1G", 1 << 30),
        ("30%", 30),
        ("2mb", 2 << 20),
    ],
)
def test_numbers_are_read_as_fio_reads_them(text: str, number: int) -> None:
    assert jobfile.parse_number(text) == number


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[a]\nblocksize=4k", "not a word here"),
        ("[a]\nrw=trim", "one of"),
        ("[a]\nsize=much", "no number"),
        ("[a]\nrw=rw", "turns= or write_rate="),
        ("[a]\nrw=rw\nturns=3", "turn_tokens"),
        ("[a]\nnumjobs=0", "at least 1"),
        ("[global]\nrw=read", "no section"),
        ("rw=read", "no section headers"),
        ("[a]\nlayout=nobody's", "nobody's"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_its_place(text: str, complaint: str) -> None:
    with pytest.raises(JobError, match=complaint):
        for job in jobfile.parse(text):
            job.kv_layout()


def test_every_word_is_explained_and_every_explained_word_exists() -> None:
    fields = set(Job.__dataclass_fields__) - {"name"}
    assert set(jobfile.WORDS) == fields


def all_jobs() -> list[Job]:
    return list(jobfile.read(sorted(JOBS.glob("*.fio"))))


def test_the_questions_that_job_files_answer() -> None:
    names = {path.stem for path in JOBS.glob("*.fio")}
    wanted = "prefill_cold_prefix prefill_shared_prefix agent_turns mixed_rw evict_full"
    assert names >= {*wanted.split(), "small_extents", "many_loads"}
    for path in JOBS.glob("*.fio"):
        assert path.read_text().startswith("; "), f"{path.name} does not say what it asks"


@pytest.mark.parametrize("job", all_jobs(), ids=lambda job: job.name)
def test_a_job_of_ours_is_whole(job: Job) -> None:
    layout = job.kv_layout()
    assert job.rounds >= (7 if job.rw in READS else 15)
    assert job.blocks(layout) % layout.blocks_per_extent == 0
    assert job.common_tokens % (layout.blocks_per_extent * layout.block_tokens) == 0
    assert round_bytes(job, layout) < capacity_bytes(job, layout) < need_bytes(job, layout)
    small = jobfile.smaller(job, SMALL)
    assert small.rounds == 2
    assert round_bytes(small, layout) <= round_bytes(job, layout)


@pytest.mark.parametrize("model", RATES)
def test_models_of_the_pipeline_have_a_layout_and_a_source(model: str) -> None:
    assert jobfile.layout_of(model).layers > 0
    assert RATES[model].source and RATES[model].tokens_per_s > 0


# ---- statistics ----------------------------------------------------------------------------------


def test_a_percentile_is_the_smallest_value_that_is_enough() -> None:
    values = [float(value) for value in range(100, 0, -1)]
    assert [percentile(values, percent) for percent in (1, 50, 99, 99.9)] == [1, 50, 99, 100]
    assert percentile([7.0], 1) == 7.0
    assert percentiles([]) == {}
    assert list(percentiles(values))[-2:] == ["99.950000", "99.990000"]


def test_percentiles_of_a_histogram_are_edges_of_the_buckets_that_hold_them() -> None:
    found = bucket_percentiles([50, 49, 0, 1], [10.0, 20.0, 40.0])
    assert (found["50.000000"], found["60.000000"], found["99.000000"]) == (10, 20, 20)
    assert found["99.900000"] == 40  # the last bucket has no edge
    assert bucket_percentiles([0, 0], [1.0]) == {}


def test_a_ratio_is_taken_round_by_round() -> None:
    assert ratios([1.0, 4.0, 3.0], [2.0, 2.0, 3.0]).values == [0.5, 2.0, 1.0]
    assert Figures([3.0, 1.0, 2.0]).median == 2.0
    with pytest.raises(ValueError):
        ratios([1.0], [])


def test_the_ceiling_is_the_tool_and_depth_with_the_highest_median() -> None:
    samples = Samples()
    for gbps in (3.0, 1.0, 2.0):
        samples.add("fresh", 8, gbps, 0.01)
        samples.add("fio", 16, gbps + 0.5, 0.04)
        samples.add("fresh", 32, 1.5, 0.03)
    assert samples.best()[:2] == ("fio", 16)
    assert samples.best("fresh")[:2] == ("fresh", 8)


def test_steps_go_layer_after_layer_over_all_files() -> None:
    assert layer_major(2, 4096, [8192, 4096]) == [
        (0, 4096, 8192),
        (1, 4096, 8192),
        (0, 12288, 4096),
        (1, 12288, 4096),
    ]


# ---- the pipeline --------------------------------------------------------------------------------


def test_the_bound_is_what_a_two_stage_pipeline_takes() -> None:
    loads, computes = [3.0, 1.0, 4.0, 1.0], [2.0, 2.0, 1.0, 3.0]
    loaded = end = 0.0
    for load, compute in zip(loads, computes, strict=True):
        loaded += load
        end = max(end, loaded) + compute
    assert bound_s(loads, computes) == end


@pytest.mark.parametrize("compute_s", [0.0001, 0.004, 0.0079])
def test_at_the_bandwidth_needed_the_bound_is_the_target(compute_s: float) -> None:
    layers, layer_bytes = 61, 150_000_000
    gbps = needed_gbps(layer_bytes, layers, compute_s, 0.5)
    load_s = layer_bytes / gbps / 1e9
    assert bound_s([load_s] * layers, [compute_s] * layers) == pytest.approx(0.5)
    assert needed_gbps(layer_bytes, layers, 0.5 / layers, 0.5) == float("inf")


# ---- fio's JSON ----------------------------------------------------------------------------------


def result(job: Job) -> Result:
    counts = [0] * 24
    counts[3], counts[5] = 90, 10
    return Result(
        job=job,
        read=Side(100 << 20, 0.5, [0.2, 0.22, 0.21], counts, 0.01),
        write=Side(),
        share=Figures([0.9, 0.8, 1.0]),
        elapsed_s=0.5,
        user_s=0.1,
        system_s=0.2,
        kv={"blocks": 3},
    )


def keys(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        yield from value
        for inner in value.values():
            yield from keys(inner)
    if isinstance(value, list):
        for inner in value:
            yield from keys(inner)


def test_json_has_fios_keys_and_one_share() -> None:
    document = json.loads(
        json.dumps(fio_json.document([result(job) for job in all_jobs()], {"x": "y"}, "c", "p"))
    )
    assert set(document) >= {"fio version", "timestamp", "timestamp_ms", "time", "jobs"}
    for job in document["jobs"]:
        assert set(job) >= FIO_JOB
        assert set(job["job options"]) >= {"name", "rw", "bs", "iodepth", "numjobs"}
        assert all(set(job[side]) >= FIO_SIDE for side in ("read", "write", "trim"))
        assert job["ceiling_share"] == 0.9
    assert {key for key in keys(document) if "share" in key} == {"ceiling_share"}


def test_numbers_of_a_side_agree_with_each_other() -> None:
    facts = fio_json.job_facts(result(Job("a")), 0)["read"]
    assert facts["bw_bytes"] == facts["io_bytes"] / 0.5 == (200 << 20)
    assert facts["iops"] == facts["total_ios"] / 0.5 == 200
    clat = facts["clat_ns"]
    assert clat["N"] == 100 and clat["mean"] == 100_000
    assert clat["percentile"]["90.000000"] == clat["min"] == 65536
    assert clat["percentile"]["99.000000"] == clat["max"] == 262144


def test_every_operation_is_in_one_bin_of_fios_distributions() -> None:
    facts = fio_json.job_facts(result(Job("a")), 0)
    assert facts["latency_us"]["100"] == 90.0  # at most 65.5 us
    assert facts["latency_us"]["500"] == 10.0  # at most 262 us
    assert list(facts["latency_ms"])[-2:] == ["2000", ">=2000"]
    units = [facts["latency_ns"], facts["latency_us"], facts["latency_ms"]]
    assert sum(sum(unit.values()) for unit in units) == 100.0
    every = fio_json.distributions([1] * 24)
    assert sum(sum(unit.values()) for unit in every.values()) == pytest.approx(100.0)
