"""What a lane of a process does all day: one random deed after the other, every byte judged.

A deed that changes what must be there says so before it starts and again when it was acknowledged
(`tell`); the parent keeps the books (ledger.py), since this process may be killed between any two
instructions. Misses are values and counted; a wrong byte, or a kept block that was matched and is
then not given in a roomy store, is a `Lie`.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import kvstore
from kvstore import Cache, Chain, Hit, Layer, Load, Miss, Pages, Store
from tests.support.prompts import GRID
from tests.torture.faces import Face
from tests.torture.universe import (
    BLOCKS_MAX,
    BRIEF,
    CLASSES,
    LAYOUTS,
    block_of,
    cells_of,
    chain_of,
    kind_of,
    parts_of,
    private_number,
    split,
)

Tell = Callable[..., None]
WINDOW = 18  # kept prompts in play at a time
BRIEF_PROMPTS = 6
PRIVATE_PROMPTS = 4
SLOTS = 5  # processes at a time
# A load may be short for these at any time; what else shortens it has lost something.
MEANT = {"deadline", "pool", "cancelled", "closed"}


class Lie(AssertionError):
    """The store gave wrong bytes, or lost what nothing explains."""


@dataclass
class Counts:
    blocks: int = 0  # whose bytes were judged
    bytes: int = 0
    loads: int = 0
    short: Counter[str] = field(default_factory=Counter)  # reason -> loads


@dataclass(frozen=True)
class Scene:
    """What a lane needs to know of its round."""

    slot: int
    first: int  # kept prompt number of the window
    roomy: bool
    private: bool  # this lane writes and deletes the private prompts of its slot


class Lane:
    def __init__(
        self, store: Store, face: Face, rng: random.Random, tell: Tell, scene: Scene
    ) -> None:
        self.store, self.face, self.rng, self.tell, self.scene = store, face, rng, tell, scene
        self.caches = [store.cache(layout) for layout in LAYOUTS]
        self.counts = Counts()
        self.kept_views: list[tuple[int, Load, Any]] = []
        self.deeds: dict[Callable[[], Any], int] = {
            self.write: 7, self.decode: 2, self.put: 2, self.load: 8, self.load_into: 4,
            self.walk_away: 3, self.get: 3, self.prefetch: 1, self.flush: 1, self.drop_ram: 1,
            self.forget: 3 if scene.private else 0,
        }  # fmt: skip

    async def run(self, going: Callable[[], bool]) -> None:
        deeds, weights = list(self.deeds), list(self.deeds.values())
        while going():
            await self.rng.choices(deeds, weights)[0]()
            await asyncio.sleep(0)
        self.views_back()

    # ----------------------------------------------------------------------------- what to do

    def prompt(self) -> tuple[int, Cache, int, Chain]:
        """(space, its cache, number, chain) of one in play."""
        space = self.rng.randrange(len(LAYOUTS))
        number = self.scene.first + self.rng.randrange(WINDOW)
        if self.rng.random() < 0.1:
            number = BRIEF + self.rng.randrange(BRIEF_PROMPTS)
        elif self.scene.private and self.rng.random() < 0.25:
            number = private_number(self.scene.slot, self.rng.randrange(PRIVATE_PROMPTS))
        return space, self.caches[space], number, chain_of(number, self.length())

    def prompt_to_read(self) -> tuple[int, Cache, int, Chain]:
        """One in play, or one that another process writes and deletes."""
        space, kv, number, chain = self.prompt()
        if self.rng.random() < 0.15:
            number = private_number(self.rng.randrange(SLOTS), self.rng.randrange(PRIVATE_PROMPTS))
            chain = chain_of(number, len(chain))
        return space, kv, number, chain

    def length(self) -> int:
        whole = [1, GRID - 1, GRID, GRID + 1, 2 * GRID, BLOCKS_MAX]
        return self.rng.choice([*whole, self.rng.randint(1, BLOCKS_MAX)])

    def retain(self, number: int) -> str:
        return "brief" if kind_of(number) == "brief" else next(iter(CLASSES))

    # --------------------------------------------------------------------------------- writes

    async def write(self) -> None:
        """A prompt in pieces, layers and ranges in any order; some are never put, some dropped."""
        space, kv, number, chain = self.prompt()
        start = self.rng.choice([0, kv.match(chain).blocks])
        self.tell("putting", space, number, start, len(chain))
        with kv.writer(chain, start=start, retain=self.retain(number)) as writer:
            pieces = self.pieces(space, start, len(chain))
            if self.rng.random() < 0.1:
                del pieces[len(pieces) // 2 :]
            for layer, first, end in pieces:
                await self.put_piece(space, writer, layer, first, end)
            if self.rng.random() < 0.05:
                return
            stored = await self.face.commit(writer)
        self.tell("stored", space, number, start, stored)

    def pieces(self, space: int, start: int, end: int) -> list[tuple[int, int, int]]:
        pieces = []
        for layer, parts in enumerate(LAYOUTS[space].parts_by_layer):
            cuts = sorted({start, end, *(self.rng.randint(start, end) for _ in range(2))})
            pieces += [(layer, a, b) for a, b in zip(cuts, cuts[1:], strict=False) if parts]
        self.rng.shuffle(pieces)
        return pieces

    async def put_piece(self, space: int, writer: Any, layer: int, first: int, end: int) -> None:
        keys = split(writer.chain.keys)[first:end]
        handle = writer.put(layer, (first, end), parts_of(space, layer, keys))
        if self.rng.random() < 0.5:
            await self.face.finish(handle)

    async def decode(self) -> None:
        """A writer that is extended a few blocks at a time."""
        space, kv, number, chain = self.prompt()
        first = self.rng.randint(1, len(chain))
        self.tell("putting", space, number, 0, len(chain))
        with kv.writer(chain_of(number, first), retain=self.retain(number)) as writer:
            done = 0
            for end in sorted({first, *(self.rng.randint(first, len(chain)) for _ in range(3))}):
                if end > first:
                    writer.extend(chain_of(number, end))
                for layer, parts in enumerate(kv.layout.parts_by_layer):
                    if parts:
                        await self.put_piece(space, writer, layer, done, end)
                done = end
            stored = await self.face.commit(writer)
        self.tell("stored", space, number, 0, stored)

    async def put(self) -> None:
        space, kv, number, chain = self.prompt()
        at = self.rng.randrange(len(chain))
        self.tell("putting", space, number, at, at + 1)
        data = block_of(space, chain[at])
        if await self.face.put(kv, chain[at], data, retain=self.retain(number)):
            self.tell("stored", space, number, at, 1)

    async def forget(self) -> None:
        """Deletes a private prompt, key by key: every file that holds one is named by one."""
        space = self.rng.randrange(len(LAYOUTS))
        number = private_number(self.scene.slot, self.rng.randrange(PRIVATE_PROMPTS))
        self.tell("forgetting", space, number)
        for key in split(chain_of(number, BLOCKS_MAX).keys):
            await self.face.delete(self.caches[space], key)
        self.tell("forgot", space, number)

    async def flush(self) -> None:
        await self.face.flush(self.store)
        self.tell("flushed")

    async def drop_ram(self) -> None:
        self.store.drop_ram()

    # ---------------------------------------------------------------------------------- reads

    async def hit(self) -> tuple[int, Cache, int, Hit]:
        """(space, cache, number, what was found of a prompt, perhaps only a slice of it)."""
        space, kv, number, chain = self.prompt_to_read()
        hit = await self.face.find(kv, chain)
        if hit.blocks > 1 and self.rng.random() < 0.3:
            first = self.rng.randrange(hit.blocks)
            hit = hit[first : self.rng.randint(first + 1, hit.blocks)]
        return space, kv, number, hit

    async def load(self) -> None:
        """All layers through the pool; now and then the views of the last one are kept."""
        space, kv, number, hit = await self.hit()
        if not hit:
            return
        owner = self.rng.choice(["", "shared"])
        with kv.lease(hit, owner=owner) as lease:
            load = kv.load(lease)
            blocks, reason = hit.blocks, None
            for index in range(kv.layout.layers):
                layer = await self.face.layer(load, index)
                blocks, reason = self.judge(space, hit, layer, blocks), layer.reason
                if index + 1 < kv.layout.layers:
                    layer.release()
            self.ended(number, hit, blocks, reason)
            if self.rng.random() < 0.2 and len(self.kept_views) < 4:
                self.kept_views.append((space, load, (hit, layer)))
                return
            load.close()
        self.views_back()

    def judge(self, space: int, hit: Hit, layer: Layer, before: int) -> int:
        """Every byte of a delivered layer; its good blocks."""
        if layer.blocks > before:
            raise Lie(f"the good prefix grew from {before} to {layer.blocks} blocks")
        for span in layer.spans:
            keys = split(hit.keys)[span.first_block : span.first_block + span.blocks]
            self.same(space, layer.index, keys, span.cells)
        self.counts.blocks += layer.blocks if layer.index == 0 else 0
        return layer.blocks

    def same(self, space: int, layer: int, keys: list[bytes], given: Any) -> None:
        wanted = cells_of(space, layer, keys)
        self.counts.bytes += wanted.size
        if not np.array_equal(given, wanted):
            bad = [i for i in range(len(keys)) if not np.array_equal(given[i], wanted[i])]
            keys_of_bad = [keys[i].hex()[:8] for i in bad]
            raise Lie(f"wrong bytes: space {space} layer {layer} blocks {bad}: {keys_of_bad}")

    def ended(self, number: int, hit: Hit, blocks: int, reason: str | None) -> None:
        self.counts.loads += 1
        if reason is None:
            return
        self.counts.short[reason] += 1
        if self.scene.roomy and kind_of(number) == "kept" and reason not in MEANT:
            at = hit.start + blocks
            raise Lie(f"prompt {number} block {at} was found and then not given: {reason}")

    def views_back(self) -> None:
        """Views that were kept still hold what was delivered; then their memory goes back."""
        while self.kept_views:
            space, load, (hit, layer) = self.kept_views.pop()
            for span in layer.spans:
                keys = split(hit.keys)[span.first_block : span.first_block + span.blocks]
                self.same(space, layer.index, keys, span.cells)
            load.close()

    def memory_for(self, space: int, hit: Hit) -> list[dict[str, Any]]:
        """Caller memory: huge pages (direct reads) or small ones."""
        if space == 1 and self.rng.random() < 0.5:
            size = LAYOUTS[space].cell_bytes(0)
            rows = [kvstore.alloc(hit.blocks * size).reshape(-1, size) for _ in range(4)]
            return [{"latent": row[: hit.blocks]} for row in rows]
        return [
            {name: np.zeros((hit.blocks, size), dtype=np.uint8) for name, size in parts}
            for parts in LAYOUTS[space].parts_by_layer
        ]

    async def load_into(self) -> None:
        """Into caller memory, to the end or cancelled; after drained nobody writes there."""
        space, kv, number, hit = await self.hit()
        if not hit:
            return
        memory = self.memory_for(space, hit)
        keys = split(hit.keys)[hit.start :]
        stop_at = self.rng.choice([None, None, self.rng.randrange(kv.layout.layers)])
        with kv.load(hit, into=Pages(memory)) as load:
            if stop_at is None:
                last = await self.face.layer(load, kv.layout.layers - 1)
                blocks, reason = last.blocks, last.reason
            else:
                ready = await self.face.layer(load, stop_at)
                load.cancel()
                blocks, reason = ready.blocks, None
            await self.face.drained(load)
        upto = kv.layout.layers if stop_at is None else stop_at + 1
        before = [{name: array.copy() for name, array in layer.items()} for layer in memory]
        for index in range(upto):
            if kv.layout.parts_by_layer[index]:
                given = np.concatenate(list(memory[index].values()), axis=1)[:blocks]
                self.same(space, index, keys[:blocks], given)
        self.counts.blocks += blocks
        if stop_at is None:
            self.ended(number, hit, blocks, reason)
        await asyncio.sleep(0.002)
        for layer, copy in zip(memory, before, strict=True):
            for name, array in layer.items():
                if not np.array_equal(array, copy[name]):
                    raise Lie("caller memory changed after the load had drained")

    async def walk_away(self) -> None:
        """A load that nobody waits for: cancelled, closed early, or dropped."""
        _, kv, _, hit = await self.hit()
        if not hit:
            return
        load = kv.load(hit, deadline=self.rng.choice(["1ms", "5s"]))
        if self.rng.random() < 0.5:
            await self.face.layer(load, 0)
        end = self.rng.choice(["cancel", "close", "drop"])
        if end == "cancel":
            load.cancel()
        if end != "drop":
            load.close()

    async def get(self) -> None:
        space, kv, number, hit = await self.hit()
        if not hit:
            return
        key = split(hit.keys)[self.rng.randrange(hit.start, hit.end)]
        got = await self.face.get(kv, key)
        if isinstance(got, Miss):
            self.ended(number, hit, 0, got.reason)
            return
        with got:
            if got.data != block_of(space, key):
                raise Lie(f"get gave wrong bytes: space {space} {key.hex()[:8]}")
            self.counts.bytes += len(got.data)
            self.counts.blocks += 1

    async def prefetch(self) -> None:
        _, kv, _, hit = await self.hit()
        if hit:
            await self.face.prefetch(kv, hit)
