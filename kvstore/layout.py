"""What a block looks like in bytes, and whose it is. Pure.

A layout says, per layer, the named parts and their bytes per block, and everything that makes two
caches of the same shape different (model, revision, rope, rank, dtype). All of it goes into the
fingerprint, the fingerprint names the namespace, and the namespace isolates: blocks of one layout
are never served to another. A cell is one block of one layer: its parts back to back, unpadded.

Invariant: the fingerprint depends on every field and on nothing else (canonical, sorted JSON).
"""

import hashlib
import json
import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from kvstore.errors import LayoutWarning

LAYERS_MAX = 1024
PARTS_MAX = 16
BLOCK_TOKENS_MAX = 65536
CELL_BYTES_MAX = 64 * 2**20
EXTENT_BLOCKS_ALLOWED = (1, 16, 32, 48, 64)
REGION_BYTES_WANTED = 768 * 2**10  # one read of this size saturates the disks we measured
BLOCK_BYTES_WANTED = 512 * 2**10  # below, a file per extent costs more than it holds

_DTYPE_BYTES = {
    "float32": 4, "bfloat16": 2, "float16": 2,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "fp8": 1, "int8": 1, "uint8": 1,
}  # fmt: skip
_GQA_TYPES = ("llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe")

Parts = tuple[tuple[str, int], ...]


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes and identity of one kind of cache. Made by `mla`, `gqa`, `from_config`, or plainly:

        Layout(parts_by_layer=((("k", 65536), ("v", 65536)),) * 32, model="my/model")

    parts_by_layer: per layer its (name, bytes per block) pairs; () for a layer that stores nothing.
    words: further identity, (name, value) pairs: whatever else must not be mixed up.
    extent_blocks: most blocks in one file; None chooses. Raises ValueError past a limit.
    """

    parts_by_layer: tuple[Parts, ...]
    model: str
    revision: str = ""
    dtype: str = ""
    block_tokens: int = 64
    rope: str = ""
    rank: tuple[int, int] = (0, 1)
    words: tuple[tuple[str, str], ...] = ()
    extent_blocks: int | None = None

    def __post_init__(self) -> None:
        _freeze(self)
        _check(self)
        if self.extent_blocks is None:
            chosen = choose_extent_blocks(max(map(self.cell_bytes, range(self.layers))))
            msgspec.structs.force_setattr(self, "extent_blocks", chosen)
        if self.extent_blocks not in EXTENT_BLOCKS_ALLOWED:
            raise ValueError(f"extent_blocks must be 1, 16, 32, 48 or 64, not {self.extent_blocks}")
        if self.block_bytes < BLOCK_BYTES_WANTED:
            warnings.warn(
                f"a block of {self.block_bytes} bytes is small for a file store: raise block_tokens"
                f" until a block has {BLOCK_BYTES_WANTED} bytes or more over all layers",
                LayoutWarning,
                stacklevel=3,
            )

    @classmethod
    def mla(
        cls,
        *,
        model: str,
        layers: int,
        revision: str = "",
        latent: int = 512,
        rope: int = 64,
        dtype: str = "bfloat16",
        block_tokens: int = 64,
        rope_words: str = "",
        index_bytes: int = 0,
        extent_blocks: int | None = None,
        words: Mapping[str, str] | None = None,
    ) -> "Layout":
        """Multi-head latent attention: part "latent" ([block_tokens, latent + rope] of dtype).

        dtype "fp8_ds_mla" is 656 bytes a token for 512 + 64 (fp8 latent, fp32 scales, bf16 rope).
        index_bytes: per token and layer, of an indexer's keys (sparse attention): part "index".
        """
        parts: Parts = (("latent", block_tokens * _latent_bytes(latent, rope, dtype)),)
        if index_bytes:
            parts += (("index", block_tokens * index_bytes),)
        return cls(
            parts_by_layer=(parts,) * layers,
            model=model,
            revision=revision,
            dtype=dtype,
            block_tokens=block_tokens,
            rope=rope_words,
            words=_words(words, attention="mla", latent=latent, rope_dim=rope),
            extent_blocks=extent_blocks,
        )

    @classmethod
    def gqa(
        cls,
        *,
        model: str,
        layers: int,
        kv_heads: int,
        head_dim: int,
        revision: str = "",
        dtype: str = "bfloat16",
        block_tokens: int = 64,
        rope_words: str = "",
        rank: tuple[int, int] = (0, 1),
        extent_blocks: int | None = None,
        words: Mapping[str, str] | None = None,
    ) -> "Layout":
        """Grouped-query attention: parts "k" and "v", [block_tokens, kv_heads / ranks, head_dim].

        kv_heads is the model's; rank is (this rank, ranks) of a tensor-parallel group.
        """
        if rank[1] < 1 or kv_heads % rank[1]:
            raise ValueError(f"{kv_heads} kv heads do not divide over {rank[1]} ranks")
        part_bytes = block_tokens * (kv_heads // rank[1]) * head_dim * _dtype_bytes(dtype)
        return cls(
            parts_by_layer=((("k", part_bytes), ("v", part_bytes)),) * layers,
            model=model,
            revision=revision,
            dtype=dtype,
            block_tokens=block_tokens,
            rope=rope_words,
            rank=rank,
            words=_words(words, attention="gqa", kv_heads=kv_heads, head_dim=head_dim),
            extent_blocks=extent_blocks,
        )

    @classmethod
    def from_config(
        cls,
        config: "str | os.PathLike[str] | Mapping[str, Any]",
        *,
        model: str,
        revision: str = "",
        dtype: str | None = None,
        block_tokens: int = 64,
        rank: tuple[int, int] = (0, 1),
        extent_blocks: int | None = None,
        words: Mapping[str, str] | None = None,
    ) -> "Layout":
        """From a model's config.json, path or contents: MLA (DeepSeek, Kimi, GLM) or llama-like.

        `model` and `revision` are asked for: two fine-tunes share a config, never a cache. dtype:
        the cache's; the model's when None. rank only matters for GQA (a latent is not sharded).
        """
        facts = _facts(config)
        found = dtype or facts.get("dtype") or facts.get("torch_dtype") or "bfloat16"
        rope_words = _rope_words(facts)
        if "kv_lora_rank" in facts:
            return cls.mla(
                model=model,
                revision=revision,
                layers=facts["num_hidden_layers"],
                latent=facts["kv_lora_rank"],
                rope=facts["qk_rope_head_dim"],
                dtype=found,
                block_tokens=block_tokens,
                rope_words=rope_words,
                index_bytes=facts.get("index_head_dim", 0) * _dtype_bytes("bfloat16"),
                extent_blocks=extent_blocks,
                words=words,
            )
        heads = facts.get("num_attention_heads", 0)
        if facts.get("model_type") not in _GQA_TYPES or not heads:
            raise ValueError(
                f"model_type {facts.get('model_type')!r} is not known here; describe its cache"
                " with Layout.gqa(...), Layout.mla(...) or Layout(parts_by_layer=...)"
            )
        return cls.gqa(
            model=model,
            revision=revision,
            layers=facts["num_hidden_layers"],
            kv_heads=facts.get("num_key_value_heads") or heads,
            head_dim=facts.get("head_dim") or facts["hidden_size"] // heads,
            dtype=found,
            block_tokens=block_tokens,
            rope_words=rope_words,
            rank=rank,
            extent_blocks=extent_blocks,
            words=words,
        )

    @property
    def layers(self) -> int:
        return len(self.parts_by_layer)

    @property
    def blocks_per_extent(self) -> int:
        """extent_blocks, as it was chosen."""
        assert self.extent_blocks is not None  # __post_init__ filled it
        return self.extent_blocks

    @property
    def fingerprint(self) -> bytes:
        """32 bytes: SHA-256 of all fields. Costs a JSON encoding; keep it when it is hot."""
        return hashlib.sha256(self.description.encode()).digest()

    @property
    def namespace(self) -> str:
        """The directory of this layout below each root: 32 hex digits."""
        return self.fingerprint.hex()[:32]

    @property
    def description(self) -> str:
        """All fields as canonical JSON (keys sorted): what is hashed and kept beside the data."""
        return msgspec.json.encode(self, order="sorted").decode()

    def cell_bytes(self, layer: int) -> int:
        """Bytes of one block of `layer`, its parts back to back."""
        return sum(part_bytes for _, part_bytes in self.parts_by_layer[layer])

    @property
    def block_bytes(self) -> int:
        """Bytes of one block over all layers."""
        return sum(map(self.cell_bytes, range(self.layers)))

    def part(self, layer: int, name: str) -> tuple[int, int]:
        """(offset in the cell, bytes per block) of a part. KeyError when the layer has none."""
        offset = 0
        for part_name, part_bytes in self.parts_by_layer[layer]:
            if part_name == name:
                return offset, part_bytes
            offset += part_bytes
        raise KeyError(f"layer {layer} has no part {name!r}")

    def difference(self, other: "Layout") -> list[str]:
        """The fields in which `other` differs, one readable line each; [] when they are equal."""
        lines = []
        for field in self.__struct_fields__:
            mine, theirs = getattr(self, field), getattr(other, field)
            if mine == theirs:
                continue
            if field == "parts_by_layer":
                lines.append(_parts_difference(mine, theirs))
            else:
                lines.append(f"{field}: {mine!r} here, {theirs!r} there")
        return lines


def choose_extent_blocks(largest_cell_bytes: int) -> int:
    """Smallest multiple of 16 whose region of the largest cell is worth one read; 64 if none is."""
    for blocks in (16, 32, 48):
        if blocks * largest_cell_bytes >= REGION_BYTES_WANTED:
            return blocks
    return 64


def _freeze(layout: Layout) -> None:
    """Lists become tuples, so that equal layouts compare, hash and encode equally."""
    parts = tuple(tuple((str(n), int(b)) for n, b in layer) for layer in layout.parts_by_layer)
    given = layout.words.items() if isinstance(layout.words, Mapping) else layout.words
    words = tuple(sorted((str(name), str(value)) for name, value in given))
    msgspec.structs.force_setattr(layout, "parts_by_layer", parts)
    msgspec.structs.force_setattr(layout, "words", words)
    msgspec.structs.force_setattr(layout, "rank", tuple(layout.rank))


def _check(layout: Layout) -> None:
    if not layout.model:
        raise ValueError("a layout needs the model's name: it keeps two models' caches apart")
    if not 1 <= layout.layers <= LAYERS_MAX:
        raise ValueError(f"layers must be 1 to {LAYERS_MAX}, not {layout.layers}")
    if not 1 <= layout.block_tokens <= BLOCK_TOKENS_MAX:
        raise ValueError(f"block_tokens must be 1 to {BLOCK_TOKENS_MAX}, not {layout.block_tokens}")
    if len(layout.rank) != 2 or not 0 <= layout.rank[0] < layout.rank[1]:
        raise ValueError(f"rank must be (this rank, ranks), not {layout.rank}")
    for layer, parts in enumerate(layout.parts_by_layer):
        names = [name for name, _ in parts]
        if len(names) > PARTS_MAX or len(set(names)) != len(names):
            raise ValueError(f"layer {layer}: at most {PARTS_MAX} parts, each name once: {names}")
        if any(part_bytes < 1 for _, part_bytes in parts):
            raise ValueError(f"layer {layer}: a part needs at least one byte: {parts}")
        if layout.cell_bytes(layer) > CELL_BYTES_MAX:
            raise ValueError(f"layer {layer}: a cell has at most {CELL_BYTES_MAX} bytes")
    if layout.block_bytes == 0:
        raise ValueError("no layer has a part: there is nothing to store")


def _dtype_bytes(dtype: str) -> int:
    if dtype not in _DTYPE_BYTES:
        raise ValueError(f"dtype {dtype!r} is not known; one of {', '.join(_DTYPE_BYTES)}")
    return _DTYPE_BYTES[dtype]


def _latent_bytes(latent: int, rope: int, dtype: str) -> int:
    """Bytes of one token's latent and rope part."""
    if dtype == "fp8_ds_mla":  # one fp32 scale for 128 fp8 values; the rope part stays bf16
        return latent + latent // 128 * 4 + rope * 2
    return (latent + rope) * _dtype_bytes(dtype)


