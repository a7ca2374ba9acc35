"""The layer-major run with a cache: what is reused, recomputed, saved, and equal.

A dictionary stands for the store, so that only the run is under test here.
"""

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before torch; see mla_prefill/__init__.py
torch = pytest.importorskip("torch", reason="the MLA runner needs torch: pip install .[mla]")

from mla_prefill.__main__ import main
from mla_prefill.config import ConfigError
from mla_prefill.demo_model import demo_config, make_demo_model
from mla_prefill.model import Model, load_model
from mla_prefill.prefill import Found, Grid, LayerRows, Read, Saved, prefill
from mla_prefill.tokens import encode_prompt, read_ids

BLOCK = 64
VOCAB = 500
EXPERTS: dict[str, Any] = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 128,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
}


class MemoryCache:
    """A PrefixCache in a dictionary: (block's tokens and all before) -> rows per layer.

    `limit` hides blocks from `find`; `short[layer]` is the number of good tokens that layer
    delivers, once; after that `find` sees no block from number `lost_with_damage` on.
    """

    def __init__(self) -> None:
        self.blocks: dict[tuple[int, ...], list[Any]] = {}
        self.limit: int | None = None
        self.short: dict[int, int] = {}
        self.lost_with_damage: int | None = None
        self.loads: list[int] = []
        self.saves: list[tuple[int, int]] = []
        self.pending: list[Any] = []
        self.read = 0
        self.aborted = 0
        self.committed = 0

    def keys(self, ids: Sequence[int]) -> list[tuple[int, ...]]:
        return [tuple(ids[:end]) for end in range(BLOCK, len(ids) + 1, BLOCK)]

    def find(self, token_ids: Sequence[int]) -> Found:
        self.ids = list(token_ids)
        found = 0
        for key in self.keys(self.ids):
            if key not in self.blocks or found == self.limit:
                break
            found += 1
        return Found(found * BLOCK, "")

    def start_load(self, tokens: int) -> None:
        self.loads.append(tokens)

    def start_save(self, start: int, end: int) -> None:
        assert start % BLOCK == end % BLOCK == 0 or start >= end
        self.saves.append((start, end))
        self.pending = []

    def load_layer(self, layer: int, out: Any) -> LayerRows:
        tokens = self.loads[-1]
        assert len(out) == tokens
        good = self.short.pop(layer, tokens)
        if good < tokens:
            self.limit = self.lost_with_damage
        out.fill_(float("nan"))
        for index, key in enumerate(self.keys(self.ids)[: -(-tokens // BLOCK)]):
            rows = self.blocks[key][layer]
            part = out[index * BLOCK : (index + 1) * BLOCK]
            part[:] = rows[: len(part)]
        self.read += out.nbytes
        return LayerRows(good, "" if good == tokens else "checksum", 0.0, 0.0)

    def save_layer(self, layer: int, records: Any) -> None:
        start, end = self.saves[-1]
        assert layer == len(self.pending)
        assert records.shape[0] == end - start
        self.pending.append(records.clone())

    def finish_load(self) -> Read:
        return Read(self.read, 0)

    def commit(self) -> Saved:
        self.committed += 1
        if not self.pending:
            return Saved(0, 0)
        start, end = self.saves[-1]
        for block, key in enumerate(self.keys(self.ids)[start // BLOCK : end // BLOCK]):
            rows = slice(block * BLOCK, (block + 1) * BLOCK)
            self.blocks[key] = [layer[rows].clone() for layer in self.pending]
        return Saved((end - start) // BLOCK, sum(layer.nbytes for layer in self.pending))

    def abort(self) -> None:
        self.aborted += 1
        self.pending = []


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Model]:
    """The small size with its real record; in both dtypes, and once with experts."""
    found = {}
    for name, changes in {
        "bfloat16": {},
        "float32": {"torch_dtype": "float32"},
        "experts": EXPERTS,
    }.items():
        path = tmp_path_factory.mktemp(name)
        make_demo_model(path, demo_config("small", vocab_size=VOCAB, **changes), seed=11)
        found[name] = load_model(path)
    return found


@pytest.fixture(autouse=True)
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """One torch thread, unless a test is parametrised with more."""
    before, count = torch.get_num_threads(), getattr(request, "param", 1)
    torch.set_num_threads(count)
    yield count
    torch.set_num_threads(before)


def some_ids(count: int, seed: int = 1) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return [int(token) for token in torch.randint(0, VOCAB, (count,), generator=generator)]


def filled(model: Model, ids: list[int], **mode: Any) -> tuple[MemoryCache, Any]:
    """A cache after a cold run over `ids`, and that run's logits."""
    cache = MemoryCache()
    cold = prefill(model, ids, cache, **mode)
    cold.finish_writes()
    return cache, cold.logits


@pytest.mark.parametrize("name", ["bfloat16", "float32", "experts"])
@pytest.mark.parametrize(
    ("threads", "tokens"), [(1, 448), (1, 475), (2, 475)], indirect=["threads"]
)
def test_exact_logits_are_bitwise_the_same_for_any_reuse(
    models: dict[str, Model], name: str, tokens: int
) -> None:
    ids = some_ids(tokens)
    cache, cold = filled(models[name], ids, exact=True)
    for blocks in (0, 1, 3, 7):
        cache.limit = blocks
        warm = prefill(models[name], ids, cache, exact=True)
        assert warm.used_tokens == min(blocks * BLOCK, (tokens - 1) // BLOCK * BLOCK)
        assert torch.equal(warm.logits, cold), f"{blocks} blocks"


@pytest.mark.parametrize("threads", [1, 2], indirect=True)
@pytest.mark.parametrize("name", ["bfloat16", "float32", "experts"])
def test_exact_next_turn_equals_its_own_cold_run(models: dict[str, Model], name: str) -> None:
    """What a shorter prompt left must be what the longer one would compute itself."""
    turn, longer = some_ids(300), some_ids(300) + some_ids(277, seed=2)
    cache, _ = filled(models[name], turn, exact=True)
    warm = prefill(models[name], longer, cache, exact=True)
    assert warm.used_tokens == 256
    assert torch.equal(warm.logits, prefill(models[name], longer, exact=True).logits)


def test_exact_saves_the_same_bytes_cold_and_warm(models: dict[str, Model]) -> None:
    ids = some_ids(400)
    cold, _ = filled(models["bfloat16"], ids, exact=True)
    warm, _ = filled(models["bfloat16"], ids[:200], exact=True)
    prefill(models["bfloat16"], ids, warm, exact=True).finish_writes()
    assert warm.blocks.keys() == cold.blocks.keys()
    for key, layers in cold.blocks.items():
        assert all(torch.equal(a, b) for a, b in zip(layers, warm.blocks[key], strict=True))


def test_exact_on_a_wider_grid_uses_and_saves_whole_chunks_only(models: dict[str, Model]) -> None:
    ids = some_ids(500)
    mode: dict[str, Any] = {"exact": True, "chunk_tokens": 192}
    cache, cold = filled(models["bfloat16"], ids, **mode)
    assert len(cache.blocks) == 6
    for limit, used in ((1, 0), (3, 192), (5, 192), (6, 384)):
        cache.limit = limit
        warm = prefill(models["bfloat16"], ids, cache, **mode)
        assert warm.used_tokens == used
        assert torch.equal(warm.logits, cold)


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("blocks", [0, 1, 3, 6])
def test_warm_computes_exactly_prompt_minus_used(
    models: dict[str, Model], exact: bool, blocks: int
) -> None:
    ids = some_ids(6 * BLOCK)
    cache, _ = filled(models["bfloat16"], ids, exact=exact)
    cache.limit, cache.read = blocks, 0
    warm = prefill(models["bfloat16"], ids, cache, exact=exact)
    assert warm.hit_tokens == blocks * BLOCK
    assert warm.computed_tokens == [len(ids) - warm.used_tokens] * 4
    assert warm.bytes_read == warm.used_tokens * 1152 * 4
    assert warm.used_tokens == {True: min(blocks, 5) * 64, False: min(blocks * 64, 383)}[exact]


def test_a_full_hit_still_computes_the_last_token(models: dict[str, Model]) -> None:
    ids = some_ids(128)
    cache, cold = filled(models["float32"], ids)
    warm = prefill(models["float32"], ids, cache)
    assert warm.used_tokens == 127
    assert warm.computed_tokens == [1] * 4
    assert warm.finish_writes() == Saved(0, 0)
    assert (warm.logits - cold).abs().max() < 1e-3


def test_fast_mode_is_close_to_cold_and_absorbs_short_suffixes(models: dict[str, Model]) -> None:
    ids = some_ids(475)
    cache, cold = filled(models["float32"], ids)
    for blocks, attention in ((2, "expanded"), (7, "absorbed")):
        cache.limit = blocks
        warm = prefill(models["float32"], ids, cache)
        assert warm.attention == attention
        assert (warm.logits - cold).abs().max() < 1e-3


@pytest.mark.parametrize("layer", [0, 2, 3])
@pytest.mark.parametrize("good_blocks", [0, 2, 5])
def test_a_short_layer_is_recomputed_from_the_good_boundary(
    models: dict[str, Model], layer: int, good_blocks: int
) -> None:
    ids = some_ids(475)
    cache, cold = filled(models["bfloat16"], ids, exact=True)
    cache.short = {layer: good_blocks * BLOCK}
    warm = prefill(models["bfloat16"], ids, cache, exact=True)
    assert torch.equal(warm.logits, cold)
    assert (warm.hit_tokens, warm.used_tokens) == (448, good_blocks * BLOCK)
    assert (warm.restarts, warm.reason) == (1, "checksum")
    again, before = len(ids) - good_blocks * BLOCK, len(ids) - 448
    assert warm.computed_tokens == [again + before] * layer + [again] * (4 - layer)
    assert cache.saves[-1] == (good_blocks * BLOCK, 448)


def test_layers_may_come_short_twice(models: dict[str, Model]) -> None:
    ids = some_ids(475)
    cache, cold = filled(models["bfloat16"], ids, exact=True)
    cache.short = {1: 300, 3: 64}
    warm = prefill(models["bfloat16"], ids, cache, exact=True)
    assert torch.equal(warm.logits, cold)
    assert cache.loads == [448, 256, 64]
    assert warm.restarts == 2


def test_a_restart_asks_again_what_is_left(models: dict[str, Model]) -> None:
    """A damaged cell takes its whole extent away: blocks before it may be gone as well."""
    ids = some_ids(475)
    cache, cold = filled(models["bfloat16"], ids, exact=True)
    cache.short = {1: 5 * BLOCK}
    cache.lost_with_damage = 3
    warm = prefill(models["bfloat16"], ids, cache, exact=True)
    assert torch.equal(warm.logits, cold)
    assert cache.loads == [448, 192]
    assert (warm.used_tokens, warm.restarts) == (192, 1)


def test_fast_mode_recovers_from_a_short_layer(models: dict[str, Model]) -> None:
    ids = some_ids(475)
    cache, cold = filled(models["float32"], ids)
    cache.short = {2: 128}
    warm = prefill(models["float32"], ids, cache)
    assert warm.used_tokens == 128
    assert (warm.logits - cold).abs().max() < 1e-3


@pytest.mark.parametrize("layer", [0, 3])
def test_one_altered_stored_value_changes_the_logits(models: dict[str, Model], layer: int) -> None:
    """Reuse is real: the numbers come from the cache and nothing else."""
    ids = some_ids(475)
    cache, cold = filled(models["bfloat16"], ids, exact=True)
    cache.blocks[tuple(ids[:BLOCK])][layer][5, 17] += 8.0
    assert not torch.equal(prefill(models["bfloat16"], ids, cache, exact=True).logits, cold)


def test_a_changed_token_reuses_only_the_blocks_before_it(models: dict[str, Model]) -> None:
    ids = some_ids(475)
    cache, _ = filled(models["bfloat16"], ids, exact=True)
    for position, used in ((0, 0), (200, 192)):
        changed = list(ids)
        changed[position] = (changed[position] + 1) % VOCAB
        result = prefill(models["bfloat16"], changed, cache, exact=True)
        assert result.used_tokens == used


def test_nothing_is_published_before_finish_writes_or_after_an_error(
    models: dict[str, Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = MemoryCache()
    result = prefill(models["bfloat16"], some_ids(200), cache)
    assert (result.blocks_put, cache.committed, cache.blocks) == (0, 0, {})
    result.finish_writes()
    assert (result.blocks_put, result.bytes_written) == (3, 3 * 64 * 1152 * 4)
    monkeypatch.setattr(Model, "logits", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        prefill(models["bfloat16"], some_ids(200, seed=2), cache)
    assert cache.aborted == 1
    assert len(cache.blocks) == 3


def test_layer_times_follow_each_other(models: dict[str, Model]) -> None:
    result = prefill(models["bfloat16"], some_ids(200), MemoryCache())
    assert [times.layer for times in result.layers] == [0, 1, 2, 3]
    moments = [
        m for t in result.layers for m in (t.load_ready_s, t.compute_start_s, t.compute_end_s)
    ]
    assert moments == sorted(moments)
    assert moments[-1] <= result.ttft_s


def test_figures_are_json_and_tell_the_logits_apart(models: dict[str, Model]) -> None:
    one, two = (prefill(models["bfloat16"], some_ids(70, seed)).figures() for seed in (1, 2))
    assert json.loads(json.dumps(one))["prompt_tokens"] == 70
    assert one["logits_sha256"] != two["logits_sha256"]


def test_chunks_lie_on_an_absolute_grid() -> None:
    assert list(Grid(64, exact=True).chunks(100, 200)) == [(100, 128), (128, 192), (192, 200)]
    assert list(Grid(64, exact=True).chunks(64, 64)) == []


@pytest.mark.parametrize(
    ("ids", "mode", "word"),
    [
        ([], {}, "empty"),
        ([VOCAB], {}, "token ids"),
        ([-1], {}, "token ids"),
        ([1], {"exact": True, "chunk_tokens": 96}, "multiple of 64"),
        ([1], {"exact": True, "chunk_tokens": 0}, "multiple of 64"),
    ],
)
def test_bad_requests_are_refused_with_a_sentence(
    models: dict[str, Model], ids: list[int], mode: dict[str, Any], word: str
) -> None:
    with pytest.raises(ConfigError, match=word):
        prefill(models["bfloat16"], ids, **mode)


def test_one_token_is_a_prompt(models: dict[str, Model]) -> None:
    assert prefill(models["bfloat16"], [3], MemoryCache()).logits.shape == (VOCAB,)


def test_prompts_become_ids(tmp_path: Path) -> None:
    text, listed, spaced = tmp_path / "p.txt", tmp_path / "i.json", tmp_path / "i.txt"
    text.write_bytes(b"\x00a\xff")
    listed.write_text("[5, 6]")
    spaced.write_text("5, 6\n7")
    assert encode_prompt(text, tmp_path) == ([3, 100, 258], "bytes")
    assert read_ids(listed) == [5, 6]
    assert read_ids(spaced) == [5, 6, 7]
    listed.write_text('{"a": 1}')
    with pytest.raises(ConfigError, match="JSON array"):
        read_ids(listed)
    with pytest.raises(ConfigError, match="cannot read"):
        read_ids(tmp_path / "absent")


def test_the_model_directorys_tokenizer_is_used(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="needs tokenizers: pip install .[mla]")
    words = tokenizers.models.WordLevel({"<s>": 0, "a": 1, "b": 2, "?": 3}, unk_token="?")
    tokenizer = tokenizers.Tokenizer(words)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "p.txt").write_text("a b zzz")
    assert encode_prompt(tmp_path / "p.txt", tmp_path) == ([1, 2, 3], "tokenizer.json")
    settings = {"add_bos_token": True, "bos_token": {"content": "<s>"}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    assert encode_prompt(tmp_path / "p.txt", tmp_path)[0] == [0, 1, 2, 3]


def test_the_command_line_prints_json_and_explains_mistakes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_demo_model(tmp_path, demo_config("small", vocab_size=VOCAB, num_hidden_layers=1))
    prompt = tmp_path / "prompt.txt"
    prompt.write_text("hello " * 20)
    asked = ["--model", str(tmp_path), "--prompt-file", str(prompt)]
    assert main([*asked, "--exact", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["prompt_tokens"] == 120
    assert main(asked) == 0
    assert "first token" in capsys.readouterr().out
    assert main([*asked, "--exact", "--chunk-tokens", "65"]) == 2
    assert "multiple of 64" in capsys.readouterr().err
