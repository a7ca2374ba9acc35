"""The connector's lookups and waits, over the store in memory: a test holds names and layers."""

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="an engine's pages are tensors")

import kvstore
from kvstore.testing import FakeDisk, open_fake_blocking
from kvstore_vllm import scheduler, shared
from tests.support.vllm_steps import Engine, Request, layout, output, tokens

BLOCK = 32
PROMPT = tokens(BLOCK * 8 + 1)
TABLE = list(range(20, 29))
pytestmark = pytest.mark.filterwarnings("ignore::kvstore.LayoutWarning")


@pytest.fixture
def disk() -> FakeDisk:
    return FakeDisk()


@pytest.fixture(params=[False, True], ids=["into pages", "through the pool"])
def engine(request, disk, monkeypatch) -> Any:
    """One rank; the prompt is on disk. Tables of pages differ from the one it came from. Pages that
    a device could write itself, as a GPU's, are filled from the pool."""

    def open_blocking(*paths: str, **options: Any) -> kvstore.Store:
        return open_fake_blocking(disk, pool=options["pool"], role=options["role"])

    monkeypatch.setattr(shared, "open_blocking", open_blocking)
    engine = Engine("/memory", [layout(BLOCK * 1152, BLOCK)], aligned=request.param)
    assert engine.workers[0].pages.through_pool is request.param
    first = Request.of("first", PROMPT, BLOCK)
    assert engine.step(first, list(range(9))) == 0
    engine.end(first)
    engine.scheduler.take_counts()
    yield engine
    disk.release()
    engine.close()


def test_a_lookup_asks_to_be_asked_again_no_longer_than_its_timeout(engine, disk, monkeypatch):
    """Then the request takes what is known, and does not begin to wait anew while the engine has no
    room for it."""
    now = [100.0]
    monkeypatch.setattr(scheduler, "time", SimpleNamespace(monotonic=lambda: now[0]))
    request = Request.of("waits", PROMPT, BLOCK)
    disk.hold_names()
    assert engine.scheduler.matched_tokens(request, 0) is None
    now[0] += 0.9
    assert engine.scheduler.matched_tokens(request, 0) is None
    for _ in range(3):
        now[0] += 0.2
        assert engine.scheduler.matched_tokens(request, 0) == 0
    assert engine.scheduler.take_counts() == {"lookups": 1, "skips:lookup_timeout": 1}
    disk.release()
    assert engine.scheduler.matched_tokens(request, 0) == 8 * BLOCK


def test_names_that_become_known_in_time_are_a_hit(engine, disk):
    request = Request.of("waits", PROMPT, BLOCK)
    disk.hold_names()
    assert engine.scheduler.matched_tokens(request, 0) is None
    disk.release()
    assert engine.step(request, TABLE) == 8 * BLOCK
    assert engine.wrong_pages(request, TABLE, 8) == []


def begun(engine: Engine, request: Request) -> Any:
    """A step that loads the request's blocks, up to its first layer."""
    hit = engine.scheduler.matched_tokens(request, 0)
    engine.scheduler.allocated(request, TABLE, hit)
    request.num_computed_tokens = hit
    worker = engine.workers[0]
    worker.begin_step(engine.scheduler.orders(output(request, TABLE, 1)))
    worker.start_loads()
    return worker


def test_a_layer_is_waited_for_and_no_later_one(engine, disk):
    request = Request.of("streams", PROMPT, BLOCK)
    disk.hold_layer(2)
    worker = begun(engine, request)
    for name in worker.pages.names[:2]:
        worker.wait_layer(name)
    (loading,) = worker.loading
    assert not loading.wait(2, 0), "the last layer is not there yet"
    assert {layer for _, _, layer in engine.wrong_pages(request, TABLE, 8)} == {2}
    disk.release()
    worker.wait_layer(worker.pages.names[2])
    assert engine.wrong_pages(request, TABLE, 8) == []
    worker.end_step()
    assert not worker.bad_pages()


def test_a_layer_that_does_not_come_by_the_deadline_loses_all_blocks_and_ends_the_wait(
    engine, disk
):
    request = Request.of("late", PROMPT, BLOCK)
    disk.hold_layer(1)
    worker = begun(engine, request)
    worker.wait_layer(worker.pages.names[0])
    disk.pass_deadlines()
    worker.wait_layer(worker.pages.names[1])
    disk.release()  # what was in flight
    worker.end_step()
    assert worker.bad_pages() == set(TABLE[:8])
    engine.scheduler.stepped(worker.news())
    assert engine.scheduler.matched_tokens(request, 0) == 0, "it is computed, not loaded again"


