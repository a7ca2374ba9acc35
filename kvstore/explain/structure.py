"""Tests of a cause that look at the form of two requests: templates, tools, JSON, white space,
history. Each answers evidence in words, or None. Pure.
"""

import json
import re
import unicodedata
from collections.abc import Iterator

from kvstore.explain.scene import AROUND, Scene

LONG = 200  # characters: a passage, not a word
JSON_REACH = 20_000  # characters before a difference in which its JSON value may begin
JSON_TRIES = 64
_DECODER = json.JSONDecoder()

_MARKER = re.compile(
    r"<\uff5c[^>]*\uff5c>|<\|[^>]*\|>|</?s>|<(?:bos|eos|start_of_turn|end_of_turn)>|\[/?INST\]"
    r"|<</?SYS>>|^#{2,3} ?(?:System|Instruction|Input|Response|User|Assistant):?"
    r"|^(?:System|Human|User|Assistant): ?",
    re.MULTILINE | re.IGNORECASE,
)


def template(scene: Scene) -> str | None:
    """The same words once everything that a chat template adds is taken away."""
    if scene.a.ids and scene.b.ids and scene.a.segments[:1] and scene.a.segments[0].kind == "ids":
        for ids, fewer in ((scene.a.ids, scene.b.ids), (scene.b.ids, scene.a.ids)):
            if ids[1:17] == fewer[:16] and len(fewer) >= 16:
                return f"one prompt begins with token {ids[0]}, then they agree"
        return None
    end = 400
    one = scene.a.text[max(0, scene.hunk.a_start - AROUND) : scene.hunk.a_start + end]
    other = scene.b.text[max(0, scene.hunk.b_start - AROUND) : scene.hunk.b_start + end]
    if not (_MARKER.search(one) or _MARKER.search(other)):
        return None
    plain, other_plain = (re.sub(r"\s+", " ", _MARKER.sub("", text)) for text in (one, other))
    size = min(len(plain), len(other_plain)) - AROUND
    if size >= 32 and plain[:size] == other_plain[:size]:
        return "the words are the same, the marks of the chat template are not"
    return None


def _json_pairs(scene: Scene) -> Iterator[tuple[object, object]]:
    """The JSON values that hold the difference on each side, from the innermost outwards.

    Before the difference both texts are equal, so a value begins at the same place in both.
    """
    a, b, here = scene.a.text, scene.b.text, scene.hunk
    tried = 0
    for back in range(min(here.a_start, here.b_start, JSON_REACH) + 1):
        at = here.a_start - back
        if at >= len(a) or a[at] not in "{[" or b[here.b_start - back] != a[at]:
            continue
        tried += 1
        if tried > JSON_TRIES:
            return
        try:
            one, one_end = _DECODER.raw_decode(a, at)
            other, other_end = _DECODER.raw_decode(b, here.b_start - back)
        except json.JSONDecodeError:
            continue
        if one_end > here.a_start and other_end > here.b_start:
            yield one, other


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def tool_order(scene: Scene) -> str | None:
    lists = [(list(scene.a.tools), list(scene.b.tools))] if scene.a.tools else []
    for one, other in _json_pairs(scene):
        if isinstance(one, list) and isinstance(other, list):
            lists.append((one, other))
    for one, other in lists:
        mine, theirs = list(map(_canonical, one)), list(map(_canonical, other))
        if mine != theirs and sorted(mine) == sorted(theirs):
            return f"the same {len(mine)} entries in another order"
    return None


def json_form(scene: Scene) -> str | None:
    first = scene.a.segment_of(scene.hunk.a_start)
    if first and first.kind == "tools" and scene.a.tools == scene.b.tools:
        return "the same tools with their keys in another order"
    if any(one == other for one, other in _json_pairs(scene)):
        return "the same JSON value, written differently"
    return None


def unicode(scene: Scene) -> str | None:
    one, other = _widened(scene)
    for form in ("NFC", "NFKC"):
        if one != other and unicodedata.normalize(form, one) == unicodedata.normalize(form, other):
            return f"equal after Unicode normalisation ({form})"
    return None


def _widened(scene: Scene) -> tuple[str, str]:
    """With the character before, so that a combining mark keeps its base."""
    last, first = scene.before[-1:], scene.after[:1]
    return last + scene.removed + first, last + scene.added + first


def whitespace(scene: Scene) -> str | None:
    one, other = "".join(scene.removed.split()), "".join(scene.added.split())
    if one == other:
        return f"only white space differs: {scene.removed[:20]!r} and {scene.added[:20]!r}"
    return None


def _history(scene: Scene) -> tuple[str, str] | None:
    """("truncated" or "summarised", evidence), from messages or the lengths of passages."""
    mine, theirs = list(scene.a.messages), list(scene.b.messages)
    if mine and theirs:
        shorter, longer = sorted((mine, theirs), key=len)
        for old, new in ((mine, theirs), (theirs, mine)):
            lead = _leading(old, new)
            dropped = _dropped(old[lead:], new[lead:])
            if dropped:
                return "truncated", f"{dropped} messages after the first {lead} are gone"
            if lead and _dropped(old[lead:], new[lead + 1 :], at_least=2):
                return "summarised", "several messages were replaced by one"
        if len(shorter) != len(longer):
            return None
    if max(len(scene.removed), len(scene.added)) < LONG or not scene.after:
        return None
    less, more = sorted((scene.removed, scene.added), key=len)
    if len(less) * 20 < len(more) and not less.strip():
        return "truncated", f"{len(more):,} characters are gone, then they agree again"
    if re.search(r"summar|so far|earlier in (?:this|the) conversation", less, re.IGNORECASE):
        return "summarised", f"{len(more):,} characters became {len(less):,}"
    return None


def _leading(old: list[tuple[str, str]], new: list[tuple[str, str]]) -> int:
    count = 0
    for one, other in zip(old, new, strict=False):
        if one != other:
            break
        count += 1
    return count


def _dropped(old: list[tuple[str, str]], new: list[tuple[str, str]], at_least: int = 1) -> int:
    """How many messages at the beginning of `old` have to go so that the rest begins `new`; 0: none
    does, or fewer than at_least."""
    for count in range(at_least, len(old)):
        rest = old[count:]
        if new[: len(rest)] == rest:
            return count
    return 0


def truncated(scene: Scene) -> str | None:
    found = _history(scene)
    return found[1] if found and found[0] == "truncated" else None


def summarised(scene: Scene) -> str | None:
    found = _history(scene)
    return found[1] if found and found[0] == "summarised" else None
