"""`kvstore explain`: the cause of a miss, where it lies, and what it costs.

The confusion table below is over real prompts of a coding agent, changed in the ways that
tests/support/mutations.py describes.
"""

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore import Chain, price_of
from kvstore.chain import chain_of_tokens
from kvstore.cli import main
from kvstore.explain import Cause, Prompt, PromptError, explain, lint, read_prompt
from kvstore.explain.align import common_prefix, hunks
from kvstore.explain.prompt import pieces, prompt_of_ids, prompt_of_json, prompt_of_text
from tests.support.mutations import MUTATIONS, Pair, real_requests

SYSTEM = "You are a careful engineer. Read the file first, then answer in short sentences. " * 4


def prompt_of(given: Any, name: str, tokenizer: Any = None) -> Prompt:
    if isinstance(given, str):
        return prompt_of_text(given, name=name, tokenizer=tokenizer)
    return prompt_of_json(given, name=name, tokenizer=tokenizer)


def told_of(pair: Pair, **words: Any) -> Any:
    a, b = (prompt_of(one, name) for one, name in zip(pair, "ab", strict=True))
    return explain(a, b, **words)


# ---- causes --------------------------------------------------------------------------------------


def confusion() -> dict[Cause, Counter[Cause]]:
    requests = real_requests()
    table: dict[Cause, Counter[Cause]] = {cause: Counter() for cause in MUTATIONS}
    for cause, mutate in MUTATIONS.items():
        for number, request in enumerate(requests):
            told = told_of(mutate(request, random.Random(number)))
            table[cause][told.cause] += 1
    return table


def test_the_cause_of_a_changed_real_prompt_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    table = confusion()
    with capsys.disabled():
        print("\ncause put in        named")
        for cause, named in table.items():
            found = ", ".join(f"{one.value} {count}" for one, count in named.most_common())
            print(f"{cause.value:<20}{found}")
    for cause, named in table.items():
        assert sum(named.values()) >= 20
        assert named[cause] >= 0.95 * sum(named.values()), cause


@pytest.mark.parametrize("cause", Cause)
def test_every_cause_has_an_advice(cause: Cause) -> None:
    from kvstore.explain.causes import ADVICE

    assert ADVICE[cause].endswith(".")


def test_a_begin_token_more_is_told_from_ids_alone() -> None:
    ids = list(range(1000, 1200))
    told = told_of(({"token_ids": ids}, {"token_ids": [1, *ids]}))
    assert (told.cause, told.first_token, told.hit_tokens) == (Cause.TEMPLATE, 0, 0)
    assert told.recoverable_tokens == 200
    assert told.exact


def test_ids_without_words_are_not_taken_for_counters() -> None:
    ids = list(range(1000, 1200))
    told = told_of(({"token_ids": ids}, {"token_ids": [*ids[:50], 1051, *ids[51:]]}))
    assert (told.cause, told.first_token, told.recoverable_tokens) == (Cause.OTHER, 50, 149)


def test_the_same_text_in_other_tokens_is_told_apart() -> None:
    """As when generated ids are thrown away and the text is encoded again."""
    text = [f"word{number} " for number in range(60)]
    halves = [part for word in text for part in (word[:3], word[3:])]
    vocabulary = [*text, *halves]

    class Words:
        def decode(self, ids: list[int], /, *, skip_special_tokens: bool) -> str:
            return "".join(vocabulary[number] for number in ids)

    whole = list(range(60))
    split = [*whole[:20], 60 + 2 * 20, 60 + 2 * 20 + 1, *whole[21:]]
    told = told_of_ids(whole, split, Words())
    assert (told.cause, told.first_token) == (Cause.TOKENS, 20)
    assert told.recoverable_tokens == 39


def test_every_line_end_counts_as_one_difference() -> None:
    text = "\n".join(f"line {number} of the file" for number in range(200))
    told = told_of((text, text.replace("\n", "\r\n")))
    assert (told.cause, told.further_differences) == (Cause.WHITESPACE, 0)
    assert told.recoverable_tokens > told.b.tokens * 3 // 4


def test_a_name_said_twice_counts_as_one_difference() -> None:
    a, b = (f"You are helping {name}. {SYSTEM}Greet {name}! {SYSTEM}" for name in ("Ada", "Bob"))
    told = told_of((a, b))
    assert (told.cause, told.further_differences) == (Cause.NAME, 0)
    assert told.recoverable_tokens > 2 * len(SYSTEM) // 4 - 8


@pytest.mark.parametrize("stripped", [True, False])
def test_the_text_of_ids_is_whole(stripped: bool) -> None:
    """Characters that several ids make together, and spaces that decoders strip at a beginning."""
    text = "Zo\u00eb \U0001f600 \u4f60\u597d and so on"
    data = text.encode()

    class Bytes:
        def decode(self, ids: list[int], /, *, skip_special_tokens: bool) -> str:
            found = bytes(ids).decode(errors="replace")
            return found.removeprefix(" ") if stripped else found

    assert "".join(pieces(list(data), Bytes())) == text


