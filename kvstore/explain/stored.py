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
from kvstore.fsck.extent import Checker
from kvstore.layout import Layout
from kvstore.removals import Removal, read_removals
from kvstore.survey.extents import Extent, survey, with_keys

HEADS_MAX = 256  # beginnings of other prompts that are looked at, the last used ones
FOLLOWED_MAX = 64  # extents whose ids are read behind a difference


class Moved(msgspec.Struct, frozen=True, kw_only=True):
    """A file in quarantine that held a block: its name there, when it was moved (0: unknown)."""

    name: str
    time_s: int


class Place(msgspec.Struct, frozen=True):
    """Block `number` of those that an extent serves under its name."""

    extent: Extent
    number: int


class Ids(msgspec.Struct, frozen=True):
    """What the header of an extent keeps besides keys, of the blocks served under its name; None
    where it does not. last_key: of its last block."""

    token_ids: npt.NDArray[np.int32] | None
    extras: bytes | None
    last_key: bytes | None = None


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

    def add(self, extent: Extent, keys: Sequence[bytes]) -> None:
        """keys: of the blocks that the extent serves."""
        self.extents += 1
        before = extent.parent if extent.start != 0 else None
        if before:
            self._followers[bytes.fromhex(before)] = (extent.root, extent.path)
        for number, key in enumerate(map(bytes.hex, keys)):
            place = Place(extent, number)
            if key in self.wanted:
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
            for extent, keys in with_keys(survey(root)):
                if keys:
                    served = [keys[i : i + KEY_BYTES] for i in range(0, len(keys), KEY_BYTES)]
                    self._space(extent, wanted).add(extent, served)
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
        if not space.block_tokens and extent.blocks and extent.tokens:
            space.block_tokens = extent.tokens // extent.blocks
            _want(space, wanted)
        return space

    def removal(self, space: Space, key: bytes) -> Removal | None:
        """Why the block left, the newest over all roots."""
        found = [ring.of(space.name, key) for ring in self._removals.values()]
        known = [one for one in found if one is not None]
        return max(known, key=lambda one: one.time_s) if known else None

    def moved(self, key: bytes) -> Moved | None:
        return self._moved.get(key.hex())

    def ids_from(self, space: Space, place: Place) -> list[int] | None:
        """Token ids from the place on and of the extents behind, as far as they are kept and at
        most FOLLOWED_MAX extents; None when the first keeps none."""
        here = self.ids_of(place.extent)
        if here.token_ids is None or here.last_key is None:
            return None
        found: list[int] = here.token_ids[place.number * space.block_tokens :].tolist()
        last = here.last_key
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

    def ids_of(self, extent: Extent) -> Ids:
        header = self._header(extent.root, extent.path)
        key = bytes.fromhex(extent.key)
        if header is None or key not in header["keys"]:
            return Ids(None, None)
        first = header["keys"].index(key)
        ids, extras = header["token_ids"], header["extras"]
        return Ids(
            None if ids is None else np.frombuffer(ids, np.int32)[first * header["block_tokens"] :],
            None if extras is None else extras[first * KEY_BYTES :],
            header["keys"][-1],
        )

    def _header(self, root: str, path: str) -> dict[str, Any] | None:
        fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            header: dict[str, Any] | None = self._checker.check(fd, path, deep=False).header
            return header
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
