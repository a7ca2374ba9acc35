"""Sums of a root: of extents by namespace and class, and of bytes by directory."""

import os
import time
from pathlib import Path

import msgspec

from kvstore import _core, quarantine
from kvstore.removals import read_removals
from kvstore.survey.extents import (
    Extent,
    model_of,
    namespaces,
    open_root,
    quietly,
    survey,
    with_headers,
)

DEPTHS = (0, 1, 2)  # of `usage`: the root, what lies in it, what lies in that


class Space(msgspec.Struct, kw_only=True):
    """Sums of a namespace, a class, or all. oldest_use_s: of its least recently used extent, None
    when there is none. unreadable: extents whose header could not be read."""

    extents: int = 0
    blocks: int = 0
    tokens: int = 0
    bytes: int = 0
    expired: int = 0
    unreadable: int = 0
    oldest_use_s: int | None = None
    newest_use_s: int | None = None

    def add(self, extent: Extent, now_s: float) -> None:
        used_s = extent.last_use_s
        self.extents += 1
        self.blocks += extent.blocks or 0
        self.tokens += extent.tokens or 0
        self.bytes += extent.bytes
        self.expired += extent.expired(now_s)
        self.unreadable += bool(extent.trouble)
        self.oldest_use_s = used_s if self.oldest_use_s is None else min(self.oldest_use_s, used_s)
        self.newest_use_s = used_s if self.newest_use_s is None else max(self.newest_use_s, used_s)


class RootStat(msgspec.Struct, kw_only=True):
    """One root. owner: who has it open, "" when nobody does. models: name of each namespace's model
    where layout.json tells it. removed: blocks that left, by reason, as far as the ring of removals
    goes back."""

    root: str
    owner: str
    total: Space
    namespaces: dict[str, Space]
    classes: dict[str, Space]
    models: dict[str, str]
    removed: dict[str, int]
    quarantine_files: int
    quarantine_bytes: int
    file_system_bytes: int
    free_bytes: int


def root_stat(root: Path) -> RootStat:
    """Sums over all of it. Costs a read of 64 KiB per extent. Raises as `open_root`."""
    fd = open_root(root)
    try:
        space = os.fstatvfs(fd)
        names = namespaces(fd)
        aside = quietly(fd, quarantine.DIRECTORY)
        told = RootStat(
            root=str(root),
            owner=_core.owner_of(os.fsencode(root)),
            total=Space(),
            namespaces={name: Space() for name in names},
            classes={},
            models={name: model_of(fd, name) for name in names},
            removed=read_removals(root).by_reason(),
            quarantine_files=len(aside),
            quarantine_bytes=sum(entry.physical_bytes for entry in aside),
            file_system_bytes=space.f_frsize * space.f_blocks,
            free_bytes=space.f_frsize * space.f_bavail,
        )
    finally:
        os.close(fd)
    now_s = time.time()
    for extent in with_headers(survey(root)):
        told.total.add(extent, now_s)
        told.namespaces.setdefault(extent.namespace, Space()).add(extent, now_s)
        if extent.retention is not None:
            told.classes.setdefault(extent.retention, Space()).add(extent, now_s)
    return told


class Usage(msgspec.Struct, kw_only=True):
    """Bytes on disk of the files below a directory; directories themselves are not counted."""

    path: str
    bytes: int = 0
    files: int = 0


def usage(root: Path, depth: int = 1) -> list[Usage]:
    """What the directories of a root take, down to `depth`, each before what holds it: the root
    comes last. Costs a stat per file. Raises as `open_root`."""
    fd = open_root(root)
    try:
        below: list[Usage] = []
        whole = _usage(fd, root, ".", depth, below)
    finally:
        os.close(fd)
    return [*below, whole]


def _usage(root_fd: int, root: Path, path: str, depth: int, told: list[Usage]) -> Usage:
    here = Usage(path=str(root / quarantine.printable(path)))
    for entry in quietly(root_fd, path):
        if not entry.is_directory:
            here.bytes += entry.physical_bytes
            here.files += 1
            continue
        below = _usage(root_fd, root, entry.path, depth - 1, told)
        here.bytes += below.bytes
        here.files += below.files
        if depth > 0:
            told.append(below)
    return here


def usage_by_class(root: Path) -> list[Usage]:
    """The extents of each namespace by their class, as `<namespace> <class>`. Reads headers."""
    found: dict[tuple[str, str], Usage] = {}
    for extent in with_headers(survey(root)):
        retention = extent.retention if extent.retention is not None else "?"
        path = f"{root / extent.namespace} {retention}"
        one = found.setdefault((extent.namespace, retention), Usage(path=path))
        one.bytes += extent.bytes
        one.files += 1
    return [found[name] for name in sorted(found)]
