"""A root with a chain of three extents, one that branches off it, and another model. For tests."""

from pathlib import Path

from kvstore.chain import Chain
from kvstore.store import Store
from tests.support.prompts import GRID, put, small_layout, tokens
from tests.support.stores import opened, until

POOL = "16MB"
LAYOUT, OTHER = small_layout("desk"), small_layout("other")
BLOCKS, BRANCH_AT, BRANCH_BLOCKS = 2 * GRID + 8, GRID + 4, 12


def stem(store: Store) -> Chain:
    """Extents of blocks 0-15, 16-31 and 32-39."""
    return store.cache(LAYOUT).keys(tokens("stem", BLOCKS))


def branch(store: Store) -> Chain:
    """The same up to block 19, then blocks 20-31 of its own: one more extent."""
    ids = tokens("stem", BRANCH_AT) + tokens("branch", BRANCH_BLOCKS)
    return store.cache(LAYOUT).keys(ids)


def fill(root: Path) -> tuple[list[bytes], list[bytes]]:
    """The keys of stem and branch. The stem has class agent, the branch chat, as has one extent of
    4 blocks of the other model."""
    with opened(root, pool=POOL) as store:
        kv, other = store.cache(LAYOUT), store.cache(OTHER)
        chains = stem(store), branch(store)
        assert put(kv, chains[0], retain="agent") == BLOCKS
        assert put(kv, chains[1], start=BRANCH_AT, retain="chat") == BRANCH_BLOCKS
        assert put(other, other.keys(tokens("other", 4)), retain="chat") == 4
        for cache in (kv, other):
            until((root / cache.namespace / "layout.json").exists)
        return list(chains[0]), list(chains[1])
