"""What only the fake store can do: reasons to order, one layer held back, and being nasty where an
engine relies on what it must not. That it otherwise behaves as the real one is tests/test_fake.py.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import kvstore
from kvstore import Miss, Pages
from kvstore.testing import FakeDisk, fake_core, fake_load, fake_ticket, fake_writer
from kvstore.testing import open_fake_blocking as opened
from tests.support.stores import BLOCK_TOKENS, cells_of, check_load, prompt, run, write
from tests.support.subjects import K, V, layout

BLOCKS = 20
MODULES = (fake_core, fake_load, fake_ticket, fake_writer)
pytestmark = pytest.mark.filterwarnings("ignore::kvstore.LayoutWarning")


@pytest.fixture
def disk() -> FakeDisk:
    return FakeDisk()


def filled(store: kvstore.Store):
    kv = store.cache(layout())
    chain, cells = kv.keys(prompt(BLOCKS)), cells_of(layout(), BLOCKS)
    assert write(kv, chain, cells) == BLOCKS
    return kv, chain, cells


def pages(fill: int = 7) -> tuple[list[np.ndarray], Pages]:
    """Pages of part k in all layers that have it."""
    memory = [np.full((BLOCKS, K), fill, np.uint8) for _ in range(4)]
    return memory, Pages([{"k": memory[i]} if i != 1 else None for i in range(4)])


def test_a_block_is_missing_for_the_reason_that_was_ordered(disk: FakeDisk) -> None:
    with opened(disk) as store:
        kv, chain, _ = filled(store)
        stale = kv.match(chain)
        for reason in ("root_down", "busy", "expired"):
            disk.miss(chain[5], reason)
            hit = kv.match(chain)
            assert (hit.blocks, hit.reason) == (5, reason)
            with kv.load(stale) as load:
                assert [(layer.blocks, layer.reason) for layer in load] == [(5, reason)] * 4
            assert kv.get_blocking(chain[5]) == Miss(reason)
        disk.heal()
        assert kv.match(chain) == stale
        with pytest.raises(ValueError, match="root_down"):
            disk.miss(chain[5], "bad weather")


def test_a_layer_that_is_late_holds_back_itself_and_the_later_ones(disk: FakeDisk) -> None:
    with opened(disk) as store:
        kv, chain, cells = filled(store)
        disk.hold_layer(2)
        with kv.load(kv.match(chain)) as load:
            assert load.wait(1).blocks == BLOCKS
            with pytest.raises(TimeoutError):
                load.wait(2, timeout=0.01)
            assert store.stats().loads_running == 1
            releasing = threading.Timer(0.01, disk.release)
            releasing.start()
            assert load.wait(3, timeout=30).blocks == BLOCKS
            releasing.join()
            check_load(load, cells, BLOCKS)


def test_a_layer_that_never_arrives_ends_at_the_deadline_though_nobody_looks(
    disk: FakeDisk,
) -> None:
    async def scenario(kv: kvstore.Cache, chain: kvstore.Chain) -> None:
        async with kv.load(kv.match(chain), deadline=0.05) as load:
            layers = [(layer.blocks, layer.reason) async for layer in load]
        assert layers == [(BLOCKS, None)] * 2 + [(0, "deadline")] * 2

    with opened(disk) as store:
        kv, chain, _ = filled(store)
        disk.hold_layer(2)
        run(scenario(kv, chain))
        with kv.load(kv.match(chain), deadline=0.05) as load:
            assert load.wait(3).reason == "deadline"
        load = kv.load(kv.match(chain))
        disk.pass_deadlines()
        assert load.wait(2).reason == "deadline"
        load.close()


def test_caller_memory_is_written_until_drained(disk: FakeDisk) -> None:
    """An engine that gives its pages to another request before `drained` must see it go wrong."""
    with opened(disk) as store:
        kv, chain, cells = filled(store)
        disk.hold_layer(2)
        memory, into = pages()
        load = kv.load(kv.match(chain), into=into)
        assert np.array_equal(memory[0], cells[0]["k"])
        load.close()
        assert not load.wait_drained(0)
        assert (memory[2] == 7).all() and (memory[3] == 7).all()
        disk.release()
        assert load.wait_drained(0)
        assert np.array_equal(memory[2], cells[2]["k"]), "its read was in flight"
        assert (memory[3] == 7).all(), "this one was never begun"


def test_a_damaged_cell_leaves_wrong_bytes_and_views_do_not_outlive_release(
    disk: FakeDisk,
) -> None:
    with opened(disk) as store:
        kv, chain, cells = filled(store)
        disk.damage(chain[3], 2)
        memory, into = pages()
        with kv.load(kv.match(chain), into=into) as load:
            assert [layer.blocks for layer in load] == [BLOCKS, BLOCKS, 3, 3]
        assert np.array_equal(memory[2][:3], cells[2]["k"][:3])
        assert not np.array_equal(memory[2][3], cells[2]["k"][3])
        assert not (memory[2][3] == 7).all()
        write(kv, chain, cells)
        with kv.load(kv.match(chain)) as load:
            layer = load.wait(0)
            view = layer.spans[0].cells
            assert np.array_equal(view[0, :K], cells[0]["k"][0]) and not view.flags.writeable
            layer.release()
            assert (view == fake_load.RELEASED).all()


def test_find_waits_for_names_and_says_what_it_knows_at_its_timeout(disk: FakeDisk) -> None:
    async def scenario(kv: kvstore.Cache, chain: kvstore.Chain) -> None:
        finding = asyncio.create_task(kv.find(chain))
        await asyncio.sleep(0)
        disk.release()
        assert (await finding).blocks == BLOCKS

    with opened(disk) as store:
        kv, chain, _ = filled(store)
        disk.hold_names()
        assert kv.match(chain).reason == "pending"
        assert kv.find_blocking(chain, timeout=0.01).pending
        run(scenario(kv, chain))


def test_closing_a_store_ends_what_is_held_back(disk: FakeDisk) -> None:
    with opened(disk) as store:
        kv, chain, cells = filled(store)
        disk.hold_layer(2)
        disk.hold_commits()
        memory, into = pages()
        load = kv.load(kv.match(chain), into=into)
        other = kv.keys(prompt(1, seed=3))
        with kv.writer(other) as writer:
            parts = [np.ones((1, K), np.uint8), np.ones((1, V), np.uint8)]
            for number in (0, 2, 3):
                writer.put(number, (0, 1), parts)
            with pytest.raises(TimeoutError):
                writer.commit_blocking(timeout=0)
    assert load.wait_drained(0) and load.wait(2).reason == "closed"
    load.close()
    with opened(disk) as store:
        assert store.cache(layout()).match(other).blocks == 1


def test_two_stores_share_a_disk_as_owner_and_peer(disk: FakeDisk) -> None:
    with opened(disk) as owner, opened(disk, role="peer") as peer:
        kv, chain, cells = filled(owner)
        theirs = peer.cache(layout())
        with theirs.load(theirs.match(chain)) as load:
            check_load(load, cells, BLOCKS)
        assert (owner.stats().loads, peer.stats().loads) == (0, 1)
    with opened(disk) as store:
        assert store.info().roots[0].is_owner


def test_a_lease_ends_by_itself(disk: FakeDisk) -> None:
    with opened(disk) as store:
        kv, chain, _ = filled(store)
        lease = kv.lease(kv.match(chain), timeout=0.2)
        assert disk.evict(chain[0]) == 0
        end = time.monotonic() + 30
        while lease.alive:
            assert time.monotonic() < end
            time.sleep(0.01)
        assert disk.evict(chain[0]) == 1
        assert kv.match(chain).reason == "evicted"


def test_a_fake_refuses_what_the_real_one_refuses(disk: FakeDisk) -> None:
    with pytest.raises(ValueError, match="role"):
        opened(disk, role="king")
    with pytest.raises(ValueError, match="pool"):
        opened(disk, pool=0)
    with opened(disk) as store:
        kv, chain, _ = filled(store)
        with pytest.raises(ValueError, match="the layout of 16"):
            kv.match(kvstore.chain.chain_of_tokens(range(64), block_tokens=BLOCK_TOKENS * 2))
        with pytest.raises(IndexError, match="4 layers"):
            kv.load(kv.match(chain)).wait(4)


@pytest.mark.parametrize("name", ["Store", "Queue", "Ticket", "Cache", "Lease", "Load", "Writer"])
def test_the_fake_core_has_the_calls_of_the_real_one(name: str) -> None:
    """Names and arguments, by the stub that the type checker believes."""
    stub = ast.parse(Path(kvstore._core.__file__).with_name("_core.pyi").read_text())
    (real,) = [node for node in stub.body if isinstance(node, ast.ClassDef) and node.name == name]
    fake = next(getattr(one, f"Fake{name}") for one in MODULES if hasattr(one, f"Fake{name}"))
    for call in (node for node in real.body if isinstance(node, ast.FunctionDef)):
        if call.name == "__init__":
            continue
        is_property = any(ast.unparse(mark) == "property" for mark in call.decorator_list)
        if is_property:
            made = inspect.getsource(fake)
            assert f"self.{call.name} = " in made or hasattr(fake, call.name), call.name
            continue
        wanted = [one.arg for one in (*call.args.args, *call.args.kwonlyargs)]
        given = inspect.signature(getattr(fake, call.name)).parameters
        takes_all = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in given.values())
        assert takes_all or list(given) == wanted, call.name