def test_blocks_before_a_damaged_one_are_kept(engine, disk):
    request = Request.of("damaged", PROMPT, BLOCK)
    keys = engine.workers[0].store.cache(engine.layouts[0]).wrap(request.block_hashes)
    disk.damage(keys[5], layer=2)
    worker = begun(engine, request)
    for name in worker.pages.names:
        worker.wait_layer(name)
    worker.end_step()
    assert worker.bad_pages() == set(TABLE[5:8])
    assert {block for _, block, _ in engine.wrong_pages(request, TABLE, 8)} <= {5, 6, 7}


def test_what_did_not_load_is_told_with_its_step_when_that_ends_after_a_draft_model(engine, disk):
    """With speculative decoding vLLM asks for bad pages before it ends the step. A step later the
    tokens that were computed from them would be out."""
    request = Request.of("speculates", PROMPT, BLOCK)
    keys = engine.workers[0].store.cache(engine.layouts[0]).wrap(request.block_hashes)
    disk.damage(keys[5], layer=2)
    worker = begun(engine, request)
    for name in worker.pages.names:
        worker.wait_layer(name)
    assert worker.bad_pages() == set(TABLE[5:8])
    assert worker.news().spoiled == {"speculates"}
    for name in worker.pages.names:  # the draft model's turn
        worker.wait_layer(name)
        worker.save_layer(name)
    worker.end_step()
    assert not worker.bad_pages()


@pytest.mark.parametrize("preempted", [True, False])
def test_after_the_engine_dropped_its_caches_nothing_from_before_is_a_hit(engine, preempted):
    """It does so when its weights are replaced. A request that runs on has pages of both; one that
    starts again must not go on with the keys it had."""
    request = Request.of("runs", tokens(BLOCK * 8 + 1, seed=5), BLOCK)
    assert engine.scheduler.matched_tokens(request, 0) == 0
    engine.scheduler.allocated(request, TABLE, 0)
    engine.run(request, TABLE, 4 * BLOCK)
    engine.scheduler.reset()
    old = Request.of("old", PROMPT, BLOCK)
    assert engine.scheduler.matched_tokens(old, 0) == 0
    engine.wrong = 50  # other weights
    if preempted:
        request.num_computed_tokens = 0
        assert engine.scheduler.matched_tokens(request, 0) == 0
    engine.run(request, TABLE, request.num_tokens - request.num_computed_tokens)
    engine.end(request, old)
    again = Request.of("again", tokens(BLOCK * 8 + 1, seed=5), BLOCK)
    found = engine.scheduler.matched_tokens(again, 0)
    assert found == (8 * BLOCK if preempted else 0)
    cache = engine.workers[0].store.cache(engine.layouts[0])
    assert not cache.match(cache.wrap(request.block_hashes)).blocks, "half old, half new"


@pytest.mark.parametrize("whole", [True, False], ids=["saved", "half saved"])
def test_a_preempted_request_comes_back_to_other_pages(engine, whole):
    """Its blocks are loaded again where the prompt was saved, else computed again. What it saves
    afterwards comes from its new pages."""
    request = Request.of("preempted", tokens(BLOCK * 8 + 1, seed=5), BLOCK)
    assert engine.scheduler.matched_tokens(request, 0) == 0
    engine.scheduler.allocated(request, TABLE, 0)
    engine.run(request, TABLE, request.num_tokens if whole else 4 * BLOCK)
    engine.workers[0].wait_saved()
    for rows in engine.workers[0].pages.rows:
        rows.fill_(0)  # others have its pages now
    request.num_computed_tokens = 0
    table = list(range(9, 18))
    assert engine.step(request, table) == (8 * BLOCK if whole else 0)
    assert engine.wrong_pages(request, table, 8) == []
    engine.end(request)
    again = Request.of("again", tokens(BLOCK * 8 + 1, seed=5), BLOCK)
    assert engine.step(again, TABLE) == 8 * BLOCK
    assert engine.wrong_pages(again, TABLE, 8) == []
