"""The pool is finite: loads larger than it stream through, loads that can never fit are refused,
readers that keep their views are told so, and nobody waits for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from kvstore import Cache, Layout, Load, Pages, PoolTooSmall, Store
from kvstore.testing import FaultDevice, Injection, VirtualClock
from tests.support.stores import (
    BLOCK_TOKENS,
    Cells,
    cells_of,
    check_load,
    opened,
    prompt,
    run,
    until,
    write,
)

MIB = 1 << 20
LAYERS = 8
BLOCKS = 40
CELL = 25 * 4096
LAYER = BLOCKS * CELL  # 4 MB; eight of them are twice the pool of most tests here
POOL = 16 * MIB
SEEDS = range(3)


def layout() -> Layout:
    return Layout(
        parts_by_layer=((("latent", CELL),),) * LAYERS,
        model="room",
        block_tokens=BLOCK_TOKENS,
        extent_blocks=16,
    )


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three prompts of 32 MB with the same cells."""
    path = tmp_path_factory.mktemp("room")
    with opened(path, pool="128MiB") as store:
        for seed in SEEDS:
            kv = store.cache(layout())
            assert write(kv, kv.keys(prompt(BLOCKS, seed)), cells()) == BLOCKS
    return path


def cells() -> Cells:
    return cells_of(layout(), BLOCKS)


@pytest.fixture
def store(root: Path) -> Iterator[Store]:
    with opened(root, pool=POOL) as store:
        until(lambda: not store.info().roots[0].warming)
        yield store


@pytest.fixture
def kv(store: Store) -> Cache:
    return store.cache(layout())


def start(kv: Cache, seed: int = 0, *, into: Pages | None = None, deadline: str = "60s") -> Load:
    hit = kv.match(kv.keys(prompt(BLOCKS, seed)))
    assert hit.blocks == BLOCKS
    return kv.load(hit, into=into, deadline=deadline)


def assert_nothing_is_held(store: Store) -> None:
    """All memory is free or in the RAM tier, as soon as the I/O thread has let go of it."""

    def all_is_room() -> bool:
        stats = store.stats()
        return stats.pool_free_bytes + stats.pool_cached_bytes == stats.pool_bytes

    until(all_is_room)


def test_a_load_larger_than_the_pool_streams_within_it(store: Store, kv: Cache) -> None:
    assert LAYERS * LAYER > store.stats().pool_bytes
    with start(kv) as load:
        check_load(load, cells(), BLOCKS)
        assert load.stats().disk_bytes == LAYERS * LAYER
    assert_nothing_is_held(store)


def test_a_load_into_caller_memory_needs_room_for_a_few_regions_only(root: Path) -> None:
    targets = [np.zeros(LAYER + 64, np.uint8)[64:] for _ in range(LAYERS)]
    with opened(root, pool="8MiB") as store:
        until(lambda: not store.info().roots[0].warming)
        kv = store.cache(layout())
        with start(kv, into=Pages.contiguous({"latent": targets})) as load:
            assert load.wait(LAYERS - 1).blocks == BLOCKS
        assert_nothing_is_held(store)
    for target, parts in zip(targets, cells(), strict=True):
        assert np.array_equal(target, parts["latent"].reshape(-1))


def test_a_layer_that_does_not_fit_is_refused_with_the_size_that_would(root: Path) -> None:
    with opened(root, pool="4MiB") as store:
        until(lambda: not store.info().roots[0].warming)
        with pytest.raises(PoolTooSmall) as refused:
            start(store.cache(layout()))
        assert_nothing_is_held(store)
    needed = refused.value.needed
    assert LAYER < needed < 2 * LAYER
    with opened(root, pool=needed) as store:
        until(lambda: not store.info().roots[0].warming)
        with start(store.cache(layout())) as load:
            check_load(load, cells(), BLOCKS)


