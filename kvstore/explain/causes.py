"""Names why two prompts part. Looks at the first difference, at the words around it, and at the
structure of the requests where there is one. Pure.

Each test answers None or evidence; the first that answers wins, so they stand from the certain to
the vague. A cause is a judgement: the difference itself is always shown beside it.
"""

from collections.abc import Callable
from enum import Enum

import msgspec

from kvstore.explain import structure, words
from kvstore.explain.align import Hunk
from kvstore.explain.prompt import Prompt
from kvstore.explain.scene import AROUND, Scene, scene_of


class Cause(str, Enum):
    """value: the word in JSON."""

    SAME = "same"
    CONTINUES = "continues"
    MODEL = "model"
    LAYOUT = "layout"
    LORA = "lora"
    SALT = "salt"
    TEMPLATE = "template"
    TOOL_ORDER = "tool-order"
    JSON_FORM = "json-form"
    UNICODE = "unicode"
    WHITESPACE = "whitespace"
    TRUNCATED = "history-truncated"
    SUMMARISED = "history-summarised"
    UUID = "request-id"
    TIMESTAMP = "timestamp"
    DATE = "date"
    NAME = "user-name"
    COUNTER = "counter"
    SYSTEM = "system-edited"
    TOKENS = "tokenization"
    OTHER = "content"
    STORED = "stored"
    SHORT = "shorter-than-a-block"
    EXPIRED = "expired"
    EVICTED = "evicted"
    DELETED = "deleted"
    QUARANTINED = "quarantined"
    REFUSED = "refused"
    NEVER = "never-stored"


ADVICE = {
    Cause.SAME: "Nothing to do: the prompts are equal.",
    Cause.CONTINUES: "Nothing to do: one prompt begins with the other.",
    Cause.MODEL: "Other models have other caches; only prompts to the same one can hit.",
    Cause.LAYOUT: "The layout (dtype, block size, ranks, rope) differs: that is another cache.",
    Cause.LORA: "A LoRA changes every block; group requests by adapter.",
    Cause.SALT: "Salts keep tenants apart. Use one salt per group that may share.",
    Cause.TEMPLATE: "Use one chat template, and one rule for the begin-of-sequence token.",
    Cause.TOOL_ORDER: "Sort tools by name before sending.",
    Cause.JSON_FORM: "Serialise tools and JSON with one function: sorted keys, fixed separators.",
    Cause.UNICODE: "Normalise text (NFC) before it enters the prompt.",
    Cause.WHITESPACE: "Strip or fix trailing newlines and spaces where prompts are put together.",
    Cause.TRUNCATED: "Trim history rarely and in large steps, not a turn at a time.",
    Cause.SUMMARISED: "Summarise rarely; put the summary behind a stable beginning.",
    Cause.UUID: "Move request and session ids to the end, or out of the prompt.",
    Cause.TIMESTAMP: "Move the time to the end, into the last message, or round it to the day.",
    Cause.DATE: "Move the date behind the system prompt, at best into the last message.",
    Cause.NAME: "Move the user's name out of the shared beginning, into the first user message.",
    Cause.COUNTER: "Move counters and turn numbers to the end, or leave them out.",
    Cause.SYSTEM: "The system prompt was edited: expected once per release, a leak when frequent.",
    Cause.TOKENS: "Hand token ids on as they were generated, or encode the whole text anew always.",
    Cause.STORED: "Nothing to do: every whole block is stored.",
    Cause.SHORT: "Nothing to do: only whole blocks are stored. Smaller blocks would store more.",
    Cause.EXPIRED: "Put it with a retention class that lives longer, or ask for it more often.",
    Cause.EVICTED: "Give the store more capacity; kvstore replay tells how much would be enough.",
    Cause.DELETED: "Somebody deleted it: see who calls delete.",
    Cause.QUARANTINED: "Look at the device (dmesg, SMART), then at kvstore quarantine and fsck.",
    Cause.REFUSED: "Nothing to do if it is asked for once. Else see admission and write_budget.",
    Cause.NEVER: "Nothing to do for a new prompt. Else see that its writer commits.",
    Cause.OTHER: "Put what varies (retrieved text, user input) behind what stays.",
}


class Verdict(msgspec.Struct, frozen=True):
    """evidence: what the judgement rests on, in words."""

    cause: Cause
    evidence: str


def cause_of(a: Prompt, b: Prompt, hunk: Hunk | None, token: int) -> Verdict:
    """hunk: the first difference of the texts; None when there is none. token: the first of the
    tokens."""
    for word in ("model", "layout", "lora", "salt"):
        mine, theirs = a.identity.get(word), b.identity.get(word)
        if mine != theirs:
            shown = "" if word == "salt" else f": {mine!r} and {theirs!r}"
            return Verdict(Cause(word), f"the {word} differs{shown}")
    if _split_otherwise(a, b, hunk, token):
        return Verdict(Cause.TOKENS, "the same text, split into other tokens")
    if hunk is None:
        return Verdict(Cause.SAME, "no token differs")
    scene = scene_of(a, b, hunk)
    if hunk.a_start == len(a.text) or hunk.b_start == len(b.text):
        return _at_an_end(scene)
    for cause, test in _ID_TESTS if _are_ids(a, b) else _TESTS:
        if evidence := test(scene):
            return Verdict(cause, evidence)
    return Verdict(Cause.OTHER, "no pattern is known for this difference")


def _split_otherwise(a: Prompt, b: Prompt, hunk: Hunk | None, token: int) -> bool:
    """The first tokens that differ stand in text that agrees well past them."""
    if a.ids is None or b.ids is None or token >= min(len(a.ids), len(b.ids)):
        return False
    reach = max(a.ends[token], b.ends[token]) + AROUND
    return hunk is None or min(hunk.a_start, hunk.b_start) > reach


def _are_ids(a: Prompt, b: Prompt) -> bool:
    """Numbers stand for words there: what words tell they do not."""
    return any(one.kind == "ids" for prompt in (a, b) for one in prompt.segments[:1])


def _at_an_end(scene: Scene) -> Verdict:
    rest = scene.removed or scene.added
    if not rest.strip():
        return Verdict(Cause.WHITESPACE, f"one prompt ends with {rest!r}, the other does not")
    return Verdict(Cause.CONTINUES, f"one prompt is the other and {len(rest):,} characters more")


_TESTS: tuple[tuple[Cause, Callable[[Scene], str | None]], ...] = (
    (Cause.TEMPLATE, structure.template),
    (Cause.TOOL_ORDER, structure.tool_order),
    (Cause.JSON_FORM, structure.json_form),
    (Cause.UNICODE, structure.unicode),
    (Cause.WHITESPACE, structure.whitespace),
    (Cause.TRUNCATED, structure.truncated),
    (Cause.SUMMARISED, structure.summarised),
    (Cause.UUID, words.by(words.UUID)),
    (Cause.TIMESTAMP, words.by(words.TIME)),
    (Cause.DATE, words.by(words.DATE)),
    (Cause.UUID, words.by(words.ID)),
    (Cause.NAME, words.name),
    (Cause.COUNTER, words.counter),
    (Cause.SYSTEM, words.system),
)
_ID_TESTS = tuple(one for one in _TESTS if one[0] in (Cause.TEMPLATE, Cause.TRUNCATED))
