"""Shapes of published models: what `kvstore plan` knows without a config.json. Pure data.

Each entry has just those fields of the model's public config.json that decide its cache, and the
cache's `dtype`. Two models whose caches are compressed in ways that these fields do not tell have
"bytes_per_token" instead (derived for a prompt of 131,072 tokens from the model's description).
"""

from collections.abc import Mapping
from typing import Any

from kvstore.footprint import FP8_DS_MLA, Footprint, footprint_of


def _mla(layers: int, dtype: str = "bfloat16", **more: Any) -> dict[str, Any]:
    shape = {"num_hidden_layers": layers, "kv_lora_rank": 512, "qk_rope_head_dim": 64}
    return shape | {"dtype": dtype} | more


def _gqa(layers: int, heads: int, kv_heads: int, head_dim: int, **more: Any) -> dict[str, Any]:
    shape = {"num_hidden_layers": layers, "num_attention_heads": heads}
    return shape | {"num_key_value_heads": kv_heads, "head_dim": head_dim} | more


MODELS: Mapping[str, Mapping[str, Any]] = {
    "DeepSeek-V2-Lite": _mla(27),
    "DeepSeek-V2": _mla(60),
    "DeepSeek-V3": _mla(61),  # also R1 and Kimi-K2
    "DeepSeek-V3 fp8": _mla(61, "fp8"),
    "DeepSeek-V3.2 fp8": _mla(61, FP8_DS_MLA, index_head_dim=128),
    "DeepSeek-V4-Pro": {"num_hidden_layers": 61, "bytes_per_token": 4475},
    "DeepSeek-V4-Flash": {"num_hidden_layers": 43, "bytes_per_token": 3126},
    "GLM-4.5": _gqa(92, 96, 8, 128),
    "GLM-4.7-Flash": _mla(47),
    "GLM-5": _mla(78, index_head_dim=128),
    "GLM-5.2 fp8": _mla(78, "fp8", index_head_dim=128, index_layers=21),
    "Qwen3-8B": _gqa(36, 32, 8, 128),
    "Qwen3-32B": _gqa(64, 64, 8, 128),
    "Qwen3-235B-A22B": _gqa(94, 64, 4, 128),
    "Qwen3-30B-A3B": _gqa(48, 32, 4, 128),
    "Llama-2-7B": _gqa(32, 32, 32, 128),
    "Llama-3.1-8B": _gqa(32, 32, 8, 128),
    "Llama-3.1-70B": _gqa(80, 64, 8, 128),
    "gpt-oss-120b": _gqa(
        36, 64, 8, 64, layer_types=["sliding_attention", "full_attention"] * 18, sliding_window=128
    ),
    "gpt-oss-20b": _gqa(
        24, 64, 8, 64, layer_types=["sliding_attention", "full_attention"] * 12, sliding_window=128
    ),
    "Gemma-3-27B": _gqa(62, 32, 16, 128, sliding_window_pattern=6, sliding_window=1024),
    "Qwen3-Next-80B": _gqa(
        48,
        16,
        2,
        256,
        full_attention_interval=4,
        linear_num_key_heads=16,
        linear_num_value_heads=32,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        linear_conv_kernel_dim=4,
    ),
    "Kimi-Linear-48B": _mla(
        27,
        linear_attn_config={
            "full_attn_layers": [4, 8, 12, 16, 20, 24, 27],
            "num_heads": 32,
            "head_dim": 128,
            "short_conv_kernel_size": 4,
        },
    ),
    "MiniMax-M2": _gqa(62, 48, 8, 128),
}


def model_footprint(name: str) -> Footprint:
    """KeyError that names what there is."""
    if name not in MODELS:
        raise KeyError(f"no model {name!r} is known here; there are {', '.join(MODELS)}")
    facts = MODELS[name]
    if "bytes_per_token" in facts:
        layers = facts["num_hidden_layers"]
        return Footprint(
            attention="compressed",
            layers=layers,
            full_layers=layers,
            bytes_per_token=facts["bytes_per_token"],
        )
    return footprint_of(facts)
