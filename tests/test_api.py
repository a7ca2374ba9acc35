"""The public API end to end on real files: what was put comes back, everything else is a miss."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import kvstore
from kvstore import Hit, Miss, OpenError, Pages, PoolTooSmall, StoreClosed
from kvstore.chain import KEY_BYTES
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
                    writer.put(layer, range(0, BLOCKS), cells[layer]) for layer in range(LAYERS)
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


def test_cells_may_be_put_in_any_order_and_only_once(store: kvstore.Store) -> None:
    kv = store.cache(layout())
    chain = kv.keys(prompt(BLOCKS))
    cells = cells_of(kv.layout, BLOCKS)
    with kv.writer(chain) as writer:
        for first, end in ((10, BLOCKS), (0, 10)):
            for layer in reversed(range(LAYERS)):
                writer.put(layer, (first, end), [cells[layer]["latent"][first:end]])
        with pytest.raises((ValueError, OSError)):
            writer.put(0, (0, 1), [cells[0]["latent"][:1]])
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


def test_leases_are_idempotent_per_owner_and_end_by_release(store: kvstore.Store) -> None:
    kv = store.cache(layout())
    chain = kv.keys(prompt(2))
    write(kv, chain, cells_of(kv.layout, 2))
    hit = kv.match(chain)
    with kv.lease(hit, owner="request", retain="agent") as lease:
        again = kv.lease(hit, owner="request")
        assert store.stats().leases == 1
        assert lease.alive
        again.release()
        assert lease.alive
        other = kv.lease(hit, owner="x" * 300)
        assert store.stats().leases == 2
        other.release()
    assert not lease.alive
    assert store.stats().leases == 0
    with pytest.raises(ValueError, match="released"):
        kv.load(lease)


def test_misuse_is_refused_before_anything_happens(store: kvstore.Store) -> None:
    kv = store.cache(layout())
    chain = kv.keys(prompt(2))
    with pytest.raises(ValueError, match="retention class 'forever'"):
        kv.writer(chain, retain="forever")
    with pytest.raises(ValueError, match="empty"):
        kv.lease(kv.match(chain))
    with pytest.raises(ValueError, match="blocks of 8 tokens"):
        kv.match(kvstore.Chain(bytes(KEY_BYTES), 8))
    with kv.writer(chain, start=1) as writer:
        for blocks in ((0, 1), (1, 3), (2, 2), range(0, 2), range(0, 4, 2)):
            with pytest.raises(ValueError, match="block"):
                writer.put(0, blocks, [np.zeros((1, PART_BYTES), np.uint8)])
        with pytest.raises(IndexError):
            writer.put(LAYERS, (1, 2), [np.zeros((1, PART_BYTES), np.uint8)])


def test_a_layer_too_large_for_the_pool_is_refused_with_the_size_needed(tmp_path: Path) -> None:
    with opened(tmp_path, pool="8MiB") as store:
        kv = store.cache(layout())
        hit = Hit(
            namespace=kv.namespace,
            start=0,
            blocks=200,
            block_tokens=BLOCK_TOKENS,
            reason=None,
            keys=kv.keys(prompt(200)).keys,
        )
        with pytest.raises(PoolTooSmall) as caught:
            kv.load(hit)
        assert 200 * PART_BYTES < caught.value.needed < 400 * PART_BYTES


def test_a_cancelled_load_says_so_and_keeps_what_was_delivered(store: kvstore.Store) -> None:
    kv = store.cache(layout())
    chain = kv.keys(prompt(BLOCKS))
    cells = cells_of(kv.layout, BLOCKS)
    write(kv, chain, cells)
    with kv.load(kv.match(chain)) as load:
        first = load.wait(0)
        load.cancel()
        last = load.wait(LAYERS - 1)
        assert last.reason in (None, "cancelled")
        assert np.array_equal(first.gather("latent"), cells[0]["latent"])
        if last.reason:
            assert load.failed_blocks == range(0, BLOCKS)
            assert last.reasons == {0: "cancelled"}
    with pytest.raises(ValueError, match="closed"):
        load.wait(0)


def test_a_released_layer_hands_out_no_views(store: kvstore.Store) -> None:
    kv = store.cache(layout())
    chain = kv.keys(prompt(2))
    write(kv, chain, cells_of(kv.layout, 2))
    with kv.load(kv.match(chain)) as load:
        layer = load.wait(1)
        assert not layer.spans[0].cells.flags.writeable
        copy = layer.gather("latent", dtype=np.uint32)
        assert copy.shape == (2, PART_BYTES // 4)
        layer.release()
        layer.release()
        with pytest.raises(ValueError, match="released"):
            _ = layer.spans
        with pytest.raises(ValueError, match="released"):
            _ = load.wait(1).spans
        with pytest.raises(IndexError):
            load.wait(LAYERS)


def test_a_closed_store_says_so_everywhere(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        kv = store.cache(layout())
        chain = kv.keys(prompt(2))
        write(kv, chain, cells_of(kv.layout, 2))
        hit = kv.match(chain)
        lease = kv.lease(hit)
    calls = [
        store.stats, store.info, store.tick, store.drop_ram, store.flush_blocking,
        lambda: store.cache(layout(model="new")), lambda: kv.match(chain),
        lambda: kv.find_blocking(chain), lambda: kv.contains(chain[0]), lambda: kv.load(lease),
        lambda: kv.lease(hit), lambda: kv.writer(chain), lambda: kv.get_blocking(chain[0]),
        lambda: kv.delete_blocking(chain[0]),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(StoreClosed):
            call()
    store.close_blocking()


def test_a_second_owner_is_refused_and_a_peer_is_not(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        with pytest.raises(OpenError, match=r"(?s)\S{20}"):
            kvstore.open_blocking(tmp_path, pool=POOL)
        assert store.info().roots[0].is_owner


def test_a_directory_that_cannot_be_made_is_an_open_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OpenError, match="file"):
        kvstore.open_blocking(tmp_path / "file", pool=POOL)


@pytest.mark.parametrize(
    "words",
    [
        {"role": "boss"}, {"engine": "aio"}, {"pool": "0"}, {"pool": "big"}, {"io_depth": 0},
        {"capacity": "0GB"}, {"capacity": ["1GB", "1GB"]}, {"retention": {"a": "0s"}},
        {"retention": {"a": "1d"}}, {"retention": {}, "default_class": "chat"},
        {"retention": {"x" * 16: "1d", "chat": "1d"}}, {"min_age": "-1s"}, {"reserve": "-1"},
    ],
)  # fmt: skip
def test_words_that_make_no_sense_are_refused_before_a_directory_is_made(
    tmp_path: Path, words: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        kvstore.open_blocking(tmp_path / "kv", **words)
    assert not (tmp_path / "kv").exists()


def test_info_and_stats_are_plain_data(store: kvstore.Store) -> None:
    info = store.info()
    assert msgspec.json.decode(msgspec.json.encode(info), type=kvstore.Info) == info
    assert info.build == kvstore.info()
    assert info.pool.bytes >= 64 * 2**20
    assert info.roots[0].capacity_bytes > 0
    kv = store.cache(layout())
    kv.match(kv.keys(prompt(2)))
    stats = store.stats()
    assert stats.lookups == 1
    assert stats.misses_by_reason
    assert set(stats.retention) == {"agent", "chat"}
    assert msgspec.json.decode(msgspec.json.encode(stats), type=kvstore.Stats) == stats
