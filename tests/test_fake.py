"""One contract, two stores: what `kvstore.testing.open_fake` gives behaves as the real store does.

Every test with the fixture `subject` runs over both, so the fake cannot drift; waiting and ends are
in test_fake_ends.py. What only the fake does (reasons to order, one layer that is held back, being
nasty) is in test_fake_faults.py.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

import kvstore
from kvstore import Miss, Pages, PoolTooSmall
from kvstore.testing import open_fake
from tests.support.stores import (
    BLOCK_TOKENS,
    cells_of,
    check_load,
    prompt,
    run,
    until,
    write,
)
from tests.support.subjects import Fake, K, Real, Subject, V, filled, layout, opened

BLOCKS = 21  # more than one extent of 16
pytestmark = pytest.mark.filterwarnings("ignore::kvstore.LayoutWarning")


@pytest.fixture(params=["fake", "real"])
def subject(request: pytest.FixtureRequest, tmp_path: Path) -> Subject:
    return Fake() if request.param == "fake" else Real(tmp_path / "kv")


# ---- looking up, loading ------------------------------------------------------------------------


def test_what_is_put_is_loaded_as_a_whole_and_in_parts(subject: Subject) -> None:
    with opened(subject) as store:
        kv = store.cache(layout())
        assert kv is store.cache(layout())
        assert kv.match(kv.keys(prompt(2))).reason == "absent"
        assert kv.match(kv.keys([])).reason is None
        kv, chain, cells = filled(store)
        hit = kv.match(chain)
        assert (hit.blocks, hit.reason, hit.tokens) == (BLOCKS, None, BLOCKS * BLOCK_TOKENS)
        with kv.load(hit) as load:
            check_load(load, cells, BLOCKS)
        with kv.load(hit[3:19]) as load:
            spans = load.wait(0).spans
            assert [(span.first_block, span.blocks) for span in spans] == [(3, 13), (16, 3)]
            assert load.wait(1).spans == []
            check_load(load, cells, 16)
            assert load.failed_blocks == range(19, 19)


def test_branches_salts_and_layouts(subject: Subject) -> None:
    with opened(subject) as store:
        kv, chain, _ = filled(store)
        ids = prompt(BLOCKS)
        branch = kv.match(kv.keys(ids[: 5 * BLOCK_TOKENS] + [1] * 99))
        assert (branch.blocks, branch.reason) == (5, "absent")
        assert kv.match(kv.keys(ids, salt=b"tenant")).blocks == 0
        other = layout(model="other")
        assert kv.match(chain, layouts=[other]).blocks == 0
        write(store.cache(other), chain[:2], cells_of(other, 2))
        assert kv.match(chain, layouts=[other]).blocks == 2
        with pytest.raises(ValueError, match="namespace"):
            store.cache(other).lease(kv.match(chain))
        foreign = kv.wrap([b"0123456789abcdef"] * 3)
        assert write(kv, foreign, cells_of(layout(), 3)) == 3
        assert kv.match(foreign).blocks == 3


def test_everything_works_in_an_event_loop(subject: Subject) -> None:
    async def scenario(store: kvstore.Store) -> None:
        kv = store.cache(layout())
        chain, cells = kv.keys(prompt(3)), cells_of(layout(), 3)
        async with kv.writer(chain) as writer:
            puts = [writer.put(i, range(3), part) for i, part in enumerate(cells) if part]
            assert await asyncio.gather(*puts) == [0, 0, 0]
            assert await writer.commit() == 3
        store.drop_ram()
        async with kv.load(await kv.find(chain)) as load:
            async for layer in load:
                for name, array in cells[layer.index].items():
                    assert np.array_equal(layer.gather(name), array)
            await load.drained
        assert await kv.prefetch(kv.match(chain)) == 3
        block = bytes(kv.layout.block_bytes)
        assert await kv.put(chain[1], block) and not isinstance(await kv.get(chain[2]), Miss)
        assert await kv.delete(chain[2]) == 1
        await store.flush()

    async def held(store: kvstore.Store) -> None:
        kv, chain, _ = filled(store, 3, seed=4)
        subject.hold_reads(store)
        load = kv.load(kv.match(chain))
        with pytest.raises(TimeoutError):
            await load.layer(0, timeout=0.01)
        waiting = [asyncio.create_task(load.layer(i)) for i in (0, 3)]
        await asyncio.sleep(0)
        subject.release()
        assert [layer.blocks for layer in await asyncio.gather(*waiting)] == [3, 3]
        load.close()

    with opened(subject) as store:
        run(held(store))
    with opened(subject) as store:
        run(scenario(store))


def test_pages_of_any_size_through_a_table_with_holes(subject: Subject) -> None:
    with opened(subject) as store:
        kv, chain, cells = filled(store, 4)
        for page_tokens in (4, BLOCK_TOKENS, 2 * BLOCK_TOKENS):
            pages = 4 * BLOCK_TOKENS // page_tokens
            table = list(range(pages, 0, -1))
            table[1] = -1
            sizes = {"k": K * page_tokens // BLOCK_TOKENS, "v": V * page_tokens // BLOCK_TOKENS}
            memory = [
                {name: np.full((pages + 2, 2, size), 7, np.uint8) for name, size in sizes.items()}
                for _ in range(4)
            ]
            into = Pages(
                [{name: array[:, 0] for name, array in parts.items()} for parts in memory],
                page_tokens=page_tokens,
                block_table=table,
            )
            memory[1] = {}
            into.parts = tuple(into.parts[i] if i != 1 else None for i in range(4))
            with kv.load(kv.match(chain), into=into) as load:
                assert [layer.blocks for layer in load] == [4] * 4
                assert load.wait_drained(30)
                with pytest.raises(ValueError, match="into"):
                    load.wait(0).gather("k")
            for parts, layer in zip(memory, cells, strict=True):
                for name, array in parts.items():
                    expected = np.full_like(array, 7)
                    for number, page in enumerate(layer[name].reshape(pages, -1)):
                        if table[number] >= 0:
                            expected[table[number], 0] = page
                    assert np.array_equal(array, expected)
        with pytest.raises(ValueError, match="table"):
            kv.load(kv.match(chain), into=Pages([None] * 4, block_table=[0]))


# ---- writing ------------------------------------------------------------------------------------


def test_only_a_commit_publishes_and_only_whole_extents(subject: Subject) -> None:
    with opened(subject) as store:
        kv = store.cache(layout())
        chain, cells = kv.keys(prompt(BLOCKS)), cells_of(layout(), BLOCKS)
        with kv.writer(chain) as writer:
            for layer in (3, 0, 2):
                here = {name: array[:18] for name, array in cells[layer].items()}
                assert writer.put(layer, (0, 18), here).wait() == 0
                other = {name: array[1:19] for name, array in cells[layer].items()}
                assert writer.put(layer, (0, 18), other).wait() == 0, "is there already"
            assert kv.match(chain).blocks == 0
            assert writer.commit_blocking() == 16
            assert writer.stats().blocks_dropped == 5
            with pytest.raises(ValueError, match="committed"):
                writer.put(0, (0, 1), [np.zeros((1, K), np.uint8), np.zeros((1, V), np.uint8)])
            with pytest.raises(ValueError, match="committed"):
                writer.commit_blocking()
        assert kv.match(chain).blocks == 16
        with kv.load(kv.match(chain)) as load:
            check_load(load, cells, 16)
        with kv.writer(chain) as writer:
            assert writer.stats().blocks_skipped == 16
        with pytest.raises(ValueError, match="aborted"):
            writer.commit_blocking()
        assert kv.match(chain).blocks == 16


def test_a_writer_that_starts_in_the_middle_and_one_that_goes_on(subject: Subject) -> None:
    with opened(subject) as store:
        kv = store.cache(layout())
        chain, cells = kv.keys(prompt(BLOCKS)), cells_of(layout(), BLOCKS)
        assert write(kv, chain, cells, start=5) == 16
        assert (kv.match(chain).blocks, kv.contains(chain[5])) == (0, True)
        with kv.writer(chain[:3]) as writer:
            writer.extend(chain[:5])
            for layer, parts in enumerate(cells):
                if parts:
                    writer.put(layer, (0, 5), {name: array[:5] for name, array in parts.items()})
            assert writer.commit_blocking() == 5
        with kv.load(kv.match(chain)) as load:
            check_load(load, cells, BLOCKS)
        with pytest.raises(ValueError, match="longer chain"):
            kv.writer(chain[:2]).extend(kv.keys(prompt(3, seed=9)))
        with pytest.raises(ValueError, match="retention class"):
            kv.writer(chain, retain="nobody named it")


def test_puts_that_are_refused_cost_only_their_blocks(subject: Subject) -> None:
    with opened(subject) as store:
        kv, chain, cells = filled(store, 3)
        subject.refuse_puts()
        other = kv.keys(prompt(3, seed=5))
        assert write(kv, other, cells) == 0
        assert kv.put_blocking(bytes(32), bytes(kv.layout.block_bytes)) is False
        assert (kv.match(other).blocks, kv.match(chain).blocks) == (0, 3)
        assert store.stats().dropped_blocks == 4
        subject.heal()
        assert write(kv, other, cells) == 3


def test_a_commit_that_is_held_back_publishes_later(subject: Subject) -> None:
    with opened(subject) as store:
        kv, _, cells = filled(store, 3)
        other = kv.keys(prompt(3, seed=5))
        subject.hold_commits()
        with kv.writer(other) as writer:
            for layer, parts in enumerate(cells):
                if parts:
                    writer.put(layer, range(3), parts)
            with pytest.raises(TimeoutError):
                writer.commit_blocking(timeout=0.01)
            assert kv.match(other).blocks == 0
        subject.release()
        until(lambda: kv.match(other).blocks == 3)


# ---- single blocks, forgetting ------------------------------------------------------------------


def test_single_blocks(subject: Subject) -> None:
    with opened(subject) as store:
        kv = store.cache(layout())
        data = np.random.default_rng(3).integers(0, 256, kv.layout.block_bytes, dtype=np.uint8)
        key = bytes(range(32))
        assert kv.get_blocking(key) == Miss("absent")
        assert kv.put_blocking(key, data)
        block = kv.get_blocking(key)
        assert not isinstance(block, Miss) and bytes(block) == data.tobytes()
        block.release()
        with pytest.raises(ValueError, match="released"):
            len(block)
        assert kv.contains(key) and kv.removed(key) is None
        assert (kv.delete_blocking(key), kv.delete_blocking(key)) == (1, 0)
        assert kv.get_blocking(key) == Miss("deleted")
        assert kv.removed(key).reason == "deleted"
        with pytest.raises(ValueError, match="32 bytes"):
            kv.put_blocking(key[1:], data)


def test_a_stale_hit_is_a_miss_with_its_reason(subject: Subject) -> None:
    with opened(subject) as store:
        kv, chain, cells = filled(store)
        hit = kv.match(chain)
        assert kv.delete_blocking(chain[18]) == 1
        with kv.load(hit) as load:
            assert [(layer.blocks, layer.reason) for layer in load] == [(16, "deleted")] * 4
            assert load.wait(3).reasons == {16: "deleted"}
            assert load.failed_blocks == range(16, BLOCKS)
        assert (kv.match(chain).blocks, kv.match(chain).reason) == (16, "deleted")
        assert write(kv, chain, cells) == BLOCKS
        stats = store.stats()
        assert (stats.loads_short, stats.loads_by_reason) == (1, {"deleted": 1})


def test_evicted_between_match_and_load(subject: Subject) -> None:
    with opened(subject) as store:
        kv, chain, _ = filled(store, 16)
        hit = kv.match(chain)
        subject.evict(kv, chain)
        with kv.load(hit) as load:
            assert [(layer.blocks, layer.reason) for layer in load] == [(0, "evicted")] * 4
        assert kv.match(chain).reason == "evicted"


def test_what_is_leased_is_not_evicted(subject: Subject) -> None:
    with opened(subject) as store:
        kv, chain, cells = filled(store, 16)
        lease = kv.lease(kv.match(chain), owner="request")
        again = kv.lease(kv.match(chain), owner="request")
        lease.release()
        assert (lease.alive, again.alive, store.stats().leases) == (False, True, 1)
        with pytest.raises(ValueError, match="released"):
            kv.load(lease)
        subject.evict(kv, chain)
        with again, kv.load(again) as load:
            check_load(load, cells, 16)
        assert kv.match(chain).blocks == 16


def test_damage_ends_the_prefix_there_and_a_put_heals_it(subject: Subject) -> None:
    with opened(subject) as store:
        kv, chain, cells = filled(store)
        subject.damage(kv, chain, 18, layer=2)
        with kv.load(kv.match(chain)) as load:
            found = [(layer.blocks, layer.reason) for layer in load]
        assert found == [(BLOCKS, None)] * 2 + [(18, "damaged")] * 2
        hit = kv.match(chain)
        assert (hit.blocks, hit.reason) == (16, "damaged")
        assert store.stats().quarantined_extents == 1
        assert write(kv, chain, cells) == BLOCKS
        with kv.load(kv.match(chain)) as load:
            check_load(load, cells, BLOCKS)


def test_a_load_that_the_pool_cannot_hold_is_refused(subject: Subject) -> None:
    with opened(subject, pool=4 << 20) as store:
        many = 1100
        kv = store.cache(layout())
        one = kv.keys(prompt(1))
        write(kv, one, cells_of(layout(), 1))
        chain = kv.keys(prompt(many))
        hit = kvstore.Hit(
            namespace=kv.namespace, start=0, blocks=many, block_tokens=BLOCK_TOKENS, reason=None,
            keys=chain.keys,
        )  # fmt: skip
        with pytest.raises(PoolTooSmall) as error:
            kv.load(hit)
        assert error.value.needed > 4 << 20
        assert kv.match(one).blocks == 1


def test_counters_of_one_story_are_equal(subject: Subject) -> None:
    with opened(subject) as store:
        kv, chain, _ = filled(store)
        kv.match(kv.keys(prompt(2, seed=8)))
        store.drop_ram()
        for _ in range(2):
            with kv.load(kv.match(chain)) as load:
                load.wait(3)
        stats = store.stats()
        nbytes = BLOCKS * kv.layout.block_bytes
        assert stats.lookups == 3
        assert (stats.hit_blocks, stats.missed_blocks) == (2 * BLOCKS, 2)
        assert (stats.hit_tokens, stats.missed_tokens) == (2 * BLOCKS * 16, 2 * 16)
        assert stats.misses_by_reason == {"absent": 2}
        assert (stats.loads, stats.loads_short, stats.loads_running) == (2, 0, 0)
        assert (stats.disk_bytes, stats.ram_bytes) == (nbytes, nbytes)
        assert (stats.disk_tokens, stats.ram_tokens) == (BLOCKS * 16, BLOCKS * 16)
        assert (stats.puts_bytes, stats.written_bytes) == (nbytes, nbytes)
        assert (stats.published_extents, stats.extents, stats.blocks) == (2, 2, BLOCKS)
        assert store.info().roots[0].is_owner
        assert set(store.latency()) == set(kvstore._core.STAGES)


def test_the_fake_opens_like_the_real_one_in_a_loop() -> None:
    async def scenario() -> None:
        subject = Fake()
        async with open_fake(subject.disk) as store:
            filled(store, 1)
            async with open_fake(subject.disk, role="auto") as peer:
                assert not peer.info().roots[0].is_owner
        assert isinstance(store, kvstore.Store)
        again = await open_fake(subject.disk)
        assert again.stats().blocks == 1
        await again.close()

    run(scenario())
