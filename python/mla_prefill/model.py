"""The decoder: embedding, one layer over one chunk of rows, logits of one row.

What it does: holds the weights, each layer read once when first asked for (or all at once by
`preload`), and runs a layer chunk by chunk.
What it does not: know about caches, prompts or time.
Invariant: `run_chunk` calls the same operations with the same shapes for the same absolute
positions, whatever was computed or cached before.
"""

from pathlib import Path

import torch
from torch import Tensor

from mla_prefill.attention import Attention, make_queries, make_records, rms_norm
from mla_prefill.config import ModelConfig, read_config
from mla_prefill.moe import mixture, swiglu
from mla_prefill.rope import angles, inverse_frequencies
from mla_prefill.weights import LayerWeights, MoeWeights, WeightFiles, content_digest


class Model:
    """A model on disk whose layers are read when first used and then kept in memory."""

    def __init__(self, model_dir: Path, config: ModelConfig) -> None:
        self.config = config
        self.dtype: torch.dtype = getattr(torch, config.dtype)
        self.directory = model_dir
        self._files = WeightFiles(model_dir, config)
        self._layers: dict[int, LayerWeights] = {}
        self._embedding = self._files.embedding()
        self._head = self._embedding if config.tied else self._files.head()
        self._final_norm = self._files.final_norm()
        self._frequencies = inverse_frequencies(config)

    def preload(self) -> None:
        """Read every layer now, so that no prefill waits for weights."""
        for index in range(self.config.layers):
            self.layer(index)

    def layer(self, index: int) -> LayerWeights:
        """Weights of layer `index`; read from disk the first time."""
        if index not in self._layers:
            self._layers[index] = self._files.layer(index)
        return self._layers[index]

    def content_digest(self) -> str:
        """SHA-256 (hex) over the weight files; see weights.content_digest."""
        return content_digest(self.directory)

    def embed(self, token_ids: Tensor) -> Tensor:
        """[n] int64 -> [n, hidden]"""
        return torch.nn.functional.embedding(token_ids, self._embedding)

    def logits(self, row: Tensor) -> Tensor:
        """The hidden state of one token, [1, hidden] -> [vocab], in the model's dtype."""
        normed = rms_norm(row, self._final_norm, self.config.norm_eps)
        return torch.nn.functional.linear(normed, self._head)[0]

    def run_chunk(
        self, layer: LayerWeights, attention: Attention, start: int, hidden: Tensor
    ) -> tuple[Tensor, Tensor]:
        """One layer over positions start..start + n.

        `hidden` [n, hidden]; `attention` has the records of positions 0..start. Returns the new
        hidden rows and the records [n, width] to cache.
        """
        config, weights = self.config, layer.attention
        cos_sin = angles(config, self._frequencies, start, start + len(hidden))
        normed = rms_norm(hidden, layer.attention_norm, config.norm_eps)
        records = make_records(config, weights, normed, cos_sin)
        attention.add(start, records)
        queries = make_queries(config, weights, normed, cos_sin)
        hidden = hidden + weights.out(attention.attend(start, queries))
        normed = rms_norm(hidden, layer.mlp_norm, config.norm_eps)
        return hidden + self._feed_forward(layer, normed), records

    def _feed_forward(self, layer: LayerWeights, normed: Tensor) -> Tensor:
        if isinstance(layer.mlp, MoeWeights):
            assert self.config.moe is not None
            return mixture(self.config.moe, layer.mlp, normed)
        return swiglu(layer.mlp, normed)


def load_model(model_dir: str | Path, *, latent_norm_eps: float = 1e-6) -> Model:
    """Open a model directory (config.json, *.safetensors). Raises ConfigError.

    Reads the embedding now and each layer on first use.
    """
    path = Path(model_dir)
    return Model(path, read_config(path, latent_norm_eps=latent_norm_eps))
