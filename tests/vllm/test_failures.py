"""What is lost between lookup and load is computed: same tokens, nothing stuck, saved again."""

from typing import Any

import pytest
from engines import Engine, prompt, running, transfer
from faulty import before_the_load, extents, flip_a_bit

PROMPTS = [prompt(700, 11), prompt(400, 12)]


@pytest.fixture(scope="module", params=["layerwise", "async"])
def engine(request, model_of, tmp_path_factory) -> Any:
    """One engine for the tests of this file; each begins with both prompts on disk."""
    root = tmp_path_factory.mktemp("root")
    with running(model_of("llama"), transfer(root, mode=request.param)) as engine:
        engine.root = root
        engine.expected = engine.tokens(PROMPTS)
        yield engine


def lose_all(engine: Engine) -> None:
    for path in extents(engine.root):
        path.unlink()


@pytest.mark.parametrize("harm", ["damaged", "unlinked", "deleted"])
def test_blocks_lost_between_lookup_and_load_are_computed(engine, monkeypatch, harm):
    engine.forget()
    assert engine.tokens(PROMPTS) == engine.expected  # saved again, if the last test lost them
    engine.forget()
    blocks = engine.store.cache(engine.worker.layout)

    def delete() -> None:
        for tracked in engine.connector.scheduler._tracked.values():
            for at in range(0, len(tracked.lease.hit.keys if tracked.lease else b""), 32):
                blocks.delete_blocking(tracked.lease.hit.keys[at : at + 32])

    what = {
        "damaged": lambda: flip_a_bit(engine.root),
        "unlinked": lambda: lose_all(engine),
        "deleted": delete,
    }[harm]
    lost = engine.metric("vllm:kvstore_lost_blocks")
    before_the_load(monkeypatch, what)
    assert engine.tokens(PROMPTS) == engine.expected
    if harm != "unlinked":  # files that are open are still read
        assert engine.metric("vllm:kvstore_lost_blocks") > lost
    assert not engine.connector.scheduler._tracked
    assert engine.store.stats().leases == 0
    # What was computed again was saved again.
    engine.forget()
    disk = engine.metric("vllm:prompt_tokens_cached_by_source", source="disk")
    assert engine.tokens(PROMPTS) == engine.expected
    if harm != "unlinked":
        assert engine.metric("vllm:prompt_tokens_cached_by_source", source="disk") > disk