def test_a_reader_that_keeps_its_views_is_told_pool_at_its_deadline(
    store: Store, kv: Cache
) -> None:
    with start(kv, deadline="500ms") as load:
        kept = [load.wait(0), load.wait(1)]
        views = [layer.spans for layer in kept]
        last = load.wait(LAYERS - 1)
        assert last.reason == "pool"
        assert last.blocks == 0
        assert load.failed_blocks == range(BLOCKS)
        # What was delivered before stays, the views too.
        for layer, spans in zip(kept, views, strict=True):
            assert (layer.blocks, layer.reason) == (BLOCKS, None)
            whole = np.concatenate([span.cells for span in spans])
            assert np.array_equal(whole, cells()[layer.index]["latent"])
    assert_nothing_is_held(store)


def test_kept_views_stay_as_they_are_while_others_use_the_rest(store: Store, kv: Cache) -> None:
    few = 8
    hit = kv.match(kv.keys(prompt(BLOCKS)))[:few]
    with kv.load(hit) as keeper:
        layers = [keeper.wait(index) for index in range(LAYERS)]
        views = [layer.spans for layer in layers]
        for _ in range(2):
            with start(kv, 1) as load:
                check_load(load, cells(), BLOCKS)
        for layer, spans in zip(layers, views, strict=True):
            whole = np.concatenate([span.cells for span in spans])
            assert np.array_equal(whole, cells()[layer.index]["latent"][:few])
            layer.release()
            with pytest.raises(ValueError, match="released"):
                _ = layer.spans
    assert_nothing_is_held(store)


def test_a_load_that_waits_is_next_however_far_others_could_read_ahead(
    store: Store, kv: Cache
) -> None:
    """The first load may fill the pool while it is alone. Once another one waits it gets no room
    beyond its promise, so that what its reader releases goes to the waiting one."""
    with start(kv, 0) as first:
        assert first.wait(2).blocks == BLOCKS
        with start(kv, 1) as second:
            with pytest.raises(TimeoutError):
                second.wait(0, timeout="50ms")
            first.wait(0).release()
            first.wait(1).release()
            assert second.wait(0).blocks == BLOCKS, "two layers of room are enough to be admitted"
            first.wait(2).release()
            check_load(second, cells(), BLOCKS)
        for index in range(3, LAYERS):
            with first.wait(index) as layer:
                assert np.array_equal(layer.gather("latent"), cells()[index]["latent"])
    assert_nothing_is_held(store)


def test_a_load_that_never_got_room_says_pool(store: Store, kv: Cache) -> None:
    with start(kv, 0) as first:
        assert first.wait(2).blocks == BLOCKS
        with start(kv, 1, deadline="300ms") as second, start(kv, 2, deadline="300ms") as third:
            for load in (second, third):
                answer = load.wait(0)
                assert (answer.blocks, answer.reason) == (0, "pool")
        check_load(first, cells(), BLOCKS)
    assert_nothing_is_held(store)


def test_many_loads_at_once_share_the_pool_and_all_finish(store: Store, kv: Cache) -> None:
    expected = cells()

    async def read(number: int) -> int:
        async with start(kv, number % len(SEEDS)) as load:
            async for layer in load:
                assert (layer.blocks, layer.reason) == (BLOCKS, None)
                assert np.array_equal(layer.gather("latent"), expected[layer.index]["latent"])
                await asyncio.sleep(0)  # readers take turns
            return load.stats().disk_bytes + load.stats().ram_bytes

    async def scenario() -> list[int]:
        return await asyncio.gather(*(read(number) for number in range(8)))

    assert run(scenario()) == [LAYERS * LAYER] * 8
    assert_nothing_is_held(store)


def test_readers_that_all_keep_their_views_end_by_their_deadlines(store: Store, kv: Cache) -> None:
    loads = [start(kv, seed, deadline="500ms") for seed in SEEDS]
    reasons = [load.wait(LAYERS - 1).reason for load in loads]
    assert reasons == ["pool"] * len(loads)
    for load in loads:
        load.close()
    assert_nothing_is_held(store)
    with start(kv) as load:
        check_load(load, cells(), BLOCKS)


