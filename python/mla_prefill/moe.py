"""Feed-forward blocks: the dense SwiGLU and the mixture of experts.

What it does: routes in float32 (softmax; greedy or group-limited top-k), runs each chosen expert
once over its rows, adds the shared experts unscaled.
What it does not: sigmoid routing with a correction bias (the V3 family).
Invariant: the rows an expert sees depend only on the rows of this call, so that a chunk computed
again, cold or warm, repeats the same products.
"""

import torch
from torch import Tensor

from mla_prefill.config import MoeConfig
from mla_prefill.weights import MlpWeights, MoeWeights


def swiglu(weights: MlpWeights, rows: Tensor) -> Tensor:
    """[n, hidden] -> [n, hidden]"""
    return weights.down(torch.nn.functional.silu(weights.gate(rows)) * weights.up(rows))


def route(config: MoeConfig, router: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Choose experts for `rows` [n, hidden]: (expert [n, k] int64, weight [n, k] float32)."""
    scores = torch.nn.functional.linear(rows.float(), router).softmax(dim=-1)
    choice = scores
    if config.method == "group_limited_greedy":
        choice = _keep_best_groups(config, scores)
    weight, expert = choice.topk(config.top_k, dim=-1)
    return expert, weight * config.scaling


def mixture(config: MoeConfig, weights: MoeWeights, rows: Tensor) -> Tensor:
    """[n, hidden] -> [n, hidden]: weighted experts plus the shared ones."""
    chosen, gate = route(config, weights.router, rows)
    order = chosen.flatten().argsort(stable=True)
    counts = chosen.flatten().bincount(minlength=config.experts).tolist()
    total = torch.zeros_like(rows)
    for expert, slots in zip(weights.experts, order.split_with_sizes(counts), strict=True):
        if len(slots):
            row = slots // config.top_k
            share = gate.flatten()[slots].unsqueeze(1)
            total[row] += (swiglu(expert, rows[row]) * share).to(rows.dtype)
    return total if weights.shared is None else total + swiglu(weights.shared, rows)


def _keep_best_groups(config: MoeConfig, scores: Tensor) -> Tensor:
    """Scores outside the `top_groups` groups with the largest maximum become 0."""
    grouped = scores.view(len(scores), config.groups, -1)
    best = grouped.amax(-1).topk(config.top_groups, dim=-1).indices
    keep = torch.zeros(grouped.shape[:2], dtype=torch.bool).scatter_(1, best, True)
    return (grouped * keep.unsqueeze(-1)).flatten(-2)
