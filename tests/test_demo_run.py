"""The whole demo, every phase in its process, with the small model and a short prompt."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the demo needs the mla extra")
pytest.importorskip("rich", reason="the demo needs the cli extra")

CHECKOUT = Path(__file__).resolve().parents[1]
TOKENS = 2090  # 32 whole blocks, which are two extents, and a partial one


@pytest.fixture
def out() -> Iterator[Path]:
    """A directory on the checkout's disk: the demo refuses tmpfs, where tmp_path may lie."""
    cache = CHECKOUT / ".cache"
    cache.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as directory:
        yield Path(directory)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_demo_keeps_every_promise_and_cleans_up(out: Path) -> None:
    command = [sys.executable, "-m", "kvstore_demo", "--model-size", "small", "--out", str(out)]
    run = subprocess.run(
        [*command, "--prompt-tokens", str(TOKENS)], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "BROKEN" not in run.stdout
    figures = json.loads((out / "demo.json").read_text())
    assert figures["cold"]["blocks_put"] == TOKENS // 64
    assert figures["warm"]["against_cold"]["bitwise"] is True
    assert figures["after_damage"]["quarantined"] == 1
    assert (out / "timeline.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(p.name for p in out.iterdir()) == ["demo.json", "model-small", "timeline.png"]
