"""Requests that meet: partial local hits, chunked prefill, shared prefixes, aborts, preemption.

The engine has so few pages that what one request gives back another takes at once.
"""

from typing import Any

import pytest
from engines import Engine, prompt, running, transfer

SMALL = {"block_size": 32, "num_gpu_blocks_override": 40, "max_model_len": 1024,
         "max_num_batched_tokens": 256, "max_num_seqs": 4}  # fmt: skip
LONG = prompt(640, 31)
SHARED = [LONG + prompt(40, 32), LONG + prompt(50, 33)]
PAIR = [prompt(500, 34), prompt(500, 35)]
EVERYTHING = [LONG, *SHARED, *PAIR]


@pytest.fixture(scope="module")
def expected(model_of) -> dict[str, list[int]]:
    """Tokens of every prompt, each alone, without kvstore."""
    with running(model_of("llama"), **SMALL) as plain:
        return {str(one): plain.tokens([one], max_tokens=160)[0] for one in EVERYTHING}


@pytest.fixture(scope="module", params=["layerwise", "async"])
def engine(request, expected, model_of, tmp_path_factory) -> Any:
    root = tmp_path_factory.mktemp("root")
    with running(model_of("llama"), transfer(root, mode=request.param), **SMALL) as engine:
        for one in EVERYTHING:
            engine.tokens([one], max_tokens=1)
        yield engine


def check(engine: Engine, expected: dict[str, list[int]], prompts: Any, max_tokens: int) -> None:
    wanted = [expected[str(one)][:max_tokens] for one in prompts]
    assert engine.tokens(prompts, max_tokens) == wanted
    assert not engine.connector.scheduler._tracked
    assert engine.store.stats().leases == 0


def from_disk(engine: Engine) -> float:
    return engine.metric("vllm:prompt_tokens_cached_by_source", source="disk")


def test_a_local_hit_is_continued_from_disk_in_chunks(engine, expected):
    engine.forget()
    before = from_disk(engine)
    engine.tokens([LONG[:200]], max_tokens=1)
    assert from_disk(engine) - before == 192
    check(engine, expected, [LONG], 8)
    assert from_disk(engine) - before == 192 + (608 - 192)


def test_two_requests_share_a_prefix_that_is_being_loaded(engine, expected):
    engine.forget()
    check(engine, expected, SHARED, 8)
    assert engine.metric("vllm:kvstore_lost_blocks") == 0


def test_preempted_requests_go_on_with_the_same_tokens(engine, expected):
    """Two that do not fit together: one gives up its pages, and comes back to others. Whether from
    disk is up to vLLM's own prefix cache; test_vllm_lookups.py has both."""
    engine.forget()
    before = engine.metric("vllm:num_preemptions")
    check(engine, expected, PAIR, 160)
    assert engine.metric("vllm:num_preemptions") > before
