"""What an in-memory store keeps, and the faults that a test puts into it.

A disk outlives the stores that `open_fake` opens on it, as a directory does: open another one on it
and everything is still there. It does no I/O and starts no thread.

Invariants
  1. As on a real disk blocks lie in extents, which come and go as a whole.
  2. What is held back arrives at `release`, in the thread that calls it; waiters are told then.
     Caller memory of a load that ended meanwhile is written then, too: its read was in flight.
  3. One lock guards the disk and every store on it. Actions of `release` run under it.
"""

import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from kvstore import _core

if TYPE_CHECKING:
    from kvstore.testing.fake_load import FakeLoad

Name = tuple[bytes, bytes]  # fingerprint of the layout, key


class Holder(Protocol):
    """A lease or a writer: while alive, what it holds is not evicted."""

    def alive(self) -> bool: ...


class Extent:
    """Blocks that are published together. cells: per layer, per block; b"" where there are none."""

    def __init__(self, names: Sequence[Name], cells: list[list[bytes]]) -> None:
        self.names = names
        self.cells = cells
        self.in_ram = True
        self.holders: weakref.WeakSet[Holder] = weakref.WeakSet()


Place = tuple[Extent, int]  # and the block's number in it


class FakeDisk:
    """Extents in memory, and faults. Keys are named as `chain[i]` gives them, in every namespace.

    refuse_puts: every cell that is put is dropped, as if no room could be made.
    """

    def __init__(self) -> None:
        self.refuse_puts = False
        self.lock = threading.RLock()
        self.has_owner = False
        self.running: weakref.WeakSet[FakeLoad] = weakref.WeakSet()
        self._places: dict[Name, Place] = {}
        self._gone: dict[Name, tuple[str, int]] = {}
        self._missing: dict[bytes, str] = {}
        self._damaged: set[tuple[bytes, int]] = set()
        self._held_layers: set[int] = set()
        self.names_held = False
        self.commits_held = False
        self._held: list[tuple[object, Callable[[], None]]] = []

    # -------------------------------------------------------------------------------- faults

    def miss(self, key: bytes, reason: str) -> None:
        """From now on the block is not there, for that reason ("root_down", "busy", "pool" ...), to
        lookups and to loads that begin. Until `heal`."""
        if reason not in _core.REASONS[1:]:
            raise ValueError(f"{reason!r} is not one of {', '.join(_core.REASONS[1:])}")
        with self.lock:
            self._missing[key] = reason

    def damage(self, key: bytes, layer: int = 0) -> None:
        """The cell fails its check in the next load that reads it, which loses its extent."""
        with self.lock:
            self._damaged.add((key, layer))

    def evict(self, key: bytes) -> int:
        """Evicts the extents that hold the key, now; how many. What is leased stays."""
        with self.lock:
            found = [place[0] for name, place in self._places.items() if name[1] == key]
            free = [one for one in found if not any(held.alive() for held in one.holders)]
            for extent in free:
                self.forget(extent, "evicted")
            return len(free)

    def hold_layer(self, layer: int) -> None:
        """Loads stop before they deliver this layer, until `release`. One that is cancelled, closed
        or late meanwhile ends at once, but is not drained before."""
        with self.lock:
            self._held_layers.add(layer)

    def hold_names(self) -> None:
        """Until `release` nobody knows what is there: `match` answers "pending", `find` waits."""
        with self.lock:
            self.names_held = True

    def hold_commits(self) -> None:
        """Commits are not done, and publish nothing, until `release`."""
        with self.lock:
            self.commits_held = True

    def release(self) -> None:
        """Ends every hold; what was held back happens before this returns."""
        with self.lock:
            self.names_held = self.commits_held = False
            self._held_layers.clear()
            held, self._held = self._held, []
            for _, action in held:
                action()

    def pass_deadlines(self) -> None:
        """The deadline of every running load passes now."""
        with self.lock:
            for load in list(self.running):
                load.end("deadline")

    def heal(self) -> None:
        """Undoes `miss`, damage that no load has met, and `refuse_puts`."""
        with self.lock:
            self._missing.clear()
            self._damaged.clear()
            self.refuse_puts = False

    # ---------------------------------------------------------------- for the stores on this disk

    def layer_held(self, layer: int) -> bool:
        return layer in self._held_layers

    def at_release(self, store: object, action: Callable[[], None]) -> None:
        """Calls `action` in `release`, or when the store is closed."""
        self._held.append((store, action))

    def release_all_of(self, store: object) -> None:
        held, self._held = self._held, [one for one in self._held if one[0] is not store]
        for who, action in held:
            if who is store:
                action()

    def find(self, name: Name) -> Place | str:
        """Where the block lies, or why it is not there."""
        if name[1] in self._missing:
            return self._missing[name[1]]
        if name in self._places:
            return self._places[name]
        return self._gone.get(name, ("absent", 0))[0]

    def removed(self, name: Name) -> tuple[str, int] | None:
        return None if name in self._places else self._gone.get(name)

    def publish(self, extent: Extent) -> None:
        for position, name in enumerate(extent.names):
            self._places.setdefault(name, (extent, position))
            self._gone.pop(name, None)

    def forget(self, extent: Extent, reason: str) -> None:
        for name in extent.names:
            if self._places.get(name, (None,))[0] is extent:
                del self._places[name]
                self._gone[name] = (reason, int(time.time()))

    def quarantine(self, name: Name, layer: int, extent: Extent) -> None:
        """The damage was met."""
        self._damaged.discard((name[1], layer))
        self.forget(extent, "damaged")

    def is_damaged(self, name: Name, layer: int) -> bool:
        return (name[1], layer) in self._damaged

    def extents(self) -> Iterator[Extent]:
        """Each one once."""
        return iter({id(extent): extent for extent, _ in self._places.values()}.values())

    def block_count(self) -> int:
        return len(self._places)

    def used_bytes(self) -> int:
        with self.lock:
            cells = (cell for one in self.extents() for layer in one.cells for cell in layer)
            return sum(map(len, cells))
