"""A root looked at again and again: what is new, what left and why, what was used.

Cheap: a look lists only the directories that changed since the last one, stats at most 5,000 of the
other files (in turn), and reads headers of new extents alone. On disk a last use is brought up to
date every min(ttl / 20, 10 min) only, so it is seen that late.
"""

import os
import time
from collections import Counter
from pathlib import Path

import msgspec

from kvstore import _core
from kvstore.removals import Removals, read_removals
from kvstore.survey.extents import (
    Extent,
    buckets,
    in_bucket,
    model_of,
    namespaces,
    open_root,
    with_headers,
)

UNTOLD = "not told yet"  # an owner writes the ring of removals within a minute
_STATS_PER_LOOK = 5000
_UNTOLD_MAX = 10_000
_SETTLED_S = 2.0  # a directory changed later than that may change again within the same mtime
_SECTOR = 512
_DISKSTATS = Path("/proc/diskstats")


class SpaceLook(msgspec.Struct, kw_only=True):
    """One namespace: what lies there, and since the last look what came, left and was used. Counts
    are of extents, but for new_blocks; bytes on disk."""

    model: str
    extents: int = 0
    bytes: int = 0
    new: int = 0
    new_blocks: int = 0
    new_bytes: int = 0
    removed: int = 0
    removed_bytes: int = 0
    used: int = 0


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """The whole traffic of the device below the root, whoever makes it. Bytes per second."""

    name: str
    read: float
    written: float


class Look(msgspec.Struct, kw_only=True):
    """One root. elapsed_s: since the last look, 0 in the first; rates are per second of that.
    removed: extents that left since the first look, by reason. device: None in the first look, and
    where the kernel does not tell."""

    root: str
    owner: str
    elapsed_s: float
    namespaces: dict[str, SpaceLook]
    written_bytes_per_s: float
    removed: dict[str, int]
    device: Device | None
    free_bytes: int
    file_system_bytes: int


