"""Rotary position embedding, plain and yarn.

What it does: angles in float32 for absolute positions, rotation of neighbouring pairs (0,1), (2,3)
in float32, result cast back. The output keeps the pairs interleaved, which is the order of the
cached record.
What it does not: the half-split pairing of other model families.
Invariant: a position's angles depend only on the position when the caller asks for the same rows
in the same call (exact mode does, chunk by chunk).
"""

import math

import torch
from torch import Tensor

from mla_prefill.config import ModelConfig, RopeConfig


def softmax_scale(config: ModelConfig) -> float:
    """1 / sqrt(query width), times the square of yarn's mscale_all_dim correction."""
    scale: float = config.query_dim**-0.5
    rope = config.rope
    if rope.kind == "yarn" and rope.mscale_all_dim:
        scale *= _mscale(rope.factor, rope.mscale_all_dim) ** 2
    return scale


def inverse_frequencies(config: ModelConfig) -> Tensor:
    """[rope_dim / 2] float32"""
    rope, dim = config.rope, config.rope_dim
    pair = torch.arange(0, dim, 2, dtype=torch.float32)
    plain = rope.theta ** -(pair / dim)
    if rope.kind == "default":
        return plain
    low, high = _yarn_range(rope, dim)
    ramp = ((torch.arange(dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    return plain / rope.factor * ramp + plain * (1 - ramp)


def angles(config: ModelConfig, frequencies: Tensor, start: int, end: int) -> Tensor:
    """cos and sin of positions start..end: [2, end - start, rope_dim / 2] float32"""
    turns = torch.outer(torch.arange(start, end, dtype=torch.float32), frequencies)
    return torch.stack((turns.cos(), turns.sin())) * _magnitude(config.rope)


def rotate(values: Tensor, cos_sin: Tensor) -> Tensor:
    """Rotate `values` [n, ..., rope_dim]; `cos_sin` [2, n, rope_dim / 2]. Dtype is kept."""
    even, odd = values.float().view(*values.shape[:-1], -1, 2).unbind(-1)
    between = (1,) * (values.dim() - 2)
    cos, sin = cos_sin.view(2, cos_sin.shape[1], *between, cos_sin.shape[2])
    turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1)
    return turned.flatten(-2).to(values.dtype)


def _yarn_range(rope: RopeConfig, dim: int) -> tuple[float, float]:
    def pair_of(rotations: float) -> float:
        wave = rope.original_positions / (rotations * 2 * math.pi)
        return dim * math.log(wave) / (2 * math.log(rope.theta))

    low = max(math.floor(pair_of(rope.beta_fast)), 0)
    high = min(math.ceil(pair_of(rope.beta_slow)), dim - 1)
    return (low, high + 0.001) if low == high else (low, high)


def _magnitude(rope: RopeConfig) -> float:
    """What cos and sin are multiplied with; 1.0 for every released V2 and V3 checkpoint."""
    if rope.kind == "default":
        return 1.0
    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.mscale and rope.mscale_all_dim:
        return _mscale(rope.factor, rope.mscale) / _mscale(rope.factor, rope.mscale_all_dim)
    return _mscale(rope.factor, 1.0)


def _mscale(factor: float, weight: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0