def test_prefetch_fills_ram_and_the_load_after_it_reads_nothing(root: Path) -> None:
    with opened(root, pool="64MiB") as store:
        until(lambda: not store.info().roots[0].warming)
        kv = store.cache(layout())
        hit = kv.match(kv.keys(prompt(BLOCKS)))
        assert kv.prefetch_blocking(hit) == BLOCKS
        assert store.stats().pool_cached_bytes >= LAYERS * LAYER
        assert_nothing_is_held(store)
        with start(kv) as load:
            check_load(load, cells(), BLOCKS)
            stats = load.stats()
            assert (stats.reads, stats.disk_bytes, stats.ram_bytes) == (0, 0, LAYERS * LAYER)
        assert run(kv.prefetch(hit)) == BLOCKS
        assert store.stats().disk_bytes == LAYERS * LAYER, "a second prefetch reads nothing"


def test_a_prefetch_larger_than_the_pool_ends_and_keeps_the_rest_usable(
    store: Store, kv: Cache
) -> None:
    assert kv.prefetch_blocking(kv.match(kv.keys(prompt(BLOCKS)))) == BLOCKS
    assert_nothing_is_held(store)
    with start(kv) as load:
        check_load(load, cells(), BLOCKS)


def test_room_that_is_waited_for_costs_no_device_time(root: Path) -> None:
    """A reader that keeps its views stops its own reads, and the clock alone ends it."""
    clock = VirtualClock()
    device = FaultDevice(clock)
    injection = Injection(clock=clock, devices=[device], manual_ticks=True)
    with opened(root, pool=POOL, _testing=injection) as store:
        until(lambda: not store.info().roots[0].warming)
        kv = store.cache(layout())
        with start(kv, deadline="5s") as load:
            assert load.wait(2).blocks == BLOCKS
            device.settle()
            reads = len(device.log())
            store.tick()
            device.settle()
            assert len(device.log()) == reads
            assert not store.stats().loads
            clock.advance(6)
            store.tick()
            assert load.wait(LAYERS - 1, timeout=0).reason == "pool"


def test_a_fast_root_reading_ahead_leaves_a_slow_one_its_room(tmp_path: Path) -> None:
    """A layer lies on all roots. Once the fast root had filled the pool with later layers, the slow
    one found no room for the layer that was awaited, until the deadline ended the load."""
    roots = [tmp_path / "fast", tmp_path / "slow"]
    fine = Layout(
        parts_by_layer=layout().parts_by_layer,
        model="roots",
        block_tokens=BLOCK_TOKENS,
        extent_blocks=1,
    )
    with opened(*roots, pool="128MiB") as store:
        kv = store.cache(fine)
        assert write(kv, kv.keys(prompt(BLOCKS)), cells_of(fine, BLOCKS)) == BLOCKS
    clock = VirtualClock()
    fast = FaultDevice(clock)
    slow = FaultDevice(clock, latency_ns=MIB, depth=1, auto_advance=False)
    with opened(*roots, pool=POOL, _testing=Injection(clock=clock, devices=[fast, slow])) as store:
        until(lambda: not any(root.warming for root in store.info().roots))
        kv = store.cache(fine)
        with kv.load(kv.match(kv.keys(prompt(BLOCKS))), deadline="60s") as load:
            until(slow.log)
            fast.settle()
            for index in range(LAYERS):
                until(lambda index=index: is_ready(load, index, clock))
                with load.wait(index, timeout=0) as layer:
                    assert (layer.blocks, layer.reason) == (BLOCKS, None)


def is_ready(load: Load, layer: int, clock: VirtualClock) -> bool:
    """Lets time pass where the slow device needs it."""
    try:
        load.wait(layer, timeout=0)
    except TimeoutError:
        clock.advance(0.01)
        return False
    return True
