"""The demo's prompts: token ids of one real agent session (data/NOTICE tells its origin).

Every prompt of the session is a prefix of the next one, followed by an end token. A demo prompt is
that common stream cut to the wanted length, and its next turn is the first real request of the
session which goes on from there.
"""

import gzip
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import msgspec

BLOCK_TOKENS = 64
DEFAULT_TOKENS = 6016
MIN_TOKENS = 32 * BLOCK_TOKENS  # two extents of the demo's model


class _Session(msgspec.Struct, frozen=True):
    session: str
    end_token: int
    turn_tokens: list[int]
    ids: list[int]


@dataclass(frozen=True, kw_only=True)
class Prompts:
    """A prompt and the same prompt one turn later, as token ids."""

    session: str
    first: list[int]
    next_turn: list[int]


@cache
def _session() -> _Session:
    packed = (files(__package__) / "data" / "session.json.gz").read_bytes()
    return msgspec.json.decode(gzip.decompress(packed), type=_Session)


def longest() -> int:
    """The largest prompt for which the session still has a next turn of a block or more."""
    return max(_session().turn_tokens) - 1 - BLOCK_TOKENS


def prompts(tokens: int) -> Prompts:
    """The session cut to `tokens`, and its next turn, which is at least a block longer.

    Raises ValueError outside MIN_TOKENS..longest().
    """
    if not MIN_TOKENS <= tokens <= longest():
        raise ValueError(
            f"a prompt of {tokens:,} tokens: the demo's session allows "
            f"{MIN_TOKENS:,} to {longest():,}"
        )
    session = _session()
    turn = min(n for n in session.turn_tokens if n - 1 >= tokens + BLOCK_TOKENS)
    return Prompts(
        session=session.session,
        first=session.ids[:tokens],
        next_turn=[*session.ids[: turn - 1], session.end_token],
    )


def with_one_token_changed(ids: list[int], position: int) -> list[int]:
    """A copy of `ids` in which only the token at `position` is another one."""
    return [*ids[:position], ids[position] ^ 1, *ids[position + 1 :]]


def middle(tokens: int) -> int:
    """The position of the edit in the middle of a prompt: within a block, not at its edge."""
    return tokens // 2 + BLOCK_TOKENS // 3


def variant(name: str, tokens: int) -> list[int]:
    """A prompt by its name: first, next-turn, changed-at-start or changed-in-middle."""
    both = prompts(tokens)
    if name == "first":
        return both.first
    if name == "next-turn":
        return both.next_turn
    if name == "changed-at-start":
        return with_one_token_changed(both.first, 0)
    if name == "changed-in-middle":
        return with_one_token_changed(both.first, middle(tokens))
    raise ValueError(f"no prompt named {name!r}")
