"""Nothing waits without a bound for a disk that does not answer: calls of the file system that keep
their threads, every public call, and close.

What a stalled read or write does to loads and writers is in test_breaker.py.
"""

from __future__ import annotations

import logging
import subprocess
import sys
from contextlib import suppress
from errno import EMFILE
from pathlib import Path

import pytest

from kvstore import OpenError, Store, StoreClosed
from kvstore.store import open_blocking
from kvstore.testing import Fault, FileCall, Injection, Io, VirtualClock
from tests.support.prompts import GRID, assert_whole, eventually, load, put, put_all, put_layer
from tests.support.stores import run
from tests.support.tight import LAYOUT, chain_named
from tests.support.troubled import ROOMY, Troubled, in_flight, troubled

WORKERS, WORKERS_MAX = 4, 12  # file workers of a root; with those in place of stuck ones
OPENERS = 12  # more of them, for what loads wait for


# ---- calls of the file system --------------------------------------------------------------------


def test_opens_that_hang_take_the_root_down_and_end_their_loads(tmp_path: Path) -> None:
    with troubled(tmp_path) as it:
        chain = chain_named(it.kv, "stored", (WORKERS + OPENERS + 3) * GRID)
        assert put(it.kv, chain) == len(chain)
        it.store.drop_ram()
        it.files.stall(FileCall.OPEN_READ)
        running = it.kv.load(it.kv.match(chain), deadline="1d")
        eventually(lambda: it.files.stalled == WORKERS + OPENERS, "all hang that open files")
        it.tick(9)
        assert it.root().state == "up"
        it.clock.advance(2)
        it.until_down()
        assert running.wait(LAYOUT.layers - 1, timeout="30s").reason == "root_down"
        running.close()
        assert "a call of its file system has not come back" in it.root().trouble
        it.heal()
        it.until_up()
        assert_whole(it.kv, chain)


def test_loads_open_files_while_all_file_workers_make_others(tmp_path: Path) -> None:
    """There were four workers for everything, and loads waited behind what four writers began."""
    with troubled(tmp_path, io_timeout="1h") as it:
        chain = chain_named(it.kv, "stored", 2 * GRID)
        assert put(it.kv, chain) == len(chain)
        it.store.drop_ram()
        it.files.stall(FileCall.OPEN_TEMP)
        writers = [it.kv.writer(chain_named(it.kv, i)) for i in range(WORKERS)]
        for writer in writers:
            put_layer(it.kv, writer, 0, 0, GRID)
        eventually(lambda: it.files.stalled == WORKERS, "every file worker is busy")
        assert_whole(it.kv, chain)
        assert it.files.stalled == WORKERS
        it.heal()
        for writer in writers:
            writer.abort()


def test_where_descriptors_are_short_no_more_files_are_opened_at_once(tmp_path: Path) -> None:
    with troubled(tmp_path, io_timeout="1h") as it:
        it.stored(20 * GRID, "open")
        chain, short = chain_named(it.kv, "stored", 9 * GRID), chain_named(it.kv, "short")
        assert put(it.kv, chain) == len(chain) and put(it.kv, short) == GRID
        it.store.drop_ram()
        it.files.add(FileCall.OPEN_READ, EMFILE, count=1)
        assert load(it.kv, it.kv.match(short)) == (GRID, None)
        assert WORKERS < it.store.info().files.open_max < 16
        it.files.stall(FileCall.STAT_FD)
        with it.kv.load(it.kv.match(chain), deadline="1d") as running:
            eventually(lambda: it.files.stalled == WORKERS, "some open files")
            for _ in range(3):
                it.tick(1)
            assert it.files.stalled == WORKERS
            it.heal()
            assert list(running)[-1].blocks == len(chain)


def test_a_probe_that_hangs_is_one_and_the_root_is_back_when_it_answers(tmp_path: Path) -> None:
    with troubled(tmp_path) as it:
        chain = it.stored()
        it.device.add(Fault.STALL, io=Io.READ, count=0)
        running = it.kv.load(it.kv.match(chain))
        eventually(lambda: in_flight(it.device) > 0, "a read is in flight")
        it.tick(11)
        running.close()
        it.files.stall(FileCall.OPEN_ROOT)
        it.tick(1)
        eventually(lambda: it.files.stalled == 1, "the probe hangs")
        for _ in range(20):
            it.tick(60)
        assert (it.root().state, it.files.stalled) == ("probing", 1)
        it.heal()
        it.until_up()
        assert_whole(it.kv, chain)


