"""The scrub: reads everything once a week, no faster than asked, never in a load's way, finds what
is damaged as a load does, and changes neither recency nor what is kept in memory.

On the virtual clock; what was read and when is taken from the device's log. Reads of the scrub are
those that do not go to the pool.
"""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from kvstore import Cache, Chain, Layout
from kvstore.testing import Fault as F
from kvstore.testing import FaultDevice, FaultFiles, FileCall, Injection, Io, Record, VirtualClock
from tests.support import extent_bytes
from tests.support.filled_root import extents, times
from tests.support.simulation import Simulated, is_ready
from tests.support.stores import Cells, cells_of, check_load, layout, opened, prompt, until, write

BLOCKS = 20  # an extent of 16 and one of 4, of 512 KiB a block: cells of 128 KiB
PIECE = 1 << 20
MB = 10**6
WEEK_S = 7 * 86_400
RETENTION = {"chat": "90d"}


def big_cells() -> Layout:
    """Cells of 2.5 MiB and a bit: a cell is read in three pieces."""
    parts = (("k", 16 * 163_000),), (), (("k", 16 * 700),)
    return Layout(parts_by_layer=parts, model="big", block_tokens=16, extent_blocks=16)


def fill(root: Path, of: Layout, blocks: int) -> None:
    with opened(root, retention=RETENTION) as store:
        kv = store.cache(of)
        assert write(kv, kv.keys(prompt(blocks)), cells_of(of, blocks)) == blocks


@contextmanager
def scrubbing(
    root: Path,
    scrub: str = "50MB/s",
    of: Layout | None = None,
    blocks: int = BLOCKS,
    files: FaultFiles | None = None,
    bandwidth: int = 0,
    role: str = "owner",
) -> Iterator[Simulated]:
    """A store over what was filled; nothing has been scrubbed yet. bandwidth 0: reads take no time,
    else they take what test and clock give them."""
    clock = VirtualClock(wall_s=int(max(path.stat().st_atime for path in extents(root))) + 1)
    device = FaultDevice(clock, bytes_per_second=bandwidth, auto_advance=False)
    injection = Injection(clock=clock, devices=[device], files=files, manual_ticks=True)
    words = {"scrub": scrub, "retention": RETENTION, "role": role, "_testing": injection}
    with opened(root, **words) as store:
        until(lambda: not store.info().roots[0].warming)
        simulation = Simulated(store, clock, device, of or layout(), blocks)
        try:
            yield simulation
        finally:
            device.clear()
            device.release_stalled()
            # A read may be on its way to the device and in no log yet: time goes on until it is.
            with ThreadPoolExecutor(1) as pool:
                closing = pool.submit(store.close_blocking)
                until(lambda: clock.advance(1) or closing.done())


def closable(simulation: Simulated) -> bool:
    """Lets what is in flight end."""
    simulation.clock.advance(1)
    return all(record.completed_ns >= 0 for record in simulation.device.log())


def scrub_reads(simulation: Simulated) -> list[Record]:
    pool = simulation.store.core.pool_info()
    return [
        record
        for record in simulation.device.log()
        if record.io_kind == Io.READ and not 0 <= record.buffer - pool["base"] < pool["bytes"]
    ]


def step(simulation: Simulated, seconds: float = 0.1) -> None:
    simulation.clock.advance(seconds)
    simulation.store.tick()
    simulation.device.settle()


def run_pass(simulation: Simulated, seconds: float = 0.1) -> None:
    wanted = simulation.store.stats().scrub_passes + 1

    def over() -> bool:
        step(simulation, seconds)
        return simulation.store.stats().scrub_passes == wanted

    until(over)


