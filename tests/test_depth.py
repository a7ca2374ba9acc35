"""How data moves on the real engine: many reads in flight, through registered memory, past the page
cache, each region once; and writes that are under way long before the last layer is computed."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kvstore import Cache, Layout, Pages, Store, alloc
from kvstore.testing import Fault, Injection, Io, Record, VirtualClock
from kvstore.writer import Writer
from tests.support.simulation import (
    Simulated,
    fill,
    finish_device,
    move_to,
    simulated,
)
from tests.support.stores import BLOCK_TOKENS, Cells, cells_of, check_load, opened, prompt, until

MIB = 1 << 20
LAYERS = 32
BLOCKS = 32
CELL = 8 * 4096
LAYER = BLOCKS * CELL  # 1 MiB: one read of each of two extents
MEMLOCK = "needs a memlock limit that lets the pool be registered (ulimit -l)"


def layout() -> Layout:
    return Layout(
        parts_by_layer=((("latent", CELL),),) * LAYERS,
        model="depth",
        block_tokens=BLOCK_TOKENS,
        extent_blocks=16,
    )


def cells() -> Cells:
    return cells_of(layout(), BLOCKS)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("depth")
    fill(path, layout(), BLOCKS)
    return path


@pytest.fixture
def store(root: Path) -> Iterator[Store]:
    """On io_uring, whatever else would work."""
    with opened(root, engine="io_uring") as store:
        until(lambda: not store.info().roots[0].warming)
        assert store.info().roots[0].engine == "io_uring"
        yield store


@pytest.fixture
def kv(store: Store) -> Cache:
    return store.cache(layout())


def needs_direct(store: Store) -> None:
    if "direct" in store.info().roots[0].lost:
        pytest.skip("needs a file system with O_DIRECT")


def resident_pages(path: Path) -> int:
    """Pages of the file that are in the page cache."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        # Private and writable only so that ctypes hands out the address; nothing is touched.
        with mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY) as mapped:
            pages = -(-size // mmap.PAGESIZE)
            answer = (ctypes.c_ubyte * pages)()
            anchor = ctypes.c_char.from_buffer(mapped)
            error = libc.mincore(ctypes.addressof(anchor), size, answer)
            del anchor
            assert error == 0, os.strerror(ctypes.get_errno())
            return sum(page & 1 for page in answer)


def extents(root: Path) -> list[Path]:
    found = sorted(root.glob("*/*/*.kv"))
    assert len(found) == 2
    return found


# ---- reads ---------------------------------------------------------------------------------------


def test_a_long_load_keeps_many_reads_in_flight(store: Store, kv: Cache) -> None:
    assert store.info().roots[0].io_depth == 64
    with kv.load(kv.match(kv.keys(prompt(BLOCKS)))) as load:
        check_load(load, cells(), BLOCKS)
        assert load.stats().reads == LAYERS * 2
    assert store.info().roots[0].reads_in_flight_max >= 32


def test_the_pool_is_registered_and_reads_use_it(store: Store, kv: Cache) -> None:
    """Where the limit on locked memory allows; elsewhere it is said, and reads work as well."""
    info = store.info().roots[0]
    with kv.load(kv.match(kv.keys(prompt(BLOCKS)))) as load:
        check_load(load, cells(), BLOCKS)
    assert info.registered != bool(info.register_error)
    if not info.registered:
        assert any("not registered" in line for line in store.info().fallbacks)
        pytest.skip(f"{MEMLOCK}: {info.register_error}")


def test_no_page_of_an_extent_is_in_the_page_cache_after_a_load(
    root: Path, store: Store, kv: Cache
) -> None:
    needs_direct(store)
    for path in extents(root):
        with path.open("rb") as file:  # the canary: a plain read does fill it
            file.read(64 * 4096)
            assert resident_pages(path) >= 64
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        assert resident_pages(path) == 0
    with kv.load(kv.match(kv.keys(prompt(BLOCKS)))) as load:
        check_load(load, cells(), BLOCKS)
    targets = [alloc(LAYER) for _ in range(LAYERS)]
    store.drop_ram()
    into = Pages.contiguous({"latent": targets})
    with kv.load(kv.match(kv.keys(prompt(BLOCKS))), into=into) as load:
        assert load.wait(LAYERS - 1).blocks == BLOCKS
        assert load.stats().direct_bytes == LAYERS * LAYER
    assert [resident_pages(path) for path in extents(root)] == [0, 0]


def test_a_put_leaves_no_page_of_its_extent_in_the_page_cache(tmp_path: Path) -> None:
    with opened(tmp_path, engine="io_uring") as store:
        needs_direct(store)
        fill_store(store)
        assert [resident_pages(path) for path in extents(tmp_path)] == [0, 0]


def fill_store(store: Store) -> None:
    kv = store.cache(layout())
    with kv.writer(kv.keys(prompt(BLOCKS))) as writer:
        for layer, parts in enumerate(cells()):
            writer.put(layer, (0, BLOCKS), parts)
        assert writer.commit_blocking() == BLOCKS


def test_a_second_load_of_a_hot_prefix_reads_nothing(store: Store, kv: Cache) -> None:
    chain = kv.keys(prompt(BLOCKS))
    with kv.load(kv.match(chain)) as load:
        check_load(load, cells(), BLOCKS)
    for blocks in (BLOCKS, 5):
        with kv.load(kv.match(chain)[:blocks]) as load:
            check_load(load, cells(), blocks)
            stats = load.stats()
            hot = LAYERS * blocks * CELL
            assert (stats.reads, stats.disk_bytes, stats.ram_bytes) == (0, 0, hot)
    assert store.stats().reads == LAYERS * 2
    assert store.stats().disk_bytes == LAYERS * LAYER


def test_concurrent_loads_of_one_region_are_one_read(root: Path) -> None:
    """Four loads while the device stalls: all of them get the bytes of one set of reads."""
    with simulated(root, layout(), BLOCKS, pool="64MiB") as simulation:
        simulation.open_files()
        start = len(simulation.reads())
        simulation.device.add(Fault.STALL, io=Io.READ, count=0)
        loads = [simulation.load() for _ in range(4)]
        simulation.settle()
        simulation.device.clear()
        simulation.device.release_stalled()
        finish_device(simulation)
        for load in loads:
            check_load(load, cells(), BLOCKS)
        read = [(record.inode, record.offset) for record in simulation.reads(start)]
        assert len(read) == len(set(read)) == LAYERS * 2
        stats = [load.stats() for load in loads]
        assert sum(one.disk_bytes for one in stats) == LAYERS * LAYER
        assert sum(one.ram_bytes for one in stats) == 3 * LAYERS * LAYER
        for load in loads:
            load.close()


def test_a_device_is_asked_for_16_mebibytes_at_once(root: Path) -> None:
    """A device serves all it was given at the same time: with more, the first layer would come
    with the last of them."""
    with simulated(root, layout(), BLOCKS, pool="64MiB") as simulation:
        simulation.open_files()
        start = len(simulation.reads())
        simulation.device.add(Fault.STALL, io=Io.READ, count=0)
        load = simulation.load()
        simulation.settle()
        asked = simulation.reads(start)
        assert all(record.completed_ns == -1 for record in asked)
        assert sum(record.bytes for record in asked) == 16 * MIB < LAYERS * LAYER
        simulation.device.clear()
        simulation.device.release_stalled()
        finish_device(simulation)
        check_load(load, cells(), BLOCKS)
        load.close()


# ---- writes --------------------------------------------------------------------------------------


def submitted(simulation: Simulated) -> list[Record]:
    return [record for record in simulation.device.log() if record.io_kind == Io.WRITE]


@pytest.mark.parametrize("bandwidth", [1.25, 1.0, 0.85], ids="{} of what is computed".format)
def test_at_least_80_percent_of_earlier_layers_are_submitted_when_the_last_is_put(
    bandwidth: float, tmp_path: Path
) -> None:
    """A prefill puts a layer every compute_ns; the device takes two operations at a time, so what
    it was given and when is its own pace, in virtual time."""
    compute_ns = round(LAYER * bandwidth)  # the device writes a byte per ns
    put_ns = []
    with simulated(tmp_path, layout(), BLOCKS, depth=2) as simulation:
        kv = simulation.store.cache(layout())
        with kv.writer(kv.keys(prompt(BLOCKS))) as writer:
            for layer, parts in enumerate(cells()[:-1]):
                put_ns.append(simulation.clock.now_ns)
                assert writer.put(layer, (0, BLOCKS), parts).wait("30s") == 0
                if layer == 0:  # files are made in real time, which a simulation must not see
                    until(lambda: len(submitted(simulation)) == 2)
                simulation.settle()
                compute(simulation, compute_ns)
            given = submitted(simulation)
            earlier = (LAYERS - 1) * LAYER
            assert earlier * 8 // 10 <= sum(record.bytes for record in given) <= earlier
            if bandwidth >= 1:  # each layer the moment it was put
                assert [record.submitted_ns for record in given] == sorted(2 * put_ns)
            assert writer.put(LAYERS - 1, (0, BLOCKS), cells()[-1]).wait("30s") == 0
            commit(simulation, writer)
    with opened(tmp_path, _testing=Injection(clock=VirtualClock())) as store:  # of the same time
        kv = store.cache(layout())
        hit = kv.find_blocking(kv.keys(prompt(BLOCKS)))
        with kv.load(hit) as load:
            check_load(load, cells(), BLOCKS)


def compute(simulation: Simulated, ns: int) -> None:
    """Lets that much time pass, the device at work meanwhile."""
    done = simulation.clock.now_ns + ns
    while 0 <= (next_ns := simulation.device.next_ns()) <= done:
        move_to(simulation, next_ns)
    move_to(simulation, done)


def commit(simulation: Simulated, writer: Writer) -> None:
    """The whole prompt, the device working on."""
    with ThreadPoolExecutor(1) as thread:
        blocks = thread.submit(writer.commit_blocking)
        while not blocks.done():
            until(lambda: blocks.done() or simulation.device.next_ns() >= 0)
            if (next_ns := simulation.device.next_ns()) >= 0:
                simulation.clock.core.advance(next_ns - simulation.clock.now_ns)
    assert blocks.result() == BLOCKS


def test_the_real_engine_writes_earlier_layers_before_the_last_is_put(tmp_path: Path) -> None:
    """It is waited for: how fast this disk is, and what else it does, is not our promise."""
    with opened(tmp_path, engine="io_uring") as store:
        kv = store.cache(layout())
        with kv.writer(kv.keys(prompt(BLOCKS))) as writer:
            for layer, parts in enumerate(cells()[:-1]):
                assert writer.put(layer, (0, BLOCKS), parts).wait("30s") == 0
            earlier = (LAYERS - 1) * LAYER
            until(lambda: writer.stats().bytes_submitted >= earlier * 8 // 10)
            assert writer.stats().bytes_submitted <= earlier
            assert writer.put(LAYERS - 1, (0, BLOCKS), cells()[-1]).wait("30s") == 0
            assert writer.commit_blocking() == BLOCKS
            assert writer.stats().bytes_written == LAYERS * LAYER
