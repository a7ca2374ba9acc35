"""Stores over devices and file systems that a test breaks, on a clock that a test drives."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from kvstore import Cache, Chain, Store
from kvstore.report import RootInfo
from kvstore.store import open_blocking
from kvstore.testing import FaultDevice, FaultFiles, Injection, VirtualClock
from tests.support.prompts import GRID, eventually, load, put
from tests.support.tight import LAYOUT, chain_named

ROOMY = 1 << 28


@dataclass
class Troubled:
    """A store of one root or two; `device` is the first root's."""

    store: Store
    clock: VirtualClock
    devices: list[FaultDevice]
    files: FaultFiles

    @property
    def kv(self) -> Cache:
        return self.store.cache(LAYOUT)

    @property
    def device(self) -> FaultDevice:
        return self.devices[0]

    def root(self, number: int = 0) -> RootInfo:
        return self.store.info().roots[number]

    def tick(self, seconds: float = 0) -> None:
        """Two rounds of housekeeping: one alone does not call an operation overdue."""
        self.clock.advance(seconds)
        self.store.tick()
        self.store.tick()

    def stored(self, blocks: int = GRID, name: str = "stored") -> Chain:
        """A prompt that lies on disk only, and whose files are open."""
        chain = chain_named(self.kv, name, blocks)
        assert put(self.kv, chain) == blocks
        self.store.drop_ram()
        assert load(self.kv, self.kv.match(chain)) == (blocks, None)
        self.store.drop_ram()
        return chain

    def heal(self) -> None:
        """Nothing fails any more; what hung goes on."""
        for device in self.devices:
            with suppress(ValueError):  # the store closed it
                device.clear()
                device.release_stalled()
        self.files.clear()
        self.files.release_stalled()

    def until_down(self, number: int = 0) -> None:
        """A call is called overdue only when some real time has passed too."""

        def down() -> bool:
            self.tick()
            return self.root(number).state != "up"

        eventually(down, "the root is down")

    def until_up(self, number: int = 0) -> None:
        """Lets time pass until the root is in use again and its scan is over."""

        def up() -> bool:
            self.tick(1)
            return self.root(number).state == "up" and not self.root(number).warming

        eventually(up, "the root is in use again")


@contextmanager
def troubled(*paths: Path, **words: object) -> Iterator[Troubled]:
    clock, files = VirtualClock(), FaultFiles()
    devices = [FaultDevice(clock) for _ in paths]
    injected = Injection(clock=clock, files=files, devices=devices, manual_ticks=True)
    options: dict[str, object] = {"capacity": ROOMY * len(paths), "pool": "32MB"} | words
    with open_blocking(*paths, _testing=injected, **options) as store:  # type: ignore[arg-type]
        made = Troubled(store, clock, devices, files)
        eventually(lambda: not any(root.warming for root in store.info().roots), "scans ended")
        try:
            yield made
        finally:
            if not store.core.closed:
                made.heal()


def in_flight(device: FaultDevice) -> int:
    return sum(record.completed_ns < 0 for record in device.log())
