"""What is lost between lookup and load is computed: same tokens, nothing stuck, saved again."""

import os
from pathlib import Path
from typing import Any

import pytest
from faulty import open_on

from conftest import Engine, prompt, running, transfer
from kvstore.testing import Fault, FaultDevice, Injection, Io, VirtualClock
from kvstore_vllm.worker import Worker

PROMPTS = [prompt(700, 11), prompt(400, 12)]


@pytest.fixture(scope="module", params=["layerwise", "async"])
def engine(request, model_of, tmp_path_factory) -> Any:
    """One engine for the tests of this file; each begins with both prompts on disk."""
    root = tmp_path_factory.mktemp("root")
    with running(model_of("llama"), transfer(root, mode=request.param)) as engine:
        engine.root = root
        engine.expected = engine.tokens(PROMPTS)
        yield engine


def extents(root: Path) -> list[Path]:
    return sorted(path for path in root.glob("*/*/*") if path.parent.name != "tmp")


def before_the_load(monkeypatch: pytest.MonkeyPatch, harm: Any) -> None:
    """`harm` happens once, after lookup and lease, when the worker is about to load."""
    start = Worker.start_loads
    left = [harm]

    def start_loads(self: Worker) -> None:
        if self.ordered_loads and left:
            left.pop()()
        start(self)

    monkeypatch.setattr(Worker, "start_loads", start_loads)


def flip_a_bit(root: Path) -> None:
    for path in extents(root):
        with path.open("r+b") as file:
            file.seek(os.stat(path).st_size // 2)
            byte = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte[0] ^ 1]))


def lose_all(engine: Engine) -> None:
    for path in extents(engine.root):
        path.unlink()


@pytest.mark.parametrize("harm", ["damaged", "unlinked", "deleted"])
def test_blocks_lost_between_lookup_and_load_are_computed(engine, monkeypatch, harm):
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


def test_a_failed_load_fails_its_request_when_that_is_the_policy(model_of, tmp_path, monkeypatch):
    """vLLM's default policy: an error for the request, and the engine goes on."""
    with running(model_of("llama"), transfer(tmp_path, policy="fail")) as engine:
        expected = engine.tokens(PROMPTS)
        engine.forget()
        before_the_load(monkeypatch, lambda: flip_a_bit(tmp_path))
        failed = engine.run(PROMPTS)
        assert {out.outputs[0].finish_reason for out in failed} == {"error"}
        assert engine.store.stats().leases == 0
        assert engine.tokens(PROMPTS) == expected


@pytest.mark.parametrize("fault", ["error", "short", "flip"])
def test_a_device_in_trouble_costs_computing_and_nothing_else(
    model_of, tmp_path, monkeypatch, fault
):
    clock = VirtualClock()
    device = FaultDevice(clock)
    open_on(monkeypatch, Injection(clock=clock, devices=[device]))
    with running(model_of("llama"), transfer(tmp_path)) as engine:
        expected = engine.tokens(PROMPTS)
        engine.forget()
        kind, value = {"error": (Fault.ERRNO, 5), "short": (Fault.SHORT, 512),
                       "flip": (Fault.BIT_FLIP, 7)}[fault]  # fmt: skip
        device.add(kind, value, io=Io.READ, count=0)
        assert engine.tokens(PROMPTS) == expected
        assert engine.metric("vllm:kvstore_lost_blocks") > 0
        device.clear()
        assert engine.tokens(PROMPTS) == expected


def test_a_cache_that_is_full_during_a_load_serves_what_it_can(model_of, tmp_path):
    """Room for about one prompt: each evicts the other, again and again."""
    words = {"capacity": "8MB", "reserve": 0, "pool": "32MB"}
    prompts = [prompt(700, seed) for seed in range(20, 26)]
    with running(model_of("llama")) as plain:
        expected = plain.tokens(prompts)
    with running(model_of("llama"), transfer(tmp_path, **words)) as engine:
        for _ in range(3):
            assert engine.tokens(prompts) == expected
            engine.forget()
        assert engine.store.stats().evicted_extents > 0
        assert engine.store.stats().leases == 0
