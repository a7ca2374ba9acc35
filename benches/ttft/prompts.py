"""The bench's prompts: token ids of a real agent session, in documents that share what they say.

The ids are those of the demo's packaged session (python/kvstore_demo/data/NOTICE), numbered anew
from 0 without gaps, so that a small model can embed them. A prompt goes to the engine as ids: then
the share of it that was stored before is exact, which text cut at a token's edge is not.

Invariants: two documents of different number differ within their first HEADER tokens, so they share
no block; a prompt's first `shared` tokens are what `stored` holds, and no other prompt's are.
"""

import gzip
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

SESSION = Path(__file__).parents[2] / "python" / "kvstore_demo" / "data" / "session.json.gz"
HEADER = 2  # tokens that spell a document's number
STRIDE = 977  # tokens between the beginnings of two documents in the session; a prime


@dataclass(frozen=True, order=True)
class Case:
    """A cell of the table: a prompt's length, and the percentage of it that was stored before."""

    tokens: int
    hit: int

    @property
    def shared(self) -> int:
        """Tokens of the prompt that were stored before; one at least is left to compute."""
        return min(self.tokens * self.hit // 100, self.tokens - 1)


@dataclass(frozen=True)
class Prompt:
    case: Case
    round: int
    ids: list[int]

    @property
    def stored(self) -> list[int]:
        """The request that fills the store before the engine starts anew; empty without a hit."""
        return self.ids[: self.case.shared]


@cache
def _session() -> tuple[int, ...]:
    ids = json.loads(gzip.decompress(SESSION.read_bytes()))["ids"]
    number = {token: place for place, token in enumerate(dict.fromkeys(ids))}
    return tuple(number[token] for token in ids)


def vocabulary() -> int:
    """How many different ids there are: 0 up to this."""
    return max(_session()) + 1


def document(number: int, tokens: int) -> list[int]:
    """The session from another place on, round and round, behind two ids that spell `number`."""
    session, base = _session(), vocabulary()
    if not 0 <= number < base**HEADER:
        raise ValueError(f"document {number}: there are {base**HEADER:,}")
    start = number * STRIDE % len(session)
    body = (session[(start + place) % len(session)] for place in range(tokens - HEADER))
    return [*divmod(number, base), *body][:tokens]


def make_prompts(
    cases: Sequence[Case], rounds: Iterable[int], *, first: int = 0
) -> Iterator[Prompt]:
    """A prompt per case and round, each of two documents of its own: what is shared, what is new.

    Documents are numbered from `first` on. Rounds come one after the other, each beginning with
    another case, so that a slow minute of the machine does not hit one case only.
    """
    number = first
    for turn in rounds:
        start = turn % len(cases)
        for case in [*cases[start:], *cases[:start]]:
            old = document(number, case.shared)
            new = document(number + 1, case.tokens - case.shared)
            yield Prompt(case, turn, old + new)
            number += 2


def plan(cases: Sequence[Case], rounds: int) -> list[Prompt]:
    """All prompts, in their order; those of round -1 warm up and are not counted."""
    warm = Case(min(case.tokens for case in cases), 50)
    return [
        *make_prompts([warm], [-1], first=rounds * len(cases) * 2),
        *make_prompts(cases, range(rounds)),
    ]
