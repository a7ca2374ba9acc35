"""What a lookup answers, and the lease that protects it.

A Hit is plain data: it changes nothing, can be made again, slices, and travels with msgspec from a
scheduler process to its workers. A Lease is state: it keeps blocks from eviction until released.
"""

import msgspec

from kvstore import _core
from kvstore.chain import KEY_BYTES
from kvstore.layout import Layout


class Hit(msgspec.Struct, frozen=True, kw_only=True):
    """Blocks [start, start + blocks) of a chain that are resident.

    blocks: how many, from `start`. reason: why the hit ends before the chain does ("absent",
    "expired", "evicted", "pending", ...), None when it does not. keys: those of blocks 0 to the end
    of the hit, back to back. hit[a:b] slices by local block number.
    """

    namespace: str
    start: int
    blocks: int
    block_tokens: int
    reason: str | None
    keys: bytes

    @property
    def pending(self) -> bool:
        """Names are still being walked: `await kv.find(chain)` knows more."""
        return self.reason in ("pending", "warming")

    @property
    def end(self) -> int:
        """Absolute number of the first block after the hit."""
        return self.start + self.blocks

    @property
    def tokens(self) -> int:
        return self.blocks * self.block_tokens

    def of(self, layout: Layout) -> "Hit":
        """The same blocks in another layout's cache: `match(..., layouts=)` answered for all of
        them. ValueError when its blocks have another length."""
        if layout.block_tokens != self.block_tokens:
            raise ValueError(
                f"the hit has blocks of {self.block_tokens} tokens, the layout of"
                f" {layout.block_tokens}"
            )
        return msgspec.structs.replace(self, namespace=layout.namespace)

    def __len__(self) -> int:
        return self.blocks

    def __getitem__(self, blocks: slice) -> "Hit":
        if not isinstance(blocks, slice):
            raise TypeError("a hit takes slices of local block numbers, like hit[2:]")
        first, end, step = blocks.indices(self.blocks)
        if step != 1:
            raise ValueError("a hit is a run of blocks: no step")
        end = max(first, end)
        return msgspec.structs.replace(
            self,
            start=self.start + first,
            blocks=end - first,
            reason=self.reason if end == self.blocks else None,
            keys=self.keys[: (self.start + end) * KEY_BYTES],
        )


class Lease:
    """Keeps the blocks of a hit from eviction until `release` or its timeout. A context manager.

    Made by `Cache.lease`. The timeout counts from the last use. Costs a reference count, no fd.
    """

    def __init__(self, core: _core.Lease, hit: Hit, owner: str) -> None:
        self.core = core
        self.hit = hit
        self.owner = owner

    @property
    def alive(self) -> bool:
        """False once released, or when its timeout passed."""
        return self.core.alive()

    def release(self) -> None:
        """Idempotent. Loads that are running keep what they read."""
        self.core.release()

    def __enter__(self) -> "Lease":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