def test_looks_do_not_pile_up_behind_one_that_hangs(tmp_path: Path) -> None:
    with troubled(tmp_path, io_timeout="1000s") as it:
        before = it.files.calls(FileCall.OPEN_ROOT)
        it.files.stall(FileCall.OPEN_ROOT)
        for _ in range(6):
            it.tick(11)
        eventually(lambda: it.files.stalled == 1, "a look at the path hangs")
        it.heal()
        it.store.close_blocking()  # what is queued is done first
        assert it.files.calls(FileCall.OPEN_ROOT) == before + 1


def test_a_disk_that_hangs_again_and_again_takes_a_bounded_number_of_threads(
    tmp_path: Path,
) -> None:
    with troubled(tmp_path) as it:
        chains = [chain_named(it.kv, i) for i in range(40)]
        for chain in chains:
            assert put(it.kv, chain) == GRID
        it.store.drop_ram()
        threads = set()
        most = 0
        it.files.stall(FileCall.STAT_FD)
        for _ in range(8):
            for chain in chains:
                hit = it.kv.match(chain)
                if hit.blocks:
                    it.kv.load(hit, deadline="1s").close()
            it.tick(11)
            it.tick(60)
            most = max(most, it.files.stalled)
            threads.add(len(list(Path("/proc/self/task").iterdir())))
        assert most <= WORKERS_MAX + OPENERS
        assert max(threads) - min(threads) <= WORKERS_MAX + OPENERS
        it.heal()
        it.until_up()
        for chain in chains[:3]:
            assert_whole(it.kv, chain)


def test_a_flush_that_takes_long_holds_up_nothing_and_is_no_trouble(tmp_path: Path) -> None:
    """It waits for what other programs wrote, too. Flushes share one sync of each root."""
    roots = [tmp_path / "a", tmp_path / "b"]
    with troubled(*roots) as it:
        chain = it.stored(16 * GRID)
        it.files.stall(FileCall.SYNC)
        first = it.store._flush()
        eventually(lambda: it.files.stalled == 1, "a flush hangs")
        others = [it.store._flush() for _ in range(6)]
        it.tick(61)
        fresh = chain_named(it.kv, "fresh", 4 * GRID)
        assert put(it.kv, fresh) == len(fresh)
        assert_whole(it.kv, fresh)
        assert [root.state for root in it.store.info().roots] == ["up", "up"]
        assert it.files.stalled == 1
        it.heal()
        for ticket in [first, *others]:
            ticket.wait("30s")
        assert it.files.calls(FileCall.SYNC) == 2 * len(roots)
        assert_whole(it.kv, chain)


def test_a_flush_that_never_ends_is_given_up_and_so_are_those_behind_it(tmp_path: Path) -> None:
    """None is begun beside it, so that those who ask again and again take no more threads."""
    with troubled(tmp_path) as it:
        chain = it.stored()
        it.files.stall(FileCall.SYNC)
        flushes = [it.store._flush()]
        eventually(lambda: it.files.stalled == 1, "a flush hangs")
        flushes.append(it.store._flush())
        it.tick(599)
        assert not any(flush.done for flush in flushes)
        it.tick(1)
        for _ in range(12):
            flushes.append(it.store._flush())
            it.tick()
        assert all(flush.done for flush in flushes)
        for flush in flushes:
            with pytest.raises(TimeoutError):
                flush.wait()
        assert (it.root().state, it.files.stalled) == ("up", 1)
        assert_whole(it.kv, chain)
        it.heal()
        it.store.flush_blocking()
        assert it.files.calls(FileCall.SYNC) == 2


def test_a_hanging_root_takes_no_workers_from_the_others(tmp_path: Path) -> None:
    """Walks, publishing, deletes and flushes run on the workers of one root and go to all."""
    roots = [tmp_path / "a", tmp_path / "b"]
    with troubled(*roots) as it:
        chain, gone = it.stored(16 * GRID), it.stored(name="gone")
        it.files.stall(FileCall.SYNC)
        first = it.store._flush()
        eventually(lambda: it.files.stalled == 1, "a flush hangs")
        others = [it.store._flush() for _ in range(6)]
        it.files.stall(FileCall.UNLINK, count=1)
        deletes = [it.kv._delete(gone[0]), it.kv._delete(chain_named(it.kv, "none", 1)[0])]
        eventually(lambda: it.files.stalled == 2, "an unlink hangs")
        it.clock.advance(11)
        eventually(lambda: it.tick() or "down" in states(it), "a root is down")
        for ticket in [*others, deletes[1]]:
            with pytest.raises(OSError, match="flush|delet"):
                ticket.wait("30s")
        assert sorted(states(it)) == ["down", "up"]
        down = states(it).index("down")
        fresh = chain_named(it.kv, "fresh", 4 * GRID)
        assert put(it.kv, fresh) == len(fresh)
        assert_whole(it.kv, fresh)
        it.heal()
        it.until_up(down)
        with suppress(OSError):  # the rest of it is refused if the root is still down then
            first.wait("30s")
        assert first.done
        it.store.flush_blocking()
        assert_whole(it.kv, chain)


