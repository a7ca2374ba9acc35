"""Usage in four vendors' words, ledgers, and money: the sums agree whatever the numbers."""

import datetime
import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvstore
from kvstore import Ledger, Price, Usage
from tests.support.stores import cells_of, check_load, layout, opened, prompt, write

requests = st.builds(
    kvstore.usage,
    prompt_tokens=st.integers(0, 300_000),
    hit_tokens=st.integers(0, 300_000),
    block_tokens=st.sampled_from([1, 16, 64, 128]),
    output_tokens=st.integers(0, 5_000),
    ram_share=st.floats(0, 1),
    stored_tokens=st.integers(0, 300_000),
)


@given(requests)
def test_hit_and_miss_make_the_prompt_in_every_vendors_words(used: Usage) -> None:
    prompt_tokens, hit = used.prompt_tokens, used.hit_tokens
    assert hit + used.miss_tokens == prompt_tokens
    assert hit < max(1, prompt_tokens)
    deepseek: Any = used.deepseek()
    assert (
        deepseek["prompt_cache_hit_tokens"] + deepseek["prompt_cache_miss_tokens"]
        == deepseek["prompt_tokens"]
        == prompt_tokens
    )
    openai: Any = used.openai()
    assert openai["prompt_tokens_details"]["cached_tokens"] == hit <= openai["prompt_tokens"]
    responses: Any = used.openai_responses()
    assert responses["input_tokens_details"]["cached_tokens"] == hit
    anthropic: Any = used.anthropic()
    three = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    assert sum(anthropic[name] for name in three) == prompt_tokens
    assert sum(anthropic["cache_creation"].values()) == anthropic["cache_creation_input_tokens"]
    assert min(anthropic[name] for name in three) >= 0
    gemini: Any = used.gemini()
    assert gemini["cachedContentTokenCount"] == hit <= gemini["promptTokenCount"] == prompt_tokens
    for words, total in ((openai, "total_tokens"), (gemini, "totalTokenCount")):
        assert words[total] == prompt_tokens + used.output_tokens


@pytest.mark.parametrize(
    ("prompt_tokens", "found", "hit"),
    [
        (1000, 1000, 960),  # the rest of the last block was computed
        (1000, 100, 64),  # whole blocks only
        (1000, 63, 0),
        (1024, 1024, 960),  # one token is computed always, so its block does not count
        (1025, 1024, 1024),
        (64, 64, 0),
        (0, 0, 0),
    ],
)
def test_hits_are_whole_blocks_and_leave_a_token_to_compute(
    prompt_tokens: int, found: int, hit: int
) -> None:
    assert kvstore.usage(prompt_tokens=prompt_tokens, hit_tokens=found).hit_tokens == hit


def test_impossible_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        kvstore.usage(prompt_tokens=-1, hit_tokens=0)
    with pytest.raises(ValueError, match="one token"):
        Usage(prompt_tokens=64, hit_tokens=64, disk_tokens=64)
    with pytest.raises(ValueError, match="tiers"):
        Usage(prompt_tokens=65, hit_tokens=64)
    with pytest.raises(ValueError, match="stored"):
        Usage(prompt_tokens=65, hit_tokens=64, disk_tokens=64, stored_tokens=2)
    with pytest.raises(ValueError, match="ttl"):
        Usage(prompt_tokens=65, hit_tokens=0).anthropic(ttl="3d")


def test_the_tier_of_a_hit_is_where_its_cells_came_from(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        kv = store.cache(layout())
        chain = kv.keys(prompt(4))
        cells = cells_of(kv.layout, 4)
        write(kv, chain, cells)
        shares = []
        for dropped in (False, True):
            if dropped:
                store.drop_ram()
            with kv.load(kv.match(chain)) as load:
                check_load(load, cells, 4)
                shares.append(kvstore.ram_share_of(load))
    assert shares == [1.0, 0.0]
    warm, cold = (
        kvstore.usage(prompt_tokens=69, hit_tokens=64, block_tokens=16, ram_share=share)
        for share in shares
    )
    assert (warm.ram_tokens, warm.disk_tokens) == (64, 0)
    assert (cold.ram_tokens, cold.disk_tokens) == (0, 64)


def test_a_ledger_sums_by_tenant_class_and_day_and_survives_a_file(tmp_path: Path) -> None:
    ledger = Ledger()
    days = [datetime.date(2026, 11, 29), datetime.date(2026, 11, 30)]
    used = kvstore.usage(prompt_tokens=1000, hit_tokens=640, output_tokens=7, stored_tokens=320)
    for tenant, retention, day in itertools.product("ab", ("agent", "chat"), days):
        ledger.add(used, tenant=tenant, retention=retention, day=day)
        ledger.add(used, tenant=tenant, retention=retention, day=day)
    assert len(list(ledger)) == 8
    assert ledger.total().requests == 16
    assert ledger.total(tenant="a", day="2026-11-29").prompt_tokens == 4000
    assert ledger.total(tenant="a", day=days[0]).prompt_tokens == 4000
    assert ledger.total(retention="chat").hit_rate == 0.64
    ledger.save(tmp_path / "ledger.json")
    assert list(Ledger.read(tmp_path / "ledger.json")) == list(ledger)
    (tmp_path / "ledger.json").write_text("[{}]")
    with pytest.raises(ValueError, match=r"ledger\.json is not a ledger"):
        Ledger.read(tmp_path / "ledger.json")


def test_a_moment_is_of_its_day() -> None:
    ledger = Ledger()
    moment = datetime.datetime(2026, 11, 29, 23, 59)
    ledger.add(kvstore.usage(prompt_tokens=64, hit_tokens=0), day=moment)
    assert [row.day for row in ledger] == ["2026-11-29"]
    assert ledger.total(day=moment).requests == 1


@given(requests, st.sampled_from(kvstore.PRICES), st.sampled_from(["5m", "1h"]))
def test_what_was_saved_is_what_it_would_have_cost_without_less_what_it_cost(
    used: Usage, price: Price, ttl: str
) -> None:
    with_cache = kvstore.money(used, price, ttl=ttl)
    none = kvstore.usage(prompt_tokens=used.prompt_tokens, hit_tokens=0)
    without = kvstore.money(none, price, ttl=ttl)
    paid = with_cache.hit + with_cache.miss + with_cache.stored
    assert with_cache.saved == pytest.approx(without.total - paid, abs=1e-9)


def test_prices_hold_from_their_day_on_and_say_where_they_were_read() -> None:
    before = kvstore.price_of("deepseek-v4-flash", datetime.date(2026, 8, 15))
    after = kvstore.price_of("deepseek-v4-flash")
    assert (before.ratio, after.ratio) == (pytest.approx(50), pytest.approx(50))
    assert before.miss < after.miss
    with pytest.raises(KeyError, match="there are claude"):
        kvstore.price_of("no-such-model")
    with pytest.raises(KeyError, match="2024-08-02"):
        kvstore.price_of("deepseek-chat", datetime.date(2020, 1, 1))
    for price in kvstore.PRICES:
        assert datetime.date.fromisoformat(price.since) and price.source
        assert 0 < price.hit < price.miss
        assert price.write_5m is None or price.hit < price.write_5m
