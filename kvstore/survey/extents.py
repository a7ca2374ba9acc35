"""The extents of a root: their names and times, and what their headers say."""

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec

from kvstore.fsck.check import NotAStore
from kvstore.fsck.extent import Checker
from kvstore.fsck.namespace import is_bucket, is_namespace, key_of_name
from kvstore.fsck.quiet import Entry, entries, read_small

_OURS = {"root.json", "owner.lock", "removed.ring"}


class Extent(msgspec.Struct, frozen=True, kw_only=True):
    """One file under an extent's name. Times are seconds since 1970, bytes on disk.

    What the header says is None when it was not read, or cannot be: trouble then says why, in a
    word of `kvstore fsck`. blocks, tokens and start are of the blocks served under its name.
    start: number of the first one in its chain, None when it is not known. parent: key of the
    block before that one, None when there is none or it is not known.
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
    layers: int | None = None
    retention: str | None = None
    created_s: int | None = None
    ttl_s: int | None = None
    parent: str | None = None

    def expired(self, now_s: float) -> bool:
        return self.valid_until_s <= now_s


def open_root(root: Path) -> int:
    """A descriptor of it. FileNotFoundError or NotAStore, which say what to do, or OSError."""
    try:
        fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(f"{root} is not a directory; name one of a store's") from None
    try:
        found = entries(fd, ".")
        if not any(entry.name in _OURS or is_namespace(entry) for entry in found):
            raise NotAStore(
                f"{root} is no store: it has neither root.json nor a namespace;"
                " name a directory that a store was opened on"
            )
    except BaseException:
        os.close(fd)
        raise
    return fd


def namespaces(root_fd: int) -> list[str]:
    return [entry.name for entry in entries(root_fd, ".") if is_namespace(entry)]


def buckets(root_fd: int, namespace: str) -> list[Entry]:
    return [entry for entry in quietly(root_fd, namespace) if is_bucket(entry)]


def quietly(root_fd: int, path: str) -> list[Entry]:
    """What lies in a directory; those of others are passed by."""
    try:
        return entries(root_fd, path)
    except OSError:
        return []


def in_bucket(root: Path, root_fd: int, bucket: str) -> Iterator[Extent]:
    """The extents of `<namespace>/<bucket>`. Costs a stat each."""
    for entry in quietly(root_fd, bucket):
        key = key_of_name(entry.name)
        if key and entry.is_file:
            yield Extent(
                root=str(root),
                namespace=bucket.partition("/")[0],
                path=entry.path,
                key=key,
                bytes=entry.physical_bytes,
                last_use_s=int(entry.stat.st_atime),
                valid_until_s=int(entry.stat.st_mtime),
            )


def survey(root: Path) -> Iterator[Extent]:
    """Every extent below `root`, namespace by namespace, without headers. Costs a stat per file.

    Raises as `open_root`.
    """
    fd = open_root(root)
    try:
        for namespace in namespaces(fd):
            for bucket in buckets(fd, namespace):
                yield from in_bucket(root, fd, bucket.path)
    finally:
        os.close(fd)


def with_headers(extents: Iterable[Extent]) -> Iterator[Extent]:
    """The same with what their headers say; those that are gone by now are left out. Costs an open
    and a read of 64 KiB each."""
    return (extent for extent, _ in with_keys(extents))


def with_keys(extents: Iterable[Extent]) -> Iterator[tuple[Extent, bytes]]:
    """As `with_headers`, each with the keys of its blocks, back to back."""
    checker = Checker()
    fds: dict[str, int] = {}
    with ExitStack() as opened:
        for extent in extents:
            if extent.root not in fds:
                fds[extent.root] = os.open(extent.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                opened.callback(os.close, fds[extent.root])
            try:
                yield _read(extent, fds[extent.root], checker)
            except FileNotFoundError:
                continue
            except OSError as error:
                yield _troubled(extent, error.strerror or "unreadable"), b""


def _read(extent: Extent, root_fd: int, checker: Checker) -> tuple[Extent, bytes]:
    checked = checker.check(root_fd, extent.path, deep=False)
    header = checked.header
    if header is None or checked.trouble:
        return _troubled(extent, checked.trouble), b""
    key, keys = bytes.fromhex(extent.key), header["keys"]
    if header["fingerprint"].hex()[:32] != extent.namespace:
        return _troubled(extent, "namespace"), b""
    if key not in keys:
        return _troubled(extent, "misnamed"), b""
    at = keys.index(key)
    served = keys[at:]
    parent = header["parent"] if at == 0 else keys[at - 1]
    told = msgspec.structs.replace(
        extent,
        blocks=len(served),
        tokens=len(served) * header["block_tokens"],
        start=None if header["start"] is None else header["start"] + at,
        layers=len(header["cell_bytes"]),
        retention=_plain(header["class_name"]),
        created_s=header["created_s"],
        ttl_s=header["ttl_s"],
        parent=parent.hex() if parent and any(parent) else None,
        last_use_s=_last_use_s(extent, header["created_s"], header["ttl_s"]),
    )
    return told, b"".join(served)


def _last_use_s(extent: Extent, created_s: int, ttl_s: int) -> int:
    """As a store judges it: where atime was lost the renewal stands for it (docs/FORMAT.md)."""
    lost = extent.last_use_s < created_s or extent.last_use_s == extent.valid_until_s
    used_s = extent.valid_until_s - ttl_s if lost else extent.last_use_s
    return min(used_s, int(time.time()))


def _troubled(extent: Extent, trouble: str) -> Extent:
    return msgspec.structs.replace(extent, trouble=trouble)


def model_of(root_fd: int, namespace: str) -> str:
    """What layout.json says, else ""."""
    try:
        told = msgspec.json.decode(read_small(root_fd, f"{namespace}/layout.json") or b"")
    except msgspec.DecodeError:
        return ""
    return _plain(str(told.get("model", ""))) if isinstance(told, dict) else ""


def _plain(text: str) -> str:
    """For a terminal, whatever was written there."""
    return "".join(c if c.isprintable() else "?" for c in text)
