"""A model with seeded random weights, for demonstrations and tests.

What it does: writes config.json and model.safetensors of a small deepseek_v2 whose cached record
(512 + 64 bfloat16 per token and layer) and vocabulary size are those of the real DeepSeek models.
What it does not: produce meaningful text; only equality and time can be shown with it.
Invariant: the same sizes and seed give the same bytes with the same torch version. The scales are
chosen so that attention is peaked (scores of standard deviation ~2.5): a far token matters.

    python -m mla_prefill.demo_model DIR --layers 24
"""

import argparse
import hashlib
import json
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

SIZES: dict[str, dict[str, int]] = {
    "demo": {"layers": 24, "hidden": 1024, "heads": 8, "intermediate": 2816},
    "small": {"layers": 4, "hidden": 256, "heads": 4, "intermediate": 704},
}
VOCAB = 129_280
YARN = {
    "type": "yarn",
    "factor": 40,
    "original_max_position_embeddings": 4096,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 0.707,
    "mscale_all_dim": 0.707,
}
QUERY_SPREAD = 1.6


def demo_config(size: str = "demo", **changes: Any) -> dict[str, Any]:
    """The config.json of a size ("demo" or "small"); `changes` replace keys of it."""
    shape = SIZES[size]
    config: dict[str, Any] = {
        "_name_or_path": "kv-demo" if size == "demo" else f"kv-demo-{size}",
        "architectures": ["DeepseekV2ForCausalLM"],
        "model_type": "deepseek_v2",
        "torch_dtype": "bfloat16",
        "num_hidden_layers": shape["layers"],
        "hidden_size": shape["hidden"],
        "num_attention_heads": shape["heads"],
        "num_key_value_heads": shape["heads"],
        "intermediate_size": shape["intermediate"],
        "vocab_size": VOCAB,
        "q_lora_rank": None,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "max_position_embeddings": 163_840,
        "rope_theta": 10000.0,
        "rope_scaling": YARN,
    }
    config |= changes
    # Without experts every layer is dense; said in the words that other implementations read too.
    config.setdefault("first_k_dense_replace", config["num_hidden_layers"])
    return config


def make_demo_model(model_dir: str | Path, config: dict[str, Any], *, seed: int = 0) -> int:
    """Write config.json and model.safetensors into `model_dir`; returns the bytes of weights.

    The 24-layer size is 0.9 GB and takes a few seconds.
    """
    path = Path(model_dir)
    path.mkdir(parents=True, exist_ok=True)
    dtype: torch.dtype = getattr(torch, config["torch_dtype"])
    weights = {
        name: _random(name, shape, spread, seed).to(dtype)
        for name, (shape, spread) in _tensors(config).items()
    }
    save_file(weights, path / "model.safetensors", metadata={"format": "pt", "seed": str(seed)})
    (path / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    return sum(tensor.nbytes for tensor in weights.values())


Spec = tuple[tuple[int, ...], float | None]


def _random(name: str, shape: tuple[int, ...], spread: float | None, seed: int) -> Tensor:
    """Normal values with standard deviation `spread`; a norm's weight (None) lies around 1."""
    word = hashlib.sha256(f"{seed} {name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(word[:7], "little"))
    values = torch.empty(shape, dtype=torch.bfloat16)
    values.normal_(0.0, 0.1 if spread is None else spread, generator=generator)
    return values + 1 if spread is None else values


def _tensors(config: dict[str, Any]) -> dict[str, Spec]:
    """Name -> (shape, standard deviation) of every weight the config asks for."""
    hidden, vocab = config["hidden_size"], config["vocab_size"]
    found: dict[str, Spec] = {
        "model.embed_tokens.weight": ((vocab, hidden), 1.5 * hidden**-0.5),
        "model.norm.weight": ((hidden,), None),
    }
    if not config["tie_word_embeddings"]:
        found["lm_head.weight"] = ((vocab, hidden), 1.5 * hidden**-0.5)
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        found[prefix + "input_layernorm.weight"] = ((hidden,), None)
        found[prefix + "post_attention_layernorm.weight"] = ((hidden,), None)
        found |= _attention(prefix + "self_attn.", config)
        sparse = config.get("n_routed_experts") and layer >= config.get("first_k_dense_replace", 0)
        found |= (_moe if sparse else _dense)(prefix + "mlp.", config)
    return found


def _attention(prefix: str, config: dict[str, Any]) -> dict[str, Spec]:
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    latent, rope = config["kv_lora_rank"], config["qk_rope_head_dim"]
    nope, value, q_latent = config["qk_nope_head_dim"], config["v_head_dim"], config["q_lora_rank"]
    found: dict[str, Spec] = {}
    if q_latent is None:
        found |= _linear(prefix + "q_proj", heads * (nope + rope), hidden, QUERY_SPREAD)
    else:
        found |= _linear(prefix + "q_a_proj", q_latent, hidden)
        found[prefix + "q_a_layernorm.weight"] = ((q_latent,), None)
        found |= _linear(prefix + "q_b_proj", heads * (nope + rope), q_latent, QUERY_SPREAD)
    found |= _linear(prefix + "kv_a_proj_with_mqa", latent + rope, hidden)
    found[prefix + "kv_a_layernorm.weight"] = ((latent,), None)
    found |= _linear(prefix + "kv_b_proj", heads * (nope + value), latent)
    found |= _linear(prefix + "o_proj", hidden, heads * value)
    if config.get("attention_bias"):
        for name in ("q_a_proj", "kv_a_proj_with_mqa", "o_proj"):
            if weight := found.get(f"{prefix}{name}.weight"):
                found[f"{prefix}{name}.bias"] = (weight[0][:1], 0.1)
    return found


def _dense(prefix: str, config: dict[str, Any]) -> dict[str, Spec]:
    return _mlp(prefix, config["hidden_size"], config["intermediate_size"])


def _moe(prefix: str, config: dict[str, Any]) -> dict[str, Spec]:
    hidden, width = config["hidden_size"], config["moe_intermediate_size"]
    found = _linear(prefix + "gate", config["n_routed_experts"], hidden)
    for expert in range(config["n_routed_experts"]):
        found |= _mlp(f"{prefix}experts.{expert}.", hidden, width)
    if shared := config.get("n_shared_experts"):
        found |= _mlp(prefix + "shared_experts.", hidden, width * shared)
    return found


def _mlp(prefix: str, hidden: int, width: int) -> dict[str, Spec]:
    return (
        _linear(prefix + "gate_proj", width, hidden)
        | _linear(prefix + "up_proj", width, hidden)
        | _linear(prefix + "down_proj", hidden, width)
    )


def _linear(name: str, rows: int, columns: int, gain: float = 1.0) -> dict[str, Spec]:
    return {name + ".weight": ((rows, columns), gain * columns**-0.5)}


def main() -> None:
    """Command line: write the model and say how large it is."""
    parser = argparse.ArgumentParser(prog="python -m mla_prefill.demo_model", description=__doc__)
    parser.add_argument("dir", type=Path)
    parser.add_argument("--size", choices=SIZES, default="demo")
    parser.add_argument("--layers", type=int, help="replace the size's number of layers")
    parser.add_argument("--vocab", type=int, default=VOCAB)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    layers = options.layers or SIZES[options.size]["layers"]
    config = demo_config(options.size, vocab_size=options.vocab, num_hidden_layers=layers)
    started = time.perf_counter()
    size = make_demo_model(options.dir, config, seed=options.seed)
    print(f"{options.dir}: {size / 1e9:.2f} GB of weights in {time.perf_counter() - started:.1f} s")


if __name__ == "__main__":
    main()
