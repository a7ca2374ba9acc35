"""Stores with little room, filled one full extent at a time, a second of driven time apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from kvstore.cache import Cache
from kvstore.chain import Chain
from kvstore.store import Store, open_blocking
from kvstore.testing import FaultDevice, FaultFiles, Injection, VirtualClock
from tests.support.prompts import GRID, extent_files, put, small_layout, tokens

LAYOUT = small_layout()


@contextmanager
def opened(
    root: Path,
    capacity: int,
    *,
    clock: VirtualClock | None = None,
    files: FaultFiles | None = None,
    device: FaultDevice | None = None,
    role: str = "owner",
    reserve: int | None = None,
) -> Iterator[Store]:
    injected = Injection(
        clock=clock or VirtualClock(), files=files, devices=(device,), manual_ticks=True
    )
    with open_blocking(
        root,
        capacity=capacity,
        pool="16MB",
        role=role,
        reserve=reserve,
        io_timeout="3650d",  # the clock jumps under real reads: they would look dead
        _testing=injected,
    ) as store:
        yield store


def chain_named(kv: Cache, name: object, blocks: int = GRID) -> Chain:
    return kv.keys(tokens(name, blocks))


def measure_full_extent(root: Path) -> int:
    """What one extent of GRID blocks takes on this disk; `root` is used up."""
    with opened(root, 1 << 30) as store:
        kv = store.cache(LAYOUT)
        put(kv, chain_named(kv, "measure"))
        (path,) = extent_files(root)  # not all of the root: a file of another kind may be replaced
        return path.stat().st_blocks * 512


def fill(kv: Cache, names: Sequence[object], clock: VirtualClock) -> list[Chain]:
    """One full extent each, a second apart."""
    chains = []
    for name in names:
        chains.append(chain_named(kv, name))
        assert put(kv, chains[-1]) == GRID
        clock.advance(1)
    return chains


def resident(kv: Cache, chains: Sequence[Chain]) -> list[int]:
    """Which of the chains are whole."""
    return [i for i, chain in enumerate(chains) if kv.match(chain).blocks == len(chain)]
