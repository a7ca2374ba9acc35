"""After the storm: a new owner, alone, looks at everything.

kept      every sure block of a roomy store is there and exact; of any store, what is there is
          exact and what was forgotten is not there
disk      fsck finds nothing, and nobody who has the root open; used_bytes is what the files take;
          every file reads whole with the independent reader; nothing in quarantine, no temporary
          of a dead process
budget    used_bytes is within the capacity, and what was used last outlives what was not
leavings  no lease, no locked root, no region but those of the RAM tier
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kvstore import Cache, Hit, Store
from kvstore.cache import Miss
from kvstore.fsck.check import check
from kvstore.store import open_blocking
from tests.support.extent_reader import read_root
from tests.support.prompts import eventually, extent_files, physical_bytes
from tests.torture.crowd import Broken
from tests.torture.ledger import GONE, MAYBE, SURE, Ledger
from tests.torture.universe import (
    BLOCKS_MAX,
    CLASSES,
    LAYOUTS,
    block_of,
    cells_of,
    chain_of,
    parts_of,
    split,
)

TEMPORARY_LIFE_S = 3600
LATE_NUMBER = 900_000  # prompts that only this module writes
NEVER = 800_000  # prompts that nobody writes


@dataclass
class Found:
    blocks: int = 0  # looked at, each exact
    bytes: int = 0
    sure: int = 0  # acknowledged and not forgotten
    missing: int = 0  # of those


def need(condition: bool, what: str) -> None:
    if not condition:
        raise Broken(what)


def verify(root: Path, ledger: Ledger, capacity: int, *, roomy: bool) -> Found:
    check_offline(root)
    leave_temporary(root)
    with open_blocking(
        root,
        capacity=capacity,
        pool="16MB",
        reserve="64MB",
        retention=CLASSES,
        default_class="kept",
    ) as store:
        early = Found()
        first = next(iter(ledger.longest), None)
        if first:  # served while the scan still runs
            look_at_prompt(store, ledger, *first, early, roomy=roomy)
        eventually(lambda: not store.info().roots[0].warming, "the scan ends")
        check_disk(root, store, capacity)
        found = Found()
        for space, number in ledger.longest:
            look_at_prompt(store, ledger, space, number, found, roomy=roomy)
        need(not store.cache(LAYOUTS[0]).match(chain_of(NEVER, 3)), "what was never put is there")
        if not roomy:
            check_recency(root, store, capacity)
        check_leavings(store)
    read_root(root)
    return found


def look_at_prompt(
    store: Store, ledger: Ledger, space: int, number: int, found: Found, *, roomy: bool
) -> None:
    kv = store.cache(LAYOUTS[space])
    chain = chain_of(number, ledger.longest[space, number])
    hit = kv.find_blocking(chain)
    load_exact(kv, space, hit, found)
    for at, key in enumerate(split(chain.keys)):
        state = ledger.state.get((space, key))
        here = at < hit.blocks or get_exact(kv, space, key, found)
        what = f"space {space} prompt {number} block {at} ({key.hex()[:8]})"
        need(not (here and state == GONE), f"{what} was deleted and is there")
        need(not (here and state is None), f"{what} was never put and is there")
        found.sure += state == SURE
        found.missing += state == SURE and not here
        need(here or state in (MAYBE, GONE, None) or not roomy, f"{what} was acknowledged: lost")


def load_exact(kv: Cache, space: int, hit: Hit, found: Found) -> None:
    if not hit:
        return
    with kv.load(hit, deadline="120s") as load:
        for layer in load:
            need(layer.blocks == hit.blocks, f"a lone load is short: {layer.reason}")
            for span in layer.spans:
                keys = split(hit.keys)[span.first_block : span.first_block + span.blocks]
                same = (span.cells == cells_of(space, layer.index, keys)).all()
                need(bool(same), f"wrong bytes: space {space} layer {layer.index}")
                found.bytes += span.cells.size
    found.blocks += hit.blocks


def get_exact(kv: Cache, space: int, key: bytes, found: Found) -> bool:
    got = kv.get_blocking(key)
    if isinstance(got, Miss):
        return False
    with got:
        need(got.data == block_of(space, key), f"get gave wrong bytes: {key.hex()[:8]}")
        found.blocks += 1
        found.bytes += len(got.data)
    return True


# ------------------------------------------------------------------------------------- the disk


def check_offline(root: Path) -> None:
    """As the dead left it."""
    report = check(root, deep=True)
    need(not report.owner, f"all are dead, and yet the root is open in {report.owner}")
    need(not report.code, f"fsck: {[finding for finding in report.findings if finding.error]}")


def leave_temporary(root: Path) -> None:
    """What a process that died long ago would leave where there are no nameless files."""
    for namespace in namespaces(root):
        path = namespace / "tmp" / "kv-1-1-dead.tmp"
        path.parent.mkdir(mode=0o700, exist_ok=True)
        path.touch(mode=0o600)
        path.write_bytes(bytes(8192))
        long_ago = time.time() - 2 * TEMPORARY_LIFE_S
        os.utime(path, (long_ago, long_ago))


def namespaces(root: Path) -> Iterator[Path]:
    return (path for path in root.iterdir() if len(path.name) == 32)


def check_disk(root: Path, store: Store, capacity: int) -> None:
    def used() -> int:
        return store.info().roots[0].used_bytes

    eventually(lambda: used() <= capacity, "the budget holds, counting what peers wrote")
    eventually(lambda: used() == physical_bytes(root), "used bytes are what the files take")
    eventually(lambda: store.stats().extents == len(extent_files(root)), "every file is an extent")
    damaged = list(root.glob("quarantine/*"))
    need(not damaged, f"nothing was damaged, and yet in quarantine: {damaged}")
    left = [path for namespace in namespaces(root) for path in namespace.glob("tmp/*")]
    need(not left, f"temporaries of dead processes: {left}")


def check_leavings(store: Store) -> None:
    eventually(lambda: store.stats().leases == 0, "no lease is left")
    store.drop_ram()
    eventually(lambda: store.stats().regions == 0, "no region is left")


# ----------------------------------------------------------------------------------- the budget


def check_recency(root: Path, store: Store, capacity: int) -> None:
    """Used last, lives on: new prompts in half of the room push out others only."""
    kv, turn = store.cache(LAYOUTS[1]), time.time_ns()
    size = LAYOUTS[1].block_bytes * BLOCKS_MAX + 3 * 8192
    count = capacity // size // 3
    new = [chain_of(LATE_NUMBER + turn % 10_000 + i, BLOCKS_MAX) for i in range(2 * count)]
    used_last = new[:count]
    for chain in used_last:
        write(kv, chain)
    for chain in new[count:]:
        write(kv, chain)
        need(store.info().roots[0].used_bytes <= capacity, "the budget holds")
    for chain in used_last:
        need(kv.match(chain).blocks == BLOCKS_MAX, "what was used last is evicted before the old")
        load_exact(kv, 1, kv.match(chain), Found())
    eventually(
        lambda: store.info().roots[0].used_bytes == physical_bytes(root), "used bytes are on disk"
    )


def write(kv: Cache, chain: object) -> None:
    with kv.writer(chain) as writer:  # type: ignore[arg-type]
        keys = split(writer.chain.keys)
        for layer in range(kv.layout.layers):
            writer.put(layer, range(len(keys)), parts_of(1, layer, keys)).wait("60s")
        stored = writer.commit_blocking("60s")
    need(stored == len(keys), f"a lone writer stored {stored} of {len(keys)} blocks")
