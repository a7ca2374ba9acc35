"""One namespace of a store: look up, lease, load, write. Every call exists async and blocking.

`match` and `contains` never wait and change nothing. A miss is a value: a shorter hit, a `Miss`, a
False; exceptions are for misuse and a closed store.
"""

import errno
import hashlib
import itertools
import os
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from kvstore import _core
from kvstore._loop import Handle
from kvstore.block import Block, Miss
from kvstore.chain import KEY_BYTES, Chain, Extra, chain_of_foreign, chain_of_tokens
from kvstore.hit import Hit, Lease
from kvstore.layout import Layout
from kvstore.load import Load
from kvstore.memory import rows_of
from kvstore.pages import Pages
from kvstore.removals import Removal
from kvstore.tracing import Spans, note_hit
from kvstore.units import parse_duration, timeout_ns
from kvstore.writer import Writer

if TYPE_CHECKING:
    from kvstore.store import Store

OWNER_BYTES_MAX = 48
LOAD_WORDS = {0: "load", _core.LOAD_BLOCK: "get", _core.LOAD_PREFETCH: "prefetch"}

Timeout = float | str | None


class Cache:
    """Blocks of one layout. Made by `Store.cache`; needs no closing of its own."""

    def __init__(self, store: "Store", layout: Layout) -> None:
        self.store = store
        self.layout = layout
        self.namespace = layout.namespace
        self._spans = Spans(store.tracer, self.namespace)
        self._owner_numbers = itertools.count()
        counts = [len(parts) for parts in layout.parts_by_layer]
        sizes = [size for parts in layout.parts_by_layer for _, size in parts]
        self.core = store.core.cache(
            fingerprint=layout.fingerprint,
            block_tokens=layout.block_tokens,
            extent_blocks=layout.blocks_per_extent,
            part_counts=struct.pack(f"={len(counts)}I", *counts),
            part_bytes=struct.pack(f"={len(sizes)}I", *sizes),
            description=layout.description.encode(),
        )

    # -------------------------------------------------------------------------------- chains

    def keys(self, token_ids: Any, *, salt: bytes = b"", extras: Sequence[Extra] = ()) -> Chain:
        """The chain of a prompt's whole blocks; see `kvstore.chain.chain_of_tokens`."""
        return chain_of_tokens(
            token_ids,
            block_tokens=self.layout.block_tokens,
            salt=salt,
            extras=extras,
            keep_token_ids=self.store.keeps_token_ids,
        )

    def wrap(self, keys: Sequence[bytes], *, salt: bytes = b"") -> Chain:
        """The chain of an engine's own block hashes (16 to 32 bytes each), from block 0."""
        return chain_of_foreign(keys, block_tokens=self.layout.block_tokens, salt=salt)

    # ------------------------------------------------------------------------------- look up

    def match(self, chain: Chain, *, layouts: Sequence[Layout] = ()) -> Hit:
        """The leading blocks that are resident, as far as is known without waiting.

        layouts: further layouts of this store that must hold them too; the minimum is answered.
        Makes no system call and changes nothing. `hit.pending`: ask `find`.
        """
        if not self._spans.on:
            return self._match_all(chain, layouts)
        with self._spans.call("match") as note:
            return note_hit(note, chain, self._match_all(chain, layouts))

    def _match_all(self, chain: Chain, layouts: Sequence[Layout]) -> Hit:
        hit = self._match(chain)
        for layout in layouts:
            other = self.store.cache(layout)._match(chain)
            if other.blocks < hit.blocks:
                shorter = hit[: other.blocks]
                hit = msgspec.structs.replace(shorter, reason=other.reason)
        return hit

    async def find(self, chain: Chain, *, timeout: Timeout = "30s") -> Hit:
        """`match`, after names were walked where the index does not know. When `timeout` passes
        first, what is known by then."""
        if not self._spans.on:
            return await self._find(chain, timeout)
        with self._spans.call("find") as note:
            return note_hit(note, chain, await self._find(chain, timeout))

    def find_blocking(self, chain: Chain, *, timeout: Timeout = "30s") -> Hit:
        """The same, blocking the thread without the GIL."""
        if not self._spans.on:
            return self._find_blocking(chain, timeout)
        with self._spans.call("find") as note:
            return note_hit(note, chain, self._find_blocking(chain, timeout))

    async def _find(self, chain: Chain, timeout: Timeout) -> Hit:
        hit = self._match(chain)
        if hit.pending:
            await self.store.bridges.wait(self.core.find(chain.keys), timeout_ns(timeout))
            hit = self._match(chain)
        return hit

    def _find_blocking(self, chain: Chain, timeout: Timeout) -> Hit:
        hit = self._match(chain)
        if hit.pending:
            self.core.find(chain.keys).wait(timeout_ns(timeout))
            hit = self._match(chain)
        return hit

    def contains(self, key: bytes) -> bool:
        """Whether the block is known to be resident. Makes no system call."""
        return self.core.contains(key)

    def removed(self, key: bytes) -> Removal | None:
        """Why and when a block that is not resident left; None: not known. Makes no system call."""
        found = self.core.removed(key)
        return Removal(reason=found[0], time_s=found[1]) if found else None

    def _match(self, chain: Chain) -> Hit:
        _check_type(chain, Chain, "keys() or wrap()")
        if chain.block_tokens != self.layout.block_tokens:
            raise ValueError(
                f"the chain has blocks of {chain.block_tokens} tokens, the layout of"
                f" {self.layout.block_tokens}"
            )
        blocks, reason = self.core.match(chain.keys)
        return Hit(
            namespace=self.namespace,
            start=0,
            blocks=blocks,
            block_tokens=chain.block_tokens,
            reason=reason,
            keys=chain.keys[: blocks * KEY_BYTES],
        )

    # ---------------------------------------------------------------------- leases and loads

    def lease(
        self,
        hit: Hit,
        *,
        owner: str = "",
        retain: str | None = None,
        timeout: float | str = "60s",
    ) -> Lease:
        """Protects the hit's blocks from eviction until released or `timeout` after the last use.

        Idempotent per owner ("" makes a new one). retain: class to renew with when a load starts;
        None: each extent's own. ValueError for an empty hit or one of another namespace.
        """
        _check_type(hit, Hit, "match() or find()")
        if hit.namespace != self.namespace:
            raise ValueError(f"the hit is of namespace {hit.namespace}, this is {self.namespace}")
        if hit.blocks == 0:
            raise ValueError("the hit is empty: there is nothing to lease")
        owner = owner or f"{os.getpid()}-{next(self._owner_numbers)}"
        core = self.core.lease(
            hit.keys,
            hit.start,
            hit.end,
            _owner_bytes(owner),
            self.store.class_number(retain, otherwise=-1),
            parse_duration(timeout, "timeout"),
        )
        return Lease(core, hit, owner)

    def load(
        self, what: Lease | Hit, *, into: Pages | None = None, deadline: float | str = "30s"
    ) -> Load:
        """Starts reading the blocks of a lease (or of a hit, leasing it itself); returns at once.

        into: caller memory; None: pool memory, shown as views. A passed deadline ends the load with
        reason "deadline". PoolTooSmall: one layer does not fit the pool.
        """
        return self._load(what, into=into, deadline=deadline, flags=0)

    async def prefetch(self, hit: Hit, *, deadline: float | str = "30s") -> int:
        """Reads a hit into the RAM tier; the number of leading blocks that are there now.

        Cancelling it ends it; what was read stays.
        """
        with self._load(hit, into=None, deadline=deadline, flags=_core.LOAD_PREFETCH) as load:
            return (await load.layer(self.layout.layers - 1)).blocks

    def prefetch_blocking(self, hit: Hit, *, deadline: float | str = "30s") -> int:
        """The same, blocking the thread without the GIL."""
        with self._load(hit, into=None, deadline=deadline, flags=_core.LOAD_PREFETCH) as load:
            return load.wait(self.layout.layers - 1).blocks

    def _load(
        self, what: Lease | Hit, *, into: Pages | None, deadline: float | str, flags: int
    ) -> Load:
        self.store.log_events()
        lease = what if isinstance(what, Lease) else self.lease(what)
        return Load(
            lease,
            self.layout,
            self.store.bridges,
            into=into,
            flags=flags,
            deadline_ns=parse_duration(deadline, "deadline"),
            owns_lease=lease is not what,
            span=self._spans.load(LOAD_WORDS[flags]),
        )

    # --------------------------------------------------------------------------------- write

    def writer(self, chain: Chain, *, start: int = 0, retain: str | None = None) -> Writer:
        """Writes blocks [start, len(chain)); resident ones are skipped.

        retain: retention class; None: the default of the store. ValueError: `start` is not within
        the chain.
        """
        _check_type(chain, Chain, "keys() or wrap()")
        if not 0 <= start <= len(chain):
            raise ValueError(f"start {start} is not within the chain of {len(chain)} blocks")
        self.store.log_events()
        return Writer(
            self.core,
            self.layout,
            self.store.bridges,
            chain,
            start=start,
            retention=self.store.class_number(retain, otherwise=self.store.default_class),
            keeps_token_ids=self.store.keeps_token_ids,
            spans=self._spans,
        )

    # -------------------------------------------------------------------------- single blocks

    async def put(
        self, key: bytes, buffer: Any, *, retain: str | None = None, timeout: Timeout = "30s"
    ) -> bool:
        """Stores one block: all cells in layer order, parts in layout order, back to back.

        False when it was not stored (no room, device trouble, not within `timeout`). The buffer may
        be reused when this returns True; otherwise the store keeps it until it is done with it.
        """
        with self._spans.call("put") as note:
            handle = self._put(key, buffer, retain)
            in_time = await self.store.bridges.wait(handle.ticket, timeout_ns(timeout))
            stored = in_time and handle.wait() == 1
            note(blocks=int(stored))
            return stored

    def put_blocking(
        self, key: bytes, buffer: Any, *, retain: str | None = None, timeout: Timeout = "30s"
    ) -> bool:
        """The same, blocking the thread without the GIL."""
        with self._spans.call("put") as note:
            handle = self._put(key, buffer, retain)
            stored = handle.ticket.wait(timeout_ns(timeout)) and handle.wait() == 1
            note(blocks=int(stored))
            return stored

    async def get(self, key: bytes, *, deadline: float | str = "30s") -> Block | Miss:
        """One whole block as a pool view, or why there is none. Release the block when done.

        Miss("pool"): the pool has no room for it now. PoolTooSmall: it never will.
        """
        load = self._get(key, deadline)
        if isinstance(load, Miss):
            return load
        try:
            return self._block_of(load, (await load.layer(self.layout.layers - 1)).reason)
        except BaseException:
            load.close()
            raise

    def get_blocking(self, key: bytes, *, deadline: float | str = "30s") -> Block | Miss:
        """The same, blocking the thread without the GIL."""
        load = self._get(key, deadline)
        if isinstance(load, Miss):
            return load
        try:
            return self._block_of(load, load.wait(self.layout.layers - 1).reason)
        except BaseException:
            load.close()
            raise

    async def delete(self, key: bytes, *, timeout: Timeout = "30s") -> int:
        """Forgets every extent that holds the key; how many. TimeoutError: not yet, it goes on.

        OSError: a root that is down, or could not be looked through, may hold it still.
        """
        return await self._delete(key).finish(timeout)

    def delete_blocking(self, key: bytes, *, timeout: Timeout = "30s") -> int:
        """The same, blocking the thread without the GIL."""
        return self._delete(key).wait(timeout)

    def _put(self, key: bytes, buffer: Any, retain: str | None) -> Handle[int]:
        _check_key(key)
        row = rows_of(buffer, self.layout.block_bytes, writable=False, what="the block")
        if row.count != 1:
            raise ValueError(f"a block has {self.layout.block_bytes} bytes, not {row.count} times")
        retention = self.store.class_number(retain, otherwise=self.store.default_class)
        writer = self.core.writer(key, 0, retention, _core.WRITER_SINGLE, None, None)
        address = row.address
        for layer, parts in enumerate(self.layout.parts_by_layer):
            if parts:
                writer.put(layer, 0, 1, _cell_sources(address, parts), row)
                address += self.layout.cell_bytes(layer)
        return Handle(self.store.bridges, writer.commit(), "put", int)

    def _get(self, key: bytes, deadline: float | str) -> Load | Miss:
        _check_key(key)
        hit = Hit(
            namespace=self.namespace,
            start=0,
            blocks=1,
            block_tokens=self.layout.block_tokens,
            reason=None,
            keys=key,
        )
        try:
            return self._load(hit, into=None, deadline=deadline, flags=_core.LOAD_BLOCK)
        except OSError as error:
            if error.errno != errno.ENOBUFS:
                raise
            return Miss("pool")

    def _block_of(self, load: Load, reason: str | None) -> Block | Miss:
        if reason is None:
            return Block(load)
        load.close()
        return Miss(reason)

    def _delete(self, key: bytes) -> Handle[int]:
        return Handle(self.store.bridges, self.core.delete(key), "delete", int)


def _owner_bytes(owner: str) -> bytes:
    """The core keeps a short text; a longer name is told apart by its hash."""
    name = owner.encode()
    if len(name) <= OWNER_BYTES_MAX and b"\0" not in name:
        return name
    return hashlib.sha256(name).hexdigest()[:OWNER_BYTES_MAX].encode()


def _check_type(given: object, kind: type, maker: str) -> None:
    if not isinstance(given, kind):
        raise TypeError(
            f"this takes a {kind.__name__}, as {maker} gives it, not {type(given).__name__}"
        )


def _check_key(key: bytes) -> None:
    if not isinstance(key, bytes) or len(key) != KEY_BYTES:
        raise ValueError(f"a key is {KEY_BYTES} bytes, as chain[i] gives it, not {key!r}")


def _cell_sources(address: int, parts: Sequence[tuple[str, int]]) -> bytes:
    """The parts of one cell, back to back from `address`, as packed sources."""
    packed = bytearray()
    for _, part_bytes in parts:
        packed += struct.pack("=QQ", address, part_bytes)
        address += part_bytes
    return bytes(packed)
