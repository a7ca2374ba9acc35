"""The forward pass against a reference written plainly here, in float32 and over the whole prompt.

The reference shares no code with the runner: it reads the safetensors file itself, rotates pairs as
complex numbers, and attends with one big masked softmax.
"""

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before torch; see mla_prefill/__init__.py
torch = pytest.importorskip("torch", reason="the MLA runner needs torch: pip install .[mla]")

from safetensors.torch import load_file

from mla_prefill.attention import Absorbed, Expanded
from mla_prefill.config import ConfigError, MoeConfig, parse_config, read_config
from mla_prefill.demo_model import demo_config, make_demo_model
from mla_prefill.model import load_model
from mla_prefill.moe import route
from mla_prefill.prefill import prefill
from mla_prefill.rope import inverse_frequencies, rotate, softmax_scale

TINY: dict[str, Any] = {
    "torch_dtype": "float32",
    "num_hidden_layers": 3,
    "hidden_size": 64,
    "num_attention_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 200,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 24,
    "v_head_dim": 20,
}
MOE: dict[str, Any] = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 40,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.7,
}
PLAIN_ROPE: dict[str, Any] = {"rope_scaling": None, "rope_theta": 1000.0}
UNEVEN_YARN = {
    "type": "yarn",
    "factor": 8,
    "original_max_position_embeddings": 64,
    "beta_fast": 16,
    "beta_slow": 1,
    "mscale": 1.0,
    "mscale_all_dim": 0.5,
}
CASES: dict[str, dict[str, Any]] = {
    "dense": {},
    "plain_rope": PLAIN_ROPE,
    "uneven_yarn": {"rope_scaling": UNEVEN_YARN},
    "query_latent_with_bias": {"q_lora_rank": 48, "attention_bias": True},
    "untied": {"tie_word_embeddings": False},
    "experts_greedy": MOE,
    "experts_in_groups": MOE
    | {"topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2},
}


def reference_logits(model_dir: Path, ids: list[int]) -> Any:
    """Logits [n, vocab] of every position, float32, in the most direct way."""
    c = json.loads((model_dir / "config.json").read_text())
    w = {
        name: tensor.float() for name, tensor in load_file(model_dir / "model.safetensors").items()
    }
    x = w["model.embed_tokens.weight"][ids]
    for layer in range(c["num_hidden_layers"]):
        p = f"model.layers.{layer}."
        x = x + reference_attention(c, w, p, reference_norm(x, w[p + "input_layernorm.weight"]))
        h = reference_norm(x, w[p + "post_attention_layernorm.weight"])
        x = x + (
            reference_experts(c, w, p + "mlp.", h)
            if p + "mlp.gate.weight" in w
            else reference_mlp(w, p + "mlp.", h)
        )
    head = w.get("lm_head.weight", w["model.embed_tokens.weight"])
    return reference_norm(x, w["model.norm.weight"]) @ head.T


def reference_norm(x: Any, weight: Any) -> Any:
    return x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * weight


def reference_rope(c: dict[str, Any]) -> tuple[Any, float]:
    """Complex rotation [4096, dim / 2] with its magnitude, and the extra factor of the scale."""
    dim, yarn = c["qk_rope_head_dim"], c.get("rope_scaling")
    freq = torch.tensor([c["rope_theta"] ** (-2 * j / dim) for j in range(dim // 2)])
    magnitude = extra = 1.0
    if yarn:

        def correction(rotations: float) -> Any:
            original = yarn["original_max_position_embeddings"]
            return (
                dim * math.log(original / (rotations * 2 * math.pi)) / 2 / math.log(c["rope_theta"])
            )

        low = max(math.floor(correction(yarn["beta_fast"])), 0)
        high = min(math.ceil(correction(yarn["beta_slow"])), dim - 1)
        keep = [1 - min(max((j - low) / (high - low), 0), 1) for j in range(dim // 2)]
        keep_t = torch.tensor(keep)
        freq = freq / yarn["factor"] * (1 - keep_t) + freq * keep_t
        scale = [0.1 * yarn[k] * math.log(yarn["factor"]) + 1 for k in ("mscale", "mscale_all_dim")]
        magnitude, extra = scale[0] / scale[1], scale[1] ** 2
    turns = torch.outer(torch.arange(4096.0), freq)
    return torch.polar(torch.full_like(turns, magnitude), turns), extra


def reference_rotate(x: Any, turn: Any) -> Any:
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * turn).flatten(-2)


def reference_attention(c: dict[str, Any], w: dict[str, Any], p: str, h: Any) -> Any:
    p, n, heads = p + "self_attn.", len(h), c["num_attention_heads"]
    dn, dr, dv, r = (
        c[k] for k in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "kv_lora_rank")
    )
    turns, extra = reference_rope(c)

    def project(name: str, rows: Any) -> Any:
        return rows @ w[f"{p}{name}.weight"].T + w.get(f"{p}{name}.bias", torch.zeros(1))

    if c["q_lora_rank"]:
        low = reference_norm(project("q_a_proj", h), w[p + "q_a_layernorm.weight"])
        q = project("q_b_proj", low)
    else:
        q = project("q_proj", h)
    q = q.view(n, heads, dn + dr)
    compressed = project("kv_a_proj_with_mqa", h)
    latent = reference_norm(compressed[:, :r], w[p + "kv_a_layernorm.weight"])
    kv = project("kv_b_proj", latent).view(n, heads, dn + dv)
    q_rope = reference_rotate(q[..., dn:], turns[:n, None])
    k_rope = reference_rotate(compressed[:, r:], turns[:n])
    scores = torch.einsum("qhd,khd->hqk", q[..., :dn], kv[..., :dn])
    scores = (scores + torch.einsum("qhd,kd->hqk", q_rope, k_rope)) * extra / math.sqrt(dn + dr)
    scores = scores + torch.full((n, n), float("-inf")).triu(1)
    mixed = torch.einsum("hqk,khd->qhd", scores.softmax(-1), kv[..., dn:])
    return project("o_proj", mixed.reshape(n, heads * dv))


def reference_mlp(w: dict[str, Any], p: str, h: Any) -> Any:
    gate, up = h @ w[p + "gate_proj.weight"].T, h @ w[p + "up_proj.weight"].T
    return (gate * gate.sigmoid() * up) @ w[p + "down_proj.weight"].T


def reference_experts(c: dict[str, Any], w: dict[str, Any], p: str, h: Any) -> Any:
    """Token by token, as one would explain it."""
    rows = []
    for row in h:
        scores = (w[p + "gate.weight"] @ row).softmax(-1)
        allowed = list(range(len(scores)))
        if c.get("topk_method") == "group_limited_greedy":
            size = len(scores) // c["n_group"]
            best = sorted(
                range(c["n_group"]), key=lambda g: -scores[g * size : (g + 1) * size].max().item()
            )
            allowed = [e for g in best[: c["topk_group"]] for e in range(g * size, (g + 1) * size)]
        chosen = sorted(allowed, key=lambda e: -scores[e].item())[: c["num_experts_per_tok"]]
        out = reference_mlp(w, p + "shared_experts.", row)
        for e in chosen:
            out = out + scores[e] * c["routed_scaling_factor"] * reference_mlp(
                w, f"{p}experts.{e}.", row
            )
        rows.append(out)
    return torch.stack(rows)


def some_ids(count: int, vocab: int = 200, seed: int = 7) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return [int(token) for token in torch.randint(0, vocab, (count,), generator=generator)]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("tokens", "exact"), [(150, True), (150, False), (400, False)])
def test_logits_match_the_plain_reference(
    tmp_path: Path, case: str, tokens: int, exact: bool
) -> None:
    make_demo_model(tmp_path, demo_config("small", **TINY | CASES[case]), seed=3)
    ids = some_ids(tokens)
    result = prefill(load_model(tmp_path), ids, exact=exact)
    assert result.attention == ("absorbed" if tokens == 150 and not exact else "expanded")
    expected = reference_logits(tmp_path, ids)[-1]
    assert expected.std() > 0.3
    assert (result.logits - expected).abs().max() < 1e-4


def test_the_reference_notices_a_missing_softmax_correction(tmp_path: Path) -> None:
    """Guards the tests above: without mscale squared the logits are far away."""
    make_demo_model(tmp_path, demo_config("small", **TINY), seed=3)
    ids, model = some_ids(100), load_model(tmp_path)
    right = prefill(model, ids).logits
    config = json.loads((tmp_path / "config.json").read_text())
    config["rope_scaling"] = config["rope_scaling"] | {"mscale": 0, "mscale_all_dim": 0}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert (prefill(load_model(tmp_path), ids).logits - right).abs().max() > 0.1


def test_rope_turns_neighbouring_pairs_and_keeps_them_in_place() -> None:
    values = torch.zeros(1, 4)
    values[0, 2] = 1.0
    angle = torch.tensor([[0.3, 0.5]])
    turned = rotate(values, torch.stack((angle.cos(), angle.sin())))
    expected = torch.tensor([[0.0, 0.0, math.cos(0.5), math.sin(0.5)]])
    assert torch.allclose(turned, expected)


def test_yarn_scales_the_softmax_by_mscale_squared() -> None:
    config = parse_config(demo_config(), name="x")
    assert softmax_scale(config) == pytest.approx(192**-0.5 * 1.5896, rel=1e-4)
    plain = parse_config(demo_config(rope_scaling=None), name="x")
    assert softmax_scale(plain) == pytest.approx(192**-0.5)


def test_yarn_keeps_fast_pairs_and_slows_slow_pairs_by_the_factor() -> None:
    yarn = inverse_frequencies(parse_config(demo_config(), name="x"))
    plain = inverse_frequencies(parse_config(demo_config(rope_scaling=None), name="x"))
    assert torch.equal(yarn[:10], plain[:10])
    assert torch.allclose(yarn[-5:], plain[-5:] / 40)


def test_both_spellings_of_rope_are_one_config() -> None:
    old = demo_config()
    new = demo_config(
        rope_parameters=old["rope_scaling"] | {"rope_theta": 10000.0}, rope_theta=None
    )
    del new["rope_scaling"]
    assert parse_config(old, name="x") == parse_config(new, name="x")


def test_router_drops_experts_of_weak_groups_and_scales_the_rest() -> None:
    config = MoeConfig(
        experts=6,
        top_k=2,
        intermediate=8,
        shared_experts=0,
        method="group_limited_greedy",
        groups=3,
        top_groups=1,
        scaling=2.0,
    )
    logits = torch.tensor([[0.0, 5.0, 4.0, 4.9, 3.0, 1.0]])
    expert, weight = route(config, torch.eye(6), logits)
    scores = logits.softmax(-1)[0]
    assert expert.tolist() == [[1, 0]]
    assert torch.allclose(weight, 2.0 * scores[[1, 0]].unsqueeze(0))


def test_absorbed_and_expanded_agree_in_float32(tmp_path: Path) -> None:
    make_demo_model(tmp_path, demo_config("small", **TINY), seed=5)
    model = load_model(tmp_path)
    weights = model.layer(0).attention
    generator = torch.Generator().manual_seed(1)
    records = torch.randn(300, model.config.row_width, generator=generator)
    queries = torch.randn(2, 40, model.config.query_dim, generator=generator)
    outputs = []
    for form in (Expanded, Absorbed):
        attention = form(model.config, 300, torch.float32)
        attention.start_layer(weights)
        attention.add(0, records)
        outputs.append(attention.attend(260, queries))
    assert (outputs[0] - outputs[1]).abs().max() < 1e-5


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"model_type": "llama"}, "model_type"),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, "rope type"),
        (MOE | {"topk_method": "noaux_tc"}, "topk_method"),
        (MOE | {"scoring_func": "sigmoid"}, "scoring_func"),
        (MOE | {"norm_topk_prob": True}, "norm_topk_prob"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantised"),
        ({"torch_dtype": "float16"}, "dtype"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"kv_lora_rank": None}, "kv_lora_rank"),
    ],
)
def test_what_the_runner_would_compute_wrongly_is_refused(
    change: dict[str, Any], word: str
) -> None:
    with pytest.raises(ConfigError, match=word):
        parse_config(demo_config(**change), name="x")


