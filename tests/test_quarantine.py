"""Damaged files are kept for a person to look at, within a bound and within the budget."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kvstore.cache import Cache
from kvstore.store import Store, open_blocking
from kvstore.testing import Injection, VirtualClock
from tests.support.prompts import (
    GRID,
    eventually,
    file_named,
    physical_bytes,
    put,
    small_layout,
    tokens,
)

LAYOUT = small_layout()


@contextmanager
def opened(root: Path, capacity: int, clock: VirtualClock | None = None) -> Iterator[Store]:
    injected = Injection(clock=clock or VirtualClock(), manual_ticks=True)
    with open_blocking(root, capacity=capacity, pool="16MB", _testing=injected) as store:
        eventually(lambda: not store.info().roots[0].warming, "the scan ended")
        yield store


def damaged(kv: Cache, name: object, root: Path) -> None:
    """Puts a prompt, harms its file, and has that found out."""
    chain = kv.keys(tokens(name, GRID))
    assert put(kv, chain) == GRID
    path = file_named(root, chain[0])
    data = bytearray(path.read_bytes())
    data[-5000] ^= 1
    path.write_bytes(data)
    kv.store.drop_ram()
    with kv.load(kv.match(chain)) as load:
        assert load.wait(LAYOUT.layers - 1).blocks < GRID
    eventually(lambda: not path.exists(), "moved aside")


def aside(root: Path) -> list[Path]:
    return sorted(root.glob("quarantine/*"))


def aside_bytes(root: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in aside(root))


def counted(store: Store, root: Path) -> bool:
    info = store.info().roots[0]
    return (
        info.used_bytes == physical_bytes(root) + aside_bytes(root)
        and info.quarantine_bytes == aside_bytes(root)
        and info.quarantine_files == len(aside(root))
    )


def full_bytes(root: Path) -> int:
    with opened(root, 1 << 30) as store:
        put(store.cache(LAYOUT), store.cache(LAYOUT).keys(tokens("measure", GRID)))
        return physical_bytes(root)


def test_quarantined_bytes_are_in_the_budget_also_in_the_next_life(tmp_path: Path) -> None:
    root = tmp_path / "root"
    for life in range(2):
        with opened(root, 1 << 30) as store:
            damaged(store.cache(LAYOUT), life, root)
            eventually(lambda: counted(store, root), "charged")
            assert len(aside(root)) == life + 1
    with opened(root, 1 << 30) as store:
        assert counted(store, root)


def test_beyond_a_hundredth_of_the_capacity_the_oldest_are_deleted(tmp_path: Path) -> None:
    root, clock = tmp_path / "root", VirtualClock()
    full = full_bytes(tmp_path / "measure")
    with opened(root, 250 * full, clock) as store:
        for name in range(6):
            damaged(store.cache(LAYOUT), name, root)
            clock.advance(1)
        eventually(lambda: store.stats().quarantine_deleted == 4, "trimmed")
        eventually(lambda: counted(store, root), "charged")
        seconds = [int(path.name.split("-")[0]) for path in aside(root)]
        assert [later - seconds[0] for later in seconds] == [0, 1], "the two newest"


def test_the_newest_stays_however_small_the_root(tmp_path: Path) -> None:
    root = tmp_path / "root"
    full = full_bytes(tmp_path / "measure")
    with opened(root, 5 * full) as store:
        kv = store.cache(LAYOUT)
        for name in range(3):
            damaged(kv, name, root)
        eventually(lambda: counted(store, root) and len(aside(root)) == 1, "one is left")
        for name in range(6):
            assert put(kv, kv.keys(tokens(("more", name), GRID))) == GRID
            assert physical_bytes(root) + aside_bytes(root) <= 5 * full


def test_files_that_somebody_removes_are_noticed_at_the_next_look(tmp_path: Path) -> None:
    clock = VirtualClock()
    with opened(tmp_path, 1 << 30, clock) as store:
        damaged(store.cache(LAYOUT), "one", tmp_path)
        eventually(lambda: counted(store, tmp_path), "charged")
        aside(tmp_path)[0].unlink()
        clock.advance(11)
        store.tick()
        eventually(lambda: counted(store, tmp_path), "given back")
