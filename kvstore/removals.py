"""Why blocks left a root, and when: the ring of removals that its owner keeps (docs/FORMAT.md).

For tools: reads the file alone, of a root that is open or closed. An open store answers for a key
by itself, see Cache.removed.
"""

import os
from collections import Counter
from collections.abc import Mapping

import msgspec

from kvstore import _core
from kvstore.fsck.quiet import read_small

MAGIC = b"KVSREMOV"
HEAD_BYTES = ENTRY_BYTES = 24


class Removal(msgspec.Struct, frozen=True, kw_only=True):
    """reason: "evicted", "expired", "deleted" or "damaged"; "refused": it was offered and not
    stored. time_s: seconds since 1970."""

    reason: str
    time_s: int


class Removals:
    """The removals of one root, at most the last 5,460. The newest of a block counts."""

    def __init__(self, by_tag: Mapping[int, Removal]) -> None:
        self._by_tag = by_tag

    def __len__(self) -> int:
        return len(self._by_tag)

    def by_reason(self) -> dict[str, int]:
        """How many blocks left for each reason; what was refused never came."""
        left = Counter(removal.reason for removal in self._by_tag.values())
        return {reason: count for reason, count in left.most_common() if reason != "refused"}

    def of(self, namespace: str, key: bytes) -> Removal | None:
        """Of the block with this 32-byte key (its first 8 bytes do) in the layout with this
        `Layout.namespace`; None: not known. The block may have come back since."""
        tag = int.from_bytes(key[:8], "little") ^ _core.xxh3(namespace.encode())
        return self._by_tag.get(tag)


def read_removals(root: str | os.PathLike[str]) -> Removals:
    """What `<root>/removed.ring` says; nothing when there is none or it is not whole. An owner
    writes it within a minute of a removal and at close. Costs one read of 128 KiB.
    OSError when `root` is no directory."""
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        data = read_small(fd, "removed.ring") or b""
    finally:
        os.close(fd)
    count, checksum = (int.from_bytes(data[i : i + 8], "little") for i in (8, 16))
    entries = data[HEAD_BYTES : HEAD_BYTES + ENTRY_BYTES * count]
    whole = data[:8] == MAGIC and len(entries) == ENTRY_BYTES * count
    if not whole or _core.xxh3(entries) != checksum:
        return Removals({})
    by_tag: dict[int, Removal] = {}
    for at in range(0, len(entries), ENTRY_BYTES):
        tag, time_s = (int.from_bytes(entries[at + i : at + i + 8], "little") for i in (0, 8))
        reason = int.from_bytes(entries[at + 16 : at + 20], "little")
        by_tag.pop(tag, None)  # 0: the block came back
        if 0 < reason < len(_core.REASONS):
            by_tag[tag] = Removal(reason=_core.REASONS[reason], time_s=time_s)
    return Removals(by_tag)
