"""After close nothing of a store holds its file system: umount succeeds at once, whatever was under
way. On journaled ext4 and xfs, each in a file of its own.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstore.cache import Cache
from kvstore.store import Store, open_blocking
from kvstore.testing import FaultDevice, Injection, VirtualClock
from tests.support.loops import mounted, run
from tests.support.prompts import (
    GRID,
    assert_whole,
    eventually,
    put,
    put_layer,
    small_layout,
    tokens,
)

LAYOUT = small_layout()
IMAGE_BYTES = 400 << 20  # sparse; mkfs.xfs makes none below 300 MB
MKFS = {"ext4": ("mkfs.ext4", "-q", "-F"), "xfs": ("mkfs.xfs", "-q", "-f")}

pytestmark = pytest.mark.root


@pytest.fixture(params=sorted(MKFS))
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """Where it is mounted. The test unmounts it."""
    with mounted(tmp_path, make=MKFS[request.param], image_bytes=IMAGE_BYTES) as point:
        yield point


def opened(disk: Path, injected: Injection | None = None) -> Store:
    return open_blocking(disk / "kv", capacity="200MB", pool="16MB", _testing=injected)


def chain_put(kv: Cache, name: object, blocks: int = 4 * GRID) -> None:
    assert put(kv, kv.keys(tokens(name, blocks))) == blocks


def test_a_closed_store_lets_go_of_its_file_system(disk: Path) -> None:
    for turn in range(3):
        with opened(disk) as store:
            kv = store.cache(LAYOUT)
            chain_put(kv, turn)
            assert_whole(kv, kv.keys(tokens(turn, 4 * GRID)))
            kv.delete_blocking(kv.keys(tokens(turn, 1))[0])
    run("umount", disk)


def test_loads_that_were_cancelled_do_not_hold_it(disk: Path) -> None:
    with opened(disk) as store:
        kv = store.cache(LAYOUT)
        chain_put(kv, "prompt", 32 * GRID)
        store.drop_ram()
        hit = kv.match(kv.keys(tokens("prompt", 32 * GRID)))
        running = [kv.load(hit) for _ in range(8)]
        for load in running[::2]:
            load.cancel()
    run("umount", disk)
    for load in running:
        load.close()


def test_views_that_are_still_looked_at_do_not_hold_it(disk: Path) -> None:
    with opened(disk) as store:
        kv = store.cache(LAYOUT)
        chain_put(kv, "prompt")
        load = kv.load(kv.match(kv.keys(tokens("prompt", 4 * GRID))))
        view = load.wait(0).gather("latent")
    run("umount", disk)
    assert view.any()
    load.close()


def test_a_writer_that_was_abandoned_does_not_hold_it(disk: Path) -> None:
    store = opened(disk)
    kv = store.cache(LAYOUT)
    chain_put(kv, "prompt")
    for name in ("closed", "left open"):
        writer = kv.writer(kv.keys(tokens(name, 8 * GRID)))
        put_layer(kv, writer, 0, 0, 8 * GRID)
        if name == "closed":
            writer.abort()
    store.close_blocking()
    run("umount", disk)


def test_reads_in_flight_at_close_do_not_hold_it(disk: Path) -> None:
    """The device is slow: reads are in flight when close begins, and over when it returns."""
    clock = VirtualClock()
    device = FaultDevice(clock, latency_ns=1_000_000)
    with opened(disk, Injection(clock=clock, devices=(device,))) as store:
        kv = store.cache(LAYOUT)
        chain_put(kv, "prompt")
        store.drop_ram()
        seen = len(device.log())
        load = kv.load(kv.match(kv.keys(tokens("prompt", 4 * GRID))))
        eventually(lambda: len(device.log()) > seen, "a read reached the device")
    run("umount", disk)
    load.close()
