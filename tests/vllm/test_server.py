"""A real vLLM server with the connector: what one life of it stored, the next serves from disk.

Over the wire, as an operator sees it: `usage` of the answers and /metrics. How the connector does
it is in the other files here. The servers are those of benches/ttft. The gate is off: it would
refuse the loads of a model as small as this one.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from ttft import models
from ttft.client import Answer, Client
from ttft.prompts import document
from ttft.variants import RECOMPUTE, UNGATED, Setting, Variant

BLOCK = models.MODELS["tiny"].block_tokens
BY_SOURCE = "vllm:prompt_tokens_cached_by_source_total{source=%s}"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@contextmanager
def serving(name: str, folder: Path) -> Iterator[Client]:
    """A life of a server, with the store of the lives before it in the same folder."""
    model = models.MODELS["tiny"]
    written = models.write(model, folder / "model")
    setting = Setting(
        model=model,
        model_folder=written,
        max_tokens=1024,
        dtype="float32",
        kv_gib=1,
        folder=folder,
        lmcache_folder=None,
    )
    with ExitStack() as stack:
        engine, port = Variant(name, setting).launch(stack)
        engine.wait_for(f"http://127.0.0.1:{port}/health")
        yield Client(port)


def check_hits(client: Client, asked: dict[str, list[int]], cold: dict[str, Answer]) -> None:
    warm = {name: client.ask(ids) for name, ids in asked.items()}
    assert {name: answer.text for name, answer in warm.items()} == {
        name: answer.text for name, answer in cold.items()
    }
    cached = {name: answer.cached_tokens // BLOCK for name, answer in warm.items()}
    # Of 512 tokens the last block is computed: a prompt must leave a token to compute.
    assert cached == {"whole blocks": 3, "part of a block": 5, "shorter": 2, "other": 0}
    assert all(answer.cached_tokens % BLOCK == 0 for answer in warm.values())
    counters = client.counters()
    assert counters[BY_SOURCE % "disk"] == (3 + 5) * BLOCK
    assert counters[BY_SOURCE % "device"] == 2 * BLOCK


def test_a_server_that_starts_anew_serves_from_disk_what_the_one_before_stored(
    tmp_path: Path,
) -> None:
    long = document(2, 700)
    stored = {"whole blocks": document(1, 512), "part of a block": long}
    # "shorter" comes after the longer one: its blocks are in the engine's memory by then.
    asked = {**stored, "shorter": [*long[:300], *document(3, 60)], "other": document(4, 400)}
    with serving(RECOMPUTE, tmp_path / "none") as client:
        cold = {name: client.ask(ids) for name, ids in asked.items()}
    with serving(UNGATED, tmp_path / "store") as client:
        for ids in stored.values():
            assert client.ask(ids).cached_tokens == 0
    with serving(UNGATED, tmp_path / "store") as client:
        check_hits(client, asked, cold)
