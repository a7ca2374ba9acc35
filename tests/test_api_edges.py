"""The edges of the public API: leases, releases, refusals, a closed store, info and stats."""

import os
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import kvstore
from kvstore import Hit, OpenError, PoolTooSmall, StoreClosed
from kvstore.chain import KEY_BYTES
from tests.support.stores import (
    BLOCK_TOKENS,
    LAYERS,
    PART_BYTES,
    POOL,
    cells_of,
    layout,
    opened,
    prompt,
    write,
)

BLOCKS = 21


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with opened(tmp_path / "kv") as store:
        yield store


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
        for blocks in ((0, 1), (1, 3), (2, 2), range(2), range(0, 4, 2)):
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
            assert load.failed_blocks == range(BLOCKS)
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
        {"role": "boss"}, {"engine": "fast"}, {"pool": "0"}, {"pool": "big"}, {"io_depth": 0},
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


def test_a_writer_that_ended_says_so(store: kvstore.Store) -> None:
    kv = store.cache(layout())
    chain = kv.keys(prompt(2))
    cells = cells_of(kv.layout, 2)
    committed, aborted = kv.writer(chain[:1]), kv.writer(chain)
    assert committed.commit_blocking() == 0
    aborted.abort()
    assert committed.committed and not aborted.committed
    for writer, why in ((committed, "committed"), (aborted, "aborted")):
        with pytest.raises(ValueError, match=why):
            writer.put(0, (0, 1), {"latent": cells[0]["latent"][:1]})
        with pytest.raises(ValueError, match=why):
            writer.extend(chain)
        with pytest.raises(ValueError, match=why):
            writer.commit_blocking()


def test_what_is_no_chain_hit_or_layout_is_a_type_error_that_says_so(store: kvstore.Store) -> None:
    kv: Any = store.cache(layout())
    anything: Any = None
    for call, wanted in (
        (kv.match, "Chain"),
        (kv.find_blocking, "Chain"),
        (kv.writer, "Chain"),
        (kv.load, "Hit"),
        (kv.lease, "Hit"),
        (store.cache, "Layout"),
    ):
        with pytest.raises(TypeError, match=wanted):
            call(anything)
    chain = kv.keys(prompt(2))
    for start in (-1, 3):
        with pytest.raises(ValueError, match=f"start {start} .* 2 blocks"):
            kv.writer(chain, start=start)


def test_a_get_the_pool_has_no_room_for_is_a_miss(tmp_path: Path) -> None:
    with opened(tmp_path, pool="8MiB") as store:
        kv = store.cache(layout())
        keys = [bytes([number]) * KEY_BYTES for number in range(16)]
        data = np.arange(kv.layout.block_bytes, dtype=np.uint8)
        assert all(kv.put_blocking(key, data) for key in keys)
        answers = [kv.get_blocking(key, deadline="1s") for key in keys]
        blocks = [answer for answer in answers if isinstance(answer, kvstore.Block)]
        misses = [answer for answer in answers if isinstance(answer, kvstore.Miss)]
        assert blocks and misses
        assert {miss.reason for miss in misses} == {"pool"}
        assert all(bytes(block) == bytes(data) for block in blocks)
        for block in blocks:
            block.release()
        assert isinstance(kv.get_blocking(keys[-1]), kvstore.Block)


def test_a_get_that_can_never_fit_the_pool_names_the_size(tmp_path: Path) -> None:
    with opened(tmp_path, pool="8MiB") as store:
        for parts in ((16 << 20,), (1 << 20,) * 16):  # one cell is too large; all together are
            large = kvstore.Layout(parts_by_layer=tuple((("a", n),) for n in parts), model="large")
            with pytest.raises(PoolTooSmall) as caught:
                store.cache(large).get_blocking(bytes(KEY_BYTES))
            assert caught.value.needed > 16 << 20


def test_a_path_may_be_bytes(tmp_path: Path) -> None:
    with opened(os.fsencode(tmp_path / "kv")) as store:
        assert store.info().roots[0].path == str(tmp_path / "kv")
    anything: Any = None
    with pytest.raises(TypeError, match="NoneType"):
        kvstore.open_blocking(anything)


def test_a_reserve_of_zero_is_none_at_all(tmp_path: Path) -> None:
    with opened(tmp_path / "a", reserve=0) as store:
        assert store.info().roots[0].reserve_bytes == 1
    with opened(tmp_path / "b") as store:
        assert store.info().roots[0].reserve_bytes > 1
