"""`kvstore explain --store`: every cause made for real in a root, and named from outside.

The causes in the text of prompts are in test_explain.py; ids on disk in test_token_ids.py.
"""

import json
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kvstore import Layout, LayoutWarning
from kvstore.cache import Cache
from kvstore.chain import Chain
from kvstore.cli import main
from kvstore.explain import Answer, Cause, PromptError, explain_store
from kvstore.explain.prompt import Prompt, prompt_of_ids, prompt_of_text
from kvstore.store import Store, open_blocking
from kvstore.testing import START_WALL_S, Injection, VirtualClock
from tests.support.extent_bytes import flip, regions
from tests.support.prompts import (
    BLOCK_TOKENS,
    GRID,
    eventually,
    extent_files,
    file_named,
    load,
    physical_bytes,
    put,
    small_layout,
    tokens,
)

LAYOUT = small_layout()
BLOCKS = 20
DAY = 24 * 3600


@contextmanager
def opened(root: Path, clock: VirtualClock | None = None, **words: Any) -> Iterator[Store]:
    injected = Injection(clock=clock, manual_ticks=True) if clock else None
    words = {"capacity": 1 << 30, "pool": "16MB", "_testing": injected} | words
    with open_blocking(root, **words) as store:
        eventually(lambda: not store.info().roots[0].warming, "the scan ended")
        yield store


def put_ids(kv: Cache, ids: Sequence[int], **words: Any) -> Chain:
    chain = kv.keys(ids, **words)
    assert put(kv, chain) == len(chain)
    return chain


def told(root: Path, ids: Sequence[int], **words: Any) -> Answer:
    """Of the first namespace."""
    return explain_store([root], prompt_of_ids(ids, "asked", None), **words).answers[0]


def changed(ids: Sequence[int], token: int) -> list[int]:
    return [*ids[:token], ids[token] + (1 << 20), *ids[token + 1 :]]


IDS = tokens("prompt", BLOCKS)


# ---- removed, expired, damaged -------------------------------------------------------------------


