"""A store whose device completes nothing until the test lets go: what is tested happens with all of
it in flight.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kvstore import Cache, Chain, Store
from kvstore.testing import Fault, FaultDevice, Injection, VirtualClock
from tests.support.census import assert_nothing_held
from tests.support.stores import Cells, cells_of, check_load, layout, opened, prompt, write

BLOCKS = 3
POOL = "16MiB"


@dataclass
class Stalled:
    """A store whose device completes nothing until `let_go`; one prompt is stored."""

    store: Store
    device: FaultDevice
    clock: VirtualClock
    chain: Chain
    cells: Cells

    @property
    def kv(self) -> Cache:
        return self.store.cache(layout())

    @property
    def block(self) -> bytes:
        return b"".join(parts["latent"][0].tobytes() for parts in self.cells)

    def fresh(self, seed: int) -> Chain:
        return self.kv.keys(prompt(1, seed))

    def hold(self) -> None:
        self.store.drop_ram()
        self.device.add(Fault.STALL, count=0)

    def let_go(self) -> None:
        self.device.clear()
        self.device.release_stalled()

    def works(self) -> None:
        """Exact bytes, and nothing held but by us."""
        self.let_go()
        self.store.drop_ram()
        self.check_bytes()
        assert_nothing_held(self.store)

    def check_bytes(self) -> None:
        with self.kv.load(self.kv.match(self.chain)) as load:
            check_load(load, self.cells, BLOCKS)


def stall(store: Store, device: FaultDevice, clock: VirtualClock) -> Stalled:
    kv = store.cache(layout())
    ready = Stalled(store, device, clock, kv.keys(prompt(BLOCKS)), cells_of(layout(), BLOCKS))
    assert write(kv, ready.chain, ready.cells) == BLOCKS
    ready.hold()
    return ready


@contextmanager
def stalled(root: Path) -> Iterator[Stalled]:
    clock = VirtualClock()
    device = FaultDevice(clock)
    with opened(root, pool=POOL, _testing=Injection(clock=clock, devices=[device])) as store:
        try:
            yield stall(store, device, clock)
        finally:
            device.clear()
            device.release_stalled()
