"""Where two texts part, and where they run together again. Pure; works on any sequences of str.

Not a general diff: prefix caches care for the first difference only, and for what would have been
found had it not been there. Cost: linear in the texts, but for slices that Python compares in C.
"""

from collections.abc import Iterator, Sequence

import msgspec

ANCHOR = 24  # characters that must agree before two texts count as together again
ANCHOR_IDS = 6  # the same of token ids
REACH = 200_000  # how far behind a difference is looked


class Hunk(msgspec.Struct, frozen=True):
    """a[a_start:a_end] stands where b has b[b_start:b_end]; before and after they agree."""

    a_start: int
    a_end: int
    b_start: int
    b_end: int


def common_prefix(a: str, b: str, a_from: int = 0, b_from: int = 0) -> int:
    """Length of what a[a_from:] and b[b_from:] begin with in common, by doubling slices."""
    limit = min(len(a) - a_from, len(b) - b_from)
    good, step = 0, 64
    while good < limit:
        size = min(step, limit - good)
        if a[a_from + good : a_from + good + size] == b[b_from + good : b_from + good + size]:
            good, step = good + size, step * 2
        elif size == 1:
            break
        else:
            step = max(1, size // 2)
            limit = min(limit, good + size)
    return good


def id_hunks(a: Sequence[int], b: Sequence[int]) -> Iterator[Hunk]:
    """The same of token ids: each becomes a letter of its own."""
    letters: dict[int, str] = {}
    one, other = (
        "".join([letters.setdefault(number, chr(len(letters))) for number in ids]) for ids in (a, b)
    )
    return hunks(one, other, anchor=ANCHOR_IDS)


def hunks(a: str, b: str, *, anchor: int = ANCHOR) -> Iterator[Hunk]:
    """Differences in order. The last one may reach the end of one text or both."""
    a_at = b_at = 0
    while True:
        same = common_prefix(a, b, a_at, b_at)
        a_at, b_at = a_at + same, b_at + same
        if a_at == len(a) and b_at == len(b):
            return
        hunk = _meet_again(a, b, a_at, b_at, anchor)
        yield hunk
        a_at, b_at = hunk.a_end, hunk.b_end


def _meet_again(a: str, b: str, a_at: int, b_at: int, anchor: int) -> Hunk:
    """The nearest place behind (a_at, b_at) from which both go on alike for `anchor` characters."""
    seen_a: dict[str, int] = {}
    seen_b: dict[str, int] = {}
    reach = min(REACH, max(len(a) - a_at, len(b) - b_at))
    for step in range(reach):
        piece_a, piece_b = _piece(a, a_at + step, anchor), _piece(b, b_at + step, anchor)
        if piece_a:
            seen_a.setdefault(piece_a, step)
        if piece_b:
            seen_b.setdefault(piece_b, step)
        if piece_a in seen_b:
            return _trimmed(a, b, Hunk(a_at, a_at + step, b_at, b_at + seen_b[piece_a]))
        if piece_b in seen_a:
            return _trimmed(a, b, Hunk(a_at, a_at + seen_a[piece_b], b_at, b_at + step))
    return Hunk(a_at, len(a), b_at, len(b))


def _piece(text: str, at: int, anchor: int) -> str:
    """That many characters from `at`; "" when fewer are left, or nearly all alike (padding)."""
    piece = text[at : at + anchor]
    return piece if len(piece) == anchor and len(set(piece)) > anchor // 6 else ""


def _trimmed(a: str, b: str, hunk: Hunk) -> Hunk:
    """Without the characters that both sides of the difference end with."""
    a_end, b_end = hunk.a_end, hunk.b_end
    while a_end > hunk.a_start and b_end > hunk.b_start and a[a_end - 1] == b[b_end - 1]:
        a_end, b_end = a_end - 1, b_end - 1
    return Hunk(hunk.a_start, a_end, hunk.b_start, b_end)