def test_what_is_stored_is_said_to_be_stored(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put_ids(store.cache(LAYOUT), IDS)
    answer = told(tmp_path, IDS)
    assert (answer.cause, answer.hit_blocks, answer.blocks) == (Cause.STORED, BLOCKS, BLOCKS)
    assert (answer.key, answer.first_token, answer.lost_tokens) == (None, None, 0)
    assert answer.missed_tokens == BLOCK_TOKENS  # one token must be computed: its block is
    longer = told(tmp_path, [*IDS, *tokens("more", 1)])
    assert (longer.cause, longer.hit_blocks, longer.first_token) == (Cause.NEVER, BLOCKS, len(IDS))
    assert "ends with block 19" in longer.evidence
    assert told(tmp_path, IDS[: BLOCK_TOKENS - 1]).cause is Cause.SHORT


def test_an_expired_block_that_still_lies_there(tmp_path: Path) -> None:
    clock = VirtualClock()
    with opened(tmp_path, clock, retention={"day": "1d"}, default_class="day") as store:
        put_ids(store.cache(LAYOUT), IDS)
    now = START_WALL_S + 3 * DAY
    answer = told(tmp_path, IDS, now_s=now)
    assert (answer.cause, answer.hit_blocks) == (Cause.EXPIRED, 0)
    assert answer.when_s == START_WALL_S + DAY and "(2 d ago)" in answer.evidence
    assert answer.lost_tokens == len(IDS)
    assert told(tmp_path, IDS, now_s=now - 2 * DAY - 60).cause is Cause.STORED


def test_an_expired_block_that_was_removed(tmp_path: Path) -> None:
    clock, ids = VirtualClock(), IDS[: GRID * BLOCK_TOKENS]  # one extent: they go one by one
    with opened(tmp_path, clock, retention={"day": "1d"}, default_class="day") as store:
        put_ids(store.cache(LAYOUT), ids)
        clock.advance(2 * DAY)
        store.tick()
        eventually(lambda: not extent_files(tmp_path), "expired extents went")
    answer = told(tmp_path, ids, now_s=START_WALL_S + 2 * DAY + 3600)
    assert (answer.cause, answer.lost_tokens) == (Cause.EXPIRED, len(ids))
    assert "it expired and was removed" in answer.evidence
    assert answer.when_s is not None and answer.when_s >= START_WALL_S + 2 * DAY


def test_an_evicted_block_is_told_with_its_time(tmp_path: Path) -> None:
    clock = VirtualClock()
    with opened(tmp_path / "probe", clock) as store:
        put_ids(store.cache(LAYOUT), IDS[: GRID * BLOCK_TOKENS])
        one = physical_bytes(tmp_path / "probe")
    with opened(tmp_path / "kv", clock, capacity=3 * one, min_age=0) as store:
        kv = store.cache(LAYOUT)
        put_ids(kv, IDS[: GRID * BLOCK_TOKENS])
        for number in range(4):
            clock.advance(60)
            put_ids(kv, tokens(number, GRID))
        gone = kv.keys(IDS)[0]
        eventually(lambda: kv.removed(gone), "evicted")
        removal = kv.removed(gone)
    answer = told(tmp_path / "kv", IDS, now_s=START_WALL_S + 3600)
    assert removal and (answer.cause, answer.when_s) == (Cause.EVICTED, removal.time_s)
    assert "was evicted" in answer.evidence and "ago)" in answer.evidence
    assert answer.lost_tokens == GRID * BLOCK_TOKENS


def test_a_deleted_block_and_the_island_behind_it(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        kv = store.cache(LAYOUT)
        chain = put_ids(kv, tokens("long", 3 * GRID))
        assert kv.delete_blocking(chain[GRID]) == 1
    answer = told(tmp_path, tokens("long", 3 * GRID))
    assert (answer.cause, answer.hit_blocks) == (Cause.DELETED, GRID)
    assert answer.lost_tokens == 2 * GRID * BLOCK_TOKENS
    assert answer.key == chain[GRID].hex()


@pytest.mark.parametrize("ring", [True, False])
def test_a_damaged_block_is_found_in_quarantine(tmp_path: Path, ring: bool) -> None:
    with opened(tmp_path) as store:
        kv = store.cache(LAYOUT)
        chain = put_ids(kv, IDS)
        path = file_named(tmp_path, chain[0])
        flip(path, 8 * regions(path.read_bytes())[0][0])
        store.drop_ram()
        assert load(kv, kv.match(chain)) == (0, "damaged")
        eventually(lambda: list(tmp_path.glob("quarantine/*")), "moved aside")
    if ring:  # what is left when somebody cleared the directory
        next((tmp_path / "quarantine").iterdir()).unlink()
    else:
        (tmp_path / "removed.ring").unlink()
    answer = told(tmp_path, IDS)
    assert (answer.cause, answer.hit_blocks) == (Cause.QUARANTINED, 0)
    assert answer.when_s
    assert ("moved aside" if ring else "quarantine/") in answer.evidence
    assert answer.lost_tokens == len(IDS)


# ---- another key ---------------------------------------------------------------------------------


def test_another_salt_lora_or_both(tmp_path: Path) -> None:
    lora = [("lora", 0, b"adapter-1")]
    with opened(tmp_path) as store:
        put_ids(store.cache(LAYOUT), IDS)
    for words, cause in (
        ({"salt": b"secret"}, Cause.SALT),
        ({"extras": lora}, Cause.LORA),
        ({"salt": b"secret", "extras": lora}, Cause.SALT),
    ):
        answer = told(tmp_path, IDS, **words)
        assert (answer.cause, answer.hit_blocks) == (cause, 0), words
        assert answer.lost_tokens == len(IDS)
        assert "secret" not in str(answer)
    later = told(tmp_path, IDS, extras=[("image", 5 * BLOCK_TOKENS, b"cat")])
    assert (later.cause, later.hit_blocks) == (Cause.LORA, 5)
    assert later.lost_tokens == (BLOCKS - 5) * BLOCK_TOKENS


@pytest.mark.parametrize(
    ("words", "cause"),
    [({"salt": b"tenant"}, Cause.SALT), ({"extras": [("lora", 0, b"x")]}, Cause.LORA)],
)
def test_a_salt_or_lora_that_only_the_writer_had_shows_by_its_ids(
    tmp_path: Path, words: dict[str, Any], cause: Cause
) -> None:
    with opened(tmp_path, keep_token_ids=True) as store:
        put_ids(store.cache(LAYOUT), IDS, **words)
    answer = told(tmp_path, IDS)
    assert (answer.cause, answer.hit_blocks, answer.siblings) == (cause, 0, 1)
    assert told(tmp_path, IDS, **words).cause is Cause.STORED


def test_another_layout_is_named_by_the_words_that_differ(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put_ids(store.cache(LAYOUT), IDS)
        put_ids(store.cache(small_layout("other")), tokens("else", 4))
    answer = told(tmp_path, IDS, layout=small_layout("renamed"))
    assert (answer.cause, answer.extents, answer.model) == (Cause.MODEL, 0, "renamed")
    assert "model: 'renamed' here, 'small' there" in answer.evidence
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LayoutWarning)
        wider = Layout(
            parts_by_layer=LAYOUT.parts_by_layer, model="small", block_tokens=2 * BLOCK_TOKENS
        )
    answer = told(tmp_path, IDS, layout=wider)
    assert (answer.cause, answer.blocks) == (Cause.LAYOUT, BLOCKS // 2)
    assert f"block_tokens: {2 * BLOCK_TOKENS} here, {BLOCK_TOKENS} there" in answer.evidence
    by_name = told(tmp_path, IDS, namespace=small_layout("other").namespace)
    assert (by_name.cause, by_name.model) == (Cause.MODEL, "other")
    nobody = told(tmp_path, IDS, namespace="0" * 32)
    assert (nobody.cause, nobody.block_tokens) == (Cause.NEVER, 0)


def test_all_namespaces_are_told_the_best_first(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put_ids(store.cache(small_layout("half")), IDS[: len(IDS) // 2])
        put_ids(store.cache(LAYOUT), IDS)
    answers = explain_store([tmp_path], prompt_of_ids(IDS, "asked", None)).answers
    assert [(one.model, one.hit_blocks) for one in answers] == [("small", 20), ("half", 10)]


def test_a_chain_may_be_spread_over_roots(tmp_path: Path) -> None:
    roots = [tmp_path / "a", tmp_path / "b"]
    with open_blocking(*roots, capacity=1 << 30, pool="16MB") as store:
        kv = store.cache(LAYOUT)
        ids = tokens("spread", 8 * GRID)
        put_ids(kv, ids)
    both = explain_store(roots, prompt_of_ids(ids, "asked", None)).answers[0]
    assert (both.cause, both.hit_blocks) == (Cause.STORED, 8 * GRID)
    one = explain_store(roots[:1], prompt_of_ids(ids, "asked", None)).answers[0]
    assert one.hit_blocks < 8 * GRID


# ---- siblings ------------------------------------------------------------------------------------


@pytest.mark.parametrize("token", [0, 3, 17, GRID * BLOCK_TOKENS, len(IDS) - 1])
def test_without_ids_the_block_in_which_siblings_part_is_named(tmp_path: Path, token: int) -> None:
    with opened(tmp_path) as store:
        put_ids(store.cache(LAYOUT), IDS)
    block = token // BLOCK_TOKENS
    answer = told(tmp_path, changed(IDS, token))
    assert (answer.cause, answer.hit_blocks, answer.siblings) == (Cause.NEVER, block, 1)
    first, end = block * BLOCK_TOKENS, (block + 1) * BLOCK_TOKENS
    assert (answer.first_token, answer.end_token) == (first, end)
    assert f"tokens {first} to {end - 1}" in answer.evidence
    assert answer.difference is None


@pytest.mark.parametrize("token", [0, 3, 17, GRID * BLOCK_TOKENS, len(IDS) - 1])
def test_with_ids_the_token_is_named(tmp_path: Path, token: int) -> None:
    with opened(tmp_path, keep_token_ids=True) as store:
        put_ids(store.cache(LAYOUT), IDS)
    asked = changed(IDS, token)
    answer = told(tmp_path, asked)
    assert (answer.hit_blocks, answer.siblings) == (token // BLOCK_TOKENS, 1)
    assert (answer.first_token, answer.end_token) == (token, token + 1)
    assert answer.cause is Cause.OTHER
    difference = answer.difference
    assert difference and difference.a.ids and difference.b.ids
    assert IDS[token] in difference.a.ids and asked[token] in difference.b.ids
    assert answer.lost_tokens == len(IDS) - token - 1


def test_a_begin_token_more_is_seen_in_another_stored_prompt(tmp_path: Path) -> None:
    with opened(tmp_path, keep_token_ids=True) as store:
        kv = store.cache(LAYOUT)
        for number in range(5):
            put_ids(kv, tokens(number, 3))
        put_ids(kv, IDS)
    answer = told(tmp_path, [1, *IDS])
    assert (answer.cause, answer.first_token, answer.siblings) == (Cause.TEMPLATE, 0, 6)
    assert answer.lost_tokens == len(IDS)
    unlike = told(tmp_path, tokens("unlike anything", BLOCKS))
    assert (unlike.cause, unlike.difference) == (Cause.NEVER, None)


def tokenizer_of(*texts: str) -> Any:
    import tokenizers

    words = ["<unk>", *sorted({word for text in texts for word in text.split(" ")})]
    model = tokenizers.models.WordLevel({word: i for i, word in enumerate(words)}, "<unk>")
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = tokenizers.pre_tokenizers.Split(" ", "removed")
    return made


def timed(hour: str) -> str:
    lines = [f"Rule {number} : be careful with every file you touch ." for number in range(30)]
    return " ".join([*lines[:10], "It is now", hour, "UTC .", *lines[10:]])


def test_with_ids_and_a_tokenizer_the_cause_is_named_in_words(tmp_path: Path) -> None:
    tokenizer = tokenizer_of(timed("10:15"), timed("11:40"))
    stored, asked = (prompt_of_text(timed(hour), name=hour, tokenizer=tokenizer) for hour in
                     ("10:15", "11:40"))  # fmt: skip
    with opened(tmp_path, keep_token_ids=True) as store:
        put_ids(store.cache(LAYOUT), stored.ids or ())
    answer = explain_store([tmp_path], asked, tokenizer=tokenizer).answers[0]
    assert (answer.cause, answer.evidence) == (Cause.TIMESTAMP, "'10:15' became '11:40'")
    assert asked.ids and stored.ids
    pairs = zip(asked.ids, stored.ids, strict=True)
    place = next(number for number, (one, other) in enumerate(pairs) if one != other)
    assert answer.first_token == place
    assert answer.difference and answer.difference.b.differs.strip().startswith(("1", "11:40"))
    assert answer.lost_tokens == len(asked.ids) - place - 1


# ---- beside a live owner, the command ------------------------------------------------------------


def times(root: Path) -> dict[Path, tuple[int, int]]:
    found = {path: path.stat() for path in [*extent_files(root), *root.glob("quarantine/*")]}
    return {path: (one.st_atime_ns, one.st_mtime_ns) for path, one in found.items()}


def test_beside_a_live_owner_nothing_changes(tmp_path: Path) -> None:
    with opened(tmp_path, keep_token_ids=True) as store:
        kv = store.cache(LAYOUT)
        chain = put_ids(kv, IDS)
        for path in extent_files(tmp_path):
            os.utime(path, (1_700_000_000, path.stat().st_mtime))
        before, names = times(tmp_path), sorted(tmp_path.rglob("*"))
        assert told(tmp_path, changed(IDS, 30)).first_token == 30
        assert told(tmp_path, IDS).cause is Cause.STORED
        assert times(tmp_path) == before
        assert sorted(tmp_path.rglob("*")) == names
        assert store.info().roots[0].is_owner
        assert load(kv, kv.match(chain)) == (BLOCKS, None)


def test_a_prompt_without_ids_says_what_it_needs(tmp_path: Path) -> None:
    with pytest.raises(PromptError, match="--tokenizer"):
        explain_store([tmp_path], Prompt(name="p", text="hello"))


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root, prompt, report = tmp_path / "kv", tmp_path / "p.json", tmp_path / "report.html"
    with opened(root, keep_token_ids=True) as store:
        put_ids(store.cache(LAYOUT), IDS)
    prompt.write_text(json.dumps(changed(IDS, 33)))
    base = ["explain", "--store", str(root), str(prompt)]
    assert main([*base, "--html", str(report)]) == 0
    text = capsys.readouterr().out
    assert "cause    content" in text and "block that misses 8: token 33" in text
    assert f"small ({LAYOUT.namespace})" in text
    assert "<del>" in report.read_text() and "Why this prompt missed" in report.read_text()
    assert main([*base, "--json", "--price", "gpt-5.5"]) == 0
    answer = json.loads(capsys.readouterr().out)["answers"][0]
    assert (answer["hit_blocks"], answer["first_token"]) == (8, 33)
    assert answer["saved_if_fixed"] > 0
    prompt.write_text(json.dumps({"token_ids": IDS, "salt": "s3cret"}))
    for words, cause in (
        ([], "salt"),
        (["--salt", "other"], "salt"),
        (["--namespace", LAYOUT.namespace], "salt"),
        (["--layout", str(root / LAYOUT.namespace / "layout.json")], "salt"),
    ):
        assert main([*base, "--json", *words]) == 0
        out = capsys.readouterr().out
        assert json.loads(out)["answers"][0]["cause"] == cause
        assert "s3cret" not in out
    prompt.write_text(json.dumps(IDS))
    assert main([*base, "--lora", "x"]) == 0
    assert "cause    lora" in capsys.readouterr().out
    assert main([*base, "--extra", "image:40:cat:dog"]) == 0
    assert "block that misses 10" in capsys.readouterr().out
    text_prompt = tmp_path / "p.txt"
    text_prompt.write_text("hello")
    for wrong, why in (
        (["explain", "--store", str(root)], "one prompt"),
        (["explain", "--store", str(tmp_path / "none"), str(prompt)], "not a directory"),
        (["explain", "--store", str(root), str(text_prompt)], "--tokenizer"),
        ([*base, "--extra", "image"], "TAG:OFFSET:VALUE"),
        ([*base, "--extra", "image:4000:x"], "4000"),
        ([*base, "--namespace", "x"], "32 hex digits"),
        ([*base, "--layout", str(prompt)], "no layout.json"),
        ([*base, "--block-tokens", "16"], "--model"),
        (["explain", str(prompt), str(prompt), "--salt", "x"], "--store"),
    ):
        assert main(wrong) == 1, wrong
        assert why in capsys.readouterr().err, wrong


def test_empty_roots_say_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompt = tmp_path / "p.json"
    prompt.write_text(json.dumps(IDS))
    (tmp_path / "kv").mkdir()
    assert main(["explain", "--store", str(tmp_path / "kv"), str(prompt)]) == 1
    assert "is no store" in capsys.readouterr().err
    with opened(tmp_path / "kv"):
        pass
    assert main(["explain", "--store", str(tmp_path / "kv"), str(prompt)]) == 0
    assert "nothing in these roots" in capsys.readouterr().out
