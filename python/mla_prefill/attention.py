"""Multi-head latent attention over cached rows, in its two forms.

What it does: makes the cached record of new tokens, and attends chunk by chunk. `Expanded` turns
every record into keys and values per head once; `Absorbed` folds those two matrices into query and
output and reads the records themselves, which is cheaper for a short suffix (measured crossover:
128 to 256 tokens).
What it does not: batch heads or call a fused kernel. One head at a time, `mm -> softmax -> mm`, is
the fastest way on a CPU in bfloat16: three to five times a scaled_dot_product_attention call.

Invariants:
1. Record = latent after its norm, then the rope key after rotation, pairs interleaved.
2. Positions enter either form in order; a query at position p sees exactly rows 0..p.
3. The shapes and strides of every product for positions lo..hi depend only on lo and hi, never on
   the length of the prompt or on what was cached: exact mode rests on it.
"""

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

from mla_prefill.config import ModelConfig
from mla_prefill.rope import rotate, softmax_scale
from mla_prefill.weights import AttentionWeights

QUERY_CHUNK = 256
HEAD_ALIGNMENT_ROWS = 64


def rms_norm(rows: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normalise the last dimension in float32, cast back, scale."""
    wide = rows.float()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return wide.to(rows.dtype) * weight


def make_records(
    config: ModelConfig, weights: AttentionWeights, normed: Tensor, cos_sin: Tensor
) -> Tensor:
    """What is cached of `normed` [n, hidden]: [n, kv_lora + rope]"""
    latent, rope_key = _cut(weights.kv_a(normed), config.kv_lora)
    latent = rms_norm(latent, weights.kv_norm, config.latent_norm_eps)
    return torch.cat((latent, rotate(rope_key, cos_sin)), dim=-1)


def make_queries(
    config: ModelConfig, weights: AttentionWeights, normed: Tensor, cos_sin: Tensor
) -> Tensor:
    """Queries of `normed` [n, hidden], rotated and scaled: [heads, n, nope + rope]"""
    rows = normed
    if weights.q_down is not None and weights.q_norm is not None:
        rows = rms_norm(weights.q_down(rows), weights.q_norm, config.latent_norm_eps)
    queries = weights.q(rows).view(len(rows), config.heads, config.query_dim)
    nope, rope = _cut(queries, config.nope_dim)
    queries = torch.cat((nope, rotate(rope, cos_sin)), dim=-1) * softmax_scale(config)
    return queries.transpose(0, 1).contiguous()


def _cut(values: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The last dimension before and from `width`."""
    return values[..., :width], values[..., width:]


def _pieces(queries: Tensor) -> Iterator[tuple[int, Tensor]]:
    """`queries` [heads, n, d] in runs of at most QUERY_CHUNK, each with its first row."""
    for first in range(0, queries.shape[1], QUERY_CHUNK):
        yield first, queries[:, first : first + QUERY_CHUNK]


class Attention(Protocol):
    """Either form. `start_layer`, then `add` and `attend` with positions in order."""

    def start_layer(self, weights: AttentionWeights) -> None:
        """Forget the previous layer."""

    def add(self, start: int, records: Tensor) -> None:
        """Take the records [n, width] of positions start..start + n."""

    def attend(self, start: int, queries: Tensor) -> Tensor:
        """Queries [heads, n, query_dim] at start..start + n -> [n, heads * value_dim]."""


class Scores:
    """Two score matrices, reused by all heads and layers: at most QUERY_CHUNK x tokens each."""

    def __init__(self, tokens: int, dtype: torch.dtype) -> None:
        self._raw = torch.empty(QUERY_CHUNK * tokens, dtype=dtype)
        self._probabilities = torch.empty_like(self._raw)

    def softmax(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Causal softmax of `queries` [n, d], the last n positions, over `keys` [t, d]: [n, t]."""
        n, t = len(queries), len(keys)
        raw = self._raw[: n * t].view(n, t)
        torch.mm(queries, keys.T, out=raw)
        future = torch.ones(n, n, dtype=torch.bool).triu_(1)
        raw[:, t - n :].masked_fill_(future, float("-inf"))
        return torch.softmax(raw, -1, out=self._probabilities[: n * t].view(n, t))


class Expanded:
    """Keys and values of every position and head, for one layer at a time."""

    def __init__(self, config: ModelConfig, tokens: int, dtype: torch.dtype) -> None:
        # Whole multiples keep every head's first row equally aligned for any prompt length.
        room = -(-tokens // HEAD_ALIGNMENT_ROWS) * HEAD_ALIGNMENT_ROWS
        self._config = config
        self._keys = torch.empty(config.heads, room, config.query_dim, dtype=dtype)
        self._values = torch.empty(config.heads, room, config.value_dim, dtype=dtype)
        self._scores = Scores(tokens, dtype)

    def start_layer(self, weights: AttentionWeights) -> None:
        """Forget the previous layer."""
        self._expand = weights.kv_b.flatten(0, 1)

    def add(self, start: int, records: Tensor) -> None:
        """Expand the records [n, width] of positions start..start + n."""
        config, end = self._config, start + len(records)
        latent, rope_key = _cut(records, config.kv_lora)
        expanded = torch.mm(self._expand, latent.T).T
        expanded = expanded.view(len(records), config.heads, -1).transpose(0, 1)
        nope, value = _cut(expanded, config.nope_dim)
        self._keys[:, start:end, : config.nope_dim] = nope
        self._keys[:, start:end, config.nope_dim :] = rope_key
        self._values[:, start:end] = value

    def attend(self, start: int, queries: Tensor) -> Tensor:
        """Queries [heads, n, query_dim] at start..start + n -> [n, heads * value_dim]."""
        outputs = []
        for first, piece in _pieces(queries):
            end = start + first + piece.shape[1]
            heads = [
                self._scores.softmax(query, keys[:end]) @ values[:end]
                for query, keys, values in zip(piece, self._keys, self._values, strict=True)
            ]
            outputs.append(torch.cat(heads, dim=-1))
        return torch.cat(outputs)


class Absorbed:
    """The records themselves, as keys and as values of one shared head."""

    def __init__(self, config: ModelConfig, tokens: int, dtype: torch.dtype) -> None:
        self._config = config
        self._records = torch.empty(tokens, config.row_width, dtype=dtype)
        self._scores = Scores(tokens, dtype)

    def start_layer(self, weights: AttentionWeights) -> None:
        """Forget the previous layer."""
        nope_dim = self._config.nope_dim
        self._key_up, self._value_up = weights.kv_b[:, :nope_dim], weights.kv_b[:, nope_dim:]

    def add(self, start: int, records: Tensor) -> None:
        """Keep the records [n, width] of positions start..start + n."""
        self._records[start : start + len(records)] = records

    def attend(self, start: int, queries: Tensor) -> Tensor:
        """Queries [heads, n, query_dim] at start..start + n -> [n, heads * value_dim]."""
        config, outputs = self._config, []
        for first, piece in _pieces(queries):
            records = self._records[: start + first + piece.shape[1]]
            heads = []
            for query, key_up, value_up in zip(piece, self._key_up, self._value_up, strict=True):
                nope, rope = _cut(query, config.nope_dim)
                scores = self._scores.softmax(torch.cat((nope @ key_up, rope), dim=-1), records)
                heads.append((scores @ records[:, : config.kv_lora]) @ value_up.T)
            outputs.append(torch.cat(heads, dim=-1))
        return torch.cat(outputs)
