"""The connector without vLLM: several workers and a scheduler over one root, on simulated pages.

Block sizes and page forms that a CPU engine does not have are here.
"""

from types import SimpleNamespace

import pytest

pytest.importorskip("torch", reason="an engine's pages are tensors")

import kvstore
from kvstore_vllm.chains import Chains
from kvstore_vllm.gate import PROBE_EVERY
from kvstore_vllm.worker import Worker
from tests.support.vllm_steps import LAYERS, Engine, Request, layout, output, tokens


@pytest.mark.parametrize("block", [16, 32, 64, 128, 256])
@pytest.mark.parametrize(("token_bytes", "aligned"), [(656, False), (1152, True)])
def test_every_block_size_and_page_comes_back_whole(tmp_path, block, token_bytes, aligned):
    """fp8 and bf16 latents; also pages that a device could write itself."""
    one = layout(token_bytes * block, block)
    prompt = tokens(block * 10 + 3)
    for life in range(2):
        engine = Engine(tmp_path, [one], aligned=aligned)
        assert engine.workers[0].pages.through_pool is aligned
        request = Request.of(f"life {life}", prompt, block)
        table = list(range(30, 19, -1)) if life else list(range(3, 14))
        assert engine.step(request, table) == (block * 10 if life else 0)
        assert engine.wrong_pages(request, table, 10) == []
        engine.end(request)
        engine.close()


def test_ranks_of_sharded_heads_get_one_answer_and_their_own_bytes(tmp_path):
    """A block that one rank lacks is no hit for any."""
    block, ranks = 32, 4
    layouts = [layout(block * 256, block, rank=(rank, ranks)) for rank in range(ranks)]
    engine = Engine(tmp_path, layouts)
    request, table = Request.of("1", tokens(block * 8 + 5), block), list(range(9))
    assert engine.step(request, table) == 0
    engine.end(request)
    again, other = Request.of("2", tokens(block * 8 + 5), block), list(range(20, 29))
    assert engine.step(again, other) == 8 * block
    assert engine.wrong_pages(again, other, 8) == []
    engine.end(again)
    third = engine.workers[2].store.cache(layouts[2])
    assert third.delete_blocking(third.wrap(again.block_hashes)[0]) > 0
    assert engine.step(Request.of("3", tokens(block * 8 + 5), block), table) == 0
    engine.close()


def test_a_latent_is_stored_once_and_loaded_by_all_ranks(tmp_path):
    block = 64
    one = layout(block * 576, block)
    engine = Engine(tmp_path, [one, one, one], [True, False, False])
    request, table = Request.of("1", tokens(block * 6 + 5), block), list(range(7))
    engine.step(request, table)
    engine.end(request)
    assert engine.workers[0].store.stats().puts_bytes == 6 * one.block_bytes
    again, other = Request.of("2", tokens(block * 6 + 5), block), list(range(20, 27))
    assert engine.step(again, other) == 6 * block
    assert engine.wrong_pages(again, other, 6) == []
    engine.close()


def test_at_least_one_token_is_left_to_compute(tmp_path):
    block = 16
    engine = Engine(tmp_path, [layout(block * 1152, block)])
    request, table = Request.of("1", tokens(block * 6), block), list(range(6))
    engine.step(request, table)
    engine.end(request)
    assert engine.step(Request.of("2", tokens(block * 6), block), table) == 5 * block
    engine.close()


def test_what_the_engine_has_itself_is_not_loaded_again(tmp_path):
    block = 16
    engine = Engine(tmp_path, [layout(block * 1152, block)])
    request, table = Request.of("1", tokens(block * 9 + 1), block), list(range(10))
    engine.step(request, table)
    engine.end(request)
    again, other = Request.of("2", tokens(block * 9 + 1), block), list(range(20, 30))
    for layer in range(LAYERS):
        engine.compute(0, layer, again, other, 0, 4)
    assert engine.step(again, other, local=4 * block) == 5 * block
    assert engine.wrong_pages(again, other, 9) == []
    engine.close()


