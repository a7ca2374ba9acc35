"""What is given up on: timeouts at every await, and objects that are dropped without a word, all of
it in flight. Nothing hangs, nothing stays held.
"""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kvstore import Miss, Pages, alloc
from tests.support.census import assert_nothing_held, nothing_left
from tests.support.stalled import BLOCKS, POOL, Stalled, stalled
from tests.support.stepping import LOOPS, late, run_in
from tests.support.stores import LAYERS, PART_BYTES, layout, opened, prompt, reads_in_flight, until


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Stalled]:
    with stalled(tmp_path) as place:
        yield place


# ---- timeouts ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", LOOPS)
@pytest.mark.parametrize("whose", ["asyncio's", "ours"])
def test_every_wait_for_the_device_ends_by_its_timeout(
    place: Stalled, kind: str, whose: str
) -> None:
    kv = place.kv
    ours = whose == "ours"

    def limited(awaitable: Any) -> Awaitable[object]:
        return asyncio.wait_for(awaitable, None if ours else 0.01)

    def words(seconds: float = 0.01) -> dict[str, Any]:
        return {"timeout": seconds} if ours else {}

    async def scenario() -> None:
        memory = [alloc(BLOCKS * PART_BYTES) for _ in range(LAYERS)]
        into = Pages.contiguous({"latent": memory})
        async with kv.load(kv.match(place.chain), into=into, deadline="1000d") as load:
            until(lambda: reads_in_flight(place.device))
            load.cancel()
            if ours:
                assert not load.wait_drained(0.01)
            else:
                await late(limited(awaited(load.drained)))
        async with kv.load(kv.match(place.chain), deadline="1000d") as load:
            await late(limited(load.layer(0, **words())))
        async with kv.writer(place.fresh(1)) as writer:
            for index, parts in enumerate(place.cells):
                await writer.put(index, (0, 1), [parts["latent"][:1]])
            await late(limited(writer.commit(**words())))
        if ours:
            assert await kv.put(place.fresh(2)[0], place.block, timeout=0.01) is False
        else:
            await late(limited(kv.put(place.fresh(2)[0], place.block)))
            await late(limited(kv.get(place.chain[0], deadline="1000d")))
            await late(limited(kv.prefetch(kv.match(place.chain), deadline="1000d")))

    with nothing_left():
        run_in(kind, scenario())
        place.works()
    # What was late went on all the same.
    for seed in (1, 2):
        until(lambda seed=seed: kv.match(place.fresh(seed)).blocks == 1)  # type: ignore[misc]


async def awaited(awaitable: Awaitable[object]) -> None:
    await awaitable


@pytest.mark.parametrize("kind", LOOPS)
def test_a_deadline_of_the_store_is_a_miss_at_every_call_that_takes_one(
    place: Stalled, kind: str
) -> None:
    kv = place.kv

    async def scenario() -> None:
        waiting = [
            asyncio.ensure_future(kv.get(place.chain[0], deadline="5s")),
            asyncio.ensure_future(kv.prefetch(kv.match(place.chain), deadline="5s")),
        ]
        async with kv.load(kv.match(place.chain), deadline="5s") as load:
            layer = asyncio.ensure_future(load.layer(0))
            await asyncio.sleep(0)
            place.clock.advance(6)
            place.store.tick()
            assert (await layer).reason == "deadline"
            assert [each.reason async for each in load] == ["deadline"] * LAYERS
        assert await asyncio.gather(*waiting) == [Miss("deadline"), 0]

    run_in(kind, scenario())
    place.works()


@pytest.mark.parametrize("kind", LOOPS)
def test_waits_for_files_end_by_their_timeout(tmp_path: Path, kind: str) -> None:
    """Names and directories: a fault that takes until the test ends it is not to be had there, so
    timeouts of 0 stand for it."""
    with opened(tmp_path, pool=POOL) as store, opened(tmp_path, pool=POOL, role="peer") as peer:

        async def scenario() -> None:
            kv = store.cache(layout())
            unknown = kv.keys(prompt(2))
            assert (await peer.cache(layout()).find(unknown, timeout=0)).blocks == 0
            for call in (lambda: kv.delete(unknown[0], timeout=0), lambda: store.flush(timeout=0)):
                try:
                    await call()
                except TimeoutError:
                    pass

        run_in(kind, scenario())
        assert_nothing_held(store)


