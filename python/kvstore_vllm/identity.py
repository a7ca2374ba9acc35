"""Whose blocks these are: the kvstore layout of one worker, from what the engine says of itself.

Everything that changes a page's bytes is in it: model and revision, its whole configuration,
dtypes, quantization, the shape and packing of a page, the rank. What differs is another namespace,
so a mismatch is a miss; `strangers` says in words what differs.
"""

import hashlib
import json
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch

from kvstore import Layout
from kvstore_vllm.pages import PART, EnginePages

WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".gguf", ".index.json")
# What a configuration says of where it came from, not of what the model computes.
CONFIG_NOISE = ("_name_or_path", "transformers_version", "_commit_hash", "name_or_path")
ROPE_WORDS = ("rope_parameters", "rope_scaling", "rope_theta", "rope_interleave")


def layout_of(
    vllm_config: Any,
    kv_cache_config: Any,
    pages: EnginePages,
    *,
    rank: tuple[int, int],
    stage: tuple[int, int],
    keys: str,
    extent_blocks: int | None,
) -> Layout:
    """rank: (this, ranks) among workers whose pages differ. stage: (this, stages) of a pipeline.
    keys: what makes the block keys, in words."""
    model = vllm_config.model_config
    parts = tuple(((PART, pages.page_bytes(layer)),) for layer in range(pages.layers))
    config = _config(model.hf_text_config)
    rope = {word: config[word] for word in ROPE_WORDS if word in config}
    return Layout(
        parts_by_layer=parts,
        model=str(model.model),
        revision=_revision(model),
        dtype=str(model.dtype),
        block_tokens=kv_cache_config.kv_cache_groups[0].kv_cache_spec.block_size,
        rope=json.dumps(rope, sort_keys=True),
        rank=rank,
        words=tuple(_words(vllm_config, kv_cache_config, pages, rope, stage, keys).items()),
        extent_blocks=extent_blocks,
    )


def _words(
    vllm_config: Any,
    kv_cache_config: Any,
    pages: EnginePages,
    rope: Mapping[str, Any],
    stage: tuple[int, int],
    keys: str,
) -> dict[str, str]:
    model, cache, load = vllm_config.model_config, vllm_config.cache_config, vllm_config.load_config
    words = {
        "engine": f"vllm {_version()}",
        "config": _digest(json.dumps(_config(model.hf_config), sort_keys=True, default=str)),
        "weights": (
            f"dummy, seed {model.seed}"
            if str(load.load_format) == "dummy"
            else weights_of(str(model.model))
        ),
        "quantization": str(model.quantization),
        "cache_dtype": str(cache.cache_dtype),
        "page": str(kv_cache_config.kv_cache_layout),
        "tensors": " ".join(sorted(set(pages.shapes))),
        "layers": _digest(" ".join(pages.names)),
        "attention": " ".join(_backends(vllm_config, pages.names)),
        "packing": device_words(),
        "stage": f"{stage[0]} of {stage[1]}",
        "keys": keys,
    }
    if "longrope" in json.dumps(rope):
        # Engines whose requests may be longer than the original window turn all keys otherwise.
        words["max_model_len"] = str(model.max_model_len)
    return words


def _version() -> str:
    import vllm

    return str(vllm.__version__)


def _revision(model: Any) -> str:
    """The commit that a hub's name was resolved to, else what was asked for."""
    return str(getattr(model.hf_config, "_commit_hash", None) or model.revision or "")


def _config(hf_config: Any) -> dict[str, Any]:
    return {k: v for k, v in hf_config.to_dict().items() if k not in CONFIG_NOISE}


def weights_of(model: str) -> str:
    """A folder of weights, or a file, has no revision: names, sizes and times of its files stand
    for one, so that new weights under an old path are another model."""
    path = Path(model)
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.name.endswith(WEIGHT_SUFFIXES))
    elif path.is_file():
        files = [path]
    else:
        return "by revision"
    facts = [(file.name, os.stat(file).st_size, os.stat(file).st_mtime_ns) for file in files]
    return _digest(json.dumps(facts))


def _backends(vllm_config: Any, names: Sequence[str]) -> list[str]:
    """Names of the attention backends that write these layers' pages."""
    layers = vllm_config.compilation_config.static_forward_context
    found = {layers[name].get_attn_backend().get_name() for name in names if name in layers}
    return sorted(map(str, found))


def device_words() -> str:
    """What decides the order of bytes inside a page besides the backend. No device is touched."""
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        amx = torch.cpu._is_amx_tile_supported()
        return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()} amx={amx}"
    return f"{current_platform.device_type} {current_platform.get_device_capability()}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def strangers(roots: Sequence[str], layout: Layout) -> Iterator[str]:
    """Why blocks of the same model that lie in these roots are not hits here: a line each."""
    for path in sorted(p for root in roots for p in Path(root).glob("*/layout.json")):
        if path.parent.name == layout.namespace:
            continue
        try:
            other = msgspec.json.decode(path.read_bytes(), type=Layout)
        except (OSError, ValueError):
            continue  # not a layout of ours: fsck is for that
        if other.model == layout.model and other.rank == layout.rank:
            yield f"{path.parent.name}: " + "; ".join(layout.difference(other))