def states(it: Troubled) -> list[str]:
    return [root.state for root in it.store.info().roots]


# ---- every public call has a bound ---------------------------------------------------------------


def test_every_call_ends_while_a_disk_hangs_and_before_anyone_noticed(tmp_path: Path) -> None:
    """Each by its own time-out, in real time; the virtual clock stands still."""
    with troubled(tmp_path) as it:
        chain = it.stored()
        new = chain_named(it.kv, "new")
        buffer = bytes(LAYOUT.block_bytes)
        for call in (FileCall.OPEN_TEMP, FileCall.UNLINK, FileCall.SYNC):
            it.files.stall(call)
        it.device.add(Fault.STALL, count=0)

        async def scenario() -> None:
            with pytest.raises(TimeoutError):
                await it.store.flush(timeout="50ms")
            with pytest.raises(TimeoutError):
                await it.kv.delete(chain[0], timeout="50ms")
            assert not await it.kv.put(new[0], buffer, timeout="50ms")
            with it.kv.writer(new) as writer:
                with pytest.raises(TimeoutError):
                    for layer in (0, 1, 3):
                        parts = [bytes(GRID * size) for _, size in LAYOUT.parts_by_layer[layer]]
                        writer.put(layer, (0, GRID), parts)
                    await writer.commit(timeout="50ms")

        run(scenario())
        with pytest.raises(TimeoutError):
            it.store.flush_blocking(timeout="50ms")
        it.heal()


def test_loads_end_by_their_deadline_also_when_nobody_waits_for_the_device(tmp_path: Path) -> None:
    with troubled(tmp_path) as it:
        chain = it.stored()
        it.device.add(Fault.STALL, io=Io.READ, count=0)
        running = it.kv.load(it.kv.match(chain), deadline="5s")
        eventually(lambda: in_flight(it.device) > 0, "a read is in flight")
        it.tick(6)
        assert running.wait(0, timeout="30s").reason == "deadline"
        assert it.root().state == "up"
        running.close()


# ---- close ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["a read", "a write", "a call"])
def test_close_ends_though_the_device_never_answers(
    what: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="kvstore")
    roots = [tmp_path / "a", tmp_path / "b"]
    with troubled(*roots, io_timeout="300ms") as it:
        chain = it.stored(16 * GRID)
        if what == "a call":
            it.files.stall(FileCall.SYNC, count=1)
            flush = it.store._flush()
            eventually(lambda: it.files.stalled > 0, "a call hangs")
        elif what == "a read":
            it.device.add(Fault.STALL, count=0)
            it.kv.load(it.kv.match(chain)).close()
            running = it.kv.load(it.kv.match(chain))
            eventually(lambda: in_flight(it.device) > 0, "a read is in flight")
        else:
            it.device.add(Fault.STALL, io=Io.WRITE, count=0)
            writer = it.kv.writer(chain_named(it.kv, "new", 16 * GRID))
            put_all(it.kv, writer)
            eventually(lambda: in_flight(it.device) > 0, "a write is in flight")
        it.store.close_blocking()
        assert [r for r in caplog.records if "did not answer" in r.message]
        if what == "a read":
            assert running.wait(0, timeout="30s").reason == "closed"
        elif what == "a call":
            with pytest.raises(StoreClosed):
                flush.wait("30s")
        # What is left behind ends when the device answers: the directory can be opened again.
        it.heal()
        with opened_when_let_go(roots) as store:
            assert store.cache(LAYOUT).find_blocking(chain).blocks == len(chain)


def opened_when_let_go(roots: list[Path]) -> Store:
    """Opens the directories as soon as nobody owns them any more."""
    opened: list[Store] = []

    def tried() -> bool:
        injected = Injection(clock=VirtualClock())
        with suppress(OpenError):
            opened.append(open_blocking(*roots, capacity=ROOMY, pool="16MB", _testing=injected))
        return bool(opened)

    eventually(tried, "the owner's lock was let go")
    return opened[0]


EXIT = """
import sys
from pathlib import Path
from tests.support.troubled import troubled, in_flight
from tests.support.prompts import eventually
from kvstore.testing import Fault
context = troubled(Path(sys.argv[1]), io_timeout="200ms")
it = context.__enter__()
chain = it.stored()
it.device.add(Fault.STALL, count=0)
running = it.kv.load(it.kv.match(chain))
eventually(lambda: in_flight(it.device) > 0, "a read is in flight")
print("ending")
"""


def test_the_interpreter_ends_though_the_device_never_answers(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", EXIT, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=100,
        cwd=Path(__file__).parents[1],
    )
    assert (done.returncode, done.stdout) == (0, "ending\n"), done.stderr
