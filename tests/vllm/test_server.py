"""vLLM's OpenAI server with kvstore, asked by the official client, over a restart."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import openai
import pytest
from engines import prompt, transfer

ROOT = Path(__file__).parents[2]
PROMPT = prompt(700, 51)
pytestmark = pytest.mark.timeout(400)


@contextmanager
def serving(model: Path, root: Path) -> Iterator[str]:
    """The server's address, once it is up."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen(
        [
            sys.executable, "-m", "vllm.entrypoints.openai.api_server",
            "--model", str(model), "--served-model-name", "tiny",
            "--host", "127.0.0.1", "--port", str(port), "--dtype", "float32",
            "--max-model-len", "2048", "--enforce-eager", "--enable-prompt-tokens-details",
            "--kv-transfer-config", json.dumps(transfer(root)),
        ],
        start_new_session=True,
        env=os.environ
        | {
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "python")]),
            "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
        },
    )  # fmt: skip
    try:
        wait_until_up(server, f"http://127.0.0.1:{port}/health")
        yield f"http://127.0.0.1:{port}"
        server.send_signal(signal.SIGINT)
        assert server.wait(60) == 0
    finally:
        try:
            os.killpg(server.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        server.wait()


def wait_until_up(server: "subprocess.Popen[bytes]", address: str) -> None:
    until = time.monotonic() + 200
    while time.monotonic() < until:
        assert server.poll() is None, "the server ended"
        try:
            with urllib.request.urlopen(address, timeout=5):
                return
        except OSError:
            time.sleep(0.2)
    raise AssertionError("the server is not up")


def ask(address: str) -> tuple[str, int]:
    """(text, cached tokens) of a completion."""
    client = openai.OpenAI(base_url=f"{address}/v1", api_key="none")
    answer = client.completions.create(model="tiny", prompt=PROMPT, max_tokens=8, temperature=0)
    assert answer.usage is not None and answer.usage.prompt_tokens == len(PROMPT)
    details = answer.usage.prompt_tokens_details
    return answer.choices[0].text, (details and details.cached_tokens) or 0


def from_disk(address: str) -> float:
    with urllib.request.urlopen(f"{address}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    name = "vllm:prompt_tokens_cached_by_source_total"
    found = [line for line in lines if line.startswith(name) and 'source="disk"' in line]
    return sum(float(line.rsplit(" ", 1)[1]) for line in found)


def test_cached_tokens_count_what_came_from_disk_after_a_restart(model_of, tmp_path):
    with serving(model_of("llama"), tmp_path) as address:
        cold, cached = ask(address)
        assert cached == 0
        assert ask(address) == (cold, 640), "vLLM's own prefix cache"
        assert from_disk(address) == 0
    with serving(model_of("llama"), tmp_path) as address:
        assert ask(address) == (cold, 640)
        assert from_disk(address) == 640
