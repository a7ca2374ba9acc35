"""Greedy tokens with kvstore are those without it, whatever the blocks went through."""

import pytest
from engines import prompt, running, transfer

KINDS = ["llama", "qwen3", "deepseek_v2", "deepseek_v3"]
PROMPTS = [prompt(700, 1), prompt(353, 2), prompt(66, 3)]


def block_of(engine):
    return engine.connector.scheduler._block_tokens


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_are_the_same_without_kvstore_cold_warm_and_after_a_restart(
    model_of, tmp_path, kind
):
    with running(model_of(kind)) as plain:
        expected = plain.tokens(PROMPTS)
    with running(model_of(kind), transfer(tmp_path)) as engine:
        assert engine.tokens(PROMPTS) == expected
        engine.forget()
        assert engine.tokens(PROMPTS) == expected
        assert engine.metric("vllm:kvstore_loads") > 0
    with running(model_of(kind), transfer(tmp_path, mode="async")) as engine:
        found = engine.run(PROMPTS)
        assert [list(out.outputs[0].token_ids) for out in found] == expected
        block = block_of(engine)
        whole = [(len(tokens) - 1) // block * block for tokens in PROMPTS]
        assert [out.num_cached_tokens for out in found] == whole
        assert engine.metric("vllm:prompt_tokens_cached_by_source", source="disk") == sum(whole)


@pytest.mark.parametrize("kind", ["llama", "deepseek_v3"])
def test_tokens_are_the_same_in_a_compiled_model(model_of, tmp_path, kind):
    with running(model_of(kind), enforce_eager=False) as plain:
        expected = plain.tokens(PROMPTS)
    with running(model_of(kind), transfer(tmp_path), enforce_eager=False) as engine:
        assert engine.tokens(PROMPTS) == expected
        engine.forget()
        assert engine.tokens(PROMPTS) == expected
        assert engine.metric("vllm:kvstore_loads") == len(PROMPTS) - (kind == "llama")


@pytest.mark.parametrize("block", [32, 64])
def test_tokens_are_the_same_with_other_sizes_of_the_engines_blocks(model_of, tmp_path, block):
    with running(model_of("llama"), block_size=block) as plain:
        expected = plain.tokens(PROMPTS)
    with running(model_of("llama"), transfer(tmp_path), block_size=block) as engine:
        assert engine.tokens(PROMPTS) == expected
        engine.forget()
        found = engine.run(PROMPTS)
        assert [list(out.outputs[0].token_ids) for out in found] == expected
        whole = [(len(tokens) - 1) // block * block for tokens in PROMPTS]
        assert [out.num_cached_tokens for out in found] == whole


def test_a_model_with_other_weights_under_the_same_name_hits_nothing(model_of, tmp_path, caplog):
    """Dummy weights of another seed: same shapes, same name, other bytes."""
    folder = model_of("llama")
    words = {"load_format": "dummy"}
    with running(folder, transfer(tmp_path), seed=1, **words) as engine:
        engine.tokens(PROMPTS)
    with caplog.at_level("INFO", logger="kvstore_vllm"):
        with running(folder, transfer(tmp_path), seed=2, **words) as engine:
            found = engine.run(PROMPTS)
    assert [out.num_cached_tokens for out in found] == [0, 0, 0]
    assert "('weights', 'dummy, seed 2')" in caplog.text, "the reason is told, field by field"
