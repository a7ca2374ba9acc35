"""Prefill of DeepSeek-V2-type (MLA) models on a CPU, with prefixes kept in kvstore.

What it does: reads a prompt once, layer by layer, and returns the logits of its last token; the
latents of a prefix that was prefilled before stream in from the store while earlier layers compute.
What it does not: decode, batch requests, run on a GPU, or serve as a framework.
"""

import os

# Must be set before torch loads its OpenMP library. Threads that spin while they wait fight the
# store's own thread for the cores: with one busy neighbour on two cores a 1,024-token prefill took
# more than 100 s spinning and 5 s waiting passively.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from mla_prefill.config import ConfigError, ModelConfig, read_config
from mla_prefill.model import Model, load_model
from mla_prefill.prefill import Found, LayerRows, PrefillResult, PrefixCache, Read, Saved, prefill

__all__ = [
    "ConfigError",
    "Found",
    "LayerRows",
    "Model",
    "ModelConfig",
    "PrefillResult",
    "PrefixCache",
    "Read",
    "Saved",
    "load_model",
    "prefill",
    "read_config",
]
