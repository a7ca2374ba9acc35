"""A difference between two prompts with what stands around it: what tests of a cause look at."""

import re

import msgspec

from kvstore.explain.align import Hunk
from kvstore.explain.prompt import Prompt

AROUND = 48  # characters on both sides of a difference in which its meaning is looked for


class Scene(msgspec.Struct, frozen=True):
    """A difference with its surroundings. removed and added are the differing characters of a and
    b, before and after what both share around them."""

    a: Prompt
    b: Prompt
    hunk: Hunk
    removed: str
    added: str
    before: str
    after: str

    def words(self) -> tuple[str, str]:
        """The difference on each side, widened to whole words."""
        head = re.search(r"[\w:.+/-]*\Z", self.before)
        tail = re.match(r"[\w:.+/-]*", self.after)
        left = head.group() if head else ""
        right = tail.group() if tail else ""
        return left + self.removed + right, left + self.added + right


def scene_of(a: Prompt, b: Prompt, hunk: Hunk) -> Scene:
    return Scene(
        a,
        b,
        hunk,
        a.text[hunk.a_start : hunk.a_end],
        b.text[hunk.b_start : hunk.b_end],
        a.text[max(0, hunk.a_start - AROUND) : hunk.a_start],
        a.text[hunk.a_end : hunk.a_end + AROUND],
    )
