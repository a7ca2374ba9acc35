"""What the demo promises, checked on its figures. A failed check makes the demo exit non-zero.

Speed is never checked: a slow disk is a fact and not a failure.
"""

import signal
from dataclasses import dataclass

from kvstore_demo.figures import Demo, Difference, Lookup, Prefill

ROUNDS = 7


@dataclass(frozen=True)
class Check:
    """A promise, whether it was kept, and the fact that tells."""

    promise: str
    kept: bool
    fact: str


def check(demo: Demo) -> list[Check]:
    """Every promise of the demo, in the order of its phases."""
    return [
        *_cold(demo),
        *_warm(demo),
        *_load(demo),
        *_lookups(demo),
        *_next_turn(demo),
        *_damage(demo),
        *_default_mode(demo),
    ]


def whole_blocks(demo: Demo) -> int:
    """Blocks of the prompt that have a key; a trailing part of a block has none."""
    return demo.cold.prompt_tokens // demo.model.block_tokens


def _cold(demo: Demo) -> list[Check]:
    cold, blocks = demo.cold, whole_blocks(demo)
    return [
        Check(
            "a new store has nothing: the cold prefill computes every token",
            cold.hit_tokens == 0 and cold.computed_tokens == cold.prompt_tokens,
            f"{cold.hit_tokens:,} hit, {cold.computed_tokens:,} computed",
        ),
        Check(
            "every whole block was put",
            cold.blocks_put == blocks,
            f"{cold.blocks_put} of {blocks} blocks, {cold.bytes_written:,} bytes",
        ),
        Check(
            "the process was ended by SIGKILL after its puts were acknowledged",
            demo.cold_exit_code == -signal.SIGKILL,
            f"exit code {demo.cold_exit_code}",
        ),
    ]


def _warm(demo: Demo) -> list[Check]:
    warm = demo.warm
    tokens = whole_blocks(demo) * demo.model.block_tokens
    return [
        Check(
            "warm: a new process finds the whole prefix",
            warm.hit_tokens == tokens,
            f"{warm.hit_tokens:,} of {tokens:,} tokens hit",
        ),
        _computes_the_rest("warm", warm),
        Check(
            "warm: what it used was read from the disk, with O_DIRECT",
            warm.direct and warm.bytes_read >= warm.used_tokens * demo.model.token_bytes,
            f"{warm.bytes_read:,} bytes read, O_DIRECT {'on' if warm.direct else 'off'}",
        ),
        _bitwise("warm", warm.against_cold),
    ]


def _computes_the_rest(name: str, run: Prefill) -> Check:
    expected = run.prompt_tokens - run.used_tokens
    layers = run.computed_by_layer
    once = layers[-1] == expected and (run.restarts > 0 or set(layers) == {expected})
    return Check(
        f"{name}: every layer computes only what the store could not give",
        once and 0 < run.used_tokens <= run.hit_tokens,
        f"{run.computed_tokens:,} computed, {run.prompt_tokens:,} - {run.used_tokens:,} expected",
    )


def _bitwise(name: str, difference: Difference | None) -> Check:
    equal = difference is not None and difference.bitwise
    fact = "equal" if equal else "not compared"
    if difference is not None and not equal:
        fact = f"they differ by up to {difference.max_abs:g}"
    return Check(f"{name}: logits bitwise equal to cold", equal, fact)


def _load(demo: Demo) -> list[Check]:
    rounds, blocks = demo.load.rounds, whole_blocks(demo)
    whole = [r for r in rounds if r.blocks == blocks and r.ram_bytes == 0]
    return [
        Check(
            "every round of the load was cold and whole",
            len(whole) == len(rounds) == ROUNDS,
            f"{len(whole)} of {len(rounds)} rounds gave {blocks} blocks, nothing of it from RAM",
        ),
        Check(
            "no page of the extents is in the page cache",
            demo.load.page_cache_bytes == 0,
            f"{demo.load.page_cache_bytes:,} bytes there",
        ),
    ]


def _lookups(demo: Demo) -> list[Check]:
    return [
        _lookup("one token changed at the start", demo.changed_at_start, 0),
        _lookup(
            "one token changed in the middle", demo.changed_in_middle, demo.changed_token_block
        ),
    ]


def _lookup(name: str, found: Lookup, blocks: int) -> Check:
    return Check(
        f"{name}: hit exactly the blocks before it",
        found.blocks == blocks,
        f"{found.blocks} blocks hit, {blocks} expected",
    )


def _next_turn(demo: Demo) -> list[Check]:
    run, tokens = demo.next_turn, whole_blocks(demo) * demo.model.block_tokens
    return [
        Check(
            "next turn: hit up to the old end",
            run.hit_tokens == tokens,
            f"{run.hit_tokens:,} of {tokens:,} tokens hit, the prompt has {run.prompt_tokens:,}",
        ),
        _computes_the_rest("next turn", run),
    ]


def _damage(demo: Demo) -> list[Check]:
    run, hurt = demo.after_damage, demo.damage
    low, high = (block * demo.model.block_tokens for block in (hurt.extent_block, hurt.block))
    return [
        Check(
            "one flipped bit: the extent is quarantined",
            run.quarantined == 1,
            f"{run.quarantined} extents quarantined, {hurt.file} is the damaged one",
        ),
        Check(
            "one flipped bit: what lies before it is used, the damaged block is not",
            low <= run.used_tokens <= high,
            f"{run.used_tokens:,} tokens used, the damage is in {high:,}.."
            f"{high + demo.model.block_tokens - 1:,}",
        ),
        _computes_the_rest("one flipped bit", run),
        _bitwise("one flipped bit", run.against_cold),
    ]


def _default_mode(demo: Demo) -> list[Check]:
    warm = demo.warm_default
    return [
        _computes_the_rest("default mode", warm),
        Check(
            "default mode: at least one token is computed, whatever the hit",
            warm.computed_tokens >= 1,
            f"{warm.computed_tokens:,} computed",
        ),
    ]
