"""Requests answered by the core's index, recency and times to live, without devices.

Nothing is decided here: what is resident, what leaves and when is `csrc/replay.c`, which is the
store's own code over a file system that holds nothing.
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from kvstore import _core
from kvstore.layout import Layout
from kvstore.replay.request import Request
from kvstore.report import refused_by_name

UNLIMITED = 2**62
FIRST_NS = 10**9  # the clock of a replay starts here


@dataclass(frozen=True, slots=True)
class Answer:
    """Leading blocks that were there, of them those from memory; and of the others what was stored,
    found no room, and was refused by admission or the write budget."""

    hit_blocks: int
    ram_blocks: int
    stored_blocks: int
    dropped_blocks: int
    refused_blocks: int
    reason: str | None


class Removed(msgspec.Struct, frozen=True, kw_only=True):
    """What left, by reason. before_ttl: extents of the class that were evicted before their time.
    Blocks are None where only extents are counted. refused_blocks: never came, by why."""

    evicted_extents: int
    expired_extents: int
    evicted_blocks: int | None
    expired_blocks: int | None
    refused_blocks: dict[str, int]
    evicted_before_ttl: dict[str, int]
    evicted_idle_s: dict[str, dict[str, float]]


class Cache(Protocol):
    """What answers requests: simulated or real."""

    def request(self, now_ns: int, request: Request, retain: str) -> Answer: ...

    def removed(self) -> Removed: ...


class Simulated:
    """A store of one root. charges: what an extent of 1, 2, ... blocks takes of the capacity.
    admission and write_budget as of `open`; block_bytes: what of the budget a block takes."""

    def __init__(
        self,
        ttl_s: Mapping[str, int],
        charges: Sequence[int],
        capacity: int | None,
        *,
        admission: str = "always",
        write_budget: int | None = None,
        block_bytes: int = 0,
    ) -> None:
        self._classes = list(ttl_s)
        self._core = _core.Replay(
            [(name.encode(), seconds) for name, seconds in ttl_s.items()],
            struct.pack(f"={len(charges)}Q", *charges),
            UNLIMITED if capacity is None else capacity,
            _core.ADMISSIONS[admission],
            write_budget or 0,
            block_bytes,
        )

    def request(self, now_ns: int, request: Request, retain: str) -> Answer:
        """Loads what is there of the first blocks, then puts what is missing."""
        hit, reason, stored, dropped, refused = self._core.request(
            now_ns, request.block_keys(), self._classes.index(retain)
        )
        return Answer(hit, 0, stored, dropped, refused, reason)

    def removed(self) -> Removed:
        raw = self._core.report()
        early, idle = raw["stats"]["evicted_before_ttl"], raw["evicted_idle"]
        return Removed(
            evicted_extents=raw["stats"]["evicted_extents"],
            expired_extents=raw["stats"]["expired_extents"],
            evicted_blocks=raw["evicted_blocks"],
            expired_blocks=raw["expired_blocks"],
            refused_blocks=refused_by_name(raw["stats"]["refused_blocks"]),
            evicted_before_ttl={name: early[i] for i, name in enumerate(self._classes)},
            evicted_idle_s={
                name: quantiles
                for i, name in enumerate(self._classes)
                if (quantiles := _age_quantiles(idle[i]))
            },
        )


def block_charges(extent_blocks: int) -> list[int]:
    """A capacity in blocks: an extent takes as many as it has."""
    return list(range(1, extent_blocks + 1))


def file_charges(layout: Layout) -> list[int]:
    """A capacity in bytes: an extent takes the length of its file."""
    cells = struct.pack(f"={layout.layers}I", *map(layout.cell_bytes, range(layout.layers)))
    extents = range(1, layout.blocks_per_extent + 1)
    return [_core.extent_file_bytes(cells, blocks) for blocks in extents]


def _age_quantiles(counts: Sequence[int]) -> dict[str, float]:
    """p10, p50 and p90 by bucket, to an eighth of an octave; {} when nothing was evicted."""
    total, found = sum(counts), dict[str, float]()
    seen = 0
    for age, count in zip(_core.AGE_BUCKETS, counts, strict=True):
        seen += count
        for name, share in (("p10", 0.1), ("p50", 0.5), ("p90", 0.9)):
            if count and seen >= share * total:
                found.setdefault(name, float(age))
    return found
