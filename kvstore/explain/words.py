"""Tests of a cause that look at the words around a difference: ids, times, dates, names, counters.
Each answers evidence in words, or None. Pure.
"""

import re
from collections.abc import Callable

from kvstore.explain.scene import AROUND, Scene

_MONTH = r"(?:Jan|Feb|Mar|Apr|May|June?|July?|Aug|Sep|Oct|Nov|Dec)[a-z]*"
UUID = re.compile(r"[0-9a-fA-F]{8}(?:-?[0-9a-fA-F]{4}){3}-?[0-9a-fA-F]{12}")
ID = re.compile(
    r"\b(?:req|request|call|trace|sess|session|msg|run|thread|id)[\w-]*[_:=-]\s*[\w-]{6,}"
    r"|\b(?=[\w-]*\d)(?=[\w-]*[a-zA-Z])[\w-]{16,}",
    re.IGNORECASE,
)
TIME = re.compile(
    r"(?<!\d)\d{1,2}:\d{2}(?::\d{2})?(?: ?[ap]\.?m\b)?|(?<!\d)\d{1,2}\.\d{2} ?[ap]\.?m\b"
    r"|(?<![\d.])\d{1,2}h\d{2}(?!\d)|\b\d{8}T\d{4,6}|\b1\d{9}(?:\d{3}|\.\d+)?\b",
    re.IGNORECASE,
)
DATE = re.compile(
    rf"\b\d{{4}}[-/.]\d{{1,2}}[-/.]\d{{1,2}}|\b\d{{1,2}}[-/.]\d{{1,2}}[-/.]\d{{2,4}}"
    rf"|{_MONTH}\.? \d{{1,2}}(?:st|nd|rd|th)?,? ?\d{{0,4}}"
    rf"|\d{{1,2}}(?:st|nd|rd|th)?\.?(?: of)? {_MONTH}"
    r"|(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day|\d{4}\u5e74\d{1,2}\u6708(?:\d{1,2}\u65e5)?"
    r"|\b(?:19|20)\d{2}(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])\b"
)
_NAME_LEAD = re.compile(
    r"(?:\bname\b|\buser(?:name)?\b|\bcustomer\b|\baccount\b|\bassist(?:ing)?\b|\bhello\b|\bhi\b"
    r"|\bdear\b|\bsigned in as\b|\bhelping\b|\bto help\b|\bserving\b|@)[^\n]{0,24}\Z",
    re.IGNORECASE,
)
# After these even a word in lower case is one: user=ada, "name": "ada", signed in as ada.
_NAME_SAID = re.compile(
    r"(?:(?:\bname|\buser(?:[ _]?(?:name|id))?|\bcustomer|\baccount)\W{0,2}[:=@]\W{0,3}"
    r"|\bname is |\b(?:signed|logged) in as |\bhello,? |\bhi,? |\bdear |@)\Z",
    re.IGNORECASE,
)
_NAME_WORD = r"[^\W\d_][^\s\d,;:!?()\[\]{}<>\"/\\|=#*`]*"
_NAME = re.compile(rf"[^\W\d_][\w.+-]*@[\w.-]+|{_NAME_WORD}(?: {_NAME_WORD}){{0,3}}")
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
    """Whole numbers, also in the middle of a word: run_7, step3of9."""
    head = re.search(r"\d*\Z", scene.before)
    tail = re.match(r"\d*", scene.after)
    left, right = head.group() if head else "", tail.group() if tail else ""
    one, other = left + scene.removed + right, left + scene.added + right
    if not all(number.isascii() and number.isdigit() for number in (one, other)):
        return None
    if max(len(one), len(other)) > 9:
        return None
    lead = scene.before[: len(scene.before) - len(left)]
    if _COUNT_LEAD.search(lead) or abs(int(one) - int(other)) <= 100:
        return f"{one} became {other}"
    return None


def name(scene: Scene) -> str | None:
    one, other = (word.strip(" .,;") for word in scene.words())
    lead = re.sub(r"[\w:.+/-]*\Z", "", scene.before)
    if max(len(one), len(other)) > 60 or not all(map(_NAME.fullmatch, (one, other))):
        return None
    said = _NAME_SAID.search(lead)
    if said or (_NAME_LEAD.search(lead) and _capital(one) and _capital(other)):
        return f"{one!r} became {other!r}"
    return None


def _capital(words: str) -> bool:
    """One of the words begins as names do, or is an address; scripts without capitals may be."""
    return any(not word[0].islower() or "@" in word for word in words.split())


def system(scene: Scene) -> str | None:
    segment = scene.a.segment_of(scene.hunk.a_start)
    if segment and segment.kind in ("system", "developer", "tools"):
        return f"the difference lies in {segment.path}"
    return None
