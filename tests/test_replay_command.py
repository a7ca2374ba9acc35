"""`kvstore replay`: its words, its JSON, its picture, and how it fails."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from kvstore.cli import main
from kvstore.commands.progress import progress
from kvstore.replay.report import duration
from tests.support.traces import mooncake_rows, token_sessions, write_lines


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "trace.jsonl", mooncake_rows())


def told(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    assert main(["replay", *map(str, arguments), "--json"]) == 0
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


def test_json_has_all_of_it(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = told(
        capsys, path, "--capacity-blocks", 60, "--curve", "--speed", 72, "--ttl", "agent=1d",
        "--price-hit", 0.1, "--price-miss", 1,
    )  # fmt: skip
    assert 0 < found["hit_rate_tokens"] < found["ideal_hit_rate_tokens"] < 1
    assert found["hit_tokens"] + found["missed_tokens"] == found["input_tokens"]
    assert (found["requests"], found["format"], found["io"]) == (200, "mooncake", "none")
    assert (found["capacity_blocks"], found["capacity_bytes"]) == (60, None)
    assert (found["speed"], found["admission"]) == (72, "always")
    classes = found["classes"]
    assert {name: of["ttl_s"] for name, of in classes.items()} == {"agent": 86400, "chat": 604800}
    assert classes["chat"]["requests"] == 200
    assert {"evicted_idle_s", "kept_for_ttl_blocks", "kept_for_ttl_bytes"} < set(classes["chat"])
    for name in (
        "hit_tokens_by_tier", "missed_blocks_by_reason", "bytes_written", "bytes_read",
        "evicted_extents", "expired_extents", "reuse_gap_s", "one_block_extents", "money", "curve",
    ):  # fmt: skip
        assert found[name] is not None, name


def test_the_same_trace_gives_the_same_answer(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = (told(capsys, path, "--capacity-blocks", 60) for _ in range(2))
    one.pop("wall_s"), two.pop("wall_s")
    assert one == two


def test_words_for_people(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--capacity-blocks", "60", "--admission", "second-hit", "--curve"]
    prices = ["--price-hit", "1", "--price-miss", "2"]
    assert main(["replay", str(path), *arguments, *prices]) == 0
    out, err = capsys.readouterr()
    assert err == "", "no progress where stderr is no terminal"
    for word in (
        "200 requests", "hits ", "class ", "tier ", "moved ", "left ", "retains ", "needs ",
        "gaps ", "extents of 16", "second-hit costs", "saved", "curve ",
    ):  # fmt: skip
        assert word in out, word


def test_out_of_order_lines_are_noted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"timestamp": at, "input_length": 512, "hash_ids": [1]} for at in (5, 1)]
    path = write_lines(tmp_path / "t.jsonl", rows)
    assert main(["replay", str(path)]) == 0
    assert "1 lines are earlier" in capsys.readouterr().out


def test_plot_is_written(path: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "out.png"
    assert main(["replay", str(path), "--plot", str(picture), "--capacity-blocks", "60"]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_plot_without_matplotlib_says_what_to_install(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    assert main(["replay", str(path), "--plot", "x.png"]) == 1
    assert "pip install 'kvstore-nvme[cli]'" in capsys.readouterr().err


def test_what_would_fail_at_the_end_fails_at_once(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    assert main(["replay", str(path), "--plot", "out.doc"]) == 1
    assert "png" in capsys.readouterr().err
    assert main(["replay", str(path), "--plot", str(tmp_path / "none" / "out.png")]) == 1
    assert "mkdir" in capsys.readouterr().err
    config = tmp_path / "config.json"
    config.write_text('{"model_type": "abacus"}')
    assert main(["replay", str(path), "--layout", str(config)]) == 1
    assert str(config) in capsys.readouterr().err


def test_zstd_without_its_library_says_what_to_install(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t.zst"
    path.write_bytes(b"\x28\xb5\x2f\xfd and more")
    monkeypatch.setitem(sys.modules, "zstandard", None)
    assert main(["replay", str(path)]) == 1
    assert "pip install 'kvstore-nvme[cli]'" in capsys.readouterr().err


def test_real_io_writes_where_it_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_lines(tmp_path / "t.jsonl", token_sessions(2, 3))
    found = told(
        capsys, path, "--io", "real", "--root", tmp_path / "kv", "--requests", 4, "--pool", "64MB",
        "--capacity", "64MB", "--set", "even",
    )  # fmt: skip
    assert found["io"] == "real"
    assert found["requests"] == 3, "of the two sessions one is even; it has three"
    real = found["real"]
    assert real["verified_bytes"] > 0
    kept = sorted((tmp_path / "kv").rglob("*.kv"))
    assert kept
    again = ["replay", str(path), "--io", "real", "--root", str(tmp_path / "kv")]
    assert main(again) == 1, "what lies there would count as hits, or be evicted"
    assert "is not empty" in capsys.readouterr().err
    assert sorted((tmp_path / "kv").rglob("*.kv")) == kept


def test_a_layout_by_config_json(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.json"
    config.write_text(
        json.dumps(
            {"model_type": "llama", "num_hidden_layers": 4, "num_attention_heads": 8,
             "num_key_value_heads": 8, "hidden_size": 1024, "torch_dtype": "bfloat16"}
        )
    )  # fmt: skip
    found = told(capsys, path, "--layout", config, "--capacity", "2GB")
    assert found["block_bytes"] == 4 * 512 * 2 * 1024 * 2
    assert found["capacity_bytes"] == 2 * 10**9


def test_a_bad_trace_ends_with_1_and_names_the_line(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with path.open("a") as file:
        file.write("{}\n")
    assert main(["replay", str(path)]) == 1
    assert f"{path}:201: " in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["t", "--capacity", "2TB", "--capacity-blocks", "3"],
        ["t", "--capacity", "plenty"],
        ["t", "--capacity-blocks", "0"],
        ["t", "--extent-blocks", "17"],
        ["t", "--speed", "0"],
        ["t", "--speed", "inf"],
        ["t", "--stagger", "-1"],
        ["t", "--stagger", "inf"],
        ["t", "--ttl", "agent=soon"],
        ["t", "--ttl", "agent=0s"],
        ["t", "--admission", "never"],
        ["t", "--class", "robot"],
        ["t", "--write-budget", "0"],
        ["t", "--write-budget", "1TB/week"],
        ["t", "--root", "kv"],
        ["t", "--pool", "1GB"],
        ["t", "--io", "real"],
        ["t", "--price-hit", "1"],
        ["t", "--price-hit", "nan", "--price-miss", "1"],
    ],
)
def test_a_wrong_command_line_ends_with_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["replay", *arguments])
    assert ended.value.code == 2
    assert capsys.readouterr().err


def test_a_real_replay_of_no_capacity_says_what_to_do(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It wrote all of a trace to the temporary directory."""
    with pytest.raises(SystemExit):
        main(["replay", str(path), "--io", "real"])
    assert "needs a --capacity, like 20GB" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "words"), [(["--stagger", "5"], "weka"), (["--set", "even"], "tokens")]
)
def test_what_a_format_has_no_use_for_is_no_silence(
    option: list[str], words: str, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", str(path), *option]) == 1
    assert f"is of {words} sessions, this is mooncake" in capsys.readouterr().err


def test_admission_in_words(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(path), "--write-budget", "1GB/day"]) == 0
    out = capsys.readouterr().out
    assert "at most 1 GB written a day" in out
    assert "refused  blocks by reason: write_budget" in out
    assert "hit tokens) and saves" in out


def test_one_time_to_live_for_all_classes(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    classes = told(capsys, path, "--ttl", "2h", "--class", "agent")["classes"]
    assert [of["ttl_s"] for of in classes.values()] == [7200, 7200]
    assert classes["agent"]["requests"] == 200


# ---- progress ------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_on_a_terminal_with_and_without_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich")
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    with progress("replaying") as tell:
        tell(0.5)
    assert "replaying" in screen.getvalue()
    monkeypatch.setitem(sys.modules, "rich.console", None)
    monkeypatch.setattr("kvstore.commands.progress._LINE_EVERY_S", 0.0)
    screen.truncate(0)
    with progress("replaying") as tell:
        tell(0.25)
        tell(0.5)
    lines = screen.getvalue().strip("\0").splitlines()
    assert "replaying: 25%" in lines[0]
    assert "pip install" in lines[0]
    assert lines[1] == "replaying: 50%"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (0.25, "0.25s"), (59, "59s"), (90, "1.5m"), (7200, "2h"), (3 * 86400, "3d")],
)
def test_durations_in_words(seconds: float, text: str) -> None:
    assert duration(seconds) == text
