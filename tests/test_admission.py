"""What is worth writing: the second offer of a block, and no more than a budget of bytes a day.

Refused blocks are misses with a reason and counted, never errors. The same code answers for
`kvstore replay`: tests/test_replay_real.py holds both against each other.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvstore
from kvstore import Cache, Chain, Store, _core
from kvstore.explain import Answer, Cause, explain_store
from kvstore.explain.prompt import prompt_of_ids
from kvstore.report import render
from kvstore.store import open_blocking
from kvstore.testing import START_WALL_S, Injection, VirtualClock
from tests.support.scrape import Scrape
from tests.support.stores import (
    BLOCK_TOKENS,
    POOL,
    cells_of,
    check_load,
    layout,
    opened,
    prompt,
    until,
    write,
)

LAYOUT = layout()
GRID = LAYOUT.blocks_per_extent
BLOCK = LAYOUT.block_bytes
DAY_S = 86_400
HOUR_S = 3_600
CELLS = cells_of(LAYOUT, 4 * GRID)


@contextmanager
def store_of(
    root: Path, clock: VirtualClock | None = None, **words: Any
) -> Iterator[tuple[Store, Cache]]:
    testing = Injection(clock=clock or VirtualClock(), manual_ticks=True)
    with opened(root, _testing=testing, **words) as store:
        until(lambda: not store.info().roots[0].warming)
        yield store, store.cache(LAYOUT)


def put(kv: Cache, blocks: int, seed: int = 0) -> int:
    """Blocks of prompt `seed` that are resident afterwards."""
    return put_chain(kv, kv.keys(prompt(blocks, seed)))


def put_chain(kv: Cache, chain: Chain) -> int:
    cells = [{name: array[: len(chain)] for name, array in parts.items()} for parts in CELLS]
    return write(kv, chain, cells)


def offered(kv: Cache, blocks: int, seed: int = 0) -> range:
    """What a writer of them would write; nothing is put."""
    with kv.writer(kv.keys(prompt(blocks, seed))) as writer:
        return writer.admitted


# ---- second hit ----------------------------------------------------------------------------------


def test_a_block_is_stored_at_its_second_offer_and_the_first_one_is_a_miss_with_a_reason(
    tmp_path: Path,
) -> None:
    with store_of(tmp_path, admission="second-hit") as (store, kv):
        chain = kv.keys(prompt(GRID))
        assert put(kv, GRID) == 0
        assert (kv.match(chain).blocks, kv.match(chain).reason) == (0, "refused")
        assert store.stats().refused_blocks == {"first_offer": GRID, "write_budget": 0}
        assert store.stats().dropped_blocks == 0
        assert put(kv, GRID) == GRID
        with kv.load(kv.match(chain)) as load:
            check_load(load, CELLS, GRID)
        assert store.info().admission == "second-hit"


def test_who_writes_layer_by_layer_knows_before_the_first_byte(tmp_path: Path) -> None:
    """And what is put all the same is not looked at: no copy, no pool, no device."""
    with store_of(tmp_path, admission="second-hit") as (store, kv):
        with kv.writer(kv.keys(prompt(GRID))) as writer:
            assert writer.admitted == range(0)
            assert writer.put(0, range(GRID), [CELLS[0]["latent"][:GRID]]).wait() == 0
            assert writer.commit_blocking() == 0
            stats = writer.stats()
        assert (stats.blocks_refused, stats.blocks_dropped, stats.blocks_admitted) == (GRID, 0, 0)
        seen = store.stats()
        assert (seen.puts_bytes, seen.written_bytes, seen.regions, seen.extents) == (0, 0, 0, 0)
        with kv.writer(kv.keys(prompt(GRID))) as writer:
            assert writer.admitted == range(GRID)


def test_prompts_that_share_a_beginning_store_it_and_no_more(tmp_path: Path) -> None:
    shared = GRID + 3
    with store_of(tmp_path, admission="second-hit") as (store, kv):
        one = kv.keys(prompt(2 * GRID))
        two = kv.keys(prompt(shared) + prompt(GRID, seed=9))
        assert put_chain(kv, one) == 0
        with kv.writer(two) as writer:
            assert writer.admitted == range(shared)
        assert put_chain(kv, two) == len(two), "the writer above offered all of it"
        assert kv.match(one).blocks == shared
        assert put_chain(kv, one) == 2 * GRID
        assert store.stats().refused_blocks["first_offer"] == 2 * GRID + GRID
        with kv.load(kv.match(one)) as load:
            check_load(load, CELLS, 2 * GRID)


def test_decode_goes_on_where_its_blocks_were_offered_before(tmp_path: Path) -> None:
    """Those of a first answer are refused, and written when the next turn offers them again."""
    with store_of(tmp_path, admission="second-hit") as (_, kv):
        short, long = kv.keys(prompt(GRID)), kv.keys(prompt(GRID + 5))
        offered(kv, GRID)
        with kv.writer(short) as writer:
            writer.extend(long)
            assert writer.admitted == range(GRID)
            for layer in range(LAYOUT.layers):
                writer.put(layer, range(len(long)), [CELLS[layer]["latent"][: len(long)]])
            assert writer.commit_blocking() == GRID
            assert writer.stats().blocks_refused == 5
        with kv.writer(short, start=GRID) as writer:
            writer.extend(kv.keys(prompt(GRID + 2)))
            writer.extend(long)  # the open extent grows by what is admitted
            writer.extend(kv.keys(prompt(GRID + 7)))
            assert writer.admitted == range(GRID, GRID + 5)
            for layer in range(LAYOUT.layers):
                writer.put(layer, range(GRID, GRID + 7), [CELLS[layer]["latent"][GRID : GRID + 7]])
            assert writer.commit_blocking() == 5
        assert kv.match(kv.keys(prompt(GRID + 7))).blocks == GRID + 5
        with kv.load(kv.match(long)) as load:
            check_load(load, CELLS, GRID + 5)


def test_a_single_block_too(tmp_path: Path) -> None:
    block = np.concatenate([CELLS[layer]["latent"][0] for layer in range(LAYOUT.layers)])
    with store_of(tmp_path, admission="second-hit") as (_, kv):
        key = kv.keys(prompt(1))[0]
        assert not kv.put_blocking(key, block)
        assert kv.get_blocking(key) == kvstore.Miss("refused")
        assert kv.put_blocking(key, block)
        found = kv.get_blocking(key)
        assert isinstance(found, kvstore.Block)
        with found:
            assert bytes(found) == block.tobytes()


def test_a_new_life_has_seen_nothing_and_keeps_what_is_stored(tmp_path: Path) -> None:
    with store_of(tmp_path, admission="second-hit") as (_, kv):
        put(kv, GRID)
        put(kv, GRID)
        put(kv, GRID, seed=1)
    with store_of(tmp_path, admission="second-hit") as (_, kv):
        assert kv.match(kv.keys(prompt(GRID))).blocks == GRID
        assert kv.match(kv.keys(prompt(GRID, 1))).reason == "refused", "as removed.ring has it"
        assert put(kv, GRID, seed=1) == 0
        assert put(kv, GRID, seed=1) == GRID


def random_keys(count: int, seed: int) -> bytes:
    return np.random.default_rng(seed).bytes(32 * count)


def test_offers_are_remembered_for_about_four_million_others_and_seldom_invented() -> None:
    charges = np.arange(1, 2, dtype=np.uint64).tobytes()
    replay = _core.Replay([(b"a", 10**6)], charges, 2**62, _core.ADMISSIONS["second-hit"], 0, 1)

    def known(keys: bytes) -> int:
        """How many of them were offered before; they are now."""
        ones = (keys[at : at + 32] for at in range(0, len(keys), 32))
        return sum(replay.request(0, key, 0)[2] for key in ones)

    assert known(random_keys(1000, seed=1)) == 0
    for seed in range(100, 104):  # a million others
        replay.request(0, random_keys(1 << 18, seed), 0)
    assert known(random_keys(1000, seed=1)) > 950
    known(random_keys(1000, seed=2))
    for seed in range(200, 240):  # ten million
        replay.request(0, random_keys(1 << 18, seed), 0)
    assert known(random_keys(1000, seed=2)) < 5
    assert known(random_keys(50_000, seed=3)) < 30, "8 in 65,535 are 6"


# ---- the write budget ----------------------------------------------------------------------------


def test_a_budget_begins_with_an_hour_and_grows_with_the_boot_clock(tmp_path: Path) -> None:
    """An hour's share is two blocks here. An extent that begins within it is written whole; what it
    took too much has to pass first."""
    clock = VirtualClock()
    with store_of(tmp_path, clock, write_budget=48 * BLOCK) as (store, kv):
        root = store.info().roots[0]
        assert (root.write_budget_bytes, root.write_budget_left_bytes) == (48 * BLOCK, 2 * BLOCK)
        assert put(kv, GRID) == GRID
        assert offered(kv, GRID, seed=1) == range(0)
        assert kv.match(kv.keys(prompt(GRID, 1))).reason == "refused"
        assert store.info().roots[0].write_budget_left_bytes == 0
        clock.step_wall(30 * DAY_S)
        assert offered(kv, GRID, seed=1) == range(0), "a step of the wall clock buys nothing"
        clock.advance((GRID - 2) / 2 * HOUR_S - 1)
        assert offered(kv, GRID, seed=1) == range(0)
        clock.advance(2)
        assert put(kv, GRID, seed=1) == GRID
        assert store.stats().refused_blocks == {"first_offer": 0, "write_budget": 3 * GRID}
        assert store.stats().written_bytes == 2 * GRID * BLOCK


def test_a_long_prompt_keeps_the_beginning_that_the_budget_allows(tmp_path: Path) -> None:
    with store_of(tmp_path, write_budget=24 * (GRID + 1) * BLOCK) as (_, kv):
        with kv.writer(kv.keys(prompt(4 * GRID))) as writer:
            assert writer.admitted == range(2 * GRID)
        assert put(kv, 4 * GRID) == 2 * GRID


def test_what_was_not_written_is_given_back(tmp_path: Path) -> None:
    with store_of(tmp_path, write_budget=48 * BLOCK) as (store, kv):
        for seed in range(5):
            assert offered(kv, GRID, seed) == range(GRID), "the writer before was aborted"
        assert store.info().roots[0].write_budget_left_bytes == 2 * BLOCK
        assert put(kv, GRID) == GRID
        assert offered(kv, GRID, seed=9) == range(0)


def test_idle_days_save_up_one_day_and_no_more(tmp_path: Path) -> None:
    clock = VirtualClock()
    with store_of(tmp_path, clock, write_budget=2 * GRID * BLOCK) as (_, kv):
        clock.advance(10 * DAY_S)
        assert [put(kv, GRID, seed) for seed in range(4)] == [GRID, GRID, GRID, 0]


def test_a_new_life_has_an_hours_share(tmp_path: Path) -> None:
    clock = VirtualClock()
    with store_of(tmp_path, clock, write_budget=48 * BLOCK) as (store, kv):
        clock.advance(10 * DAY_S)
        assert store.info().roots[0].write_budget_left_bytes == 48 * BLOCK
    with store_of(tmp_path, clock, write_budget=48 * BLOCK) as (store, _):
        assert store.info().roots[0].write_budget_left_bytes == 2 * BLOCK


def test_both_rules_together(tmp_path: Path) -> None:
    """The budget is spent on what was offered before, and an offer counts when it is refused."""
    words: dict[str, Any] = {"admission": "second-hit", "write_budget": 48 * BLOCK}
    with store_of(tmp_path, **words) as (store, kv):
        for seed in range(3):
            assert put(kv, GRID, seed) == 0
        assert store.info().roots[0].write_budget_left_bytes == 2 * BLOCK
        assert [put(kv, GRID, seed) for seed in range(3)] == [GRID, 0, 0]
        assert store.stats().refused_blocks == {
            "first_offer": 3 * GRID, "write_budget": 2 * GRID,
        }  # fmt: skip


# ---- who tells ---------------------------------------------------------------------------------


def test_metrics_tell_what_was_refused_and_what_may_be_written(tmp_path: Path) -> None:
    with store_of(tmp_path, admission="second-hit", write_budget=24 * BLOCK) as (store, kv):
        seen = Scrape(store)
        assert seen("kvstore_root_write_budget_bytes") == 24 * BLOCK
        assert seen("kvstore_root_write_budget_left_bytes") == BLOCK
        for seed in (0, 0, 1, 1):
            put(kv, GRID, seed)
        seen = Scrape(store)
        refused = seen.by("kvstore_refused_blocks_total", "reason")
        assert refused == {"first_offer": 2 * GRID, "write_budget": GRID}
        assert seen("kvstore_root_write_budget_left_bytes") == 0
        kv.match(kv.keys(prompt(GRID, 1)))
        assert seen("kvstore_dropped_blocks_total") == 0
        missed = Scrape(store).by("kvstore_missed_blocks_total", "reason")
        assert missed["refused"] == GRID


def test_explain_tells_it_where_nothing_else_explains_the_miss(tmp_path: Path) -> None:
    """A prompt that begins anew each time is refused each time: its cause is what changes."""
    short, longer = prompt(GRID), prompt(2 * GRID)
    changed = [*longer[:BLOCK_TOKENS], longer[BLOCK_TOKENS] + 1, *longer[BLOCK_TOKENS + 1 :]]
    with store_of(tmp_path, admission="second-hit") as (_, kv):
        chains = [kv.keys(ids) for ids in (short, short, longer, changed)]
        assert [put_chain(kv, chain) for chain in chains] == [0, GRID, GRID, 1]

    def told(ids: list[int]) -> Answer:
        asked = prompt_of_ids(ids, "asked", None)
        return explain_store([tmp_path], asked, now_s=START_WALL_S + 60).answers[0]

    answer = told(longer)
    assert (answer.cause, answer.hit_blocks, answer.lost_tokens) == (Cause.REFUSED, GRID, 0)
    assert "was never stored: admission or the write budget refused it" in answer.evidence
    assert answer.when_s is not None and "admission" in answer.advice
    assert told(changed).cause is not Cause.REFUSED


# ---- words ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "match"),
    [
        ({"admission": "never"}, "admission must be one of"),
        ({"write_budget": 0}, "larger than 0 bytes a day"),
        ({"write_budget": "1TB/s"}, "write_budget"),
        ({"write_budget": -5}, "write_budget"),
    ],
)
def test_words_that_make_no_sense_are_refused(
    words: dict[str, Any], match: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=match):
        open_blocking(tmp_path, pool=POOL, **words)


def test_info_in_words(tmp_path: Path) -> None:
    with store_of(tmp_path, admission="second-hit", write_budget="1TB/day") as (store, _):
        assert store.info().roots[0].write_budget_bytes == 10**12
        text = render(store.info())
    assert "at most 1 TB a day, 41.7 GB of it now" in text
    assert "admit second-hit" in text
