"""The model's config.json, read into one frozen record.

What it does: accepts DeepSeek's own spelling (`rope_theta` + `rope_scaling`) and the newer one
(`rope_parameters`), and refuses loudly whatever the runner would compute wrongly.
What it does not: read weights or build anything.
Invariant: every field that changes a number of the forward pass is in `ModelConfig`, so that
`fingerprint()` may stand for the architecture in a cache namespace.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import msgspec

SUPPORTED_MODEL_TYPES = ("deepseek_v2",)
SUPPORTED_DTYPES = ("bfloat16", "float32")
SUPPORTED_TOPK_METHODS = ("greedy", "group_limited_greedy")
SUPPORTED_ROPE_TYPES = ("default", "yarn")


class ConfigError(ValueError):
    """The model cannot be run; the message says what is wrong and what to do."""


class RopeConfig(msgspec.Struct, frozen=True):
    """Rotary embedding; the yarn fields are unused when `kind` is "default"."""

    kind: str = "default"
    theta: float = 10000.0
    factor: float = 1.0
    original_positions: int = 4096
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float = 0.0
    mscale_all_dim: float = 0.0
    attention_factor: float | None = None


class MoeConfig(msgspec.Struct, frozen=True):
    """Routed experts: `groups` and `top_groups` matter only to group_limited_greedy."""

    experts: int
    top_k: int
    intermediate: int
    shared_experts: int
    method: str = "greedy"
    groups: int = 1
    top_groups: int = 1
    scaling: float = 1.0


class ModelConfig(msgspec.Struct, frozen=True):
    """A DeepSeek-V2-type decoder; widths in elements. `sparse_layers[i]`: layer i is MoE."""

    name: str
    model_type: str
    dtype: str
    layers: int
    hidden: int
    heads: int
    vocab: int
    q_lora: int | None
    kv_lora: int
    rope_dim: int
    nope_dim: int
    value_dim: int
    intermediate: int
    norm_eps: float
    latent_norm_eps: float
    tied: bool
    rope: RopeConfig
    moe: MoeConfig | None
    sparse_layers: tuple[bool, ...]

    @property
    def query_dim(self) -> int:
        """Width of one head's query and key."""
        return self.nope_dim + self.rope_dim

    @property
    def row_width(self) -> int:
        """Elements of one cached record: normalised latent, then rotated rope key."""
        return self.kv_lora + self.rope_dim

    def rope_words(self) -> str:
        """The rotation in words, for the cache namespace; pairs are kept interleaved."""
        fields = msgspec.structs.asdict(self.rope)
        words = " ".join(f"{key}={value}" for key, value in fields.items())
        return f"interleaved dim={self.rope_dim} {words}"

    def fingerprint(self) -> str:
        """SHA-256 (hex) over every field but the name."""
        fields = msgspec.to_builtins(self)
        del fields["name"]
        return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def read_config(model_dir: Path, *, latent_norm_eps: float = 1e-6) -> ModelConfig:
    """Read `model_dir/config.json`.

    `latent_norm_eps` is the epsilon of the norms inside MLA: transformers always takes 1e-6,
    SGLang the model's `rms_norm_eps`. Raises ConfigError.
    """
    path = model_dir / "config.json"
    try:
        raw = json.loads(path.read_text())
    except FileNotFoundError:
        raise ConfigError(
            f"{path} does not exist: give the directory that holds config.json and *.safetensors "
            "(python -m mla_prefill.demo_model DIR makes one)"
        ) from None
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}") from None
    return parse_config(raw, name=model_dir.resolve().name, latent_norm_eps=latent_norm_eps)


def parse_config(raw: dict[str, Any], *, name: str, latent_norm_eps: float = 1e-6) -> ModelConfig:
    """Turn the content of a config.json into a ModelConfig. Raises ConfigError."""
    _refuse_unsupported(raw)
    layers = _field(raw, "num_hidden_layers")
    sparse = _sparse_layers(raw, layers)
    return ModelConfig(
        name=raw.get("_name_or_path") or name,
        model_type=raw["model_type"],
        dtype=_dtype(raw),
        layers=layers,
        hidden=_field(raw, "hidden_size"),
        heads=_field(raw, "num_attention_heads"),
        vocab=_field(raw, "vocab_size"),
        q_lora=raw.get("q_lora_rank"),
        kv_lora=_field(raw, "kv_lora_rank"),
        rope_dim=_field(raw, "qk_rope_head_dim"),
        nope_dim=_field(raw, "qk_nope_head_dim"),
        value_dim=_field(raw, "v_head_dim"),
        intermediate=_field(raw, "intermediate_size"),
        norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
        latent_norm_eps=latent_norm_eps,
        tied=bool(raw.get("tie_word_embeddings", False)),
        rope=_rope(raw),
        moe=_moe(raw) if any(sparse) else None,
        sparse_layers=sparse,
    )


