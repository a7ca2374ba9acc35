"""Why a prompt misses in a store: its chain followed through the roots, block by block, to the
first one that is not served, then what is known of that one.

What is certain comes first: its file is there but expired, or in quarantine, or the ring of
removals names the reason. Else the same prompt under another key (salt, LoRA) or layout, other
prompts that go on differently at that place; else it was never stored.
"""

import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from kvstore.accounting import usage
from kvstore.chain import Chain, Extra, chain_of_tokens
from kvstore.explain.causes import ADVICE, Cause, Verdict
from kvstore.explain.compare import Explanation, saved_by
from kvstore.explain.prompt import Prompt, PromptError, Tokenizer
from kvstore.explain.siblings import Told, of_siblings
from kvstore.explain.stored import Roots, Space
from kvstore.layout import Layout
from kvstore.prices import Price
from kvstore.units import ago

_REASONS = {
    "evicted": (Cause.EVICTED, "it was evicted"),
    "expired": (Cause.EXPIRED, "it expired and was removed"),
    "deleted": (Cause.DELETED, "it was deleted"),
    "damaged": (Cause.QUARANTINED, "its file was damaged and moved aside"),
    "foreign": (Cause.QUARANTINED, "a file that is no extent of ours stood under its name"),
}


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What one namespace says. blocks: whole ones of the prompt; hit_blocks: the leading ones that
    are served; first_token, end_token: of the first block that is not, or the one token that
    differs, where its id was kept. lost_tokens: what would be found too without the cause. when_s:
    of a removal, an expiry or a move, seconds since 1970; None where there is no such time.
    siblings: stored extents that go on differently there. difference: from the nearest of them,
    where it keeps token ids."""

    namespace: str
    model: str
    block_tokens: int
    extents: int
    cause: Cause
    evidence: str
    advice: str
    blocks: int
    hit_blocks: int
    hit_tokens: int
    missed_tokens: int
    lost_tokens: int
    saved_if_fixed: float | None
    key: str | None
    first_token: int | None
    end_token: int | None
    when_s: int | None
    siblings: int
    difference: Explanation | None


class StoreExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """answers: the namespace asked for, or all of them, what serves most first."""

    prompt: str
    tokens: int
    roots: list[str]
    answers: list[Answer]


class _Asked(msgspec.Struct, frozen=True, kw_only=True):
    """One question, for any number of tokens a block. variants: the same prompt as others may have
    put it, by the cause that it would be."""

    prompt: Prompt
    salt: bytes
    extras: Sequence[Extra]
    tokenizer: Tokenizer | None
    price: Price | None
    now_s: float
    chains: dict[int, list[tuple[Cause | None, Chain]]] = {}

    def variants(self, block_tokens: int) -> list[tuple[Cause | None, Chain]]:
        if block_tokens not in self.chains:
            words: list[tuple[Cause | None, bytes, Sequence[Extra]]] = [
                (None, self.salt, self.extras)
            ]
            if self.extras:
                words.append((Cause.LORA, self.salt, ()))
            if self.salt:
                words.append((Cause.SALT, b"", self.extras))
            if self.salt and self.extras:
                words.append((Cause.SALT, b"", ()))
            ids = self.prompt.ids or ()
            self.chains[block_tokens] = [
                (cause, chain_of_tokens(ids, block_tokens=block_tokens, salt=salt, extras=extras))
                for cause, salt, extras in words
            ]
        return self.chains[block_tokens]


def explain_store(
    roots: Sequence[Path],
    prompt: Prompt,
    *,
    layout: Layout | None = None,
    namespace: str | None = None,
    salt: bytes = b"",
    extras: Sequence[Extra] = (),
    tokenizer: Tokenizer | None = None,
    price: Price | None = None,
    now_s: float | None = None,
) -> StoreExplanation:
    """Why `prompt` misses in the roots of a store, or that it does not.

    layout or namespace: the one asked for; None: all there are. salt, extras: as the request's
    `Cache.keys` has them. tokenizer: to show text. now_s: None is now. Reads names and headers of
    every extent once, beside a live owner or without one; last uses stay. PromptError when the
    prompt has no token ids; OSError.
    """
    if prompt.ids is None:
        raise PromptError(
            f"{prompt.name}: a store knows token ids alone; pass the model's --tokenizer, or token"
            ' ids ({"token_ids": [...]})'
        )
    asked = _Asked(
        prompt=prompt,
        salt=salt,
        extras=extras,
        tokenizer=tokenizer,
        price=price,
        now_s=time.time() if now_s is None else now_s,
        chains={},
    )
    only = layout.namespace if layout else namespace
    found = Roots(roots, lambda size: [chain for _, chain in asked.variants(size)], only)
    if layout and only:
        _told_by_layout(found.spaces[only], layout, asked)
    spaces = [found.spaces[only]] if only else list(found.spaces.values())
    answers = [_answer(asked, found, space) for space in spaces]
    answers.sort(key=lambda one: (-one.hit_tokens, -one.lost_tokens, -one.extents, one.namespace))
    return StoreExplanation(
        prompt=prompt.name,
        tokens=prompt.tokens,
        roots=[str(root) for root in roots],
        answers=answers,
    )


def _told_by_layout(space: Space, layout: Layout, asked: _Asked) -> None:
    """A layout that nothing was stored of has no directory: what it says counts all the same."""
    space.layout = layout
    space.block_tokens = layout.block_tokens


def _answer(asked: _Asked, found: Roots, space: Space) -> Answer:
    size = space.block_tokens
    chain = asked.variants(size)[0][1] if size else Chain(b"", 1)
    hit = served(space, chain, asked.now_s)
    told = _verdict(asked, found, space, chain, hit)
    used = usage(prompt_tokens=asked.prompt.tokens, hit_tokens=hit * size, block_tokens=size or 1)
    missing = hit < len(chain)
    token = told.difference.first_token if told.difference else None
    return Answer(
        namespace=space.name,
        model=space.layout.model if space.layout else "",
        block_tokens=size,
        extents=space.extents,
        cause=told.verdict.cause,
        evidence=told.verdict.evidence,
        advice=ADVICE[told.verdict.cause],
        blocks=len(chain),
        hit_blocks=hit,
        hit_tokens=used.hit_tokens,
        missed_tokens=used.miss_tokens,
        lost_tokens=told.lost_tokens,
        saved_if_fixed=told.difference.saved_if_fixed
        if told.difference
        else saved_by(used, told.lost_tokens, size or 1, asked.price),
        key=chain[hit].hex() if missing else None,
        first_token=(hit * size if token is None else token) if missing else None,
        end_token=((hit + 1) * size if token is None else token + 1) if missing else None,
        when_s=told.when_s,
        siblings=told.siblings,
        difference=told.difference,
    )


def served(space: Space, chain: Chain, now_s: float) -> int:
    """Leading blocks that a store would serve."""
    for number, key in enumerate(chain):
        if all(place.extent.expired(now_s) for place in space.places.get(key.hex(), ())):
            return number
    return len(chain)


def _verdict(asked: _Asked, found: Roots, space: Space, chain: Chain, hit: int) -> Told:
    if not space.block_tokens:
        return Told(Verdict(Cause.NEVER, "nothing is stored under this namespace"))
    if len(chain) == 0:
        few = f"{asked.prompt.tokens} tokens, a block has {space.block_tokens}"
        return Told(Verdict(Cause.SHORT, few))
    if hit == len(chain):
        return Told(Verdict(Cause.STORED, f"all {hit} whole blocks are stored"))
    return (
        _gone(asked, found, space, chain, hit)
        or _under_another_key(asked, space, hit)
        or _under_another_layout(asked, found, space, hit)
        or of_siblings(found, space, chain, hit, asked.prompt, asked.tokenizer, asked.price)
        or _refused(asked, found, space, chain, hit)
        or Told(Verdict(Cause.NEVER, _never(hit)))
    )


def _never(hit: int) -> str:
    if hit:
        return f"what is stored ends with block {hit - 1}: the rest of the prompt was not put"
    return "no stored block is the beginning of this prompt"


def _refused(asked: _Asked, found: Roots, space: Space, chain: Chain, hit: int) -> Told | None:
    """It was offered. Asked last: a prompt that begins anew each time is refused each time, too."""
    removal = found.removal(space, chain[hit])
    if removal is None or removal.reason != "refused":
        return None
    words = f"block {hit} was never stored: admission or the write budget refused it"
    when = ago(removal.time_s, asked.now_s)
    return Told(Verdict(Cause.REFUSED, f"{words} {when}"), when_s=removal.time_s)


def _gone(asked: _Asked, found: Roots, space: Space, chain: Chain, hit: int) -> Told | None:
    """The first block that is missing was there once."""
    cause = _gone_cause(asked, found, space, chain[hit], hit)
    if cause is None:
        return None
    end = hit + 1
    while end < len(chain) and _was_there(found, space, chain[end]):
        end += 1
    lost = (end - hit) * space.block_tokens
    return Told(cause[0], when_s=cause[1], lost_tokens=lost)


def _gone_cause(
    asked: _Asked, found: Roots, space: Space, key: bytes, number: int
) -> tuple[Verdict, int | None] | None:
    places = space.places.get(key.hex())
    if places:
        until = max(place.extent.valid_until_s for place in places)
        when = ago(until, asked.now_s)
        words = f"block {number} lies on disk, but its time to live passed {when}"
        return Verdict(Cause.EXPIRED, words), until
    moved = found.moved(key)
    if moved:
        when = f", moved there {ago(moved.time_s, asked.now_s)}" if moved.time_s else ""
        words = f"block {number} lies in quarantine/{moved.name}{when}"
        return Verdict(Cause.QUARANTINED, words), moved.time_s or None
    removal = found.removal(space, key)
    if removal is None or removal.reason not in _REASONS:
        return None
    cause, words = _REASONS[removal.reason]
    when = ago(removal.time_s, asked.now_s)
    return Verdict(cause, f"block {number}: {words} {when}"), removal.time_s


def _was_there(found: Roots, space: Space, key: bytes) -> bool:
    there = key.hex() in space.places or found.moved(key) is not None
    removal = found.removal(space, key)
    return there or (removal is not None and removal.reason in _REASONS)


def _under_another_key(asked: _Asked, space: Space, hit: int) -> Told | None:
    """The same tokens are stored without the salt or the extras that were asked with."""
    best: tuple[int, Cause] | None = None
    for cause, chain in asked.variants(space.block_tokens)[1:]:
        blocks = served(space, chain, asked.now_s)
        if cause and blocks > hit and (best is None or blocks > best[0]):
            best = blocks, cause
    if best is None:
        return None
    blocks, cause = best
    what = "salt" if cause is Cause.SALT else "LoRA or other extras"
    words = f"{blocks} blocks of the same tokens are stored without the {what} asked with"
    return Told(Verdict(cause, words), lost_tokens=(blocks - hit) * space.block_tokens)


def _under_another_layout(asked: _Asked, found: Roots, space: Space, hit: int) -> Told | None:
    """Only where this layout has nothing of the prompt."""
    if hit:
        return None
    best: tuple[int, Space] | None = None
    for other in found.spaces.values():
        if other is not space and other.block_tokens:
            chain = asked.variants(other.block_tokens)[0][1]
            tokens = served(other, chain, asked.now_s) * other.block_tokens
            if tokens and (best is None or tokens > best[0]):
                best = tokens, other
    if best is None:
        return None
    tokens, other = best
    lines = space.layout.difference(other.layout) if space.layout and other.layout else []
    cause = Cause.MODEL if any(line.startswith("model:") for line in lines) else Cause.LAYOUT
    words = f"{tokens} tokens of it are stored under {other.name}: " + (
        "; ".join(lines) or "no layout.json says how they differ"
    )
    return Told(Verdict(cause, words), lost_tokens=tokens)
