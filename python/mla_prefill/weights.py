"""Weights from safetensors files, one layer at a time.

What it does: finds each tensor through the index (or the headers), checks its shape, and copies it
into memory of its own. The copy is on purpose: a file's tensors start at any multiple of 8 bytes,
and both the speed and the last bit of a matrix product may depend on alignment.
What it does not: dequantise, shard, or move anything to a device.
Invariant: `content_digest` covers every byte of every weight file.
"""

import contextlib
import hashlib
import json
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import safe_open
from torch import Tensor

from mla_prefill.config import ConfigError, ModelConfig

DIGEST_FILE = "weights-digest.json"
DIGEST_PIECE_BYTES = 4 << 20


class Linear(NamedTuple):
    """`weight` [out, in]; `bias` [out] or None."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, rows: Tensor) -> Tensor:
        """[n, in] -> [n, out], a transposed view.

        The weight stands on the left because a bfloat16 kernel repacks its right operand on every
        call: repacking 64 rows instead of the weight makes short chunks 1.7 times faster.
        """
        product = torch.mm(self.weight, rows.T).T
        return product if self.bias is None else product + self.bias


class MlpWeights(NamedTuple):
    """SwiGLU: gate and up [intermediate, hidden], down [hidden, intermediate]."""

    gate: Linear
    up: Linear
    down: Linear


class MoeWeights(NamedTuple):
    """`router` [experts, hidden] in float32; `shared` is None without shared experts."""

    router: Tensor
    experts: tuple[MlpWeights, ...]
    shared: MlpWeights | None


class AttentionWeights(NamedTuple):
    """`q` projects from q_lora rows when `q_down` is set, else from the hidden rows.

    `kv_b` is kept as the plain tensor [heads, nope + value, kv_lora]: both forms of attention
    slice it per head.
    """

    q_down: Linear | None
    q_norm: Tensor | None
    q: Linear
    kv_a: Linear
    kv_norm: Tensor
    kv_b: Tensor
    out: Linear


class LayerWeights(NamedTuple):
    """One decoder layer."""

    attention_norm: Tensor
    attention: AttentionWeights
    mlp_norm: Tensor
    mlp: MlpWeights | MoeWeights


class WeightFiles:
    """The safetensors files of one model directory. Raises ConfigError when they do not fit."""

    def __init__(self, model_dir: Path, config: ModelConfig) -> None:
        self._dir = model_dir
        self._config = config
        self._dtype: torch.dtype = getattr(torch, config.dtype)
        self._file_of = _tensor_files(model_dir)

    def embedding(self) -> Tensor:
        """[vocab, hidden]"""
        return self._tensor("model.embed_tokens.weight", self._config.vocab, self._config.hidden)

    def final_norm(self) -> Tensor:
        """[hidden]"""
        return self._tensor("model.norm.weight", self._config.hidden)

    def head(self) -> Tensor:
        """[vocab, hidden]; call only when the head is not tied to the embedding."""
        return self._tensor("lm_head.weight", self._config.vocab, self._config.hidden)

    def layer(self, index: int) -> LayerWeights:
        """Read layer `index` from disk: a copy of its bytes, nothing is kept here."""
        config, prefix = self._config, f"model.layers.{index}."
        if config.sparse_layers[index]:
            mlp: MlpWeights | MoeWeights = self._moe(prefix + "mlp.")
        else:
            mlp = self._mlp(prefix + "mlp.", config.intermediate)
        return LayerWeights(
            attention_norm=self._tensor(prefix + "input_layernorm.weight", config.hidden),
            attention=self._attention(prefix + "self_attn."),
            mlp_norm=self._tensor(prefix + "post_attention_layernorm.weight", config.hidden),
            mlp=mlp,
        )

    def _attention(self, prefix: str) -> AttentionWeights:
        config = self._config
        q_rows = config.heads * config.query_dim
        q_down = q_norm = None
        if config.q_lora is None:
            q = self._linear(prefix + "q_proj", q_rows, config.hidden)
        else:
            q_down = self._linear(prefix + "q_a_proj", config.q_lora, config.hidden)
            q_norm = self._tensor(prefix + "q_a_layernorm.weight", config.q_lora)
            q = self._linear(prefix + "q_b_proj", q_rows, config.q_lora)
        per_head = config.nope_dim + config.value_dim
        kv_b = self._tensor(prefix + "kv_b_proj.weight", config.heads * per_head, config.kv_lora)
        return AttentionWeights(
            q_down=q_down,
            q_norm=q_norm,
            q=q,
            kv_a=self._linear(prefix + "kv_a_proj_with_mqa", config.row_width, config.hidden),
            kv_norm=self._tensor(prefix + "kv_a_layernorm.weight", config.kv_lora),
            kv_b=kv_b.view(config.heads, per_head, config.kv_lora),
            out=self._linear(prefix + "o_proj", config.hidden, config.heads * config.value_dim),
        )

    def _mlp(self, prefix: str, intermediate: int) -> MlpWeights:
        hidden = self._config.hidden
        return MlpWeights(
            gate=self._linear(prefix + "gate_proj", intermediate, hidden),
            up=self._linear(prefix + "up_proj", intermediate, hidden),
            down=self._linear(prefix + "down_proj", hidden, intermediate),
        )

    def _moe(self, prefix: str) -> MoeWeights:
        moe = self._config.moe
        assert moe is not None
        shared_width = moe.intermediate * moe.shared_experts
        return MoeWeights(
            router=self._tensor(prefix + "gate.weight", moe.experts, self._config.hidden).float(),
            experts=tuple(
                self._mlp(f"{prefix}experts.{expert}.", moe.intermediate)
                for expert in range(moe.experts)
            ),
            shared=self._mlp(prefix + "shared_experts.", shared_width) if shared_width else None,
        )

    def _linear(self, name: str, rows: int, columns: int) -> Linear:
        bias = name + ".bias"
        return Linear(
            self._tensor(name + ".weight", rows, columns),
            self._tensor(bias, rows) if bias in self._file_of else None,
        )

    def _tensor(self, name: str, *shape: int) -> Tensor:
        if name not in self._file_of:
            raise ConfigError(f"the checkpoint in {self._dir} lacks the tensor {name}")
        with safe_open(self._file_of[name], framework="pt") as file:
            tensor: Tensor = file.get_tensor(name)
        if tuple(tensor.shape) != shape:
            raise ConfigError(f"{name} has shape {tuple(tensor.shape)}, config.json asks {shape}")
        if tensor.element_size() == 1:
            raise ConfigError(f"{name} is quantised ({tensor.dtype}): convert to bfloat16 first")
        return tensor.to(self._dtype, copy=True)


def content_digest(model_dir: Path) -> str:
    """SHA-256 (hex) over all weight files; about a second per 2 GB the first time.

    The result is kept in `weights-digest.json` beside them and reused while names, sizes and
    modification times stay the same; a directory that cannot be written costs the time again.
    """
    files = _weight_files(model_dir)
    stamp = [[path.name, path.stat().st_size, path.stat().st_mtime_ns] for path in files]
    record = model_dir / DIGEST_FILE
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        known = json.loads(record.read_text())
        if known["files"] == stamp:
            return str(known["sha256"])
    total = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            while piece := file.read(DIGEST_PIECE_BYTES):
                total.update(piece)
    with contextlib.suppress(OSError):
        record.write_text(json.dumps({"files": stamp, "sha256": total.hexdigest()}))
    return total.hexdigest()


def _weight_files(model_dir: Path) -> list[Path]:
    files = sorted(model_dir.glob("*.safetensors"))
    if not files:
        raise ConfigError(f"{model_dir} holds no *.safetensors file: give a whole model directory")
    return files


def _tensor_files(model_dir: Path) -> dict[str, Path]:
    index = model_dir / "model.safetensors.index.json"
    if index.exists():
        names: dict[str, str] = json.loads(index.read_text())["weight_map"]
        return {name: model_dir / file for name, file in names.items()}
    found: dict[str, Path] = {}
    for path in _weight_files(model_dir):
        with safe_open(path, framework="pt") as file:
            found.update(dict.fromkeys(file.keys(), path))
    return found
