"""The connector without vLLM: several workers and a scheduler over one root, on simulated pages.

What a step does is driven by hand, as vLLM does it: look up, allocate, order, load, compute, save.
Block sizes and page forms that a CPU engine does not have are here.
"""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

import kvstore
from kvstore_vllm.chains import Chains
from kvstore_vllm.options import Options
from kvstore_vllm.pages import EnginePages
from kvstore_vllm.scheduler import Scheduler
from kvstore_vllm.worker import Worker

LAYERS = 3
PAGES = 40


def layout(page_bytes: int, block_tokens: int, rank: tuple[int, int] = (0, 1)) -> kvstore.Layout:
    return kvstore.Layout(
        parts_by_layer=((("kv", page_bytes),),) * LAYERS,
        model="test/model", block_tokens=block_tokens, rank=rank,
    )  # fmt: skip


def memory(page_bytes: int, *, aligned: bool = False) -> dict[str, torch.Tensor]:
    """Engine tensors: like vLLM's on a CPU 64 bytes past a page boundary, or on one."""
    stride = PAGES * page_bytes
    room = torch.zeros(LAYERS * stride + 8192, dtype=torch.uint8)
    start = -room.data_ptr() % 4096 + (0 if aligned else 64)
    layers = room[start : start + LAYERS * stride].view(LAYERS, PAGES, page_bytes)
    return {f"layer.{i}": layers[i] for i in range(LAYERS)}


class Request(SimpleNamespace):
    """What the connector looks at of an engine's request."""

    @classmethod
    def of(cls, name: str, tokens: list[int], block_tokens: int) -> "Request":
        keys = kvstore.chain.chain_of_tokens(tokens, block_tokens=block_tokens)
        return cls(
            request_id=name, all_token_ids=tokens, num_tokens=len(tokens), block_hashes=list(keys),
            num_prompt_tokens=len(tokens), num_computed_tokens=0, cache_salt=None, mm_features=[],
            lora_request=None, prompt_embeds=None,
        )  # fmt: skip


class Engine:
    """A scheduler and its workers; a page's bytes follow from rank and tokens."""

    def __init__(self, root: Any, layouts: list[kvstore.Layout], writers: list[bool] | None = None,
                 *, aligned: bool = False, **words: Any) -> None:  # fmt: skip
        words = {"pool": "32MB", "capacity": "512MB", "gate": False} | words
        options = Options(paths=(str(root),), **words)
        self.layouts = layouts
        self.block = layouts[0].block_tokens
        self.workers = []
        for rank, one in enumerate(layouts):
            saves = writers is None or writers[rank]
            worker = Worker(options, saves=saves, owner=rank == 0)
            tensors = memory(one.cell_bytes(0), aligned=aligned)
            worker.attach(EnginePages(tensors, PAGES), one)
            self.workers.append(worker)
        self.scheduler = Scheduler(options, loads=True, saves=True)
        self.scheduler.attach(layouts, own_keys=False)

    def truth(self, rank: int, request: Request, block: int) -> torch.Tensor:
        """What rank's page of the block must hold in layer 0; layer l has it plus l."""
        seed = hash((self.layouts[rank].rank, request.block_hashes[block])) % 2**31
        draw = torch.Generator().manual_seed(seed)
        size = (self.layouts[rank].cell_bytes(0),)
        return torch.randint(0, 200, size, dtype=torch.uint8, generator=draw)

    def compute(
        self, rank: int, layer: int, request: Request, table: list[int], start: int, end: int
    ) -> None:
        for block in range(start, end):
            rows = self.workers[rank].pages.rows[layer]
            rows[table[block]] = self.truth(rank, request, block) + layer

    def wrong_pages(self, request: Request, table: list[int], blocks: int) -> list[Any]:
        return [
            (rank, block, layer)
            for rank, worker in enumerate(self.workers)
            for block in range(blocks)
            for layer, rows in enumerate(worker.pages.rows)
            if not torch.equal(rows[table[block]], self.truth(rank, request, block) + layer)
        ]

    def step(self, request: Request, table: list[int], *, local: int = 0) -> int:
        """One whole step of a prompt; how many tokens came from the store."""
        hit = self.scheduler.matched_tokens(request, local)
        while hit is None:
            hit = self.scheduler.matched_tokens(request, local)
        self.scheduler.allocated(request, table, hit)
        request.num_computed_tokens = local + hit
        todo = request.num_tokens - request.num_computed_tokens
        self.run(request, table, todo)
        return hit

    def run(self, request: Request, table: list[int], tokens: int) -> None:
        whole = request.num_tokens // self.block
        first = request.num_computed_tokens // self.block
        orders = self.scheduler.orders(output(request, table, tokens))
        for worker in self.workers:
            worker.begin_step(orders)
            worker.start_loads()
        for rank, worker in enumerate(self.workers):
            for layer, name in enumerate(worker.pages.names):
                worker.wait_layer(name)
                self.compute(rank, layer, request, table, first, whole)
                worker.save_layer(name)
            worker.end_step()
            assert not worker.bad_pages()
            self.scheduler.stepped(worker.news())
        request.num_computed_tokens += tokens

    def end(self, *requests: Request) -> None:
        for request in requests:
            self.scheduler.finished(request.request_id)
        orders = self.scheduler.orders(output(None, [], 0))
        for worker in self.workers:
            worker.begin_step(orders)
            worker.start_loads()
            worker.end_step()
            worker.wait_saved()

    def close(self) -> None:
        self.scheduler.close()
        for worker in self.workers:
            worker.close()


def output(request: Request | None, table: list[int], tokens: int) -> Any:
    """The parts of a SchedulerOutput that the connector looks at."""
    return SimpleNamespace(
        num_scheduled_tokens={request.request_id: tokens} if request else {},
        total_num_scheduled_tokens=tokens,
        kv_connector_block_state=SimpleNamespace(get_block_ids=lambda _: (list(table),)),
    )


def tokens(count: int, seed: int = 0) -> list[int]:
    return [(seed * 7919 + i * 31) % 5000 for i in range(count)]


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
