"""What lies in a root, seen from outside: for the commands stat, ls, show, du and top.

Reads names, times and headers by docs/FORMAT.md, beside a live store or without one. Opens no
store, takes no lock, changes nothing: last uses stay as they are.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from kvstore import _core
from kvstore.fsck.extent import Checker
from kvstore.fsck.namespace import is_bucket, is_namespace, key_of_name
from kvstore.fsck.quiet import Entry, entries


class Extent(msgspec.Struct, frozen=True, kw_only=True):
    """One file under an extent's name. Times are seconds since 1970, bytes on disk.

    The header's fields are None when it was not read (`survey(headers=False)`), or cannot be:
    trouble then says why, in a word of `kvstore fsck`.
    """

    root: str
    namespace: str
    path: str
    key: str
    bytes: int
    last_use_s: int
    valid_until_s: int
    trouble: str = ""
    blocks: int | None = None
    tokens: int | None = None
    start: int | None = None
    retention: str | None = None
    created_s: int | None = None
    ttl_s: int | None = None
    parent: str | None = None
    keys: list[str] | None = None

    def expired(self, now_s: float) -> bool:
        return self.valid_until_s <= now_s


def survey(root: Path, *, headers: bool = True) -> Iterator[Extent]:
    """Every extent below `root`, namespace by namespace. headers: read the first 64 KiB of each.

    Costs a stat per file, with headers an open and a read. What goes meanwhile is left out. OSError
    when the root itself cannot be listed.
    """
    checker = Checker() if headers else None
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for space in entries(fd, "."):
            if is_namespace(space):
                yield from _namespace(root, fd, space, checker)
    finally:
        os.close(fd)


def _namespace(root: Path, fd: int, space: Entry, checker: Checker | None) -> Iterator[Extent]:
    for bucket in _quietly(fd, space.path):
        if not is_bucket(bucket):
            continue
        for entry in _quietly(fd, bucket.path):
            key = key_of_name(entry.name)
            if key and entry.is_file:
                found = _extent(root, fd, space.name, entry, key, checker)
                if found:
                    yield found


def _quietly(fd: int, path: str) -> list[Entry]:
    """Directories of others are passed by."""
    try:
        return entries(fd, path)
    except OSError:
        return []


def _extent(
    root: Path, fd: int, namespace: str, entry: Entry, key: str, checker: Checker | None
) -> Extent | None:
    plain = Extent(
        root=str(root),
        namespace=namespace,
        path=entry.path,
        key=key,
        bytes=entry.physical_bytes,
        last_use_s=int(entry.stat.st_atime),
        valid_until_s=int(entry.stat.st_mtime),
    )
    if checker is None:
        return plain
    try:
        checked = checker.check(fd, entry.path, deep=False)
    except FileNotFoundError:
        return None
    except OSError as error:
        return msgspec.structs.replace(plain, trouble=error.strerror or "unreadable")
    header = checked.header
    if header is None or checked.trouble:
        return msgspec.structs.replace(plain, trouble=checked.trouble)
    return msgspec.structs.replace(
        plain,
        blocks=len(header["keys"]),
        tokens=len(header["keys"]) * header["block_tokens"],
        start=header["start"],
        retention=header["class_name"],
        created_s=header["created_s"],
        ttl_s=header["ttl_s"],
        parent=header["parent"].hex() if header["parent"] else None,
        keys=[one.hex() for one in header["keys"]],
    )


class Space(msgspec.Struct, kw_only=True):
    """Sums of a namespace, a class, or all. oldest_use_s: of its least recently used extent."""

    extents: int = 0
    blocks: int = 0
    tokens: int = 0
    bytes: int = 0
    expired: int = 0
    unreadable: int = 0
    oldest_use_s: int = 0
    newest_use_s: int = 0

    def add(self, extent: Extent, now_s: float) -> None:
        self.extents += 1
        self.blocks += extent.blocks or 0
        self.tokens += extent.tokens or 0
        self.bytes += extent.bytes
        self.expired += extent.expired(now_s)
        self.unreadable += bool(extent.trouble)
        self.oldest_use_s = min(self.oldest_use_s or extent.last_use_s, extent.last_use_s)
        self.newest_use_s = max(self.newest_use_s, extent.last_use_s)


class RootStat(msgspec.Struct, kw_only=True):
    """One root. owner: who has it open, "" when nobody does. models: name of each namespace's model
    where layout.json tells it."""

    root: str
    owner: str
    total: Space
    namespaces: dict[str, Space]
    classes: dict[str, Space]
    models: dict[str, str]
    quarantine_files: int
    quarantine_bytes: int
    file_system_bytes: int
    free_bytes: int


def root_stat(root: Path, *, headers: bool = True) -> RootStat:
    """Sums over `survey(root)`. Without headers classes, blocks and tokens are not known."""
    space = os.statvfs(root)
    now_s = time.time()
    told = RootStat(
        root=str(root),
        owner=_core.owner_of(os.fsencode(root)),
        total=Space(),
        namespaces={},
        classes={},
        models={},
        quarantine_files=0,
        quarantine_bytes=0,
        file_system_bytes=space.f_frsize * space.f_blocks,
        free_bytes=space.f_frsize * space.f_bavail,
    )
    for extent in survey(root, headers=headers):
        told.total.add(extent, now_s)
        told.namespaces.setdefault(extent.namespace, Space()).add(extent, now_s)
        if extent.retention is not None:
            told.classes.setdefault(extent.retention, Space()).add(extent, now_s)
    told.models = {name: model_of(root, name) for name in told.namespaces}
    for path in (root / "quarantine").glob("*"):
        told.quarantine_files += 1
        told.quarantine_bytes += path.lstat().st_blocks * 512
    return told


def model_of(root: Path, namespace: str) -> str:
    """What layout.json says, else ""."""
    try:
        told = msgspec.json.decode((root / namespace / "layout.json").read_bytes())
    except (OSError, msgspec.DecodeError):
        return ""
    return str(told.get("model", "")) if isinstance(told, dict) else ""