def test_a_pass_reads_every_cell_and_no_more_a_second_than_asked(tmp_path: Path) -> None:
    fill(tmp_path, layout(), BLOCKS)
    rate = 8 * MB
    with scrubbing(tmp_path, "8MB/s") as simulation:
        run_pass(simulation)
        reads = scrub_reads(simulation)
        stats, (root,) = simulation.store.stats(), simulation.store.info().roots
    assert (stats.scrub_extents, stats.scrub_damaged, root.scrub_pass_extents) == (2, 0, 2)
    assert root.scrub_bytes_per_s == rate
    assert stats.scrub_bytes == sum(record.bytes for record in reads)
    assert stats.scrub_bytes == BLOCKS * layout().block_bytes  # cells are whole pages here
    assert max(record.bytes for record in reads) <= PIECE
    burst = max(rate // 5, PIECE)
    for first in range(len(reads)):
        total = 0
        for record in reads[first:]:
            total += record.bytes
            passed_ns = record.submitted_ns - reads[first].submitted_ns
            assert total <= rate * passed_ns / 1e9 + burst


def test_a_cell_larger_than_a_piece_is_verified_whole(tmp_path: Path) -> None:
    of = big_cells()
    fill(tmp_path, of, 3)
    with scrubbing(tmp_path, of=of, blocks=3) as simulation:
        run_pass(simulation)
        assert max(record.bytes for record in scrub_reads(simulation)) <= PIECE
        assert simulation.store.stats().scrub_extents == 1
    (path,) = extents(tmp_path)
    at, cell = extent_bytes.regions(path.read_bytes())[0]
    extent_bytes.flip(path, 8 * (at + 3 * cell - 1))
    with scrubbing(tmp_path, of=of, blocks=3) as simulation:
        run_pass(simulation)
        assert simulation.store.stats().scrub_damaged == 1


def test_the_next_pass_begins_a_week_after_the_last(tmp_path: Path) -> None:
    fill(tmp_path, layout(), BLOCKS)
    with scrubbing(tmp_path) as simulation:
        run_pass(simulation)
        for _ in range(10):
            step(simulation, WEEK_S / 11)
        assert simulation.store.stats().scrub_passes == 1
        run_pass(simulation, WEEK_S / 11)
        assert simulation.store.stats().scrub_extents == 4


def test_without_being_asked_and_by_a_peer_nothing_is_read(tmp_path: Path) -> None:
    fill(tmp_path, layout(), BLOCKS)
    with scrubbing(tmp_path, role="peer") as simulation:
        for _ in range(10):
            step(simulation, 10)
        assert simulation.device.log() == []
    clock = VirtualClock()
    device = FaultDevice(clock)
    injection = Injection(clock=clock, devices=[device], manual_ticks=True)
    with opened(tmp_path, _testing=injection) as store:
        until(lambda: not store.info().roots[0].warming)
        assert store.info().roots[0].scrub_bytes_per_s == 0
        for _ in range(10):
            clock.advance(10)
            store.tick()
        assert device.log() == []


def test_it_yields_to_a_load_and_goes_on_after_it(tmp_path: Path) -> None:
    fill(tmp_path, layout(), BLOCKS)
    with scrubbing(tmp_path, bandwidth=10**9) as simulation:
        simulation.clock.advance(5)  # now the rate allows several pieces
        with simulation.load() as load:
            until(lambda: simulation.device.next_ns() >= 0)  # its first reads are under way
            for _ in range(20):
                simulation.store.tick()
            simulation.device.settle()
            assert scrub_reads(simulation) == []

            def loaded() -> bool:
                if (next_ns := simulation.device.next_ns()) >= 0:
                    simulation.clock.core.advance(next_ns - simulation.clock.now_ns)
                simulation.store.tick()
                return is_ready(load, layout().layers - 1)

            until(loaded)
            check_load(load, cells_of(layout(), BLOCKS), BLOCKS)
        run_pass(simulation)
        log = simulation.device.log()
        ours = {record.sequence for record in scrub_reads(simulation)}
        assert simulation.store.stats().scrub_extents == 2
    for record in log:
        before = [other for other in log if other.sequence < record.sequence]
        in_flight = [other for other in before if other.completed_ns > record.submitted_ns]
        if record.sequence in ours:
            assert not in_flight, "a piece was read while something else was"
        else:
            waits_for = [other for other in in_flight if other.sequence in ours]
            assert len(waits_for) <= 1, "a load waits for more than a piece"


def test_a_flipped_bit_is_found_and_quarantined(tmp_path: Path) -> None:
    fill(tmp_path, layout(), BLOCKS)
    path = extents(tmp_path)[0]
    at, cell = extent_bytes.regions(path.read_bytes())[2]
    extent_bytes.flip(path, 8 * (at + 9 * cell) + 5)
    with scrubbing(tmp_path) as simulation:
        run_pass(simulation)
        stats = simulation.store.stats()
        assert (stats.scrub_damaged, stats.quarantined_extents, stats.scrub_extents) == (1, 1, 1)
        until(lambda: not path.exists())
        (moved,) = (tmp_path / "quarantine").iterdir()
        assert moved.name.endswith(path.name)
        kv = simulation.store.cache(layout())
        hit = kv.match(kv.keys(prompt(BLOCKS)))
        assert (hit.blocks, hit.reason) == (0, "damaged")


def test_what_is_wrong_once_is_read_again(tmp_path: Path) -> None:
    fill(tmp_path, layout(), BLOCKS)
    with scrubbing(tmp_path) as simulation:
        simulation.device.add(F.BIT_FLIP, 77, io=Io.READ, skip=3)
        run_pass(simulation)
        stats = simulation.store.stats()
        assert (stats.scrub_damaged, stats.quarantined_extents, stats.scrub_extents) == (0, 0, 2)
        fourth, again = scrub_reads(simulation)[3:5]
        assert (fourth.offset, fourth.inode) == (again.offset, again.inode)


@pytest.mark.parametrize("harm", ["cut", "header"])
def test_a_cut_file_and_a_bad_header_are_damage(harm: str, tmp_path: Path) -> None:
    fill(tmp_path, layout(), BLOCKS)
    path = extents(tmp_path)[0]
    with scrubbing(tmp_path) as simulation:
        with extent_bytes.times_kept(path):
            if harm == "cut":
                os.truncate(path, path.stat().st_size - 4096)
        if harm == "header":
            extent_bytes.flip(path, 8 * 600)
        run_pass(simulation)
        assert simulation.store.stats().scrub_damaged == 1
        until(lambda: not path.exists())


def test_a_device_that_says_no_is_no_damage(tmp_path: Path) -> None:
    fill(tmp_path, layout(), BLOCKS)
    with scrubbing(tmp_path) as simulation:
        simulation.device.add(F.ERRNO, 5, io=Io.READ, count=0)
        run_pass(simulation)
        stats = simulation.store.stats()
        assert (stats.scrub_damaged, stats.scrub_extents, stats.quarantined_extents) == (0, 0, 0)
        assert stats.extents == 2


def test_recency_memory_and_open_files_are_left_alone(tmp_path: Path) -> None:
    fill(tmp_path, layout(), BLOCKS)
    before = {path: seen for path, seen in times(tmp_path).items() if path.suffix == ".kv"}
    files = FaultFiles()
    with scrubbing(tmp_path, files=files) as simulation:
        set_by_open = files.calls(FileCall.SET_TIMES)
        run_pass(simulation)
        stats = simulation.store.stats()
        assert (stats.regions, stats.pool_cached_bytes, stats.open_files) == (0, 0, 0)
        assert stats.pool_free_bytes == stats.pool_bytes
        assert (stats.lookups, stats.disk_bytes, stats.reads) == (0, 0, 0)
    assert files.calls(FileCall.SET_TIMES) == set_by_open
    assert {path: seen for path, seen in times(tmp_path).items() if path.suffix == ".kv"} == before


def held_files() -> list[str]:
    """Names of open files that have been unlinked, below this test's root."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
        except FileNotFoundError:
            continue
    return [name for name in found if ".kv (deleted)" in name]


def test_an_extent_that_goes_meanwhile_is_let_go_of(tmp_path: Path) -> None:
    """Its file is open between two pieces. It can be deleted, its space comes back, and what is
    put again under its name is not judged by what the old file holds."""
    fill(tmp_path, layout(), BLOCKS)
    with scrubbing(tmp_path, "1MB/s") as simulation:
        until(lambda: step(simulation) or scrub_reads(simulation))
        kv = simulation.store.cache(layout())
        chain, cells = kv.keys(prompt(BLOCKS)), cells_of(layout(), BLOCKS)
        (inode,) = {record.inode for record in scrub_reads(simulation)}
        path = next(path for path in extents(tmp_path) if path.stat().st_ino == inode)
        at, _ = extent_bytes.regions(path.read_bytes())[3]
        extent_bytes.flip(path, 8 * at)
        assert kv.delete_blocking(bytes.fromhex(path.stem)) == 1
        assert held_files()
        assert put(simulation, kv, chain, cells) == BLOCKS
        until(lambda: step(simulation) or not held_files())
        run_pass(simulation, 1)
        stats = simulation.store.stats()
        assert (stats.scrub_damaged, stats.quarantined_extents, stats.extents) == (0, 0, 2)


def put(simulation: Simulated, kv: Cache, chain: Chain, cells: Cells) -> int:
    """The device needs its clock only to end a write."""
    with kv.writer(chain) as writer:
        for layer, parts in enumerate(cells):
            writer.put(layer, (0, len(chain)), parts)
        commit = writer.commit_blocking
        with ThreadPoolExecutor(1) as pool:
            done = pool.submit(commit)
            until(lambda: closable(simulation) and done.done())
        return done.result()


@pytest.mark.parametrize("steps", range(6))
def test_it_closes_cleanly_wherever_it_is(steps: int, tmp_path: Path) -> None:
    fill(tmp_path, layout(), BLOCKS)
    before = len(os.listdir("/proc/self/fd"))
    with scrubbing(tmp_path, "2MB/s", bandwidth=50 * MB) as simulation:
        for _ in range(steps):
            simulation.clock.advance(0.3)
            simulation.store.tick()
    assert len(os.listdir("/proc/self/fd")) <= before


def test_a_real_device_is_scrubbed_by_the_keeper_itself(tmp_path: Path) -> None:
    fill(tmp_path, layout(), BLOCKS)
    with opened(tmp_path, scrub="1GB/s") as store:
        until(lambda: store.stats().scrub_passes == 1)
        assert (store.stats().scrub_extents, store.stats().scrub_damaged) == (2, 0)


@pytest.mark.parametrize("rate", ["0MB/s", 0, "fast", -1, "20MB/h"])
def test_a_rate_that_makes_no_sense_is_refused(rate: object, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="scrub"):
        with opened(tmp_path, scrub=rate):
            pass
