"""A scheduler and workers of `kvstore_vllm` without vLLM, on simulated pages.

What a step does is driven by hand, as vLLM does it: look up, allocate, order, load, compute, save.
"""

from functools import reduce
from types import SimpleNamespace
from typing import Any

import torch

import kvstore
from kvstore_vllm.messages import WorkerNews
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
        self.wrong = 0  # what is added to each byte that is computed
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
            rows[table[block]] = self.truth(rank, request, block) + layer + self.wrong

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
        assert not self.run(request, table, todo)
        return hit

    def run(self, request: Request, table: list[int], tokens: int) -> set[int]:
        """One step of all ranks; the pages that did not load on one of them, as vLLM hears it."""
        whole = request.num_tokens // self.block
        first = request.num_computed_tokens // self.block
        orders = self.scheduler.orders(output(request, table, tokens))
        for worker in self.workers:
            worker.begin_step(orders)
            worker.start_loads()
        bad: set[int] = set()
        for rank, worker in enumerate(self.workers):
            for layer, name in enumerate(worker.pages.names):
                worker.wait_layer(name)
                self.compute(rank, layer, request, table, first, whole)
                worker.save_layer(name)
            worker.end_step()
            bad |= worker.bad_pages()
        self.scheduler.stepped(reduce(WorkerNews.merged, [w.news() for w in self.workers]))
        request.num_computed_tokens += tokens
        return bad

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
