"""Stored prompts that go on differently where a prompt stops being found. With token ids in their
headers the token that differs is named, and why; without, the block in which they part.
"""

import msgspec
import numpy as np

from kvstore.chain import KEY_BYTES, Chain
from kvstore.explain.causes import Cause, Verdict
from kvstore.explain.compare import Explanation, explain
from kvstore.explain.prompt import Prompt, Tokenizer, prompt_of_ids
from kvstore.explain.stored import Place, Roots, Space, newest
from kvstore.prices import Price

READ_MAX = 256  # siblings whose headers are read, the last used ones
WINDOW = 1024  # tokens by which the nearest of them is chosen
ALIKE = 0.5  # of a window that must be shared with a prompt that begins differently
BEGINNING = 16  # tokens that make another beginning the same for most of it


class Told(msgspec.Struct, frozen=True):
    """A judgement with what goes with it; see store.Answer."""

    verdict: Verdict
    when_s: int | None = None
    lost_tokens: int = 0
    siblings: int = 0
    difference: Explanation | None = None


class _Near(msgspec.Struct, frozen=True):
    """A sibling with ids. same: tokens that agree from the parting block on; alike: the share of
    its first ones that the prompt has too."""

    place: Place
    same: int
    alike: float


def of_siblings(
    found: Roots,
    space: Space,
    chain: Chain,
    hit: int,
    prompt: Prompt,
    tokenizer: Tokenizer | None,
    price: Price | None,
) -> Told | None:
    """None when there is none, or none that has to do with this prompt."""
    places = space.beside.get(chain[hit - 1].hex(), []) if hit else space.heads
    if not places:
        return None
    first = hit * space.block_tokens
    ours = np.array((prompt.ids or ())[first : first + WINDOW], np.int32)
    near = [one for place in newest(places)[:READ_MAX] if (one := _near(found, space, place, ours))]
    if not near:
        return _without_ids(space, hit, places)
    best = max(near, key=lambda one: (one.same, one.alike))
    if best.same >= space.block_tokens:
        return _other_key(found, space, chain, hit, best.place, len(places))
    if not hit and best.same < BEGINNING and best.alike < ALIKE:
        best = max(near, key=lambda one: one.alike)
        if best.alike < ALIKE:
            return None
    ids = found.ids_from(space, best.place)
    if ids is None:
        return None
    whole = [*(prompt.ids or ())[:first], *ids]
    stored = prompt_of_ids(whole, f"stored {best.place.extent.path}", tokenizer)
    asked = prompt_of_ids(prompt.ids or (), prompt.name, tokenizer)
    told = explain(stored, asked, block_tokens=space.block_tokens, price=price)
    return Told(
        Verdict(told.cause, told.evidence),
        lost_tokens=told.recoverable_tokens,
        siblings=len(places),
        difference=told,
    )


def _near(found: Roots, space: Space, place: Place, ours: np.ndarray) -> _Near | None:
    ids = found.ids_of(place.extent).token_ids
    if ids is None:
        return None
    theirs = ids[place.number * space.block_tokens :][:WINDOW]
    size = min(len(ours), len(theirs))
    apart = np.flatnonzero(ours[:size] != theirs[:size])
    same = int(apart[0]) if len(apart) else size
    alike = float(np.isin(theirs, ours).mean()) if len(theirs) else 0.0
    return _Near(place, same, alike)


def _without_ids(space: Space, hit: int, places: list[Place]) -> Told:
    first, end = hit * space.block_tokens, (hit + 1) * space.block_tokens
    many = f"{len(places)} stored prompts go" if len(places) > 1 else "a stored prompt goes"
    words = (
        f"{many} on differently within block {hit} (tokens {first} to {end - 1}); a store opened"
        " with keep_token_ids=True would name the token"
    )
    return Told(Verdict(Cause.NEVER, words), siblings=len(places))


def _other_key(
    found: Roots, space: Space, chain: Chain, hit: int, place: Place, siblings: int
) -> Told:
    """The very same tokens under another key: extras differ, or the salt."""
    theirs = found.ids_of(place.extent).extras
    at = place.number * KEY_BYTES
    stored = theirs[at : at + KEY_BYTES] if theirs else bytes(KEY_BYTES)
    asked = (chain.extra_digests or bytes(len(chain.keys)))[hit * KEY_BYTES : (hit + 1) * KEY_BYTES]
    if stored != asked:
        verdict = Verdict(
            Cause.LORA, f"the tokens of block {hit} are stored, with another LoRA or other extras"
        )
    else:
        verdict = Verdict(Cause.SALT, f"the tokens of block {hit} are stored, with another salt")
    lost = (place.extent.blocks or 0) - place.number
    return Told(verdict, lost_tokens=lost * space.block_tokens, siblings=siblings)
