"""A device in trouble, a full cache, an abort in the middle of a load: each with its own engine."""

import hashlib
from typing import Any

import pytest
from engines import prompt, running, transfer
from faulty import before_the_load, flip_a_bit, open_on, seconds_passing

from kvstore import Layout
from kvstore.testing import Fault, FaultDevice, Injection, Io, VirtualClock

PROMPTS = [prompt(700, 11), prompt(400, 12)]
# So few pages that what one request gives back another takes at once.
SMALL = {"block_size": 32, "num_gpu_blocks_override": 40, "max_model_len": 1024}
LONG = prompt(640, 31)
PAIR = [prompt(500, 34), prompt(500, 35)]


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
    """Room for three of six prompts: together they find what is leased, alone they evict."""
    words = {"capacity": "8MB", "reserve": 0, "pool": "32MB"}
    prompts = [prompt(700, seed) for seed in range(20, 26)]
    with running(model_of("llama")) as plain:
        expected = plain.tokens(prompts)
    with running(model_of("llama"), transfer(tmp_path, **words)) as engine:
        for _ in range(2):
            assert engine.tokens(prompts) == expected
            engine.forget()
            assert [engine.tokens([one])[0] for one in prompts] == expected
            engine.forget()
        assert engine.store.stats().evicted_extents > 0
        assert engine.store.stats().leases == 0


@pytest.mark.parametrize("harm", ["expired", "evicted"])
def test_blocks_that_leave_between_lookup_and_load_are_computed(
    model_of, tmp_path, monkeypatch, harm
):
    """Their lease has timed out: the worker comes to them days, or other prompts, too late."""
    clock = VirtualClock()
    open_on(monkeypatch, Injection(clock=clock))
    words = {"capacity": "16MB", "reserve": 0, "pool": "64MB"}
    with running(model_of("llama"), transfer(tmp_path, **words)) as engine:
        expected = engine.tokens(PROMPTS)
        engine.forget()

        def leave() -> None:
            clock.advance(8 * 86400 if harm == "expired" else 120)
            engine.store.tick()
            if harm == "evicted":
                fill(engine.store)

        before_the_load(monkeypatch, leave)
        assert engine.tokens(PROMPTS) == expected
        assert set(engine.store.stats().loads_by_reason) <= {harm, "absent"}
        assert engine.metric("vllm:kvstore_lost_blocks") > 0
        assert engine.store.stats().leases == 0


def fill(store: Any) -> None:
    """Other blocks, until the store has evicted all that it held."""
    before = store.stats().extents
    kv = store.cache(Layout(parts_by_layer=((("kv", 2**20),),), model="others", block_tokens=16))
    for number in range(64):
        if store.stats().evicted_extents >= before:
            return
        assert kv.put_blocking(hashlib.sha256(bytes([number])).digest(), bytes(2**20))
    raise AssertionError("nothing was evicted")


def test_pages_of_an_aborted_load_are_reused_at_once(model_of, tmp_path, monkeypatch):
    """The load is under way on a device that has stopped; its request is aborted, the device goes
    on, and the pages go to the next requests."""
    from vllm import SamplingParams

    with running(model_of("llama"), transfer(tmp_path), **SMALL) as engine:
        engine.tokens([LONG], max_tokens=1)
        expected = engine.tokens(PAIR)
    clock = VirtualClock()
    device = FaultDevice(clock, bytes_per_second=10**8, auto_advance=False)
    open_on(monkeypatch, Injection(clock=clock, devices=[device]))
    words = {"mode": "async", "deadline": "1h", "io_timeout": "3d"}
    with running(model_of("llama"), transfer(tmp_path, **words), **SMALL) as engine:
        llm = engine.llm.llm_engine
        sampling = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
        for turn in range(3):
            name = llm.add_request(f"gone {turn}", {"prompt_token_ids": LONG}, sampling)
            for _ in range(5):
                llm.step()
            assert engine.store.stats().loads_running == 1
            llm.abort_request([name], internal=True)
            with seconds_passing(clock):
                assert engine.tokens(PAIR) == expected
                engine.forget()
        assert engine.store.stats().leases == 0
        with seconds_passing(clock):
            engine.settle()
