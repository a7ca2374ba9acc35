"""Requests answered by a real store: extents are written to disk, loaded, and every byte compared.

The bytes of a cell follow from its block's key and its layer, so nothing has to be remembered to
check them. One request at a time; the store's clock stands where the trace is, and housekeeping
runs once a request.
"""

import struct
from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from kvstore.cache import Cache
from kvstore.chain import KEY_BYTES, Chain
from kvstore.errors import KvstoreError
from kvstore.hit import Hit
from kvstore.layout import Layout
from kvstore.load import Layer
from kvstore.replay.request import Request
from kvstore.replay.simulated import FIRST_NS, Answer, Removed
from kvstore.store import Store, open_blocking
from kvstore.testing import Injection, VirtualClock

Bytes = npt.NDArray[np.uint8]

_STEP = np.uint64(0x9E3779B97F4A7C15)
_LAYERS, _PART_BYTES = 8, 64 << 10  # of the built-in layout: a block of 512 KiB


class WrongBytes(KvstoreError):
    """A load delivered something else than what was put. This is a bug of the store."""


class RealStats(msgspec.Struct, frozen=True, kw_only=True):
    """What moved. verified_bytes: of cells that were loaded, all of them compared."""

    verified_bytes: int
    disk_bytes: int
    ram_bytes: int
    written_bytes: int
    used_bytes: int


def small_layout(block_tokens: int, extent_blocks: int | None) -> Layout:
    """What is written when no layout is named."""
    return Layout(
        parts_by_layer=((("latent", _PART_BYTES),),) * _LAYERS,
        model="replay",
        block_tokens=block_tokens,
        extent_blocks=extent_blocks,
    )


class Real:
    """A store in `root`, open until `close`. A context manager."""

    def __init__(
        self,
        root: Path,
        layout: Layout,
        ttl: Mapping[str, int],
        *,
        capacity: int | None = None,
        pool: int | str = "256MB",
        admission: str = "always",
        write_budget: int | None = None,
    ) -> None:
        self._root, self._layout, self._ttl = root, layout, dict(ttl)
        self._capacity, self._pool = capacity, pool
        self._admission, self._write_budget = admission, write_budget
        self._clock = VirtualClock()
        self._started_ns = self._clock.now_ns - FIRST_NS
        self._verified = 0
        self._store = self._opened()

    def _opened(self) -> Store:
        return open_blocking(
            self._root,
            capacity=self._capacity,
            pool=self._pool,
            retention=self._ttl,
            default_class=next(iter(self._ttl)),
            admission=self._admission,
            write_budget=self._write_budget,
            _testing=Injection(clock=self._clock, manual_ticks=True),
        )

    def restart(self) -> None:
        """Closes the store and opens it again on what is on disk."""
        self._store.close_blocking()
        self._store = self._opened()

    def request(self, now_ns: int, request: Request, retain: str) -> Answer:
        """As `Simulated.request`. WrongBytes when a cell is not what was put."""
        ahead_ns = now_ns - (self._clock.now_ns - self._started_ns)
        if ahead_ns > 0:
            self._clock.core.advance(ahead_ns)
            self._store.tick()
        kv = self._store.cache(self._layout)
        chain = Chain(request.block_keys(), request.block_tokens)
        hit = kv.find_blocking(chain)
        blocks, from_ram, reason = 0, 0, hit.reason
        if hit:
            blocks, from_ram, reason = self._load(kv, hit, retain)
        stored = refused = 0
        if len(chain) > blocks:
            stored, refused = self._write(kv, chain, blocks, retain)
        dropped = len(chain) - blocks - stored - refused
        return Answer(blocks, from_ram, stored, dropped, refused, reason)

    def _load(self, kv: Cache, hit: Hit, retain: str) -> tuple[int, int, str | None]:
        """(good blocks, of them from memory, why not more); every cell of them was right."""
        blocks, reason = hit.blocks, hit.reason
        with kv.lease(hit, retain=retain) as lease, kv.load(lease) as load:
            for layer in load:
                if layer.blocks < blocks:
                    blocks, reason = layer.blocks, layer.reason
                self._verify(layer, hit)
            stats = load.stats()
        moved = max(1, stats.ram_bytes + stats.disk_bytes)
        return blocks, blocks * stats.ram_bytes // moved, reason

    def _verify(self, layer: Layer, hit: Hit) -> None:
        for span in layer.spans:
            end = span.first_block + span.blocks
            keys = hit.keys[span.first_block * KEY_BYTES : end * KEY_BYTES]
            wanted = cells_of(keys, layer.index, span.cells.shape[1])
            if not np.array_equal(wanted, span.cells):
                raise WrongBytes(
                    f"layer {layer.index} of blocks {span.first_block} to {end} is not what was"
                    " put under their keys"
                )
            self._verified += span.cells.nbytes

    def _write(self, kv: Cache, chain: Chain, start: int, retain: str) -> tuple[int, int]:
        """(blocks stored, blocks refused)"""
        with kv.writer(chain, start=start, retain=retain) as writer:
            wanted = writer.admitted
            keys = chain.keys[wanted.start * KEY_BYTES : wanted.stop * KEY_BYTES]
            for layer in range(self._layout.layers):
                sizes = [size for _, size in self._layout.parts_by_layer[layer]]
                if sizes and wanted:
                    cells = cells_of(keys, layer, sum(sizes))
                    ends = np.cumsum(sizes).tolist()
                    parts = [
                        cells[:, end - size : end] for end, size in zip(ends, sizes, strict=True)
                    ]
                    writer.put(layer, wanted, parts).wait()
            resident = writer.commit_blocking()
            stats = writer.stats()
        return max(0, resident - stats.blocks_skipped), stats.blocks_refused

    def removed(self) -> Removed:
        stats = self._store.stats()
        return Removed(
            evicted_extents=stats.evicted_extents,
            expired_extents=stats.expired_extents,
            evicted_blocks=None,
            expired_blocks=None,
            refused_blocks=stats.refused_blocks,
            evicted_before_ttl={
                name: of.evicted_before_ttl for name, of in stats.retention.items()
            },
            evicted_idle_s={},
        )

    def stats(self) -> RealStats:
        stats = self._store.stats()
        return RealStats(
            verified_bytes=self._verified,
            disk_bytes=stats.disk_bytes,
            ram_bytes=stats.ram_bytes,
            written_bytes=stats.written_bytes,
            used_bytes=self._store.info().roots[0].used_bytes,
        )

    def close(self) -> None:
        self._store.close_blocking()

    def __enter__(self) -> "Real":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def cells_of(keys: bytes, layer: int, cell_bytes: int) -> Bytes:
    """[blocks, cell_bytes]: what block `key` holds in `layer`, a function of these alone."""
    (salt,) = struct.unpack("=Q", struct.pack("=q", -1 - layer))
    words = np.frombuffer(keys, dtype=np.uint64).reshape(-1, KEY_BYTES // 8)
    seeds = (words[:, 0] ^ np.uint64(salt)) * _STEP + words[:, 1]
    ramp = np.arange(-(-cell_bytes // 8), dtype=np.uint64) * _STEP
    cells = (seeds[:, None] ^ (seeds[:, None] >> np.uint64(29))) + ramp[None, :]
    return np.ascontiguousarray(cells.view(np.uint8)[:, :cell_bytes])
