"""A store held against a plain model, one random step after the other, on a driven clock.

The rule: a cache may forget, it must never lie. The model knows per namespace
  - may:  key -> second until which it can be there at most; a key not in it was never committed,
    or was deleted since. Renewing an extent renews all its blocks, so keys that ever lay in one
    extent share their time.
  - sure: key -> second until which it must be there. Empty in a tight store, where anything may be
    evicted between two steps.
Bytes follow from the key (prompts.py), which checks each one that is delivered.

One thread drives everything, so in a roomy store what holds right after a step is exact: what a
commit counted matches, and what matches loads. In a tight one a writer that was fed makes room in
the background.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from kvstore import Hit, Miss
from kvstore.cache import Cache
from kvstore.chain import KEY_BYTES, Chain, chain_of_tokens
from kvstore.store import Store, open_blocking
from kvstore.testing import START_WALL_S, Injection, VirtualClock
from kvstore.writer import Writer
from tests.support.prompts import (
    BLOCK_TOKENS,
    GRID,
    block_bytes,
    eventually,
    load,
    load_into,
    put_all,
    put_layer,
    small_layout,
    tokens,
)

DAY = 24 * 3600
TTL = {"agent": 3 * DAY, "chat": 7 * DAY}
SHORTEST, LONGEST = min(TTL.values()), max(TTL.values())
CHAIN_BLOCKS = 2 * GRID + 6
LAYOUTS = (small_layout("one"), small_layout("two"))


@dataclass
class Model:
    may: dict[bytes, int] = field(default_factory=dict)
    sure: dict[bytes, int] = field(default_factory=dict)
    mates: dict[bytes, set[bytes]] = field(default_factory=dict)  # ever in one extent with

    def join(self, keys: list[bytes]) -> None:
        joined = set(keys).union(*(self.mates.get(key, ()) for key in keys))
        for key in joined:
            self.mates[key] = joined

    def renewed(self, keys: list[bytes], until: int) -> None:
        for key in keys:
            for mate in self.mates.get(key, ()):
                if mate in self.may:
                    self.may[mate] = max(self.may[mate], until)

    def holds(self, keys: list[bytes], until: int) -> None:
        for key in keys:
            self.sure[key] = max(self.sure.get(key, 0), until)

    def lost(self, key: bytes) -> None:
        """The key for sure, its mates perhaps."""
        self.may.pop(key, None)
        for mate in self.mates.get(key, {key}):
            self.sure.pop(mate, None)


@dataclass
class OpenWriter:
    space: int
    writer: Writer
    retain: str
    left: list[tuple[int, int, int]]  # (layer, first, end) not put yet
    opened_s: int


class Oracle:
    """`run` makes that many steps. Say `trail` when it fails. All choices are made by `rng`."""

    def __init__(self, root: Path, rng: random.Random, *, capacity: int, roomy: bool) -> None:
        self.rng = rng
        self.root, self.capacity, self.roomy = root, capacity, roomy
        self.models = [Model() for _ in LAYOUTS]
        self.chains = [chain for base in range(2) for chain in branches(base)]
        self.writers: list[OpenWriter] = []
        self.trail: deque[str] = deque(maxlen=40)
        self.wall_s = START_WALL_S
        self.hits = 0
        self.open()
        self.steps = {
            self.put: 14, self.open_writer: 6, self.feed_writer: 12, self.end_writer: 6,
            self.match: 12, self.load: 20, self.get: 10, self.put_single: 6, self.delete: 3,
            self.advance: 6, self.tick: 4, self.drop_ram: 4, self.reopen: 1,
        }  # fmt: skip

    def run(self, steps: int) -> None:
        calls, weights = list(self.steps), list(self.steps.values())
        for _ in range(steps):
            call = self.rng.choices(calls, weights)[0]
            self.trail.append(call.__name__)
            call()
        self.store.close_blocking()

    # -------------------------------------------------------------------------- the store's life

    def open(self) -> None:
        self.clock = VirtualClock(self.wall_s)
        self.store: Store = open_blocking(
            self.root,
            capacity=self.capacity,
            pool="4MB",
            engine=self.rng.choice(["auto", "threads"]),
            io_timeout="3650d",  # the clock jumps under real reads: they would look dead
            _testing=Injection(clock=self.clock, manual_ticks=True),
        )
        self.caches: list[Cache] = [self.store.cache(layout) for layout in LAYOUTS]
        if self.rng.random() < 0.7:
            eventually(lambda: not self.store.info().roots[0].warming, "the scan ended")

    def reopen(self) -> None:
        self.writers.clear()  # closing ends them: nothing of them is published
        self.store.close_blocking()
        self.wall_s += self.rng.choice([0, 1, 3600])
        self.open()

    def advance(self) -> None:
        seconds = self.rng.choice([1, 1, 60, 60, 3600, 3600, 3600, DAY, DAY, 2 * DAY, 8 * DAY])
        self.note(f"{seconds} s")
        self.clock.advance(seconds)
        self.wall_s += seconds

    def tick(self) -> None:
        self.store.tick()

    def drop_ram(self) -> None:
        self.store.drop_ram()

    # ------------------------------------------------------------------------------------ writes

    def put(self) -> None:
        """A whole prompt at once."""
        space, chain, retain = self.space(), self.chain(), self.retain()
        kv, model = self.caches[space], self.models[space]
        with kv.writer(chain, retain=retain) as writer:
            model.renewed(keys_of(chain), self.wall_s + TTL[retain])
            put_all(kv, writer)
            resident = writer.commit_blocking("30s")
        self.committed(model, chain, range(len(chain)), 0, retain)
        self.note(f"{space} {len(chain)} blocks {retain}: {resident}")
        assert resident <= len(chain)
        assert resident == len(chain) or not self.roomy, "there was room for all of it"
        matched = kv.match(chain).blocks
        assert matched == resident or not self.roomy, "what was committed matches"
        self.hold(model, chain, resident, retain)

    def put_single(self) -> None:
        space, chain, retain = self.space(), self.chain(), self.retain()
        kv, model = self.caches[space], self.models[space]
        key = self.rng.choice(keys_of(chain))
        stored = kv.put_blocking(key, block_bytes(kv.layout, key), retain=retain)
        model.join([key])
        model.may.setdefault(key, 0)
        model.renewed([key], self.wall_s + TTL[retain])
        self.note(f"{space} {key.hex()[:6]} {retain}: {stored}")
        assert stored or not self.roomy
        if stored:
            if self.roomy:
                assert kv.contains(key)
                model.holds([key], self.wall_s + TTL[retain])

    def open_writer(self) -> None:
        if len(self.writers) == 3:
            return
        space, chain, retain = self.space(), self.chain(), self.retain()
        kv = self.caches[space]
        start = self.rng.choice([0, kv.match(chain).blocks])
        pieces = []
        for layer in range(kv.layout.layers):
            cuts = [start, *sorted(self.rng.choices(range(start, len(chain) + 1), k=2)), len(chain)]
            pieces += [(layer, a, b) for a, b in zip(cuts, cuts[1:], strict=False) if a < b]
        self.rng.shuffle(pieces)
        writer = kv.writer(chain, start=start, retain=retain)
        self.models[space].renewed(keys_of(chain), self.wall_s + TTL[retain])
        self.writers.append(OpenWriter(space, writer, retain, pieces, self.wall_s))

    def feed_writer(self) -> None:
        for it in self.writers:
            for piece in it.left[:3]:
                put_layer(self.caches[it.space], it.writer, *piece)
            del it.left[:3]

    def end_writer(self) -> None:
        """Commits, whole or with cells missing, or aborts."""
        if not self.writers:
            return
        it = self.writers.pop(self.rng.randrange(len(self.writers)))
        chain, start = it.writer.chain, it.writer.start
        if self.rng.random() < 0.3:
            it.writer.abort()
            return
        if self.rng.random() < 0.7:
            for piece in it.left:
                put_layer(self.caches[it.space], it.writer, *piece)
            it.left.clear()
        kv, model = self.caches[it.space], self.models[it.space]
        resident = it.writer.commit_blocking("30s")
        lacking = {
            block
            for layer, first, end in it.left
            if kv.layout.cell_bytes(layer)
            for block in range(first, end)
        }
        # A block that lacks a cell ends what is published, unless it was resident already.
        self.committed(model, chain, set(range(start, len(chain))) - lacking, start, it.retain)
        self.note(
            f"{it.space} {start}..{len(chain)} {it.retain} lacking {len(lacking)}: {resident}"
        )
        # From start on, whatever became of the blocks before it meanwhile.
        assert not self.roomy or resident == run_from(kv, chain, start)
        self.hold(model, chain, kv.match(chain).blocks, it.retain)

    def committed(
        self, model: Model, chain: Chain, blocks: Collection[int], start: int, retain: str
    ) -> None:
        keys = keys_of(chain)
        for cut in range(0, len(chain), GRID):
            model.join(keys[max(start, cut) : cut + GRID])
        for block in blocks:
            model.may.setdefault(keys[block], 0)
        model.renewed(keys, self.wall_s + TTL[retain])

    def hold(self, model: Model, chain: Chain, blocks: int, retain: str) -> None:
        if self.roomy:
            model.holds(keys_of(chain)[:blocks], self.wall_s + TTL[retain])

    def delete(self) -> None:
        space = self.space()
        key = self.rng.choice(keys_of(self.chain()))
        dropped = self.caches[space].delete_blocking(key)
        self.note(f"{space} {key.hex()[:6]}: {dropped}")
        self.models[space].lost(key)
        assert not self.caches[space].contains(key)

    # ------------------------------------------------------------------------------------- reads

    def match(self) -> None:
        self.found(self.space(), self.chain())

    def found(self, space: int, chain: Chain) -> Hit:
        kv, model = self.caches[space], self.models[space]
        hit = kv.find_blocking(chain)
        keys = keys_of(chain)
        self.note(f"{space} {len(chain)} blocks: {hit.blocks} {hit.reason}")
        assert (hit.reason is None) == (hit.blocks == len(chain))
        for key in keys[: hit.blocks]:
            self.allowed(model, key)
        sure = 0
        while sure < len(keys) and model.sure.get(keys[sure], 0) > self.wall_s:
            sure += 1
        assert hit.blocks >= sure, "within its time and with room, it was forgotten"
        return hit

    def load(self) -> None:
        space, chain = self.space(), self.chain()
        hit = self.found(space, chain)
        if hit.blocks == 0:
            return
        first = self.rng.choice([0, 0, self.rng.randrange(hit.blocks)])
        hit = hit[first : self.rng.choice([hit.blocks, self.rng.randrange(first, hit.blocks) + 1])]
        kv, keys = self.caches[space], keys_of(chain)[hit.start : hit.end]
        if self.rng.random() < 0.4:
            retain, got = None, load_into(kv, hit)
        else:
            retain = self.rng.choice([None, *TTL])
            got = load(kv, hit, retain=retain)
        self.note(f"loaded {hit.start}..{hit.end} {retain}: {got}")
        if got[0] < hit.blocks:
            assert not self.roomy and got[1] == "evicted", "what matched a moment ago loads"
        self.used(self.models[space], keys, retain)
        self.hits += hit.blocks

    def get(self) -> None:
        space = self.space()
        kv, model = self.caches[space], self.models[space]
        key = self.rng.choice(keys_of(self.chain()))
        warming = self.store.info().roots[0].warming  # by names alone no middle block is found
        answer = kv.get_blocking(key)
        self.note(f"{space} {key.hex()[:6]}: {answer}")
        if isinstance(answer, Miss):
            assert warming or model.sure.get(key, 0) <= self.wall_s, answer.reason
            return
        with answer:
            self.allowed(model, key)
            assert bytes(answer) == block_bytes(kv.layout, key), "wrong bytes"
        self.used(model, [key], None)

    def allowed(self, model: Model, key: bytes) -> None:
        assert key in model.may, "served, but never committed or deleted since"
        assert model.may[key] > self.wall_s, "served, but expired"

    def used(self, model: Model, keys: list[bytes], retain: str | None) -> None:
        model.renewed(keys, self.wall_s + (TTL[retain] if retain else LONGEST))
        if self.roomy:
            model.holds(keys, self.wall_s + (TTL[retain] if retain else SHORTEST))

    # ----------------------------------------------------------------------------------- choices

    def space(self) -> int:
        return self.rng.randrange(len(LAYOUTS))

    def retain(self) -> str:
        return self.rng.choice(list(TTL))

    def chain(self) -> Chain:
        whole = self.rng.choice(self.chains)
        blocks = self.rng.choice([self.rng.randint(1, CHAIN_BLOCKS), 5, GRID, CHAIN_BLOCKS])
        return Chain(whole.keys[: blocks * KEY_BYTES], BLOCK_TOKENS)

    def note(self, words: str) -> None:
        self.trail.append(f"    {words}")


def branches(base: int) -> list[Chain]:
    """A prompt, and others that leave it inside an extent, at its edge and behind it."""
    found = [tokens(base, CHAIN_BLOCKS)]
    for cut in (3, GRID, GRID + 4):
        found.append(tokens(base, cut) + tokens((base, cut), CHAIN_BLOCKS - cut))
    return [chain_of_tokens(ids, block_tokens=BLOCK_TOKENS) for ids in found]


def run_from(kv: Cache, chain: Chain, start: int) -> int:
    """How many blocks in a row are there, from `start` on."""
    keys = keys_of(chain)[start:]
    return next((i for i, key in enumerate(keys) if not kv.contains(key)), len(keys))


def keys_of(chain: Chain) -> list[bytes]:
    return [chain[i] for i in range(len(chain))]
