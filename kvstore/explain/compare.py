"""One explanation: where two prompts part, why, and what it costs in tokens, blocks and money."""

from itertools import islice, takewhile

import msgspec

from kvstore.accounting import Usage, money, usage
from kvstore.explain.align import Hunk, hunks, id_hunks
from kvstore.explain.causes import ADVICE, Cause, cause_of
from kvstore.explain.prompt import Prompt
from kvstore.prices import Price

SHOWN = 60  # characters of context on each side
SHOWN_IDS = 6
SPACE = (" ", " ")
NO_LOSS = (Cause.SAME, Cause.CONTINUES)
APART = (Cause.MODEL, Cause.LAYOUT, Cause.LORA, Cause.SALT)


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt at the difference. ids: those around it, differing ones included; None without a
    tokenizer. path: the part of the request that it lies in."""

    name: str
    tokens: int
    character: int
    path: str
    before: str
    differs: str
    after: str
    ids: list[int] | None


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """What b finds when a is stored.

    exact: tokens were counted with a tokenizer, not estimated from characters. first_token: the
    first that differs. hit_tokens, hit_blocks: what b finds. missed_tokens: what b computes.
    recoverable_tokens: of those, what b would find too if this difference were not there, nor the
    next ones as long as they are the same (a name said twice, every line's end).
    further_differences: others than these.
    saved_if_fixed: money for them, at the price asked for.
    """

    cause: Cause
    evidence: str
    advice: str
    exact: bool
    block_tokens: int
    first_token: int
    hit_tokens: int
    hit_blocks: int
    missed_tokens: int
    recoverable_tokens: int
    further_differences: int
    saved_if_fixed: float | None
    a: Side
    b: Side


def explain(
    a: Prompt, b: Prompt, *, block_tokens: int = 64, price: Price | None = None
) -> Explanation:
    """Why b does not hit all of a. ValueError for block_tokens below 1.

    Identity (model, layout, LoRA, salt) is compared where both prompts name it.
    """
    if block_tokens < 1:
        raise ValueError(f"block_tokens must be 1 or more, not {block_tokens}")
    found = list(hunks(a.text, b.text))
    first = found[0] if found else None
    at = first_token(a, b, first)
    verdict = cause_of(a, b, first, at)
    apart = verdict.cause in APART
    found_tokens = 0 if apart else at
    used = usage(prompt_tokens=b.tokens, hit_tokens=found_tokens, block_tokens=block_tokens)
    same = _same_differences(a, b, found)
    again = _recoverable(a, b, found, same, apart)
    return Explanation(
        cause=verdict.cause,
        evidence=verdict.evidence,
        advice=ADVICE[verdict.cause],
        exact=a.ids is not None and b.ids is not None,
        block_tokens=block_tokens,
        first_token=at,
        hit_tokens=used.hit_tokens,
        hit_blocks=used.hit_tokens // block_tokens,
        missed_tokens=used.miss_tokens,
        recoverable_tokens=again,
        further_differences=max(0, len(found) - same),
        saved_if_fixed=saved_by(used, found_tokens + again - used.hit_tokens, block_tokens, price),
        a=_side(a, (first.a_start, first.a_end) if first else None, at),
        b=_side(b, (first.b_start, first.b_end) if first else None, at),
    )


def saved_by(used: Usage, again: int, block_tokens: int, price: Price | None) -> float | None:
    """Money, when `again` tokens more were found."""
    if price is None:
        return None
    hit_tokens = min(used.prompt_tokens, used.hit_tokens + again)
    fixed = usage(
        prompt_tokens=used.prompt_tokens, hit_tokens=hit_tokens, block_tokens=block_tokens
    )
    before, after = money(used, price), money(fixed, price)
    return before.miss + before.hit - after.miss - after.hit


def first_token(a: Prompt, b: Prompt, first: Hunk | None) -> int:
    """The first token that differs; the shorter prompt's end when none does."""
    if a.ids is not None and b.ids is not None:
        for number, (one, other) in enumerate(zip(a.ids, b.ids, strict=False)):
            if one != other:
                return number
        return min(len(a.ids), len(b.ids))
    return b.tokens if first is None else min(b.token_of(first.b_start), b.tokens)


def _same_differences(a: Prompt, b: Prompt, found: list[Hunk]) -> int:
    """How many of the first ones are the same: one text for another, or the same kind of space."""
    kinds = (_kind(a.text[h.a_start : h.a_end], b.text[h.b_start : h.b_end]) for h in found)
    first = next(kinds, None)
    return 0 if first is None else 1 + sum(1 for _ in takewhile(lambda kind: kind == first, kinds))


def _kind(removed: str, added: str) -> tuple[str, str]:
    """All that is a matter of white space is of one kind."""
    same = "".join(removed.split()) == "".join(added.split())
    return SPACE if same else (removed, added)


def _recoverable(a: Prompt, b: Prompt, found: list[Hunk], same: int, apart: bool) -> int:
    """Tokens of b from where both agree again to the next other difference, less those between that
    differ."""
    if apart:
        return b.token_of(found[0].b_start) if found else b.tokens
    if a.ids is not None and b.ids is not None and same <= 1:
        spans = [(one.b_start, one.b_end) for one in islice(id_hunks(a.ids, b.ids), 2)]
        ends = [start for start, _ in spans[1:]] + [b.tokens]
        return max(0, ends[0] - spans[0][1]) if spans else 0
    if not found:
        return 0
    end = b.token_of(found[same].b_start) if same < len(found) else b.tokens
    differing = sum(len(b.text[one.b_start : one.b_end]) > 0 for one in found[1:same])
    first = found[0]
    start = b.token_of(first.b_end)
    if _kind(a.text[first.a_start : first.a_end], b.text[first.b_start : first.b_end]) == SPACE:
        start = min(start, b.token_of(first.b_start) + 1)  # what stands between is found again
    return max(0, end - start - differing)


def _side(prompt: Prompt, place: tuple[int, int] | None, token: int) -> Side:
    start, end = place or (len(prompt.text), len(prompt.text))
    segment = prompt.segment_of(start)
    ids = None
    if prompt.ids is not None:
        ids = list(prompt.ids[max(0, token - SHOWN_IDS) : token + SHOWN_IDS])
    return Side(
        name=prompt.name,
        tokens=prompt.tokens,
        character=start,
        path=segment.path if segment else "the end",
        before=prompt.text[max(0, start - SHOWN) : start],
        differs=prompt.text[start : min(end, start + SHOWN)],
        after=prompt.text[end : end + SHOWN] if end - start <= SHOWN else "",
        ids=ids,
    )