def test_a_missing_model_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="demo_model"):
        read_config(tmp_path)


def test_the_fingerprint_follows_every_number_but_not_the_name() -> None:
    base = parse_config(demo_config(), name="x").fingerprint()
    assert parse_config(demo_config(_name_or_path="other"), name="y").fingerprint() == base
    assert parse_config(demo_config(rope_theta=5e5), name="x").fingerprint() != base
    assert parse_config(demo_config(), name="x", latent_norm_eps=1e-5).fingerprint() != base


def test_the_demo_model_is_the_same_for_the_same_seed(tmp_path: Path) -> None:
    config = demo_config("small", **TINY)
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        make_demo_model(tmp_path / name, config, seed=seed)
    digests = [load_model(tmp_path / name).content_digest() for name in "abc"]
    assert digests[0] != digests[2]
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in "ab")
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_the_demo_record_is_that_of_the_real_models() -> None:
    config = parse_config(demo_config(), name="x")
    assert config.row_width * 2 == 1152
    assert (config.layers, config.vocab) == (24, 129_280)


def test_the_weights_digest_notices_one_changed_byte(tmp_path: Path) -> None:
    make_demo_model(tmp_path, demo_config("small", **TINY))
    model = load_model(tmp_path)
    before = model.content_digest()
    assert model.content_digest() == before
    path = tmp_path / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert model.content_digest() != before
