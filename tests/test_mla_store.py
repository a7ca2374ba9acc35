"""The runner over a real store: bitwise equal, only what is missing computed, damage survived."""

import os
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before torch; see mla_prefill/__init__.py
torch = pytest.importorskip("torch", reason="the MLA runner needs torch: pip install .[mla]")

import kvstore
from mla_prefill.__main__ import main
from mla_prefill.cache import StoreCache, exact_words, model_layout, open_cache
from mla_prefill.demo_model import demo_config, make_demo_model
from mla_prefill.model import Model, load_model
from mla_prefill.prefill import PrefillResult, prefill
from tests.support import extent_bytes
from tests.support.extent_reader import read_extent
from tests.support.make_extents import as_made, encode

BLOCK = 64
VOCAB = 500
TOKENS = 36 * BLOCK + 10  # two whole extents of 16 blocks and part of a third

pytestmark = pytest.mark.filterwarnings("ignore::kvstore.LayoutWarning")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """Two layers with the real record of 1152 bytes per token and layer."""
    path = tmp_path_factory.mktemp("model")
    config = demo_config("small", vocab_size=VOCAB, num_hidden_layers=2, hidden_size=128)
    make_demo_model(path, config, seed=11)
    return load_model(path)


@pytest.fixture(params=["auto", "threads"])
def engine(request: pytest.FixtureRequest) -> str:
    """The best engine of this machine, and the one that works everywhere."""
    return str(request.param)


def some_ids(count: int, seed: int = 1) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return [int(token) for token in torch.randint(0, VOCAB, (count,), generator=generator)]


def opened(path: Path, model: Model, **mode: Any) -> AbstractContextManager[StoreCache]:
    return open_cache(path, model, capacity="200MB", pool="64MB", **{"exact": True} | mode)


def run(path: Path, model: Model, ids: list[int], **mode: Any) -> PrefillResult:
    """One prefill with a store of its own opening, as a new process would."""
    with opened(path, model, **mode) as cache:
        result = prefill(model, ids, cache, exact=mode.get("exact", True))
        result.finish_writes()
        return result


