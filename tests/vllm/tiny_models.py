"""Tiny models with random weights, saved the way real ones are: GQA (Llama, Qwen3), MLA (DeepSeek).

The MLA sizes are those that vLLM's CPU kernel takes (512 + 64), with yarn as the real models have
it: with plain rope, vLLM's CPU attention for MLA is off for positions from 1 on.
"""

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    DeepseekV2Config,
    DeepseekV3Config,
    LlamaConfig,
    PretrainedConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
)

VOCABULARY = 512
YARN: dict[str, Any] = {
    "rope_theta": 1e4, "rope_type": "yarn", "factor": 2, "beta_fast": 32, "beta_slow": 1,
    "mscale": 1, "mscale_all_dim": 1, "original_max_position_embeddings": 4096,
}  # fmt: skip
COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 256, "intermediate_size": 512,
    "max_position_embeddings": 8192, "bos_token_id": 1, "eos_token_id": 2,
    "initializer_range": 0.2, "tie_word_embeddings": False,
}  # fmt: skip
LATENT: dict[str, Any] = COMMON | {
    "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 4,
    "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 64, "v_head_dim": 64,
    "q_lora_rank": 128, "first_k_dense_replace": 3, "rope_parameters": YARN,
}  # fmt: skip
GROUPED: dict[str, Any] = COMMON | {
    "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64,
}  # fmt: skip


def config_of(kind: str) -> PretrainedConfig:
    """kind: "llama", "qwen3", "deepseek_v2" or "deepseek_v3"."""
    if kind == "llama":
        return LlamaConfig(**GROUPED)
    if kind == "qwen3":
        return Qwen3Config(**GROUPED)
    if kind == "deepseek_v2":
        return DeepseekV2Config(**LATENT)
    return DeepseekV3Config(**LATENT)


def save_model(kind: str, folder: Path) -> Path:
    """Writes config, weights and a byte tokenizer below `folder`."""
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(config_of(kind), torch_dtype=torch.float32)
    model.save_pretrained(folder)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {word: i for i, word in enumerate(["<pad>", "<s>", "</s>", *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )
    fast.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    fast.save_pretrained(folder)
    return folder