# ---- dropped -------------------------------------------------------------------------------------


def drop_load(place: Stalled) -> None:
    place.kv.load(place.kv.match(place.chain), deadline="1000d")


def drop_load_into(place: Stalled) -> None:
    memory = [alloc(BLOCKS * PART_BYTES) for _ in range(LAYERS)]
    into = Pages.contiguous({"latent": memory})
    load = place.kv.load(place.kv.match(place.chain), into=into, deadline="1000d")
    until(lambda: reads_in_flight(place.device))
    load.drained_fd()


def drop_lease_and_hit(place: Stalled) -> None:
    hit = place.kv.match(place.chain)
    place.kv.lease(hit, owner="one", timeout="1000d")
    place.kv.lease(hit, owner="one", timeout="1000d")
    place.kv.load(place.kv.lease(hit[1:]), deadline="1000d")


def drop_writer(place: Stalled) -> None:
    place.kv.writer(place.fresh(3))
    writer = place.kv.writer(place.fresh(3))
    for index, parts in enumerate(place.cells):
        writer.put(index, (0, 1), [parts["latent"][:1].copy()])


def drop_half_a_writer(place: Stalled) -> None:
    writer = place.kv.writer(place.fresh(4))
    writer.put(0, (0, 1), [place.cells[0]["latent"][:1].copy()])


def drop_commit(place: Stalled) -> None:
    writer = place.kv.writer(place.fresh(5))
    for index, parts in enumerate(place.cells):
        writer.put(index, (0, 1), [parts["latent"][:1].copy()])
    writer._commit()


def drop_coroutines(place: Stalled) -> None:
    """Made and never awaited: nothing has begun."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        place.kv.find(place.chain)
        place.kv.get(place.chain[0])
        place.kv.put(place.chain[0], place.block)
        place.kv.prefetch(place.kv.match(place.chain))
        place.kv.delete(place.chain[0])
        place.store.flush()
        gc.collect()


def drop_iterators(place: Stalled) -> None:
    load = place.kv.load(place.kv.match(place.chain), deadline="1000d")
    iter(load)
    load.__aiter__()


def drop_views(place: Stalled) -> None:
    """A layer, its spans and a block, kept and then dropped unreleased."""
    place.let_go()
    load = place.kv.load(place.kv.match(place.chain))
    kept = [load.wait(0), load.wait(1).spans]
    block = place.kv.get_blocking(place.chain[0])
    place.store.drop_ram()
    assert place.store.stats().pool_free_bytes < place.store.stats().pool_bytes
    del load, kept, block
    place.hold()


@pytest.mark.parametrize(
    "drop",
    [
        drop_load, drop_load_into, drop_lease_and_hit, drop_writer, drop_half_a_writer, drop_commit,
        drop_coroutines, drop_iterators, drop_views,
    ],
)  # fmt: skip
def test_what_is_dropped_in_flight_gives_everything_back(
    place: Stalled, drop: Callable[[Stalled], None]
) -> None:
    place.let_go()
    place.check_bytes()
    place.hold()
    with nothing_left():
        for _ in range(3):
            drop(place)
            gc.collect()
        place.works()


def test_a_lease_that_runs_out_while_it_is_held_gives_its_pins_back(place: Stalled) -> None:
    lease = place.kv.lease(place.kv.match(place.chain), timeout="5s")
    load = place.kv.load(lease, deadline="1000d")
    place.clock.advance(6)
    place.store.tick()
    assert lease.alive, "a load uses it"
    load.close()
    place.clock.advance(6)
    place.store.tick()
    assert not lease.alive
    assert place.store.stats().leases == 0
    lease.release()
    place.works()