def told_of_ids(one: list[int], other: list[int], tokenizer: Any) -> Any:
    return explain(
        *(prompt_of_ids(ids, name, tokenizer) for ids, name in ((one, "a"), (other, "b")))
    )


def test_the_salt_itself_is_never_shown() -> None:
    told = told_of(({"prompt": "x", "salt": "secret-1"}, {"prompt": "x", "salt": "secret-2"}))
    assert told.cause is Cause.SALT
    assert "secret" not in str(told)


# ---- places and costs ----------------------------------------------------------------------------

ids = st.lists(st.integers(0, 3), max_size=120)


@given(ids, ids, st.sampled_from([1, 4, 16]))
def test_what_hits_is_what_the_key_chain_says(one: list[int], other: list[int], block: int) -> None:
    """Less one block where that leaves no token to compute."""
    if not one or not other:
        return
    told = told_of(({"token_ids": one}, {"token_ids": other}), block_tokens=block)
    stored: Chain = chain_of_tokens(one, block_tokens=block)
    asked: Chain = chain_of_tokens(other, block_tokens=block)
    equal = 0
    while equal < min(len(stored), len(asked)) and stored[equal] == asked[equal]:
        equal += 1
    assert told.hit_blocks == min(equal, (len(other) - 1) // block)
    assert told.hit_tokens + told.missed_tokens == len(other)


@given(st.text("ab\n ", max_size=200), st.text("ab\n ", max_size=200))
def test_differences_turn_one_text_into_the_other(a: str, b: str) -> None:
    made, a_at = [], 0
    for hunk in hunks(a, b):
        made += [a[a_at : hunk.a_start], b[hunk.b_start : hunk.b_end]]
        assert a[hunk.a_start : hunk.a_end] != b[hunk.b_start : hunk.b_end]
        a_at = hunk.a_end
    assert "".join([*made, a[a_at:]]) == b


@given(st.text("ab", max_size=300), st.text("ab", max_size=50), st.text("ab", max_size=50))
def test_the_common_beginning_is_as_long_as_it_is(start: str, one: str, other: str) -> None:
    a, b = start + one, start + other
    expected = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)
    assert common_prefix(a, b) == (min(len(a), len(b)) if expected is None else expected)


def test_what_a_difference_costs_reaches_to_the_next_one() -> None:
    words = [f"word{number}" for number in range(400)]
    changed = words.copy()
    changed[100], changed[300] = "2026-11-29", "other"
    words[100] = "2026-11-28"
    told = told_of((" ".join(words), " ".join(changed)), block_tokens=16)
    assert (told.cause, told.further_differences) == (Cause.DATE, 1)
    first = " ".join(changed).index("9 word101")
    second = " ".join(changed).index("other")
    assert told.b.character == first
    assert abs(told.recoverable_tokens - (second - first) // 4) <= 1
    assert told.hit_tokens == first // 4 // 16 * 16


def test_money_is_what_the_recovered_tokens_would_have_cost_less() -> None:
    a, b = f"{SYSTEM}10:00 {SYSTEM}", f"{SYSTEM}11:00 {SYSTEM}"
    price = price_of("deepseek-v4-flash")
    told = told_of((a, b), block_tokens=1, price=price)
    gained = told.recoverable_tokens
    assert told.saved_if_fixed == pytest.approx(gained * (price.miss - price.hit) / 1e6, rel=0.02)


def test_money_counts_the_block_that_the_difference_lies_in() -> None:
    ids = list(range(1290))
    price = price_of("deepseek-v4-flash")
    told = told_of((ids, [*ids[:700], 9999, *ids[701:]]), price=price)
    assert (told.hit_tokens, told.recoverable_tokens) == (640, 589)
    gained = 1280 - 640  # whole blocks: 700 + 589 tokens would agree
    assert told.saved_if_fixed == pytest.approx(gained * (price.miss - price.hit) / 1e6)


def test_with_a_tokenizer_tokens_are_exact_and_ids_are_shown(tmp_path: Path) -> None:
    import tokenizers

    words = ["<unk>", *sorted(set(SYSTEM.split()) | {"10", "11"})]
    model = tokenizers.models.WordLevel({word: i for i, word in enumerate(words)}, "<unk>")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "a.txt").write_text(f"{SYSTEM}10 {SYSTEM}")
    (tmp_path / "b.txt").write_text(f"{SYSTEM}11 {SYSTEM}")
    a, b = (read_prompt(tmp_path / name, tokenizer) for name in ("a.txt", "b.txt"))
    told = explain(a, b, block_tokens=8)
    count = len(SYSTEM.split())
    assert (told.exact, told.first_token, told.b.tokens) == (True, count, 2 * count + 1)
    assert told.recoverable_tokens == count
    assert told.a.ids is not None and told.b.ids is not None
    assert words.index("10") in told.a.ids and words.index("11") in told.b.ids
    arguments = ["explain", "a.txt", "b.txt", "--tokenizer", "tokenizer.json", "--json"]
    paths = [str(tmp_path / one) if "." in one else one for one in arguments]
    assert main(paths) == 0


