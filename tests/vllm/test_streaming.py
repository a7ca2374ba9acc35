"""Layer streaming is true: a layer computes while later ones are still being read, and none is
touched before its bytes are there and verified. Told from the log of a simulated device whose time
only a test moves; never from a stopwatch."""

from typing import Any

import pytest
from engines import prompt, running, transfer
from faulty import one_read_at_a_time, open_on, seconds_passing

from kvstore.testing import Fault, FaultDevice, Injection, Io, VirtualClock
from kvstore_vllm.worker import Worker

KINDS = ["llama", "deepseek_v3"]
PROMPT = prompt(400, 5)  # one extent, whose layers are one read each
RUBBISH = 0x7B


@pytest.fixture(scope="module", params=KINDS)
def filled(request, model_of, tmp_path_factory) -> Any:
    """(model, root that holds the prompt, its tokens)."""
    model, root = model_of(request.param), tmp_path_factory.mktemp("root")
    with running(model, transfer(root)) as engine:
        expected = engine.tokens([PROMPT])
        engine.settle()
    return model, root, expected


def test_later_layers_are_in_flight_while_a_layer_computes(filled, monkeypatch):
    model, root, expected = filled
    clock = VirtualClock()
    device = FaultDevice(clock, bytes_per_second=10**9, auto_advance=False)
    open_on(monkeypatch, Injection(clock=clock, devices=[device]))
    with running(model, transfer(root, deadline="1h", io_timeout="1h")) as engine:
        overlap = one_read_at_a_time(monkeypatch, clock, device)
        assert engine.tokens([PROMPT], max_tokens=1) == [expected[0][:1]]
        layers = engine.worker.pages.layers
    assert overlap.read_at_start == 0, "start_load_kv waited for reads"
    # wait_for_layer_load was called on every layer; all later ones were on the device then.
    assert overlap.in_flight == list(range(layers - 1, -1, -1))


def test_every_layer_is_verified_in_its_pages_before_it_is_touched(filled, monkeypatch):
    """All pages hold rubbish at first, so one that is touched too early would show."""
    model, root, expected = filled
    clock = VirtualClock()
    device = FaultDevice(clock, bytes_per_second=10**8)
    open_on(monkeypatch, Injection(clock=clock, devices=[device]))
    waited = []
    wait = Worker.wait_layer

    def wait_layer(self: Worker, name: str) -> None:
        wait(self, name)
        layer = self.pages.index_of[name]
        waited.append(layer)
        for loading in self.loading:
            assert loading.good == len(loading.order.block_ids)
            assert loading.wait(layer, 0), "returned before the layer was there"
            rows = self.pages.rows[layer][loading.order.block_ids]
            assert not (rows == RUBBISH).all(dim=1).any()

    with running(model, transfer(root, deadline="1h", io_timeout="1h")) as engine:
        for rows in engine.worker.pages.rows:
            rows.fill_(RUBBISH)
        monkeypatch.setattr(Worker, "wait_layer", wait_layer)
        assert engine.tokens([PROMPT], max_tokens=1) == [expected[0][:1]]
        assert waited == list(range(engine.worker.pages.layers))


@pytest.mark.parametrize("mode", ["layerwise", "async"])
def test_a_stalled_device_holds_a_request_until_the_deadline(filled, monkeypatch, mode):
    """What did not come is computed, and the tokens are the same. The device never answers."""
    model, root, expected = filled
    clock = VirtualClock()
    device = FaultDevice(clock)
    open_on(monkeypatch, Injection(clock=clock, devices=[device]))
    with running(model, transfer(root, mode=mode, deadline="5s", io_timeout="3d")) as engine:
        device.add(Fault.STALL, io=Io.READ, skip=1, count=0)
        with seconds_passing(clock):
            assert engine.tokens([PROMPT]) == expected
        assert engine.store.stats().loads_by_reason == {"deadline": 1}
        assert engine.metric("vllm:kvstore_lost_blocks") > 0
        device.release_stalled()
