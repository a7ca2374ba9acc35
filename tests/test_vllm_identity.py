"""Whose blocks these are: what an engine says of itself, as a namespace. No vLLM is needed."""

import os
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import kvstore
from kvstore_vllm import identity
from kvstore_vllm.identity import weights_of
from kvstore_vllm.pages import EnginePages

pytestmark = pytest.mark.filterwarnings("ignore::kvstore.LayoutWarning")


def test_a_folder_or_a_file_of_weights_is_told_apart_by_what_it_holds(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    file = folder / "model.gguf"
    for path in (folder, file):
        file.write_bytes(b"first")
        first = weights_of(str(path))
        (folder / "README.md").write_text("not a weight")
        assert weights_of(str(path)) == first
        file.write_bytes(b"first, and more")
        longer = weights_of(str(path))
        os.utime(file, ns=(0, 1))
        assert len({first, longer, weights_of(str(path))}) == 3


def test_a_name_on_a_hub_is_left_to_its_revision():
    assert weights_of("somebody/some-model") == "by revision"


class Config(SimpleNamespace):
    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))


def engine_words(**changed: Any) -> tuple[Any, Any, Any, dict[str, Any]]:
    """What `layout_of` reads of an engine, with some of it changed."""
    told: dict[str, Any] = {
        "model": "some/model", "commit": "c0ffee", "dtype": "float32", "quantization": None,
        "seed": 0, "load_format": "auto", "max_model_len": 4096, "cache_dtype": "auto",
        "kv_layout": "LBHNC", "block_size": 32, "hidden": 64, "vision": 1, "shape": (2, 32),
        "rope": {"rope_type": "default", "rope_theta": 1e4}, "names": ("layers.0", "layers.1"),
        "rank": (0, 1), "stage": (0, 1), "keys": "vllm sha256",
    } | changed  # fmt: skip
    text = Config(hidden_size=told["hidden"], rope_parameters=told["rope"])
    model = SimpleNamespace(
        model=told["model"], revision=None, dtype=told["dtype"], seed=told["seed"],
        quantization=told["quantization"], max_model_len=told["max_model_len"],
        hf_text_config=text,
        hf_config=Config(text=text.to_dict(), vision=told["vision"], _commit_hash=told["commit"]),
    )  # fmt: skip
    engine = SimpleNamespace(
        model_config=model,
        cache_config=SimpleNamespace(cache_dtype=told["cache_dtype"]),
        load_config=SimpleNamespace(load_format=told["load_format"]),
        compilation_config=SimpleNamespace(static_forward_context={}),
    )
    spec = SimpleNamespace(block_size=told["block_size"])
    cache = SimpleNamespace(
        kv_cache_layout=told["kv_layout"], kv_cache_groups=[SimpleNamespace(kv_cache_spec=spec)]
    )
    tensors = {name: torch.zeros(4, *told["shape"], 512) for name in told["names"]}
    ranks = {word: told[word] for word in ("rank", "stage", "keys")}
    return engine, cache, EnginePages(tensors, 4), ranks


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"model": "other/model"}, "model"),
        ({"commit": "decaf"}, "revision"),
        ({"dtype": "bfloat16"}, "dtype"),
        ({"rope": {"rope_type": "default", "rope_theta": 1e6}}, "rope"),
        ({"block_size": 64}, "block_tokens"),
        ({"rank": (0, 2)}, "rank"),
        ({"rank": (1, 2)}, "rank"),
        ({"stage": (0, 2)}, "stage"),
        ({"cache_dtype": "fp8"}, "cache_dtype"),
        ({"kv_layout": "LBNHC"}, "page"),
        ({"shape": (32, 2)}, "tensors"),
        ({"names": ("layers.2", "layers.3")}, "layers"),
        ({"quantization": "awq"}, "quantization"),
        ({"hidden": 128}, "config"),
        ({"vision": 2}, "config"),
        ({"load_format": "dummy"}, "weights"),
        ({"keys": "kvstore"}, "keys"),
    ],
)
def test_what_changes_a_page_changes_the_namespace_and_is_named(monkeypatch, changed, named):
    first, other = layout_words(monkeypatch), layout_words(monkeypatch, **changed)
    assert other.namespace != first.namespace
    assert any(named in line for line in first.difference(other))
    assert layout_words(monkeypatch).namespace == first.namespace


def test_the_window_counts_where_it_decides_how_keys_are_turned(monkeypatch):
    """Longrope has two sets of factors, and the longest request an engine takes picks one."""
    for rope, differs in (("longrope", True), ("yarn", False)):
        told = {"rope": {"rope_type": rope, "factor": 2}}
        short = layout_words(monkeypatch, **told)
        long = layout_words(monkeypatch, max_model_len=131072, **told)
        assert (short.namespace != long.namespace) is differs


def layout_words(monkeypatch: pytest.MonkeyPatch, **changed: Any) -> kvstore.Layout:
    monkeypatch.setattr(identity, "_version", lambda: "0.32")
    monkeypatch.setattr(identity, "device_words", lambda: "a processor")
    engine, cache, pages, ranks = engine_words(**changed)
    return identity.layout_of(engine, cache, pages, **ranks, extent_blocks=None)