def _refuse_unsupported(raw: dict[str, Any]) -> None:
    model_type = raw.get("model_type")
    if model_type not in SUPPORTED_MODEL_TYPES:
        raise ConfigError(
            f"model_type {model_type!r} is not supported: this runner computes "
            f"{', '.join(SUPPORTED_MODEL_TYPES)} only; use an engine connector for other models"
        )
    if raw.get("quantization_config"):
        raise ConfigError("the checkpoint is quantised: convert it to bfloat16 first")
    if raw.get("hidden_act", "silu") != "silu":
        raise ConfigError(f"hidden_act {raw['hidden_act']!r} is not supported: only silu is")


def _field(raw: dict[str, Any], key: str) -> int:
    value = raw.get(key)
    if not isinstance(value, int) or value < 1:
        raise ConfigError(f"config.json: {key} must be a positive integer, it is {value!r}")
    return value


def _dtype(raw: dict[str, Any]) -> str:
    dtype = str(raw.get("dtype") or raw.get("torch_dtype") or "bfloat16").removeprefix("torch.")
    if dtype not in SUPPORTED_DTYPES:
        raise ConfigError(f"dtype {dtype!r} is not supported: use {' or '.join(SUPPORTED_DTYPES)}")
    return dtype


def _rope(raw: dict[str, Any]) -> RopeConfig:
    rope = dict(raw.get("rope_scaling") or {}) | dict(raw.get("rope_parameters") or {})
    kind = rope.get("rope_type") or rope.get("type") or "default"
    theta = float(rope.get("rope_theta") or raw.get("rope_theta") or 10000.0)
    if kind not in SUPPORTED_ROPE_TYPES:
        raise ConfigError(
            f"rope type {kind!r} is not supported: known are {', '.join(SUPPORTED_ROPE_TYPES)}"
        )
    if kind == "default":
        return RopeConfig(theta=theta)
    original = rope.get("original_max_position_embeddings") or raw.get("max_position_embeddings")
    if not original or "factor" not in rope:
        raise ConfigError("yarn rope needs factor and original_max_position_embeddings")
    return RopeConfig(
        kind="yarn",
        theta=theta,
        factor=float(rope["factor"]),
        original_positions=int(original),
        beta_fast=float(rope.get("beta_fast") or 32.0),
        beta_slow=float(rope.get("beta_slow") or 1.0),
        mscale=float(rope.get("mscale") or 0.0),
        mscale_all_dim=float(rope.get("mscale_all_dim") or 0.0),
        attention_factor=rope.get("attention_factor"),
    )


def _sparse_layers(raw: dict[str, Any], layers: int) -> tuple[bool, ...]:
    if types := raw.get("mlp_layer_types"):
        if len(types) < layers or not set(types) <= {"dense", "sparse"}:
            raise ConfigError(f"mlp_layer_types must name dense or sparse for {layers} layers")
        return tuple(kind == "sparse" for kind in types[:layers])
    if not raw.get("n_routed_experts"):
        return (False,) * layers
    if raw.get("moe_layer_freq", 1) != 1:
        raise ConfigError("moe_layer_freq other than 1 is not supported")
    first_sparse = int(raw.get("first_k_dense_replace") or 0)
    return tuple(index >= first_sparse for index in range(layers))


def _moe(raw: dict[str, Any]) -> MoeConfig:
    method = raw.get("topk_method", "greedy")
    if method not in SUPPORTED_TOPK_METHODS:
        raise ConfigError(
            f"topk_method {method!r} is not supported: "
            f"known are {', '.join(SUPPORTED_TOPK_METHODS)}"
        )
    if raw.get("scoring_func", "softmax") != "softmax":
        raise ConfigError(f"scoring_func {raw['scoring_func']!r} is not supported: only softmax is")
    if raw.get("norm_topk_prob"):
        raise ConfigError("norm_topk_prob=true is not supported: implementations disagree on it")
    return MoeConfig(
        experts=_field(raw, "n_routed_experts"),
        top_k=_field(raw, "num_experts_per_tok"),
        intermediate=_field(raw, "moe_intermediate_size"),
        shared_experts=int(raw.get("n_shared_experts") or 0),
        method=method,
        groups=int(raw.get("n_group") or 1),
        top_groups=int(raw.get("topk_group") or 1),
        scaling=float(raw.get("routed_scaling_factor", 1.0)),
    )
