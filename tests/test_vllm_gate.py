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


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "paths"),
        ({"paths": []}, "at least one directory"),
        ({"paths": ["/a"], "capasity": "1GB"}, "capasity"),
        ({"paths": ["/a"], "mode": "fast"}, "mode|fast"),
        ({"paths": ["/a"], "deadline": "soon"}, "deadline"),
        ({"paths": ["/a"], "load_gbps": 0}, "load_gbps"),
    ],
)
def test_a_configuration_that_makes_no_sense_is_refused_in_words(given, words):
    with pytest.raises(ValueError, match=words):
        options_of(given)
