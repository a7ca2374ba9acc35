"""`kvstore plan`: published shapes give published sizes, and its arithmetic holds."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvstore import Layout, plan
from kvstore.cli import main
from kvstore.footprint import footprint_of
from kvstore.models import MODELS, model_footprint
from kvstore.plan import Row

# model: bytes a token, GB of 131,072 tokens, seconds at 7, 14, 28 and 50 GB/s, GB/s for 13 s and
# for 0.5 s. From the models' config files, by hand.
PUBLISHED: dict[str, tuple[int, float, list[float], float, float]] = {
    "DeepSeek-V2-Lite": (31_104, 4.08, [0.58, 0.29, 0.15, 0.08], 0.3, 8.2),
    "DeepSeek-V2": (69_120, 9.06, [1.29, 0.65, 0.32, 0.18], 0.7, 18.1),
    "DeepSeek-V3": (70_272, 9.21, [1.32, 0.66, 0.33, 0.18], 0.7, 18.4),
    "DeepSeek-V3 fp8": (35_136, 4.61, [0.66, 0.33, 0.16, 0.09], 0.4, 9.2),
    "DeepSeek-V3.2 fp8": (48_068, 6.30, [0.90, 0.45, 0.23, 0.13], 0.5, 12.6),
    "DeepSeek-V4-Pro": (4_475, 0.59, [0.08, 0.04, 0.02, 0.01], 0.05, 1.2),
    "GLM-4.5": (376_832, 49.4, [7.06, 3.53, 1.76, 0.99], 3.8, 98.8),
    "GLM-5": (109_824, 14.4, [2.06, 1.03, 0.51, 0.29], 1.1, 28.8),
    "GLM-5.2 fp8": (47_700, 6.25, [0.89, 0.45, 0.22, 0.13], 0.5, 12.5),
    "Qwen3-32B": (262_144, 34.4, [4.91, 2.45, 1.23, 0.69], 2.6, 68.7),
    "Qwen3-235B-A22B": (192_512, 25.2, [3.60, 1.80, 0.90, 0.50], 1.9, 50.5),
    "Llama-3.1-8B": (131_072, 17.2, [2.45, 1.23, 0.61, 0.34], 1.3, 34.4),
    "Llama-3.1-70B": (327_680, 42.9, [6.14, 3.07, 1.53, 0.86], 3.3, 85.9),
    "gpt-oss-120b": (36_864, 4.84, [0.69, 0.35, 0.17, 0.10], 0.4, 9.7),
    "Gemma-3-27B": (81_920, 11.2, [1.60, 0.80, 0.40, 0.22], 0.9, 22.3),
    "Qwen3-Next-80B": (24_576, 3.30, [0.47, 0.24, 0.12, 0.07], 0.3, 6.6),
    "Kimi-Linear-48B": (8_064, 1.10, [0.16, 0.08, 0.04, 0.02], 0.1, 2.2),
    "MiniMax-M2": (253_952, 33.3, [4.76, 2.38, 1.19, 0.67], 2.6, 66.6),
}


def row(model: str, **words: Any) -> Row:
    (only,) = plan.plan({model: model_footprint(model)}, **words).rows
    return only


@pytest.mark.parametrize("model", PUBLISHED)
def test_a_published_model_has_its_published_figures(model: str) -> None:
    token_bytes, prompt_gb, loads, break_even, target = PUBLISHED[model]
    got = row(model)
    assert got.bytes_per_token == token_bytes
    assert got.prompt_bytes / 1e9 == pytest.approx(prompt_gb, rel=0.007)
    assert got.load_s == pytest.approx(loads, abs=0.0051)
    assert got.break_even_gbps == pytest.approx(break_even, abs=0.051)
    assert got.target_gbps == pytest.approx(target, abs=0.051)


def test_windows_and_states_are_counted_once_and_not_per_token() -> None:
    assert model_footprint("Gemma-3-27B").state_bytes == 416 * 2**20
    assert model_footprint("Qwen3-Next-80B").state_bytes / 2**20 == pytest.approx(74, abs=1)
    assert model_footprint("Kimi-Linear-48B").state_bytes / 2**20 == pytest.approx(41, abs=1)
    gemma = model_footprint("Gemma-3-27B")
    assert gemma.prompt_bytes(2000) - gemma.prompt_bytes(1000) == 1000 * gemma.bytes_per_token


def test_what_is_counted_is_what_a_layout_stores() -> None:
    for model in ("DeepSeek-V2-Lite", "DeepSeek-V3"):
        stored = Layout.mla(model=model, layers=MODELS[model]["num_hidden_layers"])
        assert stored.block_bytes == 64 * model_footprint(model).bytes_per_token
    facts = MODELS["Llama-3.1-8B"]
    stored = Layout.gqa(
        model="llama",
        layers=facts["num_hidden_layers"],
        kv_heads=facts["num_key_value_heads"],
        head_dim=facts["head_dim"],
    )
    assert stored.block_bytes == 64 * model_footprint("Llama-3.1-8B").bytes_per_token


def test_an_ordinary_mha_model_pays_or_not_by_the_engines_speed() -> None:
    slow, fast = row("Llama-2-7B", gbps=[7]), row("Llama-2-7B", gbps=[7], prefill_tps=50_000)
    assert (slow.pays, fast.pays) == ([True], [False])
    assert slow.break_even_tps == pytest.approx(7e9 / 524_288)
    at = row("Llama-2-7B", gbps=[7], prefill_tps=slow.break_even_tps)
    assert at.load_s[0] == pytest.approx(at.prefill_s)
    assert at.break_even_gbps == pytest.approx(7)
    assert "pays at 7 GB/s" in plan.verdict(slow)
    assert "does not pay" in plan.verdict(fast)


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({}, "num_hidden_layers"),
        ({"num_hidden_layers": 4}, "head_dim"),
        ({"num_hidden_layers": 4, "num_attention_heads": 4}, "hidden_size"),
        ({"num_hidden_layers": 4, "num_attention_heads": 4, "head_dim": 64, "dtype": "x"}, "'x'"),
        (
            {
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "head_dim": 64,
                "layer_types": ["full_attention", "state"],
            },
            "neither a window nor",
        ),
    ],
)
def test_a_config_of_another_kind_is_refused_by_name(config: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        footprint_of(config)


def test_the_command_reads_a_config_and_prints_a_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "mha" / "config.json"
    config.parent.mkdir()
    shape = {"num_hidden_layers": 32, "num_attention_heads": 32, "hidden_size": 4096}
    config.write_text(json.dumps({"text_config": shape}))
    assert main(["plan", "--config", str(config), "--gbps", "7", "--prefill-tps", "50000"]) == 0
    text = capsys.readouterr().out
    assert "mha: does not pay at 7 GB/s" in text
    assert "524,288" in text
    assert main(["plan", "--config", str(config), "--prompt", "64", "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)["rows"]
    assert told["prompt_bytes"] == 64 * 524_288
    assert main(["plan"]) == 0
    text = capsys.readouterr().out
    assert all(model in text for model in MODELS)
    assert main(["plan", "--model", "unknown"]) == 1
    assert "no model 'unknown'" in capsys.readouterr().err
    assert main(["plan", "--config", str(tmp_path / "none.json")]) == 1
    assert "none.json" in capsys.readouterr().err
    config.write_text("no JSON")
    assert main(["plan", "--config", str(config)]) == 1
    assert f"{config} is no config.json" in capsys.readouterr().err
    config.write_text("[]")
    assert main(["plan", "--config", str(config)]) == 1
    assert "no JSON object" in capsys.readouterr().err


@pytest.mark.parametrize("wrong", ["0", "nan", "inf", "-1"])
@pytest.mark.parametrize("option", ["--gbps", "--prefill-tps"])
def test_rates_are_positive_and_finite(
    option: str, wrong: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", f"{option}={wrong}"]) == 1
    assert "positive and finite" in capsys.readouterr().err


def test_the_disks_own_speed_is_measured_and_nothing_stays_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "_MEASURE_BYTES", 8 << 20)
    assert main(["plan", "--model", "DeepSeek-V3", "--measure", str(tmp_path), "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)["rows"]
    assert told["gbps"][0] > 0
    assert told["load_s"][0] == pytest.approx(told["prompt_bytes"] / told["gbps"][0] / 1e9)
    assert not list(tmp_path.iterdir())
    assert main(["plan", "--measure", str(tmp_path / "none")]) == 1
    assert "mkdir" in capsys.readouterr().err
