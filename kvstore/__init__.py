"""kvstore: keeps the KV cache of prompt prefixes on SSD and streams it back layer by layer.

    async with kvstore.open("/nvme0/kv", capacity="2TB", pool="8GB") as store:
        kv = store.cache(layout)
        hit = kv.match(kv.keys(token_ids))
        async with kv.load(hit) as load:
            async for layer in load: ...

A cache may forget, it must never lie, and it must never hang: missing or damaged data is a miss
with a reason, exceptions are for misuse, a closed store and `open`.
"""

from kvstore.accounting import Ledger, Usage, money, ram_share_of, usage
from kvstore.block import Block, Miss
from kvstore.cache import Cache
from kvstore.chain import Chain
from kvstore.errors import (
    KvstoreError,
    LayoutWarning,
    OpenError,
    PoolTooSmall,
    StoreClosed,
    StoreForked,
)
from kvstore.hit import Hit, Lease
from kvstore.layout import Layout
from kvstore.load import Layer, Load, Span
from kvstore.memory import Pointer, alloc
from kvstore.pages import Pages
from kvstore.prices import PRICES, Price, price_of
from kvstore.report import BuildInfo, Info, Stats, build_info
from kvstore.store import Store, open, open_blocking
from kvstore.version import VERSION as __version__
from kvstore.writer import Writer

__all__ = [
    "PRICES",
    "Block",
    "Cache",
    "Chain",
    "Hit",
    "Info",
    "KvstoreError",
    "Layer",
    "Layout",
    "LayoutWarning",
    "Lease",
    "Ledger",
    "Load",
    "Miss",
    "OpenError",
    "Pages",
    "Pointer",
    "PoolTooSmall",
    "Price",
    "Span",
    "Stats",
    "Store",
    "StoreClosed",
    "StoreForked",
    "Usage",
    "Writer",
    "__version__",
    "alloc",
    "info",
    "money",
    "open",
    "open_blocking",
    "price_of",
    "ram_share_of",
    "usage",
]


def info() -> BuildInfo:
    """Facts of this build: version, how it reaches io_uring, Python, kernel."""
    return build_info(__version__)
