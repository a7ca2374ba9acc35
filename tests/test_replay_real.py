"""A replay on disk: a real store gives the simulated one's answers, and every byte is compared."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvstore.replay.real import Real, WrongBytes, cells_of
from kvstore.replay.request import Request
from kvstore.replay.run import Plan, replay
from kvstore.replay.simulated import FIRST_NS, Simulated, block_charges, file_charges
from kvstore.replay.traces import Options, Trace
from tests.support.traces import LONG, SMALL, token_sessions, write_lines


def token_requests(tmp_path: Path) -> list[Request]:
    path = write_lines(tmp_path / "t.jsonl", token_sessions(3, 5))
    return list(Trace(path, Options()))


def clock_of(request: Request, first: Request) -> int:
    """A minute for each second, so that no two requests share one."""
    return FIRST_NS + round((request.at_s - first.at_s) * 60 * 1e9)


@pytest.mark.parametrize("capacity", [12, 25])
def test_a_real_store_answers_as_the_simulated_one(capacity: int, tmp_path: Path) -> None:
    requests = token_requests(tmp_path)
    (one,) = file_charges(SMALL)
    model = Simulated(LONG, block_charges(1), capacity)
    with Real(
        tmp_path / "kv", SMALL, LONG, capacity=capacity * one + one // 2, pool="32MB"
    ) as real:
        for number, request in enumerate(requests):
            now_ns = clock_of(request, requests[0])
            wanted = model.request(now_ns, request, "agent")
            found = real.request(now_ns, request, "agent")
            assert found.hit_blocks == wanted.hit_blocks, f"request {number}"
            assert found.stored_blocks == wanted.stored_blocks, f"request {number}"
            assert found.dropped_blocks == wanted.dropped_blocks, f"request {number}"
        assert real.removed().evicted_extents == model.removed().evicted_extents > 0
        assert real.stats().verified_bytes > 0


@pytest.mark.parametrize(
    "words",
    [
        {"admission": "second-hit"},
        {"write_budget": 4 * 24 * SMALL.block_bytes},
        {"admission": "second-hit", "write_budget": 2 * 24 * SMALL.block_bytes},
    ],
)
def test_what_is_worth_writing_is_decided_alike(words: dict[str, Any], tmp_path: Path) -> None:
    requests = token_requests(tmp_path)
    model = Simulated(LONG, block_charges(1), None, block_bytes=SMALL.block_bytes, **words)
    refused = 0
    with Real(tmp_path / "kv", SMALL, LONG, pool="32MB", **words) as real:
        for number, request in enumerate(requests):
            now_ns = clock_of(request, requests[0])
            wanted = model.request(now_ns, request, "agent")
            found = real.request(now_ns, request, "agent")
            assert found.hit_blocks == wanted.hit_blocks, f"request {number}"
            assert found.stored_blocks == wanted.stored_blocks, f"request {number}"
            assert found.refused_blocks == wanted.refused_blocks, f"request {number}"
            assert found.reason == wanted.reason, f"request {number}"
            refused += found.refused_blocks
        assert real.removed().refused_blocks == model.removed().refused_blocks
        assert sum(real.removed().refused_blocks.values()) == refused > 0
        assert real.stats().written_bytes > 0


def test_a_prompt_larger_than_the_budget_keeps_its_head(tmp_path: Path) -> None:
    """All prompts begin with the same two blocks, the budget is four. Room for what comes behind
    is not made by evicting what comes before, and the last room goes to what comes first."""
    requests = token_requests(tmp_path)
    (one,) = file_charges(SMALL)
    with Real(tmp_path / "kv", SMALL, LONG, capacity=4 * one + one // 2, pool="32MB") as real:
        answers = [
            real.request(clock_of(request, requests[0]), request, "agent") for request in requests
        ]
    assert min(len(request.blocks) for request in requests[3:]) > 4
    assert answers[0].hit_blocks == 0
    assert {answer.hit_blocks for answer in answers[1:]} <= {2, 3, 4}
    assert answers[0].stored_blocks == min(4, len(requests[0].blocks))
    assert sum(answer.dropped_blocks for answer in answers) > 20


def test_a_restart_in_the_middle_loses_no_hit(tmp_path: Path) -> None:
    requests = token_requests(tmp_path)
    hits = []
    for name, restarts in (("with", True), ("without", False)):
        with Real(tmp_path / name, SMALL, LONG, pool="32MB") as real:
            found = []
            for number, request in enumerate(requests):
                if restarts and number in (5, 9):
                    real.restart()
                now_ns = clock_of(request, requests[0])
                answer = real.request(now_ns, request, "agent")
                found.append(answer.hit_blocks)
            hits.append(found)
    assert hits[0] == hits[1]
    assert sum(hits[0]) > 0


def test_wrong_bytes_do_not_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = token_requests(tmp_path)
    with Real(tmp_path / "kv", SMALL, LONG, pool="32MB") as real:
        real.request(FIRST_NS, requests[0], "agent")

        def others(keys: bytes, layer: int, cell_bytes: int) -> Any:
            cells = cells_of(keys, layer, cell_bytes)
            cells[-1, -1] ^= layer == 2
            return cells

        monkeypatch.setattr("kvstore.replay.real.cells_of", others)
        with pytest.raises(WrongBytes, match="layer 2 of blocks"):
            real.request(FIRST_NS, requests[0], "agent")


def test_cells_follow_from_key_and_layer_alone() -> None:
    keys = np.random.default_rng(1).integers(0, 256, (5, 32), dtype=np.uint8).tobytes()
    cells = cells_of(keys, 3, 1001)
    assert cells.shape == (5, 1001)
    assert np.array_equal(cells_of(keys[64:96], 3, 1001)[0], cells[2])
    assert len({row.tobytes() for row in cells} | {cells_of(keys, 4, 1001)[0].tobytes()}) == 6
    half = cells_of(keys, 3, 16)
    assert not np.array_equal(half[:, :8], half[:, 8:])


def test_real_extents_of_many_blocks(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "t.jsonl", token_sessions())
    plan = Plan(ttl_s=LONG, real=True, real_root=tmp_path / "kv", pool="64MB", extent_blocks=16)
    result = replay(Trace(path), plan)
    assert result.hit_rate_tokens == result.ideal_hit_rate_tokens
    assert result.real is not None
    assert result.real.verified_bytes == result.hit_tokens // 64 * result.block_bytes
    assert result.bytes_written == result.blocks_stored * result.block_bytes
    assert sum(result.hit_tokens_by_tier.values()) == result.hit_tokens
    assert any((tmp_path / "kv").rglob("*.kv"))
