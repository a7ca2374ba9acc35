"""Load or compute: the connector's estimate, and what its configuration accepts."""

import pytest

from kvstore_vllm.gate import PROBE_EVERY, Gate
from kvstore_vllm.options import options_of


def test_a_load_is_refused_exactly_when_computing_is_estimated_cheaper():
    gate = Gate(bytes_per_s=1e9, tokens_per_s=1000.0, overhead_s=0.01)
    assert not gate.refuses(tokens=1000, nbytes=980_000_000)  # 0.99 s against 1 s
    assert gate.refuses(tokens=1000, nbytes=1_010_000_000)
    assert gate.refuses(tokens=5, nbytes=1000), "the overhead alone takes longer"


def test_nothing_is_refused_before_both_rates_are_known():
    gate = Gate(bytes_per_s=1.0)
    assert not gate.refuses(tokens=1, nbytes=10**12)
    gate.saw_step(tokens=512, seconds=0.001)
    assert gate.refuses(tokens=1, nbytes=10**12)
    assert not Gate(on=False, bytes_per_s=1.0, tokens_per_s=1e9).refuses(1, 10**12)


def test_a_gate_that_a_bad_measurement_closed_opens_again():
    gate = Gate(bytes_per_s=1e9, tokens_per_s=1000.0)
    gate.saw_load(nbytes=1000, seconds=1000.0)
    for _ in range(20):
        gate.saw_load(nbytes=1000, seconds=1000.0)
    answers = [gate.refuses(tokens=1000, nbytes=10**8) for _ in range(PROBE_EVERY)]
    assert answers == [True] * (PROBE_EVERY - 1) + [False]
    for _ in range(20):
        gate.saw_load(nbytes=10**9, seconds=1.0)
    assert not gate.refuses(tokens=1000, nbytes=10**8)


def test_small_steps_teach_nothing_about_prefill():
    gate = Gate()
    gate.saw_step(tokens=1, seconds=0.05)
    assert gate.compute.value is None


def test_what_every_step_costs_is_not_counted_as_computing_tokens():
    """A step takes 50 ms and 20 us a token: a load of 10 ms for 5 ms of tokens is a bad deal."""
    gate = Gate(bytes_per_s=1e9, overhead_s=0.01)
    for tokens in (1, 512, 1, 1024, 1, 512):
        gate.saw_step(tokens, 0.05 + tokens * 20e-6)
    assert gate.refuses(tokens=256, nbytes=1000)
    assert not gate.refuses(tokens=1024, nbytes=1000)


@pytest.mark.parametrize("load_ms", [1, 5])
def test_loads_that_slow_their_steps_down_are_refused_however_fast_their_reads_are(load_ms):
    """A hit of 1000 tokens saves 20 ms and makes its step 30 ms longer."""
    gate = Gate(overhead_s=0.002)
    for tokens in (1, 512, 1, 1024, 1, 512):
        gate.saw_step(tokens, 0.01 + tokens * 20e-6)
    gate.saw_loading_step(50, nbytes=10**6, seconds=0.01 + 50 * 20e-6 + 0.03, load_s=load_ms / 1e3)
    assert gate.refuses(tokens=1000, nbytes=10**6)
    assert not gate.refuses(tokens=2000, nbytes=10**6)


def test_a_load_behind_which_layers_are_computed_costs_less_than_it_takes():
    """40 ms of reads make a step of 200 ms hardly longer; the same tokens take 30 ms."""
    gate = Gate()
    for tokens in (1, 512, 1, 1024, 1, 512):
        gate.saw_step(tokens, 0.01 + tokens * 20e-6)
    gate.saw_loading_step(9500, nbytes=10**6, seconds=0.205, load_s=0.04)
    assert not gate.refuses(tokens=1500, nbytes=10**6)
    gate.saw_loading_step(1, nbytes=10**6, seconds=0.05, load_s=0.04)
    gate.saw_loading_step(1, nbytes=10**6, seconds=0.05, load_s=0.04)
    assert gate.refuses(tokens=1000, nbytes=10**6)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "paths"),
        ({"paths": []}, "at least one directory"),
        ({"paths": ["/a"], "capasity": "1GB"}, "capasity"),
        ({"paths": ["/a"], "mode": "fast"}, "mode|fast"),
        ({"paths": ["/a"], "deadline": "soon"}, "deadline"),
        ({"paths": ["/a"], "load_gbps": 0}, "load_gbps"),
        ({"paths": ["/a"], "retain": "for ever"}, "retain 'for ever' is not one of"),
        ({"paths": ["/a"], "save_buffer": "much"}, "save_buffer"),
    ],
)
def test_a_configuration_that_makes_no_sense_is_refused_in_words(given, words):
    with pytest.raises(ValueError, match=words):
        options_of(given)
