"""A replay finds what a plain model of the cache finds, simulated and on disk, and tells all of it.

The model is in tests/support/traces.py. Right values of large traces: test_replay_values.py.
"""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from kvstore import _core
from kvstore.replay.files import TraceError
from kvstore.replay.request import Request
from kvstore.replay.result import Result
from kvstore.replay.reuse import Reuse
from kvstore.replay.run import Plan, replay
from kvstore.replay.simulated import file_charges
from kvstore.replay.traces import Trace
from tests.support.traces import (
    LONG,
    SMALL,
    bailian_rows,
    lru_hits,
    mooncake_rows,
    token_sessions,
    ttl_hits,
    weka_sessions,
    write_lines,
)

ROWS = {
    "mooncake": mooncake_rows(400),
    "bailian": bailian_rows(),
    "weka": weka_sessions(),
    "tokens": token_sessions(),
}


@pytest.fixture(params=ROWS)
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return write_lines(tmp_path / "trace.jsonl", ROWS[request.param])


def requests_of(path: Path) -> list[Request]:
    return list(Trace(path))


def run(path: Path, **plan: Any) -> Result:
    return replay(Trace(path), Plan(**({"ttl_s": LONG, "extent_blocks": 1} | plan)))


def capacities(requests: list[Request]) -> list[int]:
    unique = len({int(block) for request in requests for block in request.blocks})
    return [1, 7, *(max(1, round(share * unique)) for share in (0.05, 0.2, 0.5)), unique]


# ---- against the model ---------------------------------------------------------------------------


def test_hits_are_those_of_the_model_at_every_capacity(path: Path) -> None:
    """Also where one prompt is larger than the whole cache: its head stays."""
    requests = requests_of(path)
    assert max(len(request.blocks) for request in requests) > 7
    for capacity in capacities(requests):
        result = run(path, capacity_blocks=capacity)
        assert result.hit_tokens == lru_hits(requests, capacity), f"{capacity} blocks"
        assert result.hit_tokens + result.missed_tokens == result.input_tokens
        assert result.blocks_stored - (result.evicted_blocks or 0) <= capacity


def test_the_curve_is_the_stores_own_lru(path: Path) -> None:
    requests = requests_of(path)
    reuse = Reuse(curve=True)
    for request in requests:
        reuse.add(request)
    for capacity in capacities(requests):
        result = run(path, capacity_blocks=capacity)
        assert reuse.hit_rate_at(capacity) == result.hit_rate_tokens, f"{capacity} blocks"
    assert reuse.hit_rate_at(10**9) == reuse.ideal_rate == run(path).hit_rate_tokens


@pytest.mark.parametrize("speed", [1.0, 336.0])
def test_a_time_to_live_slides_on_the_scaled_clock(speed: float, path: Path) -> None:
    """The model takes a use at the very end as in time; the store's time to live ends with that
    second, so it gets one second more here."""
    requests = requests_of(path)
    lasts = requests[-1].at_s - requests[0].at_s
    different = 0
    for ttl_s in (int(lasts / 20) + 1, int(lasts / 5) + 1):
        ttl = dict.fromkeys(LONG, round(ttl_s * speed) + 1)
        hits = run(path, ttl_s=ttl, speed=speed).hit_tokens
        if speed > 1 or all(request.at_s % 1 == 0 for request in requests):
            assert hits == ttl_hits(requests, ttl_s, sliding=True)
        different += hits != ttl_hits(requests, ttl_s, sliding=False)
    if len(requests) > 100:
        assert different, "a time to live counted from the write must not pass this test"


def test_expired_blocks_are_counted_and_their_misses_say_so(tmp_path: Path) -> None:
    rows = [{"timestamp": at, "input_length": 1024, "hash_ids": [1, 2]} for at in (0, 5000, 30_000)]
    result = run(write_lines(tmp_path / "t.jsonl", rows), ttl_s={"chat": 10})
    assert (result.hit_tokens, result.expired_blocks, result.expired_extents) == (1024, 2, 2)
    assert result.missed_blocks_by_reason == {"absent": 2, "expired": 2}
    assert (result.evicted_extents, result.blocks_stored) == (0, 4)