def _words(words: Mapping[str, str] | None, **own: object) -> tuple[tuple[str, str], ...]:
    merged = {name: str(value) for name, value in own.items()} | dict(words or {})
    return tuple(sorted(merged.items()))


def read_config(path: "str | os.PathLike[str]") -> Mapping[str, Any]:
    """The object in a model's config.json. OSError; ValueError that names the file."""
    try:
        facts = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{os.fspath(path)} is no config.json: {error}") from error
    if not isinstance(facts, dict):
        raise ValueError(f"{os.fspath(path)} is no config.json: it holds no JSON object")
    return facts


def _facts(config: "str | os.PathLike[str] | Mapping[str, Any]") -> Mapping[str, Any]:
    """The contents of a config.json; of its language model when it has several parts."""
    facts = config if isinstance(config, Mapping) else read_config(config)
    inner: Mapping[str, Any] = facts.get("text_config", facts)
    return inner


def _rope_words(config: Mapping[str, Any]) -> str:
    """What changes the rotation of stored keys, in one canonical string."""
    names = ("rope_theta", "rope_scaling", "rope_parameters", "rope_interleave")
    present = {name: config[name] for name in names if config.get(name) is not None}
    return json.dumps(present, sort_keys=True, separators=(",", ":")) if present else ""


def _parts_difference(mine: Sequence[Parts], theirs: Sequence[Parts]) -> str:
    if len(mine) != len(theirs):
        return f"layers: {len(mine)} here, {len(theirs)} there"
    layer = next(i for i, (a, b) in enumerate(zip(mine, theirs, strict=True)) if a != b)
    return f"parts of layer {layer}: {dict(mine[layer])} here, {dict(theirs[layer])} there"
