"""One root, several processes' stores: what the others wrote, deleted or replaced is taken in.

Owner and peers are stores of one process here, each on a clock that the test drives. With processes
that are killed: tests/torture.
"""

from contextlib import ExitStack
from pathlib import Path

import pytest

from kvstore.store import Store
from kvstore.testing import VirtualClock
from tests.support.prompts import (
    assert_whole,
    eventually,
    extent_files,
    load,
    physical_bytes,
    put,
    tokens,
)
from tests.support.tight import LAYOUT, chain_named, fill, measure_full_extent, opened

LOOK_S = 11  # a little more than the time between two looks at what others did
ROOMY = 1 << 30


@pytest.fixture(scope="session")
def full_extent_bytes(tmp_path_factory: pytest.TempPathFactory) -> int:
    """What one extent of GRID blocks takes on this disk."""
    return measure_full_extent(tmp_path_factory.mktemp("measure"))


class Pair:
    """An owner and a peer of one root."""

    def __init__(self, stack: ExitStack, root: Path, capacity: int = ROOMY) -> None:
        self.clocks = [VirtualClock(), VirtualClock()]
        self.owner: Store = stack.enter_context(opened(root, capacity, clock=self.clocks[0]))
        self.peer: Store = stack.enter_context(
            opened(root, capacity, clock=self.clocks[1], role="peer")
        )
        self.owner_kv, self.peer_kv = (store.cache(LAYOUT) for store in (self.owner, self.peer))
        eventually(lambda: not self.owner.info().roots[0].warming, "the scan ended")

    def look(self) -> None:
        """Both look at what the other did, a little later."""
        for clock, store in zip(self.clocks, (self.owner, self.peer), strict=True):
            clock.advance(LOOK_S)
            store.tick()

    def used(self) -> int:
        return self.owner.info().roots[0].used_bytes


def test_the_budget_holds_when_only_peers_write(tmp_path: Path, full_extent_bytes: int) -> None:
    """It was found by torture: an owner made room for its own puts only."""
    with ExitStack() as stack:
        pair = Pair(stack, tmp_path, 4 * full_extent_bytes)
        fill(pair.peer_kv, range(9), pair.clocks[1])
        eventually(lambda: physical_bytes(tmp_path) == 9 * full_extent_bytes, "all are there")
        pair.look()
        eventually(lambda: len(extent_files(tmp_path)) == 4, "the owner made room")
        pair.look()
        eventually(lambda: physical_bytes(tmp_path) == pair.used(), "and all of it is free")
        assert pair.used() == 4 * full_extent_bytes


def test_a_file_that_the_owner_evicted_does_not_live_on_in_a_peer(
    tmp_path: Path, full_extent_bytes: int
) -> None:
    """It was found by soak: a peer kept what it had once read open, unlinked, uncounted."""
    with ExitStack() as stack:
        pair = Pair(stack, tmp_path, 4 * full_extent_bytes)
        old = fill(pair.owner_kv, range(4), pair.clocks[0])
        for chain in old:
            assert_whole(pair.peer_kv, chain)
        fill(pair.owner_kv, "abcd", pair.clocks[0])
        eventually(
            lambda: physical_bytes(tmp_path) == 8 * full_extent_bytes, "the peer has them open"
        )
        pair.look()
        eventually(lambda: physical_bytes(tmp_path) == pair.used(), "the peer let go of them")
        assert [pair.peer_kv.find_blocking(chain).blocks for chain in old] == [0] * 4


@pytest.mark.parametrize("blocks", [9, 6, 4], ids=["longer", "same length", "shorter"])
@pytest.mark.parametrize("open_before", [False, True], ids=["not open", "open"])
def test_a_file_that_another_process_replaced_is_no_damage(
    tmp_path: Path, blocks: int, open_before: bool
) -> None:
    """The name is the same, the file is new: the record of the old one goes, nothing else does."""
    with ExitStack() as stack:
        pair = Pair(stack, tmp_path)
        first = chain_named(pair.owner_kv, "one", 6)
        assert put(pair.owner_kv, first) == 6
        if open_before:
            pair.owner.drop_ram()
            assert load(pair.owner_kv, pair.owner_kv.match(first)) == (6, None)
        assert pair.peer_kv.find_blocking(first).blocks == 6
        assert pair.peer_kv.delete_blocking(first[0]) == 1
        second = pair.owner_kv.keys(tokens("one", 4) + [7] * 4 * (blocks - 4))
        assert put(pair.peer_kv, second) == blocks
        pair.owner.drop_ram()
        pair.look()
        load(pair.owner_kv, pair.owner_kv.match(first))
        eventually(lambda: physical_bytes(tmp_path) == pair.used(), "each file counts once")
        eventually(
            lambda: pair.owner_kv.match(second).blocks == blocks, "the owner knows the new file"
        )
        assert_whole(pair.owner_kv, second)
        assert_whole(pair.peer_kv, second)
        assert pair.owner.stats().quarantined_extents == 0
