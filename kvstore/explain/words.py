"""Tests of a cause that look at the words around a difference: ids, times, dates, names, counters.
Each answers evidence in words, or None. Pure.
"""

import re
from collections.abc import Callable

from kvstore.explain.scene import AROUND, Scene

_MONTH = r"(?:Jan|Feb|Mar|Apr|May|June?|July?|Aug|Sep|Oct|Nov|Dec)[a-z]*"
UUID = re.compile(r"[0-9a-fA-F]{8}(?:-?[0-9a-fA-F]{4}){3}-?[0-9a-fA-F]{12}")
ID = re.compile(r"[0-9a-fA-F]{8}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{12}")
ID = re.compile(
    r"\b(?:req|request|call|trace|sess|session|msg|run|thread|id)[\w-]*[_:=-]\s*[\w-]{6,}"
    r"|\b(?=[\w-]*\d)(?=[\w-]*[a-zA-Z])[\w-]{16,}",
    re.IGNORECASE,
)
TIME = re.compile(r"(?<!\d)\d{1,2}:\d{2}(?::\d{2})?|\b1\d{9}(?:\d{3})?\b")
DATE = re.compile(
    rf"\b\d{{4}}[-/.]\d{{1,2}}[-/.]\d{{1,2}}|\b\d{{1,2}}[-/.]\d{{1,2}}[-/.]\d{{2,4}}"
    rf"|{_MONTH}\.? \d{{1,2}}(?:st|nd|rd|th)?,? ?\d{{0,4}}|\d{{1,2}}\.? {_MONTH}"
    rf"|(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day"
)
_NAME_LEAD = re.compile(
    r"(?:\bname\b|\buser(?:name)?\b|\bcustomer\b|\baccount\b|\bassist(?:ing)?\b|\bhello\b|\bhi\b"
    r"|\bdear\b|\bsigned in as\b|\bhelping\b|\bto help\b|\bserving\b|@)[^\n]{0,24}\Z",
    re.IGNORECASE,
)
_NAME = re.compile(
    r"[^\W\d_][\w.+-]*@[\w.-]+|[A-Z][\w'.-]*(?: [A-Z][\w'.-]*){0,3}|[a-z][\w.-]{1,30}"
)
_COUNT_LEAD = re.compile(
    r"(?:\bturn|\bstep|\battempt|\bround|\brequest|\bmessage|\bcount(?:er)?|\bn(?:o|umber)\b|#"
    r"|\biteration|\bremaining|\bof|\bused|:|=|\bconversation)\W{0,3}\Z",
    re.IGNORECASE,
)


def _covers(scene: Scene, pattern: re.Pattern[str]) -> tuple[str, str] | None:
    """What `pattern` finds on both sides across the difference."""
    found = []
    for middle in (scene.removed, scene.added):
        text = scene.before + middle + scene.after
        start, end = len(scene.before), len(scene.before) + len(middle)
        least = min(end, start + 1)
        over = (m for m in pattern.finditer(text) if m.start() <= start and m.end() >= least)
        hit = next(over, None)
        if hit is None or len(middle) > 3 * AROUND:
            return None
        found.append(hit.group())
    return found[0], found[1]


def by(pattern: re.Pattern[str]) -> Callable[[Scene], str | None]:
    def test(scene: Scene) -> str | None:
        found = _covers(scene, pattern)
        return f"{found[0]!r} became {found[1]!r}" if found else None

    return test


def counter(scene: Scene) -> str | None:
    one, other = scene.words()
    number = re.compile(r"\D*?(\d{1,9})\D*")
    mine, theirs = number.fullmatch(one), number.fullmatch(other)
    if not mine or not theirs:
        return None
    lead = scene.before[: len(scene.before) - _digits_before(scene)]
    if _COUNT_LEAD.search(lead) or abs(int(mine.group(1)) - int(theirs.group(1))) <= 100:
        return f"{mine.group(1)} became {theirs.group(1)}"
    return None


def _digits_before(scene: Scene) -> int:
    return len(scene.before) - len(scene.before.rstrip("0123456789"))


def name(scene: Scene) -> str | None:
    one, other = scene.words()
    lead = re.sub(r"[\w:.+/-]*\Z", "", scene.before)
    short = max(len(one), len(other)) <= 60 and "\n" not in one + other
    if not (short and one and other):
        return None
    if _NAME_LEAD.search(lead) and all(
        _NAME.fullmatch(word.strip(" .,;")) for word in (one, other)
    ):
        return f"{one!r} became {other!r}"
    return None


def system(scene: Scene) -> str | None:
    segment = scene.a.segment_of(scene.hunk.a_start)
    if segment and segment.kind in ("system", "developer", "tools"):
        return f"the difference lies in {segment.path}"
    return None
