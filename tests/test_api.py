"""The public API end to end on real files: what was put comes back, everything else is a miss."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import kvstore
from kvstore import Hit, Layout, Miss, Pages, StoreClosed
from tests.support.stores import (
    BLOCK_TOKENS,
    LAYERS,
    PART_BYTES,
    POOL,
    cells_of,
    check_load,
    layout,
    opened,
    prompt,
    run,
    two_part_layout,
    until,
    write,
)

BLOCKS = 21  # more than one extent of 16


@pytest.fixture(params=["auto", "threads"])
def store(tmp_path: Path, request: pytest.FixtureRequest) -> Any:
    with opened(tmp_path / "kv", engine=request.param) as store:
        yield store


@pytest.mark.parametrize("make", [layout, two_part_layout])
def test_what_was_put_is_loaded_again(store: kvstore.Store, make: Any) -> None:
    kv = store.cache(make())
    chain = kv.keys(prompt(BLOCKS))
    cells = cells_of(kv.layout, BLOCKS)
    assert kv.match(chain).blocks == 0
    assert write(kv, chain, cells) == BLOCKS
    for _ in range(2):
        hit = kv.match(chain)
        assert (hit.blocks, hit.reason, hit.tokens) == (BLOCKS, None, BLOCKS * BLOCK_TOKENS)
        with kv.load(hit) as load:
            check_load(load, cells, BLOCKS)
        store.drop_ram()


def test_everything_works_in_an_event_loop(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with kvstore.open(tmp_path / "kv", pool=POOL) as store:
            kv = store.cache(layout())
            chain = kv.keys(prompt(BLOCKS))
            cells = cells_of(kv.layout, BLOCKS)
            async with kv.writer(chain) as writer:
                handles = [
                    writer.put(layer, range(BLOCKS), cells[layer]) for layer in range(LAYERS)
                ]
                assert await asyncio.gather(*handles) == [0] * LAYERS
                assert await writer.commit() == BLOCKS
            store.drop_ram()
            hit = await kv.find(chain)
            assert hit.blocks == BLOCKS
            async with kv.load(hit) as load:
                seen = []
                async for layer in load:
                    seen.append(layer.index)
                    assert np.array_equal(layer.gather("latent"), cells[layer.index]["latent"])
                assert seen == list(range(LAYERS))
                await load.drained
            assert await kv.delete(chain[0]) == 1
            await store.flush()

    run(scenario())


def test_a_store_can_be_awaited_and_closed(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = await kvstore.open(tmp_path / "kv", pool=POOL)
        assert store.info().roots[0].path == str(tmp_path / "kv")
        await store.close()
        await store.close()
        with pytest.raises(StoreClosed):
            store.stats()

    run(scenario())


def test_a_part_of_a_hit_loads_its_own_blocks(store: kvstore.Store) -> None:
    kv = store.cache(layout())
    chain = kv.keys(prompt(BLOCKS))
    cells = cells_of(kv.layout, BLOCKS)
    write(kv, chain, cells)
    part = kv.match(chain)[3:19]
    assert (part.start, part.blocks, part.end) == (3, 16, 19)
    with kv.load(part) as load:
        check_load(load, cells, 16)
    with kv.load(part[1:2]) as load:
        layer = load.wait(0)
        assert [(span.first_block, span.blocks) for span in layer.spans] == [(4, 1)]


def test_a_prompt_that_branches_hits_up_to_the_branch(store: kvstore.Store) -> None:
    kv = store.cache(layout())
    ids = prompt(BLOCKS)
    cells = cells_of(kv.layout, BLOCKS)
    write(kv, kv.keys(ids), cells)
    branched = ids[: 5 * BLOCK_TOKENS] + [1] * (16 * BLOCK_TOKENS)
    hit = kv.match(kv.keys(branched))
    assert hit.blocks == 5
    assert hit.reason is not None
    changed_first = [ids[0] + 1, *ids[1:]]
    assert kv.match(kv.keys(changed_first)).blocks == 0
    with kv.load(hit) as load:
        check_load(load, cells, 5)


def test_a_hit_travels_between_processes_as_bytes(store: kvstore.Store) -> None:
    kv = store.cache(layout())
    chain = kv.keys(prompt(3))
    cells = cells_of(kv.layout, 3)
    write(kv, chain, cells)
    hit = msgspec.msgpack.decode(msgspec.msgpack.encode(kv.match(chain)), type=Hit)
    assert hit == kv.match(chain)
    with kv.load(hit) as load:
        check_load(load, cells, 3)


def test_salts_layouts_and_stores_keep_caches_apart(store: kvstore.Store) -> None:
    kv = store.cache(layout())
    ids = prompt(2)
    write(kv, kv.keys(ids), cells_of(kv.layout, 2))
    other = store.cache(layout(model="other"))
    assert kv.match(kv.keys(ids, salt=b"tenant")).blocks == 0
    assert other.match(other.keys(ids)).blocks == 0
    assert kv.match(kv.keys(ids), layouts=[other.layout]).blocks == 0
    write(other, other.keys(ids)[:1], cells_of(other.layout, 1))
    both = kv.match(kv.keys(ids), layouts=[other.layout])
    assert (both.blocks, both.reason, both.namespace) == (1, "absent", kv.namespace)
    with pytest.raises(ValueError, match="namespace"):
        other.lease(kv.match(kv.keys(ids)))


def test_a_store_remembers_after_it_was_closed(tmp_path: Path) -> None:
    cells = cells_of(layout(), BLOCKS)
    with opened(tmp_path) as store:
        kv = store.cache(layout())
        write(kv, kv.keys(prompt(BLOCKS)), cells)
    with opened(tmp_path) as store:
        kv = store.cache(layout())
        hit = kv.find_blocking(kv.keys(prompt(BLOCKS)))
        assert hit.blocks == BLOCKS
        with kv.load(hit) as load:
            check_load(load, cells, BLOCKS)


def test_loads_into_caller_memory_write_its_pages_and_nothing_else(store: kvstore.Store) -> None:
    kv = store.cache(two_part_layout())
    chain = kv.keys(prompt(BLOCKS))
    cells = cells_of(kv.layout, BLOCKS)
    write(kv, chain, cells)
    page_tokens, gap = 8, 64
    table = np.random.default_rng(5).permutation(2 * BLOCKS + 4)[: 2 * BLOCKS].astype(np.int32)
    table[6] = -1
    parts = []
    for layer in kv.layout.parts_by_layer:
        memory = {}
        for name, size in layer:
            page = size * page_tokens // BLOCK_TOKENS
            whole = np.full((2 * BLOCKS + 4, page + gap), 0xAB, dtype=np.uint8)
            memory[name] = whole[:, :page]
        parts.append(memory)
    pages = Pages(parts, page_tokens=page_tokens, block_table=table)
    with kv.load(kv.match(chain), into=pages) as load:
        for layer in load:
            assert (layer.blocks, layer.reason, layer.spans) == (BLOCKS, None, [])
        assert load.wait_drained("30s")
    for layer_parts, expected in zip(parts, cells, strict=True):
        for name, memory_view in layer_parts.items():
            base = memory_view.base
            assert base is not None
            wanted = np.full_like(base, 0xAB)
            pieces = expected[name].reshape(2 * BLOCKS, -1)
            for local, page in enumerate(table):
                if page >= 0:
                    wanted[page, : pieces.shape[1]] = pieces[local]
            assert np.array_equal(base, wanted)


def test_contiguous_arrays_are_filled_in_place(store: kvstore.Store) -> None:
    kv = store.cache(layout())
    chain = kv.keys(prompt(BLOCKS))
    cells = cells_of(kv.layout, BLOCKS)
    write(kv, chain, cells)
    token_bytes = PART_BYTES // BLOCK_TOKENS
    arrays = [np.zeros((BLOCKS * BLOCK_TOKENS, token_bytes), np.uint8) for _ in range(LAYERS)]
    with kv.load(kv.match(chain), into=Pages.contiguous({"latent": arrays})) as load:
        assert load.wait(LAYERS - 1).blocks == BLOCKS
        with pytest.raises(ValueError, match="into"):
            load.wait(0).gather("latent")
    for layer, array in enumerate(arrays):
        assert np.array_equal(array.reshape(BLOCKS, -1), cells[layer]["latent"])


def test_single_blocks_are_put_got_and_deleted(store: kvstore.Store) -> None:
    kv = store.cache(two_part_layout())
    key = kv.wrap([b"k" * 16])[0]
    data = np.random.default_rng(3).integers(0, 256, kv.layout.block_bytes, dtype=np.uint8)
    assert not kv.contains(key)
    assert kv.get_blocking(key) == Miss("absent")
    assert kv.put_blocking(key, data)
    assert kv.put_blocking(key, data), "what is resident counts as stored"
    assert kv.contains(key)
    store.drop_ram()
    block = kv.get_blocking(key)
    assert isinstance(block, kvstore.Block)
    assert bytes(block) == data.tobytes()
    block.release()
    with pytest.raises(ValueError, match="released"):
        bytes(block)
    assert kv.delete_blocking(key) == 1
    assert not kv.contains(key)
    missed = kv.get_blocking(key)
    assert isinstance(missed, Miss)
    assert not missed
    with pytest.raises(ValueError, match="bytes"):
        kv.put_blocking(key, data[1:])
    with pytest.raises(ValueError, match="key"):
        kv.get_blocking(b"short")


def test_a_put_into_a_deleted_place_is_a_hit_again(store: kvstore.Store) -> None:
    kv = store.cache(layout())
    chain = kv.keys(prompt(2))
    cells = cells_of(kv.layout, 2)
    write(kv, chain, cells)
    assert kv.delete_blocking(chain[1]) == 1
    assert kv.match(chain).reason == "deleted"
    assert write(kv, chain, cells) == 2
    assert kv.match(chain).blocks == 2


def test_a_second_load_of_a_hot_prefix_reads_nothing(store: kvstore.Store) -> None:
    kv = store.cache(layout())
    chain = kv.keys(prompt(BLOCKS))
    cells = cells_of(kv.layout, BLOCKS)
    write(kv, chain, cells)
    store.drop_ram()
    assert kv.prefetch_blocking(kv.match(chain)) == BLOCKS
    with kv.load(kv.match(chain)) as load:
        check_load(load, cells, BLOCKS)
        stats = load.stats()
    assert (stats.reads, stats.disk_bytes) == (0, 0)
    assert stats.ram_bytes == BLOCKS * kv.layout.block_bytes


def test_a_writer_publishes_nothing_before_commit(store: kvstore.Store) -> None:
    kv = store.cache(layout())
    chain = kv.keys(prompt(2))
    cells = cells_of(kv.layout, 2)
    with kv.writer(chain) as writer:
        for layer in range(LAYERS):
            writer.put(layer, (0, 2), cells[layer]).wait("30s")
        assert kv.match(chain).blocks == 0
    assert kv.match(chain).blocks == 0, "a writer that was not committed aborts"
    assert writer.stats().extents <= 1
    with pytest.raises(ValueError, match="closed"):
        writer.put(0, (0, 2), cells[0])


def test_cells_may_be_put_in_any_order_and_the_first_put_counts(store: kvstore.Store) -> None:
    kv = store.cache(layout())
    chain = kv.keys(prompt(BLOCKS))
    cells = cells_of(kv.layout, BLOCKS)
    with kv.writer(chain) as writer:
        for first, end in ((10, BLOCKS), (0, 10)):
            for layer in reversed(range(LAYERS)):
                writer.put(layer, (first, end), [cells[layer]["latent"][first:end]])
        writer.put(0, (0, BLOCKS), [np.zeros((BLOCKS, PART_BYTES), np.uint8)])
        assert writer.commit_blocking() == BLOCKS
        with pytest.raises(ValueError, match="committed"):
            writer.commit_blocking()
    store.drop_ram()
    with kv.load(kv.match(chain)) as load:
        check_load(load, cells, BLOCKS)


def test_a_writer_goes_on_with_a_longer_chain(store: kvstore.Store) -> None:
    kv = store.cache(layout())
    ids = prompt(BLOCKS)
    chain = kv.keys(ids)
    cells = cells_of(kv.layout, BLOCKS)
    with kv.writer(chain[:18]) as writer:
        for layer in range(LAYERS):
            writer.put(layer, (0, 18), {"latent": cells[layer]["latent"][:18]})
        with pytest.raises(ValueError, match="begin with"):
            writer.extend(kv.keys(ids[1:] + [1] * BLOCK_TOKENS))
        writer.extend(chain)
        for layer in range(LAYERS):
            writer.put(layer, (18, BLOCKS), {"latent": cells[layer]["latent"][18:]})
        assert writer.commit_blocking() == BLOCKS
    store.drop_ram()
    with kv.load(kv.match(chain)) as load:
        check_load(load, cells, BLOCKS)


def test_a_missing_cell_ends_what_commit_publishes(store: kvstore.Store) -> None:
    kv = store.cache(layout())
    chain = kv.keys(prompt(BLOCKS))
    cells = cells_of(kv.layout, BLOCKS)
    with kv.writer(chain) as writer:
        for layer in range(LAYERS):
            end = BLOCKS if layer else 20
            writer.put(layer, (0, end), {"latent": cells[layer]["latent"][:end]})
        assert writer.commit_blocking() == 16
    assert kv.match(chain).blocks == 16


def test_a_commit_that_was_begun_goes_on_by_itself(store: kvstore.Store) -> None:
    """An engine's step asks for it and does not wait; the writer and the handle may be dropped."""
    kv = store.cache(layout())
    chain = kv.keys(prompt(BLOCKS))
    cells = cells_of(kv.layout, BLOCKS)
    writer = kv.writer(chain)
    for layer in range(LAYERS):
        writer.put(layer, range(BLOCKS), cells[layer])
    assert writer.begin_commit().wait("30s") == BLOCKS
    other = kv.keys(prompt(BLOCKS, seed=1))
    writer = kv.writer(other)
    for layer in range(LAYERS):
        writer.put(layer, range(BLOCKS), cells[layer])
    writer.begin_commit()
    assert writer.committed
    writer.abort()
    del writer
    until(lambda: kv.match(other).blocks == BLOCKS)


def test_a_hit_for_several_layouts_is_loaded_from_each(store: kvstore.Store) -> None:
    """A scheduler matches once for all ranks, each of which loads its own shard."""
    ranks = [store.cache(layout(rank=(rank, 2))) for rank in range(2)]
    chain = ranks[0].keys(prompt(BLOCKS))
    shards = [cells_of(kv.layout, BLOCKS, seed=number) for number, kv in enumerate(ranks)]
    for kv, cells in zip(ranks, shards, strict=True):
        write(kv, chain, cells)
    hit = ranks[0].match(chain, layouts=[ranks[1].layout])
    for kv, cells in zip(ranks, shards, strict=True):
        with kv.load(hit.of(kv.layout)) as load:
            check_load(load, cells, BLOCKS)
    with pytest.raises(ValueError, match="blocks of"):
        hit.of(Layout.mla(model="longer blocks", layers=8, block_tokens=2 * BLOCK_TOKENS))