def test_larger_extents_leave_as_a_whole_and_the_cost_is_told(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "t.jsonl", ROWS["mooncake"])
    single = run(path, capacity_blocks=150)
    assert single.one_block_extents is None
    for blocks in (16, 64):
        result = run(path, capacity_blocks=150, extent_blocks=blocks)
        assert result.one_block_extents is not None
        assert result.one_block_extents.hit_rate_tokens == single.hit_rate_tokens
        assert result.hit_rate_tokens <= single.hit_rate_tokens
        assert result.evicted_extents < (result.evicted_blocks or 0)
        assert result.extent_blocks == blocks


def test_a_capacity_in_bytes_counts_whole_files(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "t.jsonl", ROWS["weka"])
    layout = msgspec.structs.replace(SMALL, extent_blocks=1)
    (one,) = file_charges(layout)
    assert one > layout.block_bytes
    in_bytes = run(path, capacity_bytes=40 * one + one // 2, layout=lambda *_: layout)
    in_blocks = run(path, capacity_blocks=40, layout=lambda *_: layout)
    assert in_bytes.hit_tokens == in_blocks.hit_tokens
    assert in_bytes.bytes_written == in_bytes.blocks_stored * layout.block_bytes


def test_second_hit_stores_what_was_seen_before(tmp_path: Path) -> None:
    rows = [
        {"timestamp": at, "input_length": 512 * len(ids), "hash_ids": ids}
        for at, ids in enumerate([[1, 2], [1, 3], [1, 3], [1, 3]])
    ]
    path = write_lines(tmp_path / "t.jsonl", rows)
    result = run(path, admission="second-hit")
    # 1 is stored with the second request, 3 with the third.
    assert (result.blocks_stored, result.hit_tokens) == (2, 512 + 1024)
    assert result.always_admitted is not None
    assert result.always_admitted.blocks_stored == 3
    assert result.always_admitted.hit_rate_tokens == run(path).hit_rate_tokens
    assert result.always_admitted.bytes_written == run(path).bytes_written


def test_a_write_budget_is_a_day_of_the_scaled_clock(tmp_path: Path) -> None:
    """A new block every hour and two a day: the first begins within the hour's share that a life
    begins with, and each takes twelve hours."""
    rows = [
        {"timestamp": hour * 3_600_000, "input_length": 512, "hash_ids": [hour]}
        for hour in range(48)
    ]
    path = write_lines(tmp_path / "t.jsonl", rows)
    block = run(path).block_bytes
    result = run(path, write_budget=2 * block)
    assert result.blocks_refused == {"first_offer": 0, "write_budget": 43}
    assert (result.blocks_stored, result.write_budget_bytes) == (5, 2 * block)
    assert result.always_admitted is not None and result.always_admitted.blocks_stored == 48
    assert run(path, write_budget=2 * block, speed=12.0).blocks_stored == 48


# ---- what a trace alone says ---------------------------------------------------------------------


def test_what_has_to_be_kept_for_a_time_is_the_peak_of_the_blocks_used_within_it(
    path: Path,
) -> None:
    requests = requests_of(path)
    seconds = [(requests[-1].at_s - requests[0].at_s) / share for share in (10, 3)]
    reuse = Reuse([*seconds, 1e9])
    for request in requests:
        reuse.add(request)
    for window in reuse.windows:
        peak, last = 0, dict[int, float]()
        for request in requests:
            last.update((int(block), request.at_s) for block in request.blocks)
            within = sum(at > request.at_s - window.seconds for at in last.values())
            peak = max(peak, within)
        assert window.peak_blocks == peak
    assert [window.left for window in reuse.windows] == [True, True, False]
    assert reuse.windows[-1].peak_blocks == reuse.unique_blocks


def test_gaps_are_weighted_by_tokens(tmp_path: Path) -> None:
    rows = [
        {"timestamp": at, "input_length": 512 * len(ids), "hash_ids": ids}
        for at, ids in [(0, [1, 2, 3]), (10_000, [1, 2, 3]), (100_000, [1])]
    ]
    result = run(write_lines(tmp_path / "t.jsonl", rows))
    assert result.reuse_gap_s == {"p50": 10.0, "p90": 90.0, "p99": 90.0}
    assert result.reuse_gap_share["<=1m"] == 0.75
    assert result.reuse_gap_share["1-10m"] == 0.25


def test_effective_retention_is_how_long_what_left_had_not_been_used(tmp_path: Path) -> None:
    """One new block every 10 s and room for five: each goes 50 s after its use."""
    rows = [
        {"timestamp": 10_000 * number, "input_length": 512, "hash_ids": [number]}
        for number in range(50)
    ]
    result = run(
        write_lines(tmp_path / "t.jsonl", rows), capacity_blocks=5, speed=72.0, retain="agent"
    )
    idle = result.classes["agent"].evicted_idle_s
    assert idle["p10"] == idle["p90"], idle
    assert 3600 * 7 / 8 <= idle["p50"] <= 3600, "50 s, 72 times, to an eighth of an octave"
    assert result.classes["agent"].evicted_before_ttl_extents == 45
    assert result.classes["agent"].requests == 50
    assert result.classes["chat"].requests == 0


def test_age_buckets_are_those_of_the_core() -> None:
    assert list(_core.AGE_BUCKETS[:12]) == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]
    assert list(_core.AGE_BUCKETS) == sorted(set(_core.AGE_BUCKETS))
    raw = _core.Replay([(b"a", 1)], np.ones(1, dtype=np.uint64).tobytes(), 1, 0, 0, 1).report()
    assert {len(ages) for ages in raw["evicted_idle"]} == {len(_core.AGE_BUCKETS)}
    assert len(raw["evicted_idle"]) == _core.CLASSES_MAX


