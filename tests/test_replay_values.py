"""Large public traces against right values that were computed by another program.

The traces and `right_values.json` lie beside the checkout (shared/traces); where they do not, these
tests are skipped and the end of the run says so. Values are of one-block extents and to 1e-4, the
digits that were kept.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from kvstore.replay.result import Result
from kvstore.replay.run import Plan, replay
from kvstore.replay.traces import Options, Trace
from tests.support.traces import need_shared, ttl_hits

HOUR, DAY = 3600, 24 * 3600
FOREVER = {"agent": 10**8, "chat": 10**8}
CONVERSATION, SYNTHETIC = "mooncake_conversation", "mooncake_synthetic"
MINISWE, MAGAGENT = "lmcache_miniswe", "lmcache_magagent"
WEKA, WEKA_600 = "weka_sample_t0", "weka_sample_stagger600"
TRACES = {
    CONVERSATION: ("mooncake_conversation.jsonl.gz", Options()),
    SYNTHETIC: ("mooncake_synthetic.jsonl.gz", Options()),
    MINISWE: ("lmcache_agent_tokens.jsonl.gz", Options(only_set="miniswe")),
    MAGAGENT: ("lmcache_agent_tokens.jsonl.gz", Options(only_set="magagent")),
    WEKA: ("weka_sample.jsonl.gz", Options()),
    WEKA_600: ("weka_sample.jsonl.gz", Options(stagger_s=600)),
}


def trace_named(name: str) -> Trace:
    file, options = TRACES[name]
    return Trace(need_shared(file), options)


def right(name: str) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(Path(need_shared("right_values.json")).read_text())
    found: dict[str, Any] = values[name]
    return found


def run(name: str, **plan: Any) -> Result:
    return replay(trace_named(name), Plan(**({"ttl_s": FOREVER, "extent_blocks": 1} | plan)))


def check(found: float, wanted: float) -> None:
    assert abs(found - wanted) <= 1e-4, f"{found:.5f} instead of {wanted}"


def slow(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.slow)


# ---- capacity ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "shares"),
    [
        (MINISWE, ["1%", "5%", "10%", "25%", "50%", "100%"]),
        (MAGAGENT, ["1%", "5%", "10%", "25%", "50%", "100%"]),
        (SYNTHETIC, ["1%", "50%"]),
        slow(SYNTHETIC, ["5%", "10%", "25%", "100%"]),
        slow(CONVERSATION, ["1%", "5%", "10%", "25%", "50%", "100%"]),
        slow(WEKA, ["10%", "50%"]),
        slow(WEKA_600, ["1%", "5%"]),
    ],
)
def test_hit_rates_at_a_share_of_the_blocks(name: str, shares: list[str]) -> None:
    wanted = right(name)
    for share in shares:
        capacity = max(1, round(int(share[:-1]) / 100 * wanted["unique_blocks"]))
        result = run(name, capacity_blocks=capacity)
        check(result.hit_rate_tokens, wanted["lru_hit_rate"][share])
        assert result.unique_blocks == wanted["unique_blocks"]
        assert result.block_refs == wanted["block_refs"]
        assert (result.requests, result.input_tokens) == (
            wanted["requests"],
            wanted["input_tokens"],
        )
        check(result.ideal_hit_rate_tokens, wanted["ideal_hit_rate"])


@pytest.mark.parametrize("name", [MAGAGENT, slow(MINISWE), slow(SYNTHETIC), slow(CONVERSATION)])
def test_the_curve_is_the_stores_own_lru_at_five_capacities(name: str) -> None:
    curve = run(name, curve=True).curve
    assert curve is not None and len(curve) >= 8
    for point in curve[1:6]:
        result = run(name, capacity_blocks=point.capacity_blocks)
        assert result.hit_rate_tokens == point.hit_rate_tokens


@pytest.mark.parametrize("name", [MAGAGENT, SYNTHETIC, slow(CONVERSATION), slow(WEKA)])
def test_curve_and_gaps_of_the_trace(name: str) -> None:
    wanted, result = right(name), run(name, curve=True)
    rates = {round(100 * point.share_of_unique): point for point in result.curve or []}
    for share in ("1%", "5%", "10%", "25%", "50%", "100%"):
        check(rates[int(share[:-1])].hit_rate_tokens, wanted["lru_hit_rate"][share])
    for quantile in ("p50", "p90", "p99"):
        assert abs(result.reuse_gap_s[quantile] - wanted["reuse_gap_s"][quantile]) <= 0.051
    shares = wanted["reuse_gap_share"]
    for mine, theirs in zip(result.reuse_gap_share.values(), shares.values(), strict=True):
        check(mine, theirs)


# ---- time to live --------------------------------------------------------------------------------


def lost(result: Result) -> float:
    return 1 - result.hit_rate_tokens / result.ideal_hit_rate_tokens


@pytest.mark.parametrize("name", [SYNTHETIC, MAGAGENT, slow(CONVERSATION), slow(WEKA)])
@pytest.mark.parametrize(("speed", "ttl"), [(72, "1h"), (336, "30m")])
def test_three_and_seven_days_on_a_faster_clock(name: str, speed: int, ttl: str) -> None:
    """3 d at x72 is 1 h of the trace, 7 d at x336 is 30 m."""
    days = 3 if speed == 72 else 7
    result = run(name, ttl_s={"agent": days * DAY, "chat": days * DAY}, speed=speed)
    check(lost(result), right(name)["hits_lost_sliding_ttl"][ttl])


@pytest.mark.parametrize("name", [SYNTHETIC, MAGAGENT, slow(CONVERSATION), slow(WEKA_600)])
def test_five_minutes_slide(name: str) -> None:
    """The right values take a use at the very end as in time, the store's time to live ends with
    that second: one second more of the fast clock, a seventieth of the trace's."""
    ttl_s = 72 * 300 + 1
    result = run(name, ttl_s={"agent": ttl_s, "chat": ttl_s}, speed=72)
    check(lost(result), right(name)["hits_lost_sliding_ttl"]["5m"])


@pytest.mark.parametrize("name", [SYNTHETIC, MAGAGENT])
def test_a_time_to_live_counted_from_the_write_would_not_pass(name: str) -> None:
    wanted, requests = right(name), list(trace_named(name))
    total = sum(request.input_tokens for request in requests)
    ideal = wanted["ideal_hit_rate"]
    sliding = 1 - ttl_hits(requests, 300, sliding=True) / total / ideal
    from_write = 1 - ttl_hits(requests, 300, sliding=False) / total / ideal
    check(from_write, wanted["hits_lost_fixed_ttl"]["5m"])
    check(sliding, wanted["hits_lost_sliding_ttl"]["5m"])
    with pytest.raises(AssertionError):
        check(from_write, wanted["hits_lost_sliding_ttl"]["5m"])


# ---- what larger extents cost --------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", [SYNTHETIC, CONVERSATION])
def test_larger_extents_cost_little_at_a_tenth_of_the_blocks(name: str) -> None:
    wanted = right(name)
    capacity = round(0.1 * wanted["unique_blocks"])
    for blocks in (16, 64):
        result = run(name, capacity_blocks=capacity, extent_blocks=blocks)
        assert result.one_block_extents is not None
        check(result.one_block_extents.hit_rate_tokens, wanted["lru_hit_rate"]["10%"])
        cost = result.one_block_extents.hit_rate_tokens - result.hit_rate_tokens
        assert 0 <= cost < (0.005 if blocks == 16 else 0.007)
