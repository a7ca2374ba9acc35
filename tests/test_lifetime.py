"""Nothing is freed too early, nothing waits where it must not: views, sources, processes, exits."""

import gc
import os
import subprocess
import sys
import textwrap
import threading
import weakref
from pathlib import Path

import numpy as np
import pytest

from kvstore import OpenError, Pages, StoreForked, _core, alloc
from kvstore.store import open_blocking
from kvstore.testing import Fault, FaultDevice, Injection, Io, VirtualClock
from tests.support.stores import (
    LAYERS,
    PART_BYTES,
    POOL,
    cells_of,
    fork,
    layout,
    opened,
    prompt,
    reads_in_flight,
    until,
    write,
)


class Source(np.ndarray):  # type: ignore[type-arg]
    """An array that can be watched by a weak reference."""


def watched(shape: tuple[int, ...]) -> Source:
    return np.zeros(shape, np.uint8).view(Source)


def test_a_view_outlives_layer_load_and_store(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        kv = store.cache(layout())
        chain = kv.keys(prompt(2))
        cells = cells_of(kv.layout, 2)
        write(kv, chain, cells)
        load = kv.load(kv.match(chain))
        view = load.wait(0).spans[0].cells
        assert np.array_equal(view, cells[0]["latent"])
    del load, kv, store
    gc.collect()
    assert view.sum() >= 0, "stale bytes, but mapped ones"
    with pytest.raises(ValueError, match="read-only"):
        view[0, 0] = 1


def test_sources_of_a_dropped_writer_live_until_they_are_copied(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        kv = store.cache(layout())
        chain = kv.keys(prompt(4))
        source = watched((4, PART_BYTES))
        alive = weakref.ref(source)
        handle = kv.writer(chain).put(0, (0, 4), [source])
        del source
        gc.collect()
        handle.wait("30s")
        _core.sweep()
        assert alive() is None


def test_target_memory_of_a_dropped_load_lives_until_it_is_drained(tmp_path: Path) -> None:
    clock = VirtualClock()
    device = FaultDevice(clock)
    with opened(tmp_path, _testing=Injection(clock=clock, devices=[device])) as store:
        kv = store.cache(layout())
        chain = kv.keys(prompt(4))
        write(kv, chain, cells_of(kv.layout, 4))
        store.drop_ram()
        device.add(Fault.STALL, io=Io.READ, count=0)
        # Aligned memory, so that the device itself writes it.
        targets = [alloc(4 * PART_BYTES).view(Source) for _ in range(LAYERS)]
        alive = [weakref.ref(target) for target in targets]
        load = kv.load(kv.match(chain), into=Pages.contiguous({"latent": targets}))
        until(lambda: reads_in_flight(device))
        drained = load.core.drained
        load.close()
        del load, targets
        gc.collect()
        assert drained.done() is None
        assert all(ref() is not None for ref in alive)
        device.clear()
        device.release_stalled()
        assert drained.wait(30 * 10**9)
        _core.sweep()
        assert all(ref() is None for ref in alive)


def test_the_core_load_itself_keeps_the_target_memory(tmp_path: Path) -> None:
    clock = VirtualClock()
    device = FaultDevice(clock)
    with opened(tmp_path, _testing=Injection(clock=clock, devices=[device])) as store:
        kv = store.cache(layout())
        chain = kv.keys(prompt(4))
        write(kv, chain, cells_of(kv.layout, 4))
        store.drop_ram()
        device.add(Fault.STALL, io=Io.READ, count=0)
        memory = [alloc(4 * PART_BYTES).view(Source) for _ in range(LAYERS)]
        alive = [weakref.ref(one) for one in memory]
        packed, page_tokens, owners = Pages.contiguous({"latent": memory}).targets(kv.layout, 0, 4)
        lease = kv.lease(kv.match(chain))
        load = _core.Load(
            lease.core, targets=packed, page_tokens=page_tokens, table=None, owners=owners,
            flags=0, deadline_ns=30 * 10**9,
        )  # fmt: skip
        until(lambda: reads_in_flight(device))
        drained = load.drained
        del load, memory, owners
        gc.collect()
        assert drained.done() is None
        assert all(ref() is not None for ref in alive)
        device.clear()
        device.release_stalled()
        assert drained.wait(30 * 10**9)
        assert all(ref() is None for ref in alive)


def test_a_forked_child_is_told_and_its_exit_harms_nobody(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        kv = store.cache(layout())
        chain = kv.keys(prompt(2))
        cells = cells_of(kv.layout, 2)
        write(kv, chain, cells)
        load = kv.load(kv.match(chain))
        pid = fork()
        if pid == 0:
            refused = 0
            for call in (store.stats, lambda: kv.match(chain), lambda: load.wait(0)):
                try:
                    call()
                except StoreForked:
                    refused += 1
            del load, kv
            gc.collect()
            store.close_blocking()
            os._exit(refused)
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 3
        assert np.array_equal(load.wait(0).gather("latent"), cells[0]["latent"])
        load.close()


def run_python(text: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    root = Path(__file__).parents[1]
    return subprocess.run(
        [sys.executable, "-W", "always", "-c", textwrap.dedent(text), *arguments],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_a_program_that_forgets_to_close_ends_and_keeps_what_it_published(tmp_path: Path) -> None:
    program = """
        import sys
        from pathlib import Path
        from tests.support.stores import POOL, cells_of, layout, open_blocking, prompt, write
        store = open_blocking(Path(sys.argv[1]), pool=POOL)
        kv = store.cache(layout())
        chain = kv.keys(prompt(2))
        write(kv, chain, cells_of(kv.layout, 2))
        load = kv.load(kv.match(chain))
        kept = load.wait(0)
    """
    ended = run_python(program, str(tmp_path))
    assert ended.returncode == 0, ended.stderr
    with opened(tmp_path) as store:
        kv = store.cache(layout())
        assert kv.find_blocking(kv.keys(prompt(2))).blocks == 2


def test_a_store_that_is_dropped_warns_and_gives_its_lock_back(tmp_path: Path) -> None:
    with pytest.warns(ResourceWarning, match="not closed"):
        open_blocking(tmp_path, pool=POOL)
        gc.collect()
    for thread in threading.enumerate():
        if thread.name == "kvstore-close":
            thread.join(30)
    open_blocking(tmp_path, pool=POOL).close_blocking()


def test_a_device_that_no_store_took_ends_by_itself() -> None:
    clock = VirtualClock()
    for _ in range(20):  # more than a clock can be watched by
        FaultDevice(clock)
    device = FaultDevice(VirtualClock())  # it alone refers to its clock
    assert device.next_ns() == -1
    del device, clock


def test_a_device_of_a_store_that_could_not_open_is_left_alone(tmp_path: Path) -> None:
    clock = VirtualClock()
    device = FaultDevice(clock)
    injection = Injection(clock=clock, devices=[device])
    with opened(tmp_path / "kv"), pytest.raises(OpenError, match="owner"):
        open_blocking(tmp_path / "kv", pool=POOL, _testing=injection)
    with pytest.raises(ValueError, match="closed this engine"):
        device.log()