def flip_one_bit(path: Path) -> None:
    """At three quarters of the file, in place; its times say when it expires and stay."""
    times = path.stat()
    data = bytearray(path.read_bytes())
    data[len(data) * 3 // 4] ^= 4
    path.write_bytes(data)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


@pytest.fixture
def cold(tmp_path: Path, model: Model, engine: str) -> PrefillResult:
    """A cold exact run that filled the store at tmp_path."""
    result = run(tmp_path, model, some_ids(TOKENS), engine=engine)
    assert (result.hit_tokens, result.blocks_put) == (0, TOKENS // BLOCK)
    assert result.bytes_written >= 36 * BLOCK * 1152 * 2
    return result


def test_warm_is_bitwise_cold_for_every_kind_of_boundary(
    tmp_path: Path, model: Model, engine: str, cold: PrefillResult
) -> None:
    """Prompts that share 0, 1, half an extent, whole extents, and all blocks with the stored."""
    ids = some_ids(TOKENS)
    for shared in (0, 1, 8, 16, 32, 36):
        other = ids[: shared * BLOCK] + some_ids(TOKENS - shared * BLOCK, seed=shared + 2)
        if shared == 36:
            other = ids
        warm = run(tmp_path, model, other, engine=engine, write=False)
        assert warm.used_tokens == warm.hit_tokens == shared * BLOCK
        assert warm.computed_tokens == [TOKENS - shared * BLOCK] * 2
        assert warm.bytes_read + warm.ram_bytes >= shared * BLOCK * 1152 * 2
        assert torch.equal(warm.logits, prefill(model, other, exact=True).logits), shared
    assert torch.equal(warm.logits, cold.logits)


def test_layer_times_tell_when_the_store_had_each_layer(
    tmp_path: Path, model: Model, engine: str, cold: PrefillResult
) -> None:
    warm = run(tmp_path, model, some_ids(TOKENS), engine=engine)
    assert all(t.load_ready_s <= t.compute_start_s <= t.compute_end_s for t in warm.layers)
    assert warm.find_s <= warm.layers[0].load_ready_s <= warm.layers[1].load_ready_s
    assert warm.store_wait_s == pytest.approx(sum(t.store_wait_s for t in warm.layers))


def test_the_next_turn_computes_only_what_is_new_and_saves_it(
    tmp_path: Path, model: Model, engine: str, cold: PrefillResult
) -> None:
    longer = some_ids(TOKENS) + some_ids(200, seed=9)
    turn = run(tmp_path, model, longer, engine=engine)
    assert (turn.used_tokens, turn.blocks_put) == (36 * BLOCK, 3)
    again = run(tmp_path, model, longer, engine=engine)
    assert again.used_tokens == 39 * BLOCK
    assert torch.equal(again.logits, turn.logits)
    assert torch.equal(again.logits, prefill(model, longer, exact=True).logits)


def test_a_flipped_bit_costs_its_suffix_and_not_the_answer(
    tmp_path: Path, model: Model, engine: str, cold: PrefillResult
) -> None:
    flip_one_bit(max(tmp_path.rglob("*.kv"), key=lambda path: path.stat().st_size))
    warm = run(tmp_path, model, some_ids(TOKENS), engine=engine)
    assert torch.equal(warm.logits, cold.logits)
    assert warm.restarts == 1
    assert warm.used_tokens < 36 * BLOCK
    healed = run(tmp_path, model, some_ids(TOKENS), engine=engine)
    assert (healed.used_tokens, healed.restarts) == (36 * BLOCK, 0)
    assert torch.equal(healed.logits, cold.logits)


def test_a_value_altered_with_its_checksum_changes_the_logits(
    tmp_path: Path, model: Model, engine: str, cold: PrefillResult
) -> None:
    """Reuse is real: what a warm prefill computes with is what lies on disk."""
    path = max(tmp_path.rglob("*.kv"), key=lambda path: path.stat().st_size)
    made = as_made(read_extent(path))
    cells = [bytearray(layer) for layer in made.cells]
    row = slice(0, 1152)  # the first token of the extent's first block, all of its record
    cells[1][row] = bytes(1152)
    extent_bytes.replace(path, encode(replace(made, cells=[bytes(layer) for layer in cells])))
    warm = run(tmp_path, model, some_ids(TOKENS), engine=engine)
    assert (warm.used_tokens, warm.restarts) == (36 * BLOCK, 0)
    assert not torch.equal(warm.logits, cold.logits)


def test_modes_models_and_grids_do_not_share_blocks(
    tmp_path: Path, model: Model, engine: str, cold: PrefillResult
) -> None:
    ids = some_ids(TOKENS)
    assert run(tmp_path, model, ids, exact=False, engine=engine, write=False).hit_tokens == 0
    with opened(tmp_path, model, chunk_tokens=128, engine=engine) as cache:
        assert prefill(model, ids, cache, exact=True, chunk_tokens=128).hit_tokens == 0


def test_the_exact_namespace_names_the_threads(model: Model) -> None:
    before = torch.get_num_threads()
    assert f"threads={before} " in exact_words(64)
    one = model_layout(model, exact=True)
    torch.set_num_threads(before + 1)
    try:
        assert model_layout(model, exact=True).namespace != one.namespace
        assert model_layout(model, exact=False) == model_layout(model, exact=False)
    finally:
        torch.set_num_threads(before)


def test_without_finish_writes_nothing_is_published(
    tmp_path: Path, model: Model, engine: str
) -> None:
    ids = some_ids(200)
    with opened(tmp_path, model, engine=engine) as cache:
        prefill(model, ids, cache, exact=True)
    assert run(tmp_path, model, ids, engine=engine).hit_tokens == 0


def test_the_command_line_names_a_refused_store(
    tmp_path: Path, model: Model, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "ids.txt").write_text("1 2 3")
    asked = ["--model", str(model.directory), "--ids", str(tmp_path / "ids.txt")]
    with kvstore.open_blocking(tmp_path / "kv", capacity="100MB", pool="16MB"):
        assert main([*asked, "--store", str(tmp_path / "kv"), "--pool", "16MB"]) == 2
    assert "mla_prefill:" in capsys.readouterr().err
