"""Who can meet whom: salts, tenants, LoRAs, images and models are kept apart.

What lies on disk, and who may read it, is in test_permissions.py; what is protected and what is not
in docs/SECURITY.md.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

import kvstore
from kvstore.chain import chain_of_foreign, chain_of_tokens
from tests.support.stores import BLOCK_TOKENS, cells_of, layout, opened, prompt, write

SALT = b"tenant-seven-secret"
LORA = ("lora", 0, b"adapter-of-customer-9")
IMAGE = ("image", 20, b"sha256-of-a-picture")

# ---- the derivation ------------------------------------------------------------------------------

# Few and short, so that what two draws share (a prefix, a salt, a tag) is common.
tokens = st.lists(st.integers(0, 1), max_size=12)
short = st.binary(max_size=2)
tags = st.binary(min_size=1, max_size=2)


@dataclass(frozen=True)
class Prompt:
    """All that may decide what a block holds."""

    salt: bytes
    block_tokens: int
    tokens: list[int]
    extras: list[tuple[bytes, int, bytes]]

    def keys(self) -> list[bytes]:
        inside = [extra for extra in self.extras if extra[1] < len(self.tokens)]
        return list(
            chain_of_tokens(
                self.tokens, block_tokens=self.block_tokens, salt=self.salt, extras=inside
            )
        )

    def meaning(self, block: int) -> tuple[Any, ...]:
        """Equal exactly when block `block` of both prompts may be served for the other's."""
        end = (block + 1) * self.block_tokens
        extras = sorted(extra for extra in self.extras if extra[1] < end)
        return self.salt, self.block_tokens, block, self.tokens[:end], extras


prompts = st.builds(
    Prompt,
    salt=short,
    block_tokens=st.integers(1, 3),
    tokens=tokens,
    extras=st.lists(st.tuples(tags, st.integers(0, 11), short), max_size=3),
)


@settings(max_examples=600, deadline=None)
@given(prompts, prompts)
@example(Prompt(b"", 2, [0, 0], []), Prompt(b"\0", 2, [0, 0], []))
@example(Prompt(b"", 1, [0], [(b"a", 0, b"")]), Prompt(b"", 1, [0], []))
def test_two_blocks_have_one_key_exactly_when_all_before_and_in_them_is_equal(
    one: Prompt, other: Prompt
) -> None:
    for i, key in enumerate(one.keys()):
        for j, other_key in enumerate(other.keys()):
            assert (key == other_key) == (one.meaning(i) == other.meaning(j)), (i, j)


@settings(max_examples=300, deadline=None)
@given(short, short, st.binary(min_size=16, max_size=18), st.binary(min_size=16, max_size=18))
def test_two_wrapped_keys_are_equal_exactly_when_salt_and_engine_key_are(
    salt: bytes, other_salt: bytes, key: bytes, other_key: bytes
) -> None:
    (one,) = chain_of_foreign([key], block_tokens=16, salt=salt)
    (other,) = chain_of_foreign([other_key], block_tokens=16, salt=other_salt)
    assert (one == other) == ((salt, key) == (other_salt, other_key))


# ---- the store -----------------------------------------------------------------------------------


def test_nobody_is_served_what_was_put_with_another_salt_lora_image_or_model(
    tmp_path: Path,
) -> None:
    ids = prompt(3)
    plain: dict[str, Any] = {"salt": SALT, "extras": [LORA, IMAGE]}
    strangers: dict[str, dict[str, Any]] = {
        "no salt": plain | {"salt": b""},
        "another tenant": plain | {"salt": b"tenant-8"},
        "no LoRA": plain | {"extras": [IMAGE]},
        "another LoRA": plain | {"extras": [("lora", 0, b"adapter-2"), IMAGE]},
    }
    with opened(tmp_path) as store:
        kv = store.cache(layout())
        chain = kv.keys(ids, **plain)
        assert write(kv, chain, cells_of(kv.layout, 3)) == 3
        assert kv.match(chain).blocks == 3
        served = {who: kv.match(kv.keys(ids, **words)).blocks for who, words in strangers.items()}
        assert served == dict.fromkeys(strangers, 0)
        # The image sits in block 1: block 0 is common to all who have the same salt and LoRA.
        other_image = kv.keys(ids, salt=SALT, extras=[LORA, ("image", 20, b"another")])
        assert kv.match(other_image).blocks == 20 // BLOCK_TOKENS
        assert kv.match(kv.wrap([key[:16] for key in chain], salt=SALT)).blocks == 0
        for other in (layout(model="other"), layout(revision="2")):
            assert store.cache(other).match(chain).blocks == 0


def test_a_printed_chain_tells_no_salt() -> None:
    chain = chain_of_tokens(range(64), block_tokens=16, salt=SALT)
    assert SALT.decode() not in repr(chain) + repr(kvstore.Chain(chain.keys, 16))
