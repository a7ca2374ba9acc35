"""How many bytes a model's cache has per token, from its config.json: MLA, GQA, MHA, hybrids. Pure.

Unlike `Layout` it describes no cache that is stored here: it only counts, also for models of which
some layers keep a window or a state instead of every token. Formulas: an MLA layer keeps latent +
rope (and an indexer's key, where it has one), a GQA or MHA layer 2 x KV heads x head size, a
windowed layer at most its window, a linear layer one state whatever the length.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

_ELEMENT_BYTES = {
    "float32": 4, "bfloat16": 2, "float16": 2, "fp8": 1, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "int8": 1,
}  # fmt: skip
FP8_DS_MLA = (
    "fp8_ds_mla"  # per 512 + 64: fp8 latent, a float32 scale for each 128, rope in bfloat16
)


class Footprint(msgspec.Struct, frozen=True, kw_only=True):
    """layers: of the model. full_layers: those that keep every token. bytes_per_token: over those.
    state_bytes: what windows and linear states add, once per prompt. attention: "MLA", "GQA" ..."""

    attention: str
    layers: int
    full_layers: int
    bytes_per_token: int
    state_bytes: int = 0

    def prompt_bytes(self, tokens: int) -> int:
        """Of a prompt that is longer than any window."""
        return self.bytes_per_token * tokens + self.state_bytes


def footprint_of(config: Mapping[str, Any], dtype: str | None = None) -> Footprint:
    """The footprint of a model with this config.json. dtype: of the cache; the model's when None.

    ValueError when the config is of a kind that is not known here; it says what is missing.
    """
    facts: Mapping[str, Any] = config.get("text_config", config)
    kept = dtype or facts.get("dtype") or facts.get("torch_dtype") or "bfloat16"
    layers = _number(facts, "num_hidden_layers")
    full = full_layers(facts)
    if "kv_lora_rank" in facts:
        token_bytes, attention = full * _mla_bytes(facts, kept), "MLA"
        token_bytes += _index_layers(facts, full) * _index_bytes(facts, kept)
    else:
        token_bytes, attention = full * _heads_bytes(facts, kept), _heads_word(facts)
    return Footprint(
        attention=attention if full == layers else f"{attention}, {full} full of {layers}",
        layers=layers,
        full_layers=full,
        bytes_per_token=token_bytes,
        state_bytes=_state_bytes(facts, layers - full, kept),
    )


def full_layers(facts: Mapping[str, Any]) -> int:
    """Layers that attend to every token, in whatever words the config says it."""
    layers = _number(facts, "num_hidden_layers")
    if facts.get("layer_types"):
        return sum(kind == "full_attention" for kind in facts["layer_types"])
    linear = facts.get("linear_attn_config") or {}
    if linear.get("full_attn_layers"):
        return len(linear["full_attn_layers"])
    every = facts.get("full_attention_interval") or facts.get("sliding_window_pattern")
    return layers // every if every else layers


def _number(facts: Mapping[str, Any], name: str) -> int:
    value = facts.get(name)
    if not isinstance(value, int) or value < 1:
        raise ValueError(f"the config has no usable {name!r}; say --bytes-per-token instead")
    return value


def _element_bytes(dtype: str) -> int:
    if dtype not in _ELEMENT_BYTES:
        raise ValueError(f"dtype {dtype!r} is not known; one of {', '.join(_ELEMENT_BYTES)}")
    return _ELEMENT_BYTES[dtype]


def _mla_bytes(facts: Mapping[str, Any], dtype: str) -> int:
    latent, rope = _number(facts, "kv_lora_rank"), _number(facts, "qk_rope_head_dim")
    if dtype == FP8_DS_MLA:
        return latent + latent // 128 * 4 + rope * 2
    return (latent + rope) * _element_bytes(dtype)


def _index_layers(facts: Mapping[str, Any], full: int) -> int:
    if not facts.get("index_head_dim"):
        return 0
    return int(facts.get("index_layers", full))


def _index_bytes(facts: Mapping[str, Any], dtype: str) -> int:
    """In fp8 a float32 scale goes with each key."""
    size = int(facts.get("index_head_dim") or 0)
    return size + 4 if dtype == FP8_DS_MLA or _element_bytes(dtype) == 1 else 2 * size


def _kv_heads(facts: Mapping[str, Any]) -> int:
    return int(facts.get("num_key_value_heads") or _number(facts, "num_attention_heads"))


def _heads_bytes(facts: Mapping[str, Any], dtype: str) -> int:
    heads = _number(facts, "num_attention_heads") if "num_attention_heads" in facts else 0
    size = facts.get("head_dim") or (heads and _number(facts, "hidden_size") // heads)
    if not size:
        raise ValueError("the config has neither head_dim nor heads and hidden_size")
    return 2 * _kv_heads(facts) * int(size) * _element_bytes(dtype)


def _heads_word(facts: Mapping[str, Any]) -> str:
    heads, kv_heads = facts.get("num_attention_heads"), _kv_heads(facts)
    if heads == kv_heads:
        return "MHA"
    return "MQA" if kv_heads == 1 else "GQA"


def _state_bytes(facts: Mapping[str, Any], other_layers: int, dtype: str) -> int:
    """What layers keep that do not keep every token: windows, or states of linear attention."""
    if not other_layers:
        return 0
    if facts.get("sliding_window"):
        return other_layers * int(facts["sliding_window"]) * _heads_bytes(facts, dtype)
    linear = facts.get("linear_attn_config")
    if linear:
        heads, size = int(linear["num_heads"]), int(linear["head_dim"])
        channels, matrix = 3 * heads * size, heads * size * size
        taps = int(linear.get("short_conv_kernel_size", 4))
        return other_layers * (matrix * 4 + channels * taps * 2)
    if facts.get("linear_num_value_heads"):
        key_heads, value_heads = facts["linear_num_key_heads"], facts["linear_num_value_heads"]
        key, value = facts["linear_key_head_dim"], facts["linear_value_head_dim"]
        channels = 2 * key_heads * key + value_heads * value
        taps = int(facts.get("linear_conv_kernel_dim", 4))
        return other_layers * int(value_heads * key * value * 4 + channels * taps * 2)
    raise ValueError("layers without full attention, but neither a window nor a linear state")