def test_pages_of_an_aborted_load_may_be_reused_once_it_is_over(tmp_path):
    """A parked request is aborted at once after its load began; the pages then belong to another
    request, and no byte of them changes."""
    block = 16
    engine = Engine(tmp_path, [layout(block * 1152, block)], mode="async")
    request, table = Request.of("1", tokens(block * 20 + 1), block), list(range(21))
    engine.step(request, table)
    engine.end(request)
    worker = engine.workers[0]
    for turn in range(20):
        worker.store.drop_ram()
        again = Request.of(f"again {turn}", tokens(block * 20 + 1), block)
        hit = engine.scheduler.matched_tokens(again, 0)
        engine.scheduler.allocated(again, table, hit)
        worker.begin_step(engine.scheduler.orders(output(None, [], 0)))
        worker.start_loads()
        engine.end(again)
        over: set[str] = set()
        while not over:
            over = worker.parked_over()
        assert over == {again.request_id}
        for rows in worker.pages.rows:
            rows.fill_(turn)
        worker.bad_pages()
        assert worker.store.stats().loads_running == 0
        assert all(bool((rows == turn).all()) for rows in worker.pages.rows)
    assert worker.store.stats().leases == 0
    engine.close()


def test_nothing_is_saved_that_was_computed_from_a_page_that_did_not_load(tmp_path):
    """Two requests share the pages of a load that fails in its last layer; then both go on."""
    block = 16
    one = layout(block * 1152, block)
    engine = Engine(tmp_path, [one])
    request, table = Request.of("1", tokens(block * 8 + 1), block), list(range(9))
    engine.step(request, table)
    engine.end(request)
    worker = engine.workers[0]
    longer = Request.of("2", tokens(block * 12 + 1), block)
    hit = engine.scheduler.matched_tokens(longer, 0)
    assert hit == 8 * block
    engine.scheduler.allocated(longer, list(range(20, 33)), hit)
    longer.num_computed_tokens = hit
    orders = engine.scheduler.orders(output(longer, list(range(20, 33)), 4 * block + 1))
    worker.begin_step(orders)
    worker.store.drop_ram()
    worker.store.cache(one).delete_blocking(longer_key(worker, one, longer, 0))
    worker.start_loads()
    for name in worker.pages.names:
        worker.wait_layer(name)
        worker.save_layer(name)
    worker.end_step()
    assert worker.bad_pages() == set(range(20, 28))
    news = worker.news()
    assert news.spoiled == {"2"}
    engine.scheduler.stepped(news)
    # vLLM computes it from the first lost block on.
    longer.num_computed_tokens = 0
    engine.run(longer, list(range(20, 33)), longer.num_tokens)
    engine.end(longer)
    again, other = Request.of("3", tokens(block * 12 + 1), block), list(range(10, 23))
    assert engine.step(again, other) == 12 * block
    assert engine.wrong_pages(again, other, 12) == []
    engine.close()


def longer_key(worker: Worker, one: kvstore.Layout, request: Request, block: int) -> bytes:
    return worker.store.cache(one).wrap(request.block_hashes)[block]


def test_a_hit_that_is_computed_sooner_is_not_loaded_and_counted(tmp_path):
    block = 16
    words = {"gate": True, "load_gbps": 1e-6, "prefill_tps": 1e9}
    engine = Engine(tmp_path, [layout(block * 1152, block)], **words)
    request, table = Request.of("1", tokens(block * 9 + 1), block), list(range(10))
    engine.step(request, table)
    engine.end(request)
    again = Request.of("2", tokens(block * 9 + 1), block)
    assert engine.step(again, table) == 0
    assert engine.scheduler.take_counts() == {"skips:gate": 1}
    assert engine.workers[0].store.stats().puts_bytes == 9 * 16 * 1152 * LAYERS, "not saved twice"
    engine.close()


def test_a_request_that_waits_for_room_is_refused_once(tmp_path):
    """The engine asks again with each step; that is neither another refusal nor a way in."""
    block = 16
    words = {"gate": True, "load_gbps": 1e-6, "prefill_tps": 1e9}
    engine = Engine(tmp_path, [layout(block * 1152, block)], **words)
    request, table = Request.of("1", tokens(block * 9 + 1), block), list(range(10))
    engine.step(request, table)
    engine.end(request)
    again = Request.of("2", tokens(block * 9 + 1), block)
    assert {engine.scheduler.matched_tokens(again, 0) for _ in range(3 * PROBE_EVERY)} == {0}
    assert engine.scheduler.take_counts() == {"skips:gate": 1}
    engine.close()