class Watch:
    """Looks at one root. Keeps some 700 bytes for each of its extents."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._known: dict[str, Extent] = {}
        self._buckets: dict[str, set[str]] = {}
        self._settled: dict[str, int] = {}  # mtime of a bucket that need not be listed again
        self._turn: list[str] = []
        self._models: dict[str, str] = {}
        self._untold: list[tuple[Extent, float]] = []
        self._reasons: Counter[str] = Counter()
        self._removals: Removals | None = None
        self._ring_ns = 0
        self._last: tuple[float, float] | None = None  # monotonic and wall seconds
        self._sectors: tuple[str, int, int] | None = None

    def look(self) -> Look:
        """Looks now. Raises as `open_root`."""
        now_s, wall_s = time.monotonic(), time.time()
        elapsed_s = now_s - self._last[0] if self._last else 0.0
        fd = open_root(self._root)
        try:
            space = os.fstatvfs(fd)
            spaces = {name: SpaceLook(model=self._model(fd, name)) for name in namespaces(fd)}
            new, gone, used = self._changes(fd, list(spaces))
            used += self._used(fd)
            device = self._device(os.fstat(fd).st_dev, elapsed_s)
        finally:
            os.close(fd)
        if self._last:
            _count(spaces, list(with_headers(new)), gone, used)
            self._explain(gone, since_s=self._last[1])
        for extent in self._known.values():
            spaces[extent.namespace].extents += 1
            spaces[extent.namespace].bytes += extent.bytes
        self._last = (now_s, wall_s)
        written = sum(one.new_bytes for one in spaces.values())
        return Look(
            root=str(self._root),
            owner=_core.owner_of(os.fsencode(self._root)),
            elapsed_s=elapsed_s,
            namespaces=spaces,
            written_bytes_per_s=written / elapsed_s if elapsed_s else 0.0,
            removed=dict(self._reasons) | ({UNTOLD: len(self._untold)} if self._untold else {}),
            device=device,
            free_bytes=space.f_frsize * space.f_bavail,
            file_system_bytes=space.f_frsize * space.f_blocks,
        )

    def _model(self, root_fd: int, namespace: str) -> str:
        if not self._models.get(namespace):
            self._models[namespace] = model_of(root_fd, namespace)
        return self._models[namespace]

    def _changes(
        self, root_fd: int, spaces: list[str]
    ) -> tuple[list[Extent], list[Extent], list[Extent]]:
        """New, gone and used extents, of the directories that changed."""
        new, gone, used = [], [], []
        there = {one.path: one.stat for space in spaces for one in buckets(root_fd, space)}
        for path, stat in there.items():
            if self._settled.get(path) == stat.st_mtime_ns:
                continue
            if time.time() - stat.st_mtime > _SETTLED_S:
                self._settled[path] = stat.st_mtime_ns
            before = self._buckets.get(path, set())
            now = {extent.path: extent for extent in in_bucket(self._root, root_fd, path)}
            for name, extent in now.items():
                if name not in before:
                    new.append(extent)
                elif _times(extent) != _times(self._known[name]):
                    used.append(extent)
            gone += [self._known.pop(name) for name in before - now.keys()]
            self._known |= now
            self._buckets[path] = set(now)
        for path in self._buckets.keys() - there.keys():
            gone += [self._known.pop(name) for name in self._buckets.pop(path)]
            self._settled.pop(path, None)
        return new, gone, used

    def _used(self, root_fd: int) -> list[Extent]:
        """Of the next few files, in turn, those whose times moved on."""
        used = []
        self._turn = self._turn or list(self._known)
        turn, self._turn = self._turn[:_STATS_PER_LOOK], self._turn[_STATS_PER_LOOK:]
        for path in turn:
            known = self._known.get(path)
            if known is None:
                continue
            try:
                stat = os.stat(path, dir_fd=root_fd, follow_symlinks=False)
            except OSError:
                continue  # gone: its directory tells in the next look
            now = msgspec.structs.replace(
                known, last_use_s=int(stat.st_atime), valid_until_s=int(stat.st_mtime)
            )
            if _times(now) != _times(known):
                self._known[path] = now
                used.append(now)
        return used

    def _explain(self, gone: list[Extent], since_s: float) -> None:
        """Asks the ring of removals, also for those that it did not tell of before."""
        self._untold += [(extent, since_s) for extent in gone]
        if not self._untold:
            return
        removals = self._ring()
        untold = []
        for extent, since_s in self._untold:
            removal = removals.of(extent.namespace, bytes.fromhex(extent.key))
            if removal and removal.time_s >= since_s - _SETTLED_S:  # an older one is another story
                self._reasons[removal.reason] += 1
            else:
                untold.append((extent, since_s))
        self._untold = untold[-_UNTOLD_MAX:]

    def _ring(self) -> Removals:
        """What it says; read again only when its owner wrote it anew."""
        try:
            written_ns = (self._root / "removed.ring").lstat().st_mtime_ns
        except OSError:
            written_ns = 0
        if self._removals is None or written_ns != self._ring_ns:
            self._ring_ns, self._removals = written_ns, read_removals(self._root)
        return self._removals

    def _device(self, number: int, elapsed_s: float) -> Device | None:
        before, self._sectors = self._sectors, _sectors(number)
        if not (before and self._sectors and elapsed_s):
            return None
        name, read, written = self._sectors
        per_s = _SECTOR / elapsed_s
        return Device(
            name=name, read=(read - before[1]) * per_s, written=(written - before[2]) * per_s
        )


def _count(
    spaces: dict[str, SpaceLook], new: list[Extent], gone: list[Extent], used: list[Extent]
) -> None:
    for extent in new:
        space = spaces[extent.namespace]
        space.new += 1
        space.new_blocks += extent.blocks or 0
        space.new_bytes += extent.bytes
    for extent in gone:
        space = spaces.setdefault(extent.namespace, SpaceLook(model=""))
        space.removed += 1
        space.removed_bytes += extent.bytes
    for extent in used:
        spaces[extent.namespace].used += 1


def _times(extent: Extent) -> tuple[int, int]:
    return extent.last_use_s, extent.valid_until_s


def _sectors(number: int) -> tuple[str, int, int] | None:
    """The device's name, and sectors read and written since boot; None where nobody tells."""
    wanted = (str(os.major(number)), str(os.minor(number)))
    try:
        lines = _DISKSTATS.read_text().splitlines()
    except OSError:
        return None
    for words in map(str.split, lines):
        if tuple(words[:2]) == wanted and len(words) > 9:
            return words[2], int(words[5]), int(words[9])
    return None