# ---- a folder ------------------------------------------------------------------------------------


def test_lint_ranks_causes_by_the_tokens_they_lose(tmp_path: Path) -> None:
    requests = real_requests()
    for number, request in enumerate(requests[:4]):
        for cause, letter in ((Cause.TIMESTAMP, "a"), (Cause.WHITESPACE, "b")):
            pair = MUTATIONS[cause](request, random.Random(number))
            folder = tmp_path / f"{letter}{number}"
            folder.mkdir()
            for turn, one in enumerate(pair):
                (folder / f"{turn}.json").write_text(json.dumps(one))
    (tmp_path / "broken.json").write_text("{")
    told = lint(tmp_path)
    assert told.requests == 16
    assert [path for path in told.unreadable if "broken.json" in path]
    causes = [loss.cause for loss in told.losses]
    assert Cause.TIMESTAMP in causes and Cause.WHITESPACE in causes
    lost = [loss.recoverable_tokens for loss in told.losses]
    assert lost == sorted(lost, reverse=True) and min(lost) > 0


def test_a_conversation_that_grows_loses_nothing(tmp_path: Path) -> None:
    request = real_requests()[0]
    with (tmp_path / "log.jsonl").open("w") as log:
        for turn in (2, 4, 6):
            line = request | {"messages": request["messages"][:turn], "timestamp": turn}
            log.write(json.dumps(line) + "\n")
    told = lint(tmp_path)
    assert (told.requests, told.losses) == (3, [])
    assert told.hit_tokens > 0


def test_lines_are_taken_in_the_order_of_their_times(tmp_path: Path) -> None:
    texts = [f"{SYSTEM}{'more ' * count}" for count in (1, 50)]
    lines = [{"prompt": texts[1], "timestamp": 9}, {"prompt": texts[0], "timestamp": 3}]
    (tmp_path / "log.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert lint(tmp_path, block_tokens=16).hit_tokens == len(texts[0]) // 4 // 16 * 16


def test_a_line_that_is_no_prompt_costs_none_of_those_behind_it(tmp_path: Path) -> None:
    good = json.dumps({"prompt": SYSTEM}).encode()
    (tmp_path / "log.jsonl").write_bytes(b"\n".join([good, b"{", b'"\xff"', b"[" * 99_999, good]))
    told = lint(tmp_path)
    assert told.requests == 2
    assert [line.rpartition("log.jsonl:")[2][0] for line in told.unreadable] == ["2", "3", "4"]


# ---- the command ---------------------------------------------------------------------------------


def test_the_command_prints_writes_and_refuses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b, report = tmp_path / "a.txt", tmp_path / "b.txt", tmp_path / "report.html"
    a.write_text(f"<script>at 10:15 {SYSTEM}")
    b.write_text(f"<script>at 10:16 {SYSTEM}")
    assert main(["explain", str(a), str(b), "--html", str(report)]) == 0
    text = capsys.readouterr().out
    assert "cause    timestamp: '10:15' became '10:16'" in text
    page = report.read_text()
    assert "<script>" not in page and "&lt;script&gt;" in page
    assert "<del>5</del>" in page and "<ins>6</ins>" in page
    assert main(["explain", str(a), str(b), "--json", "--price", "gpt-5.5"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["cause"], told["exact"]) == ("timestamp", False)
    assert told["saved_if_fixed"] > 0
    assert main(["explain", "--lint", str(tmp_path), "--html", str(report)]) == 0
    assert "timestamp" in capsys.readouterr().out
    assert "tokens lost" in report.read_text()
    for wrong, why in (
        (["explain", "--lint", str(tmp_path / "none")], "not a directory"),
        (["explain", str(a), str(tmp_path / "none.txt")], "none.txt"),
        (["explain", str(a), str(b), "--tokenizer", str(tmp_path / "t")], "tokenizer.json"),
        (["explain", str(a), str(b), "--tokenizer", str(a)], "no tokenizer.json"),
        (["explain", str(a), str(b), "--price", "x"], "no price of 'x'"),
    ):
        assert main(wrong) == 1
        assert why in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("a.json", b"{", "not JSON"),
        ("a.json", b"{}", "expected"),
        ("a.json", b'{"messages": ["x"]}', "messages[0]"),
        ("a.json", b'{"token_ids": [1, "x"]}', "whole numbers"),
        ("a.json", b"[" * 100_000, "not JSON"),
        ("a.json", b'{"prompt": "\\ud800"}', "not JSON"),
        ("a.json", b'{"messages": [], "tools": 5}', "tools must be a list"),
        ("a.txt", b"\xff", "UTF-8"),
    ],
)
def test_what_is_no_prompt_is_refused_by_name(
    tmp_path: Path, name: str, content: bytes, why: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(PromptError) as raised:
        read_prompt(tmp_path / name)
    assert why in str(raised.value)
