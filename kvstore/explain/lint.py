"""What a folder of recorded requests loses, by cause. Each request is compared with the earlier one
that it has most in common with: what a store that forgets nothing would have served it from.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from kvstore.explain.align import common_prefix
from kvstore.explain.causes import Cause
from kvstore.explain.compare import NO_LOSS, Explanation, explain
from kvstore.explain.prompt import (
    Prompt,
    PromptError,
    Tokenizer,
    decoded,
    prompt_of_json,
    read_prompt,
)
from kvstore.prices import Price

LOOK_BACK = 64  # earlier requests that one is compared with
ENDINGS = (".json", ".jsonl", ".txt")


class Loss(msgspec.Struct, frozen=True, kw_only=True):
    """One cause over the whole folder. worst: the request that lost most by it."""

    cause: Cause
    requests: int
    recoverable_tokens: int
    saved_if_fixed: float | None
    advice: str
    worst: Explanation


class Lint(msgspec.Struct, frozen=True, kw_only=True):
    """losses: most tokens first. hit_tokens: what the requests find as they are. unreadable: files
    that are no prompts, with the reason."""

    requests: int
    prompt_tokens: int
    hit_tokens: int
    exact: bool
    losses: list[Loss]
    unreadable: list[str]


def lint(
    folder: Path,
    *,
    tokenizer: Tokenizer | None = None,
    block_tokens: int = 64,
    price: Price | None = None,
) -> Lint:
    """Requests in *.json, *.jsonl (one a line) and *.txt below `folder`, by their `timestamp` where
    all have one, else by name. OSError."""
    unreadable: list[str] = []
    prompts = list(_ordered(_read(folder, tokenizer, unreadable)))
    earlier: list[Prompt] = []
    found: list[Explanation] = []
    for prompt in prompts:
        nearest = _nearest(prompt, earlier)
        if nearest is not None:
            found.append(explain(nearest, prompt, block_tokens=block_tokens, price=price))
        earlier.append(prompt)
    return Lint(
        requests=len(prompts),
        prompt_tokens=sum(prompt.tokens for prompt in prompts),
        hit_tokens=sum(one.hit_tokens for one in found),
        exact=tokenizer is not None,
        losses=_ranked(found),
        unreadable=unreadable,
    )


def _read(folder: Path, tokenizer: Tokenizer | None, unreadable: list[str]) -> Iterator[Prompt]:
    for path in sorted(folder.rglob("*")):
        if path.suffix not in ENDINGS or not path.is_file():
            continue
        try:
            if path.suffix == ".jsonl":
                yield from _read_lines(path, tokenizer, unreadable)
            else:
                yield read_prompt(path, tokenizer)
        except PromptError as error:
            unreadable.append(str(error))


def _read_lines(path: Path, tokenizer: Tokenizer | None, unreadable: list[str]) -> Iterator[Prompt]:
    """A line that is no prompt does not cost those behind it."""
    with path.open(encoding="utf-8", errors="surrogateescape") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                name = f"{path}:{number}"
                try:
                    yield prompt_of_json(decoded(line, name), name=name, tokenizer=tokenizer)
                except PromptError as error:
                    unreadable.append(str(error))


def _ordered(prompts: Iterable[Prompt]) -> list[Prompt]:
    given = list(prompts)
    if all(prompt.timestamp is not None for prompt in given):
        return sorted(given, key=lambda prompt: prompt.timestamp or 0.0)
    return given


def _nearest(prompt: Prompt, earlier: Sequence[Prompt]) -> Prompt | None:
    """The earlier request with the longest common beginning or, when another begins differently
    early but then agrees for longer, that one: it is the one that should have served this."""
    best, best_score = None, 0
    for one in reversed(earlier[-LOOK_BACK:]):
        score = common_prefix(one.text, prompt.text) + _common_middle(one.text, prompt.text)
        if score > best_score:
            best, best_score = one, score
    return best


def _common_middle(a: str, b: str) -> int:
    """Characters of b's first quarters that a has too somewhere: a cheap likeness."""
    size, alike = 256, 0
    for start in range(0, min(len(b), 16_384), size):
        piece = b[start : start + size]
        if piece in a:
            alike += len(piece)
    return alike


def _ranked(found: Sequence[Explanation]) -> list[Loss]:
    losses = []
    for cause in {one.cause for one in found}.difference(NO_LOSS):
        those = [one for one in found if one.cause is cause]
        worst = max(those, key=lambda one: one.recoverable_tokens)
        if worst.recoverable_tokens == 0:
            continue
        saved = [one.saved_if_fixed for one in those if one.saved_if_fixed is not None]
        losses.append(
            Loss(
                cause=cause,
                requests=len(those),
                recoverable_tokens=sum(one.recoverable_tokens for one in those),
                saved_if_fixed=sum(saved) if saved else None,
                advice=worst.advice,
                worst=worst,
            )
        )
    return sorted(losses, key=lambda loss: -loss.recoverable_tokens)