def test_a_partial_block_counts_its_tokens_only(tmp_path: Path) -> None:
    row = {"timestamp": 0, "input_length": 700, "hash_ids": [1, 2]}
    result = run(write_lines(tmp_path / "t.jsonl", [row, row]), curve=True)
    assert result.hit_tokens == 700
    assert result.curve is not None
    assert [point.hit_rate_tokens for point in result.curve] == [512 / 1400, 700 / 1400]


def test_money_is_tokens_at_their_prices(tmp_path: Path) -> None:
    row = {"timestamp": 0, "input_length": 1_024, "hash_ids": [1, 2]}
    result = run(write_lines(tmp_path / "t.jsonl", [row] * 4), prices=(0.5, 2.0))
    assert result.money is not None
    assert result.money.with_hits == pytest.approx((3072 * 0.5 + 1024 * 2.0) / 1e6)
    assert result.money.without == pytest.approx(4096 * 2.0 / 1e6)
    assert result.money.saved == pytest.approx(result.money.without - result.money.with_hits)


def test_a_trace_has_one_block_size_and_at_least_one_request(tmp_path: Path) -> None:
    rows = [{"input_length": 64, "hash_ids": [1], "block_size": size} for size in (64, 32)]
    with pytest.raises(TraceError, match="64 tokens, and then of 32"):
        run(write_lines(tmp_path / "t.jsonl", rows))
    empty = [{"block_size": 64, "requests": []}]
    with pytest.raises(TraceError, match="no requests"):
        run(write_lines(tmp_path / "e.jsonl", empty))
    with pytest.raises(TraceError, match="sessions are empty"):
        run(write_lines(tmp_path / "s.jsonl", [{"t0_us": 0, "requests": []}]))


@pytest.mark.parametrize(("second_ms", "speed"), [(1e18, 1.0), (1e3, 1e300), (1.7e308, 1e9)])
def test_a_time_beyond_the_clock_is_refused(second_ms: float, speed: float, tmp_path: Path) -> None:
    rows = [{"timestamp": ms, "input_length": 64, "hash_ids": [1]} for ms in (0.0, second_ms)]
    with pytest.raises(TraceError, match="check its times"):
        run(write_lines(tmp_path / "t.jsonl", rows), speed=speed)


def test_runs_that_are_no_prefix_are_refused(tmp_path: Path) -> None:
    requests = [
        {"t": n, "in": 128, "b": runs} for n, runs in enumerate([[[1, 2]], [[9, 1], [2, 1]]])
    ]
    path = write_lines(tmp_path / "t.jsonl", [{"block_size": 64, "requests": requests}])
    with pytest.raises(TraceError, match="request 1: a block was used without what comes before"):
        run(path)
