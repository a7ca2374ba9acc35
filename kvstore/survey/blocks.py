"""Where a block lies, what its chain is made of above and below it, and where it went.

A prefix of its key is enough. Reads every header of the roots: a block may lie in an extent that is
named by another one.
"""

import os
import re
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

import msgspec

from kvstore import quarantine
from kvstore.fsck.extent import Checker
from kvstore.fsck.quiet import Entry
from kvstore.removals import read_removals
from kvstore.survey.extents import (
    Extent,
    model_of,
    namespaces,
    open_root,
    quietly,
    survey,
    with_keys,
)

PREFIX_DIGITS = 8
TAG_DIGITS = 16  # the ring of removals knows no more of a key
_KEY_BYTES = 32

_Place = tuple[str, bytes]  # namespace and key
_Read = tuple[Extent, bytes]


class Block(msgspec.Struct, kw_only=True):
    """One block of one namespace. number: in its chain, None when it is not known. held: extents
    that hold it. above: those of the chain before it, the nearest first, as far as they are here.
    below: those that go on behind it. siblings: those that branch off before it."""

    key: str
    namespace: str
    model: str
    number: int | None
    held: list[Extent]
    above: list[Extent]
    below: list[Extent]
    siblings: list[Extent]


class Left(msgspec.Struct, frozen=True, kw_only=True):
    """A removal. reason and time_s as in `kvstore.removals`."""

    root: str
    namespace: str
    reason: str
    time_s: int


class Found(msgspec.Struct, kw_only=True):
    """What is known of a key. left, for blocks that are not here: it needs 16 digits of the key.
    quarantined: files that hold it, or are named by it."""

    asked: str
    blocks: list[Block]
    left: list[Left]
    quarantined: list[str]


def find_block(roots: Sequence[Path], asked: str) -> Found:
    """asked: the first 8 or more hex digits of a key. ValueError for others; raises as `open_root`.

    Costs a read of 64 KiB per extent, and 32 bytes of memory per block.
    """
    prefix = asked.lower()
    if not re.fullmatch(rf"[0-9a-f]{{{PREFIX_DIGITS},64}}", prefix):
        raise ValueError(
            f"{asked!r} is no key: give {PREFIX_DIGITS} to 64 of its hex digits,"
            " as `kvstore ls` shows them"
        )
    found = list(with_keys(chain.from_iterable(survey(root) for root in roots)))
    blocks = list(_blocks(found, prefix))
    here = {block.namespace for block in blocks}
    told = Found(asked=asked, blocks=blocks, left=[], quarantined=[])
    for root in roots:
        fd = open_root(root)
        try:
            names = namespaces(fd)
            for block in blocks:
                if block.namespace in names:
                    block.model = block.model or model_of(fd, block.namespace)
            told.left += _left(root, prefix, [name for name in names if name not in here])
            aside = (quarantine.printable(entry.path) for entry in _quarantined(fd, prefix))
            told.quarantined += [str(root / path) for path in aside]
        finally:
            os.close(fd)
    return told


def _keys(joined: bytes) -> Iterator[bytes]:
    return (joined[at : at + _KEY_BYTES] for at in range(0, len(joined), _KEY_BYTES))


def _blocks(found: Sequence[_Read], prefix: str) -> Iterator[Block]:
    holders: dict[_Place, list[tuple[Extent, list[bytes], int]]] = {}
    for extent, joined in found:
        for at, key in enumerate(_keys(joined)):
            if key.hex().startswith(prefix):
                place = (extent.namespace, key)
                holders.setdefault(place, []).append((extent, list(_keys(joined)), at))
    parents = _holders_of_parents(found) if holders else {}
    for (namespace, key), held in sorted(holders.items(), key=lambda item: item[0]):
        first, _, at = held[0]
        behind = {one.hex() for _, keys, at in held for one in keys[at:]}
        before = {one.hex() for _, keys, at in held for one in keys[:at]}
        before |= {extent.parent for extent, _, _ in held if extent.parent}
        paths = {(extent.root, extent.path) for extent, _, _ in held}
        others = [
            extent
            for extent, _ in found
            if extent.namespace == namespace and (extent.root, extent.path) not in paths
        ]
        yield Block(
            key=key.hex(),
            namespace=namespace,
            model="",
            number=None if first.start is None else first.start + at,
            held=[extent for extent, _, _ in held],
            above=_above(first, parents),
            below=[extent for extent in others if extent.parent in behind],
            siblings=[extent for extent in others if extent.parent in before],
        )


def _holders_of_parents(found: Sequence[_Read]) -> dict[_Place, Extent]:
    """An extent for each block that some other extent follows."""
    wanted = {(e.namespace, bytes.fromhex(e.parent)) for e, _ in found if e.parent}
    return {
        (extent.namespace, key): extent
        for extent, joined in found
        for key in _keys(joined)
        if (extent.namespace, key) in wanted
    }


def _above(extent: Extent, parents: dict[_Place, Extent]) -> list[Extent]:
    above: list[Extent] = []
    seen = {extent.key}
    while extent.parent:
        parent = parents.get((extent.namespace, bytes.fromhex(extent.parent)))
        if parent is None or parent.key in seen:
            break
        above.append(parent)
        seen.add(parent.key)
        extent = parent
    return above


def _left(root: Path, prefix: str, names: Sequence[str]) -> Iterator[Left]:
    if len(prefix) < TAG_DIGITS:
        return
    removals = read_removals(root)
    for name in names:
        removal = removals.of(name, bytes.fromhex(prefix[:TAG_DIGITS]))
        if removal:
            yield Left(root=str(root), namespace=name, reason=removal.reason, time_s=removal.time_s)


def _quarantined(root_fd: int, prefix: str) -> Iterator[Entry]:
    checker = Checker()
    for entry in quietly(root_fd, quarantine.DIRECTORY):
        if quarantine.key_of(entry.name).startswith(prefix):
            yield entry
            continue
        try:
            header = checker.check(root_fd, entry.path, deep=False).header or {"keys": []}
        except OSError:
            continue
        if any(key.hex().startswith(prefix) for key in header["keys"]):
            yield entry
