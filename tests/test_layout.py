"""Layouts: their bytes, their identity, and what config.json files make of them."""

import json
import warnings
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvstore import Layout, LayoutWarning
from kvstore.layout import choose_extent_blocks

DEEPSEEK_V3 = {
    "model_type": "deepseek_v3",
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "torch_dtype": "bfloat16",
    "rope_theta": 10000,
    "rope_scaling": {"type": "yarn", "factor": 40},
}
LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
    "torch_dtype": "bfloat16",
}


def mla(**changes: Any) -> Layout:
    words: dict[str, Any] = {"model": "m", "layers": 61} | changes
    return Layout.mla(**words)


def test_deepseek_v3_has_cells_of_73728_bytes_in_extents_of_16() -> None:
    layout = Layout.from_config(DEEPSEEK_V3, model="deepseek-ai/DeepSeek-V3")
    assert layout.layers == 61
    assert layout.cell_bytes(0) == 73_728
    assert layout.block_bytes == 61 * 73_728
    assert layout.extent_blocks == 16


@pytest.mark.parametrize(
    ("changes", "cell"),
    [
        ({"dtype": "fp8_ds_mla"}, 41_984),
        ({"dtype": "fp8_ds_mla", "index_bytes": 132}, 50_432),
        ({"dtype": "bfloat16", "block_tokens": 16}, 18_432),
        ({"dtype": "float32"}, 147_456),
    ],
)
def test_latent_cells_have_the_bytes_of_their_dtype(changes: dict[str, Any], cell: int) -> None:
    assert mla(**changes).cell_bytes(60) == cell


def test_a_gqa_layout_divides_its_heads_over_the_ranks() -> None:
    whole = Layout.from_config(LLAMA, model="llama")
    half = Layout.from_config(LLAMA, model="llama", rank=(1, 2))
    assert whole.parts_by_layer[0] == (("k", 64 * 8 * 128 * 2), ("v", 64 * 8 * 128 * 2))
    assert half.block_bytes * 2 == whole.block_bytes
    assert half.namespace != Layout.from_config(LLAMA, model="llama", rank=(0, 2)).namespace
    with pytest.raises(ValueError, match="do not divide"):
        Layout.from_config(LLAMA, model="llama", rank=(0, 3))


def test_a_config_may_be_a_path_and_may_hold_its_text_model(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "kimi_k25", "text_config": DEEPSEEK_V3}))
    assert Layout.from_config(path, model="m") == Layout.from_config(DEEPSEEK_V3, model="m")


def test_an_unknown_model_type_says_what_to_do() -> None:
    with pytest.raises(ValueError, match="parts_by_layer"):
        Layout.from_config(LLAMA | {"model_type": "mamba"}, model="m")


@pytest.mark.parametrize(
    "changes",
    [
        {"model": "other"}, {"revision": "r2"}, {"layers": 60}, {"latent": 256},
        {"dtype": "float16"}, {"block_tokens": 128}, {"rope_words": "theta=1"},
        {"index_bytes": 132}, {"extent_blocks": 64}, {"words": {"quantizer": "q"}},
        {"latent": 511, "rope": 65},
    ],
)  # fmt: skip
def test_every_word_is_part_of_the_identity(changes: dict[str, Any]) -> None:
    base, other = mla(), mla(**changes)
    assert base.namespace != other.namespace
    assert base.difference(other)
    assert base.difference(base) == []


def test_the_order_of_words_and_lists_for_tuples_change_nothing() -> None:
    one = mla(words={"b": "2", "a": "1"})
    other = mla(words={"a": "1", "b": "2"})
    listed_parts: Any = [[list(part) for part in layer] for layer in one.parts_by_layer]
    listed = Layout(
        parts_by_layer=listed_parts,
        model="m",
        dtype="bfloat16",
        words=one.words[::-1],
    )
    assert one == other == listed
    assert one.namespace == other.namespace == listed.namespace
    assert hash(one) == hash(listed)


def test_the_namespace_of_a_known_layout_never_changes() -> None:
    # Stored data is found under this name: a change here loses every cache on disk.
    assert mla(revision="r").namespace == "2c0118bfca15f0d17e8141f4df4c5e4c"


def test_a_layout_survives_msgspec() -> None:
    layout = Layout.from_config(DEEPSEEK_V3, model="m")
    again = msgspec.json.decode(msgspec.json.encode(layout), type=Layout)
    assert again == layout
    assert again.fingerprint == layout.fingerprint
    assert len(layout.fingerprint) == 32
    assert layout.namespace == layout.fingerprint.hex()[:32]


@pytest.mark.parametrize(
    ("cell", "blocks"), [(73_728, 16), (49_152, 16), (49_151, 32), (16_384, 48), (8_448, 64)]
)
def test_extents_are_as_short_as_one_good_read_allows(cell: int, blocks: int) -> None:
    assert choose_extent_blocks(cell) == blocks


def test_layers_may_differ_and_may_have_nothing() -> None:
    layout = Layout(parts_by_layer=((("k", 600_000), ("s", 7)), (), (("k", 5),)), model="m")
    assert [layout.cell_bytes(i) for i in range(3)] == [600_007, 0, 5]
    assert layout.part(0, "s") == (600_000, 7)
    with pytest.raises(KeyError, match="no part"):
        layout.part(1, "k")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": ""}, "model"),
        ({"layers": 0}, "layers"),
        ({"layers": 1025}, "layers"),
        ({"block_tokens": 0}, "block_tokens"),
        ({"block_tokens": 65_537}, "block_tokens"),
        ({"extent_blocks": 24}, "extent_blocks"),
        ({"extent_blocks": 128}, "extent_blocks"),
        ({"latent": 2**20}, "cell"),
        ({"dtype": "int3"}, "dtype"),
    ],
)
def test_what_is_past_a_limit_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        mla(**changes)


def test_a_part_named_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="each name once"):
        Layout(parts_by_layer=((("k", 600_000), ("k", 1)),), model="m")


def test_small_blocks_are_warned_about_and_large_ones_are_not() -> None:
    with pytest.warns(LayoutWarning, match="small"):
        mla(layers=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mla()
