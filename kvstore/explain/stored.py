"""What the roots of a store hold of a few chains, and what stands beside them. Seen from outside:
opens no store, changes nothing, works beside a live owner.

One pass over names and headers (`kvstore.survey`). Kept of it is what the chains asked for need, so
memory does not grow with the root, but for 32 bytes and a path per extent that follows another.

Invariant: a block counts as held only by an extent that would serve it: one whose name's key stands
at it or before it (docs/FORMAT.md, naming rules).
"""

import os
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from kvstore import quarantine
from kvstore.chain import KEY_BYTES, Chain
from kvstore.errors import LayoutWarning
from kvstore.extent_check import Checker
from kvstore.layout import Layout
from kvstore.removals import Removal, read_removals
from kvstore.survey import Extent, survey

HEADS_MAX = 256  # beginnings of other prompts that are looked at, the last used ones
FOLLOWED_MAX = 64  # extents whose ids are read behind a difference


class Moved(msgspec.Struct, frozen=True, kw_only=True):
    """A file in quarantine that held a block: its name there, when it was moved (0: unknown)."""

    name: str
    time_s: int


class Place(msgspec.Struct, frozen=True):
    """Block `number` of an extent."""

    extent: Extent
    number: int


class Ids(msgspec.Struct, frozen=True):
    """What the header of an extent keeps besides keys; None where it does not."""

    token_ids: npt.NDArray[np.int32] | None
    extras: bytes | None


class Space:
    """One namespace over all roots. layout: None when its layout.json cannot be read."""

    def __init__(self, name: str, layout: Layout | None) -> None:
        self.name = name
        self.layout = layout
        self.block_tokens = layout.block_tokens if layout else 0
        self.extents = 0
        self.wanted: dict[str, int] = {}
        self.places: dict[str, list[Place]] = {}
        self.beside: dict[str, list[Place]] = {}  # by the key before them: other goings-on
        self.heads: list[Place] = []
        self._followers: dict[bytes, tuple[str, str]] = {}

    def add(self, extent: Extent) -> None:
        assert extent.keys is not None
        self.extents += 1
        first = extent.keys.index(extent.key) if extent.key in extent.keys else 0
        before = extent.parent if extent.start != 0 else None
        if before:
            self._followers[bytes.fromhex(before)] = (extent.root, extent.path)
        for number, key in enumerate(extent.keys):
            place = Place(extent, number)
            if key in self.wanted:
                if number >= first:
                    self.places.setdefault(key, []).append(place)
            elif before in self.wanted:
                self.beside.setdefault(str(before), []).append(place)
            elif number == 0 and extent.start == 0:
                self._add_head(place)
            before = key

    def _add_head(self, place: Place) -> None:
        self.heads.append(place)
        if len(self.heads) >= 2 * HEADS_MAX:
            self.heads = newest(self.heads)[:HEADS_MAX]

    def follower(self, key: bytes) -> tuple[str, str] | None:
        """(root, path) of an extent that goes on after the block."""
        return self._followers.get(key)


class Roots:
    """Several roots, read once. wanted: the chains to look for, for a number of tokens a block."""

    def __init__(
        self, roots: Sequence[Path], wanted: Callable[[int], Sequence[Chain]], only: str | None
    ) -> None:
        self._checker = Checker()
        self.roots = list(roots)
        self.spaces: dict[str, Space] = {}
        self._removals = {root: read_removals(root) for root in roots}
        for root in roots:
            for extent in survey(root):
                if extent.keys:
                    self._space(extent, wanted).add(extent)
            for path in root.glob("*/layout.json"):
                self._named(path.parent.name, wanted)
        if only is not None:
            self._named(only, wanted)
        self._moved = self._quarantined()

    def _named(self, name: str, wanted: Callable[[int], Sequence[Chain]]) -> Space:
        if name not in self.spaces:
            self.spaces[name] = space = Space(name, layout_of(self.roots, name))
            _want(space, wanted)
        return self.spaces[name]

    def _space(self, extent: Extent, wanted: Callable[[int], Sequence[Chain]]) -> Space:
        space = self._named(extent.namespace, wanted)
        if not space.block_tokens and extent.keys and extent.tokens:
            space.block_tokens = extent.tokens // len(extent.keys)
            _want(space, wanted)
        return space

    def removal(self, space: Space, key: bytes) -> Removal | None:
        """Why the block left, the newest over all roots."""
        found = [ring.of(space.name, key) for ring in self._removals.values()]
        known = [one for one in found if one is not None]
        return max(known, key=lambda one: one.time_s) if known else None

    def moved(self, key: bytes) -> Moved | None:
        return self._moved.get(key.hex())

    def ids_of(self, extent: Extent) -> Ids:
        return self._header_ids(extent.root, extent.path)

    def ids_from(self, space: Space, place: Place) -> list[int] | None:
        """Token ids from the place on and of the extents behind, as far as they are kept and at
        most FOLLOWED_MAX extents; None when the first keeps none."""
        tokens = self.ids_of(place.extent).token_ids
        if tokens is None or not place.extent.keys:
            return None
        found: list[int] = tokens[place.number * space.block_tokens :].tolist()
        last = bytes.fromhex(place.extent.keys[-1])
        for _ in range(FOLLOWED_MAX):
            where = space.follower(last)
            if where is None:
                break
            header = self._header(*where)
            if header is None or header["token_ids"] is None or not header["keys"]:
                break
            found += np.frombuffer(header["token_ids"], np.int32).tolist()
            last = header["keys"][-1]
        return found

    def _header_ids(self, root: str, path: str) -> Ids:
        header = self._header(root, path)
        if header is None:
            return Ids(None, None)
        ids = header["token_ids"]
        return Ids(None if ids is None else np.frombuffer(ids, np.int32), header["extras"])

    def _header(self, root: str, path: str) -> dict[str, Any] | None:
        fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return self._checker.check(fd, path, deep=False).header
        except OSError:
            return None  # it went meanwhile
        finally:
            os.close(fd)

    def _quarantined(self) -> dict[str, Moved]:
        """By key in hex: of the name that a file had, and of its header where that is whole."""
        found: dict[str, Moved] = {}
        for root in self.roots:
            for name in _names(root):
                moved = Moved(name=quarantine.printable(name), time_s=quarantine.moved_at(name))
                header = self._header(str(root), f"{quarantine.DIRECTORY}/{name}")
                keys = [key.hex() for key in header["keys"]] if header else []
                for key in [*keys, name.removesuffix(".kv")[-2 * KEY_BYTES :]]:
                    found[key] = moved
        return found


def _want(space: Space, wanted: Callable[[int], Sequence[Chain]]) -> None:
    if space.block_tokens:
        for chain in wanted(space.block_tokens):
            space.wanted.update((key.hex(), number) for number, key in enumerate(chain))


def _names(root: Path) -> list[str]:
    try:
        return quarantine.names(root)
    except OSError:
        return []


def newest(places: Sequence[Place]) -> list[Place]:
    """The last used first."""
    return sorted(places, key=lambda place: -place.extent.last_use_s)


def layout_of(roots: Sequence[Path], namespace: str) -> Layout | None:
    """As its layout.json tells it, where that is what the directory is named after."""
    for root in roots:
        try:
            data = (root / namespace / "layout.json").read_bytes()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", LayoutWarning)
                found = msgspec.json.decode(data, type=Layout)
        except (OSError, msgspec.MsgspecError, ValueError):
            continue
        if found.namespace == namespace:
            return found
    return None
