"""The demo's prompt data: shape, turns, edits, and the notice that must travel with it."""

from importlib.resources import files

import pytest

from kvstore_demo import prompt

DEEPSEEK_VOCAB = 129_280


def test_the_session_allows_a_prompt_of_16384_tokens_and_more() -> None:
    assert prompt.longest() >= 16_384
    assert prompt.MIN_TOKENS <= prompt.DEFAULT_TOKENS <= prompt.longest()


@pytest.mark.parametrize(
    "tokens", [prompt.MIN_TOKENS, 2777, prompt.DEFAULT_TOKENS, 16_384, prompt.longest()]
)
def test_the_next_turn_extends_the_prompt_by_a_block_or_more(tokens: int) -> None:
    both = prompt.prompts(tokens)
    assert len(both.first) == tokens
    assert both.next_turn[:tokens] == both.first
    assert len(both.next_turn) - 1 >= tokens + prompt.BLOCK_TOKENS


def test_every_id_is_a_token_of_the_demo_models_vocabulary() -> None:
    ids = prompt.prompts(prompt.longest()).next_turn
    assert min(ids) >= 0
    assert max(ids) < DEEPSEEK_VOCAB
    assert len(set(ids)) > 1000, "real text uses many different tokens"


@pytest.mark.parametrize("tokens", [0, prompt.MIN_TOKENS - 1, prompt.longest() + 1])
def test_a_prompt_the_session_cannot_give_is_refused_with_the_range(tokens: int) -> None:
    with pytest.raises(ValueError, match=f"{prompt.longest():,}"):
        prompt.prompts(tokens)


@pytest.mark.parametrize(
    ("name", "position"),
    [("changed-at-start", 0), ("changed-in-middle", prompt.middle(prompt.DEFAULT_TOKENS))],
)
def test_an_edited_prompt_differs_in_exactly_one_token(name: str, position: int) -> None:
    first = prompt.variant("first", prompt.DEFAULT_TOKENS)
    edited = prompt.variant(name, prompt.DEFAULT_TOKENS)
    assert [i for i, (a, b) in enumerate(zip(first, edited, strict=True)) if a != b] == [position]
    assert 0 <= edited[position] < DEEPSEEK_VOCAB


def test_the_edit_in_the_middle_is_within_a_block() -> None:
    assert prompt.middle(prompt.DEFAULT_TOKENS) % prompt.BLOCK_TOKENS not in (0, 63)


def test_the_data_is_small_and_its_notice_names_origin_and_licence() -> None:
    data = files("kvstore_demo") / "data"
    assert len((data / "session.json.gz").read_bytes()) < 300_000
    notice = (data / "NOTICE").read_text()
    for fact in ("LMCache/lmcache-agent-trace", "16a14ad", "Apache License 2.0", "Changes:"):
        assert fact in notice
    assert prompt.prompts(prompt.MIN_TOKENS).session in notice
