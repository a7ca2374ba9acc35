"""The parent's books on one root: what each key must be, by what the children acknowledged.

  sure   acknowledged by a commit or put, and nobody has begun to forget it since
  maybe  written or forgotten, but not acknowledged (its process may be dead); or brief, which
         expires when it likes
  gone   forgetting was acknowledged and nobody has begun to put it since
A key that is in no book was never put: it must not be there.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from tests.torture.universe import BLOCKS_MAX, chain_of, kind_of, split

SURE, MAYBE, GONE = "sure", "maybe", "gone"


class Ledger:
    def __init__(self) -> None:
        self.state: dict[tuple[int, bytes], str] = {}
        self.longest: dict[tuple[int, int], int] = {}  # (space, number) -> blocks ever put
        self.counts: Counter[str] = Counter()

    def note(self, word: str, *facts: Any) -> None:
        getattr(self, word)(*facts)

    def putting(self, space: int, number: int, start: int, end: int) -> None:
        self.longest[space, number] = max(end, self.longest.get((space, number), 0))
        for key in _keys(number, start, end):
            if self.state.get((space, key)) != SURE:
                self.state[space, key] = MAYBE

    def stored(self, space: int, number: int, start: int, blocks: int) -> None:
        self.counts["acknowledged"] += blocks
        if kind_of(number) != "brief":
            for key in _keys(number, start, start + blocks):
                self.state[space, key] = SURE

    def forgetting(self, space: int, number: int) -> None:
        for key in _keys(number, 0, BLOCKS_MAX):
            if (space, key) in self.state:
                self.state[space, key] = MAYBE

    def forgot(self, space: int, number: int) -> None:
        self.counts["forgotten"] += 1
        for key in _keys(number, 0, BLOCKS_MAX):
            if (space, key) in self.state:
                self.state[space, key] = GONE

    def flushed(self) -> None:
        self.counts["flushes"] += 1

    def judged(self, blocks: int, size: int, loads: int) -> None:
        self.counts["judged"] += blocks
        self.counts["bytes"] += size
        self.counts["loads"] += loads


def _keys(number: int, start: int, end: int) -> list[bytes]:
    return split(chain_of(number, BLOCKS_MAX).keys)[start:end]
