"""The two faces of kvstore behind one set of names, so that each deed is written once.

`Blocking` never suspends: its coroutines run on a thread of their own. `Loop` awaits.
"""

from __future__ import annotations

import asyncio
from typing import Any

from kvstore import Block, Cache, Chain, Hit, Layer, Load, Miss, Store, Writer

LONG_S = 100.0  # only a hang takes longer


class Blocking:
    async def find(self, kv: Cache, chain: Chain) -> Hit:
        return kv.find_blocking(chain)

    async def put(self, kv: Cache, key: bytes, data: bytes, *, retain: str) -> bool:
        return kv.put_blocking(key, data, retain=retain, timeout=LONG_S)

    async def get(self, kv: Cache, key: bytes) -> Block | Miss:
        return kv.get_blocking(key)

    async def delete(self, kv: Cache, key: bytes) -> int:
        return kv.delete_blocking(key, timeout=LONG_S)

    async def prefetch(self, kv: Cache, hit: Hit) -> int:
        return kv.prefetch_blocking(hit)

    async def finish(self, handle: Any) -> Any:
        return handle.wait(LONG_S)

    async def commit(self, writer: Writer) -> int:
        return writer.commit_blocking(LONG_S)

    async def layer(self, load: Load, index: int) -> Layer:
        return load.wait(index, timeout=LONG_S)

    async def drained(self, load: Load) -> None:
        if not load.wait_drained(LONG_S):
            raise TimeoutError("a load does not drain")

    async def flush(self, store: Store) -> None:
        store.flush_blocking(LONG_S)


class Loop:
    async def find(self, kv: Cache, chain: Chain) -> Hit:
        return await kv.find(chain)

    async def put(self, kv: Cache, key: bytes, data: bytes, *, retain: str) -> bool:
        return await kv.put(key, data, retain=retain, timeout=LONG_S)

    async def get(self, kv: Cache, key: bytes) -> Block | Miss:
        return await kv.get(key)

    async def delete(self, kv: Cache, key: bytes) -> int:
        return await kv.delete(key, timeout=LONG_S)

    async def prefetch(self, kv: Cache, hit: Hit) -> int:
        return await kv.prefetch(hit)

    async def finish(self, handle: Any) -> Any:
        return await handle.finish(LONG_S)

    async def commit(self, writer: Writer) -> int:
        return await writer.commit(LONG_S)

    async def layer(self, load: Load, index: int) -> Layer:
        return await load.layer(index, timeout=LONG_S)

    async def drained(self, load: Load) -> None:
        async def all_of_it() -> None:
            await load.drained

        await asyncio.wait_for(all_of_it(), LONG_S)

    async def flush(self, store: Store) -> None:
        await store.flush(LONG_S)


Face = Blocking | Loop