def test_keys_of_our_own_tell_apart_what_the_engines_hashes_do(tmp_path):
    """Salt, adapter, images; a prompt of embeddings has no keys."""
    one = layout(16 * 1152, 16)
    with kvstore.open_blocking(tmp_path, pool="32MB") as store:
        chains = Chains(store.cache(one), own=True)
        plain = Request.of("1", tokens(64), 16)
        image = SimpleNamespace(mm_position=SimpleNamespace(offset=20), identifier="a cat")
        adapter = SimpleNamespace(lora_name="poet", lora_path="/adapters/1")
        others = [{"cache_salt": "tenant"}, {"lora_request": adapter}, {"mm_features": [image]}]
        changed = [chains.of(Request(**vars(plain) | other)) for other in others]
        first = [chain[0] for chain in (chains.of(plain), *changed)]
        last = {chain[-1] for chain in (chains.of(plain), *changed)}
        assert len(last) == 4
        assert first[3] == first[0], "before the image the prompts are the same"
        assert len(chains.of(Request(**vars(plain) | {"prompt_embeds": object()}))) == 0


@pytest.mark.parametrize("shared", [False, True], ids=["sharded", "one copy"])
def test_no_rank_keeps_what_was_computed_after_another_rank_lost_a_block(tmp_path, shared):
    """All ranks compute with what one of them failed to load, and each could save its part: wrong
    bytes under a right key, for the one whose own load went well."""
    block = 32
    layouts = [layout(block * 256, block, rank=(0 if shared else rank, 2)) for rank in range(2)]
    engine = Engine(tmp_path, layouts, [True, not shared])
    request, table = Request.of("1", tokens(block * 8 + 1), block), list(range(9))
    engine.step(request, table)
    engine.end(request)

    longer, pages = Request.of("2", tokens(block * 12 + 1), block), list(range(20, 33))
    hit = engine.scheduler.matched_tokens(longer, 0)
    assert hit == 8 * block
    engine.scheduler.allocated(longer, pages, hit)
    longer.num_computed_tokens = hit
    loads = engine.workers[1]._loads
    own, loads._cache = loads._cache, loads._cache.store.cache(layout(block * 256, block, (7, 8)))
    engine.wrong = 50  # computed from pages that lack what was to be loaded
    assert engine.run(longer, pages, 4 * block + 1) == set(pages[:8])
    loads._cache, engine.wrong = own, 0
    engine.end(longer)  # aborted, before anything of it is computed again

    for rank in range(2 - shared):
        blocks = engine.workers[rank].store.cache(layouts[rank])
        assert blocks.match(blocks.wrap(longer.block_hashes)).blocks <= 8
    again = Request.of("3", tokens(block * 12 + 1), block)
    engine.step(again, table + list(range(33, 37)))
    engine.end(again)
    last, other = Request.of("4", tokens(block * 12 + 1), block), list(range(14, 27))
    assert engine.step(last, other) == 12 * block
    assert engine.wrong_pages(last, other, 12) == []
    engine.close()


def test_a_page_that_failed_is_good_again_when_another_request_has_filled_it(tmp_path):
    """Also when that takes two steps, of which the second begins in the middle of the page."""
    block = 32
    one = layout(block * 1152, block)
    engine = Engine(tmp_path, [one])
    request, table = Request.of("1", tokens(block * 4 + 1), block), list(range(5))
    engine.step(request, table)
    engine.end(request)
    again = Request.of("2", tokens(block * 4 + 1), block)
    hit = engine.scheduler.matched_tokens(again, 0)
    engine.scheduler.allocated(again, list(range(20, 25)), hit)
    again.num_computed_tokens = hit
    loads = engine.workers[0]._loads
    own, loads._cache = loads._cache, loads._cache.store.cache(layout(block * 1152, block, (7, 8)))
    assert engine.run(again, list(range(20, 25)), 1) == {20, 21, 22, 23}
    loads._cache = own
    engine.end(again)
    other, pages = Request.of("3", tokens(block * 6 + 1, seed=9), block), [5, 6, 20, 7, 8, 9, 10]
    assert engine.scheduler.matched_tokens(other, 0) == 0
    engine.run(other, pages, block * 5 // 2)
    engine.run(other, pages, other.num_tokens - block * 5 // 2)
    engine.end(other)
    last = Request.of("4", tokens(block * 6 + 1, seed=9), block)
    assert engine.step(last, list(range(30, 37))) == 6 * block
    assert engine.wrong_pages(last, list(range(30, 37)), 6) == []
    engine.close()
