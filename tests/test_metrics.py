"""Metrics: samples equal what the store reports, times lie in their stage's buckets, and stores
come and go.

On the virtual clock where time matters; nothing here asserts how long something took.
"""

import asyncio
import errno
import gc
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from kvstore import Cache, Store, metrics
from kvstore.metric_table import LATENCY, MISS_REASONS
from kvstore.report import LATENCY_EDGES_S
from kvstore.testing import Fault, FaultDevice, Injection, Io, VirtualClock
from tests.support.scrape import Scrape
from tests.support.stores import (
    PART_BYTES,
    cells_of,
    check_load,
    layout,
    opened,
    prompt,
    reads_in_flight,
    run,
    until,
    write,
)

BLOCKS = 20  # an extent of 16 and one of 4
BYTES = BLOCKS * 4 * PART_BYTES


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with opened(tmp_path / "root") as store:
        until(lambda: not store.info().roots[0].warming)
        yield store


def filled(store: Store) -> Cache:
    kv = store.cache(layout())
    assert write(kv, kv.keys(prompt(BLOCKS)), cells_of(layout(), BLOCKS)) == BLOCKS
    return kv


def load_all(kv: Cache, blocks: int = BLOCKS) -> None:
    with kv.load(kv.match(kv.keys(prompt(blocks)))) as load:
        check_load(load, cells_of(layout(), BLOCKS), BLOCKS)


@contextmanager
def on_device(
    root: Path, *, latency_ns: int = 0, auto_advance: bool = False
) -> Iterator[tuple[Store, VirtualClock, FaultDevice]]:
    """A store over what was written on the real clock; reads end when the clock moves."""
    with opened(root) as store:
        filled(store)
    clock = VirtualClock(wall_s=int(time.time()) + 1)
    device = FaultDevice(
        clock, bytes_per_second=10**9, latency_ns=latency_ns, auto_advance=auto_advance
    )
    testing = Injection(clock=clock, devices=[device])
    with opened(root, _testing=testing) as store:
        until(lambda: not store.info().roots[0].warming)
        try:
            yield store, clock, device
        finally:
            device.clear()
            device.release_stalled()
            until(lambda: clock.advance(0.001) or not reads_in_flight(device))


# ---- what is counted -----------------------------------------------------------------------------


def test_hits_misses_and_tiers(store: Store) -> None:
    kv = filled(store)
    store.drop_ram()
    load_all(kv)  # from disk
    load_all(kv)  # from the pool
    kv.match(kv.keys(prompt(BLOCKS + 5)))
    seen = Scrape(store)
    assert seen("kvstore_lookups_total") == 3
    assert seen("kvstore_hit_blocks_total") == 3 * BLOCKS
    assert seen("kvstore_hit_tokens_total") == 3 * BLOCKS * 16
    assert seen("kvstore_missed_tokens_total") == 5 * 16
    missed = seen.by("kvstore_missed_blocks_total", "reason")
    assert missed == dict.fromkeys(MISS_REASONS, 0) | {"absent": 5}
    assert seen.by("kvstore_loaded_bytes_total", "tier") == {"ram": BYTES, "disk": BYTES}
    assert seen.by("kvstore_loaded_tokens_total", "tier") == {
        "ram": BLOCKS * 16, "disk": BLOCKS * 16,
    }  # fmt: skip
    assert seen.by("kvstore_loads_total", "reason") == (
        dict.fromkeys(MISS_REASONS, 0) | {"none": 2}
    )


def test_loads_are_counted_by_why_they_ended_short(tmp_path: Path) -> None:
    with on_device(tmp_path) as (store, clock, device):
        device.add(Fault.STALL, io=Io.READ, count=0)
        kv = store.cache(layout())
        late = kv.load(kv.match(kv.keys(prompt(BLOCKS))), deadline="1s")
        dropped = kv.load(kv.match(kv.keys(prompt(BLOCKS))))
        assert Scrape(store).by("kvstore_loads_in_progress", "state") == {
            "running": 2, "waiting": 0,
        }  # fmt: skip
        clock.advance(2)
        until(lambda: store.tick() or late.core.layer(3) is not None)
        dropped.close()
        late.close()
        loads = Scrape(store).by("kvstore_loads_total", "reason")
        assert loads == dict.fromkeys(MISS_REASONS, 0) | {
            "none": 0, "deadline": 1, "cancelled": 1,
        }  # fmt: skip
        times = store.latency()
        assert sum(times["load"].counts) == 1 and times["load"].sum_s == 2
        assert sum(times["first_layer"].counts) == 0


def test_bytes_of_the_device_hold_headers_and_cells(store: Store) -> None:
    kv = filled(store)
    store.drop_ram()
    load_all(kv)
    seen = Scrape(store)
    assert seen("kvstore_written_bytes_total") == seen("kvstore_put_bytes_total") == BYTES
    headers = seen("kvstore_root_written_bytes_total") - BYTES
    assert headers == seen("kvstore_published_extents_total") * 4096
    assert seen("kvstore_root_read_bytes_total") == BYTES


def test_an_operation_that_fails_is_an_error_and_no_latency(tmp_path: Path) -> None:
    with on_device(tmp_path, auto_advance=True) as (store, _, device):
        device.add(Fault.ERRNO, errno.EIO, io=Io.READ)
        kv = store.cache(layout())
        with kv.load(kv.match(kv.keys(prompt(BLOCKS)))) as load:
            assert load.wait(3).reason == "io_error"
        until(lambda: Scrape(store)("kvstore_root_ops_in_flight") == 0)
        seen = Scrape(store)
        errors = seen("kvstore_root_errors_total")
        reads = len([record for record in device.log() if record.io_kind == Io.READ])
        assert 0 < errors <= reads
        assert seen("kvstore_stage_seconds_count", stage="read") == reads - errors
        assert seen("kvstore_root_read_bytes_total") <= BYTES


def test_retention_and_removals(tmp_path: Path) -> None:
    clock = VirtualClock()
    testing = Injection(clock=clock, manual_ticks=True)
    one = 16 * 4 * PART_BYTES + 4096
    with opened(tmp_path, capacity=2 * one + 65_536, reserve=0, _testing=testing) as store:
        until(lambda: not store.info().roots[0].warming)
        kv = store.cache(layout())
        for seed in range(3):
            cells = cells_of(layout(), 16)
            assert write(kv, kv.keys(prompt(16, seed)), cells, retain="chat") == 16
            clock.advance(60)
        seen = Scrape(store)
        assert seen("kvstore_class_evicted_early_extents_total", **{"class": "chat"}) == 1
        age_s = seen("kvstore_class_evicted_age_seconds_total", **{"class": "chat"})
        assert age_s == store.stats().retention["chat"].evicted_age_s == 120
        kv.delete_blocking(kv.keys(prompt(16, 2))[0])
        clock.advance(8 * 86_400)
        until(lambda: store.tick() or store.stats().extents == 0)
        removed = Scrape(store).by("kvstore_removed_extents_total", "reason")
        assert removed == {"evicted": 1, "expired": 1, "deleted": 1, "damaged": 0}
        assert Scrape(store).by("kvstore_class_ttl_seconds", "class") == {
            "agent": 3 * 86_400, "chat": 7 * 86_400,
        }  # fmt: skip


def test_a_root_that_is_down_shows(tmp_path: Path) -> None:
    with on_device(tmp_path, auto_advance=True) as (store, _, device):
        assert Scrape(store)("kvstore_root_down") == Scrape(store)("kvstore_root_trips_total") == 0
        device.add(Fault.ERRNO, errno.EIO, io=Io.READ, count=0)
        kv = store.cache(layout())

        def is_down() -> bool:
            hit = kv.match(kv.keys(prompt(BLOCKS)))
            if hit:
                with kv.load(hit) as load:
                    load.wait(3)
            return Scrape(store)("kvstore_root_down") == 1

        until(is_down)
        assert Scrape(store)("kvstore_root_trips_total") == store.info().roots[0].trips == 1


def test_damage_is_counted_and_its_files(store: Store) -> None:
    kv = filled(store)
    store.drop_ram()
    root = Path(store.info().roots[0].path)
    for path in root.rglob("*.kv"):
        with path.open("r+b") as file:
            file.seek(4096 + 7)
            byte = file.read(1)
            file.seek(4096 + 7)
            file.write(bytes([byte[0] ^ 1]))
    with kv.load(kv.match(kv.keys(prompt(BLOCKS)))) as load:
        assert load.wait(3).reason == "damaged"
    until(lambda: Scrape(store)("kvstore_root_quarantine_files") == 2)
    seen = Scrape(store)
    assert seen("kvstore_removed_extents_total", reason="damaged") == 2
    assert seen("kvstore_root_quarantine_bytes") > BYTES
    assert seen("kvstore_loads_total", reason="damaged") == 1


# ---- latency -------------------------------------------------------------------------------------


def test_every_stage_is_counted_where_it_belongs(store: Store) -> None:
    kv = filled(store)
    store.drop_ram()
    load_all(kv)
    load_all(kv)
    counts = {stage: sum(latency.counts) for stage, latency in store.latency().items()}
    assert counts["commit"] == 1
    assert counts["open"] == 2  # the extents' files
    assert counts["first_layer"] == counts["load"] == 2
    assert counts["write"] >= 8  # four layers of two extents
    assert counts["read"] == store.stats().reads
    assert counts["layer_wait"] <= 8


def test_buckets_are_cumulative_and_end_with_the_count(store: Store) -> None:
    load_all(filled(store))
    family = Scrape(store).families[LATENCY.name]
    for stage in store.latency():
        mine = [sample for sample in family.samples if sample.labels["stage"] == stage]
        buckets = [sample for sample in mine if sample.name.endswith("_bucket")]
        values = [sample.value for sample in buckets]
        assert values == sorted(values)
        edges = [float(sample.labels["le"]) for sample in buckets]
        assert edges == [*LATENCY_EDGES_S, float("inf")]
        count = next(sample.value for sample in mine if sample.name.endswith("_count"))
        assert values[-1] == count


def test_a_read_takes_what_the_clock_says(tmp_path: Path) -> None:
    with on_device(tmp_path, latency_ns=300_000_000, auto_advance=True) as (store, _, _):
        load_all(store.cache(layout()))
        read = store.latency()["read"]
        assert sum(read.counts) == store.stats().reads
        assert sum(read.counts[: LATENCY_EDGES_S.index(2**28 / 1e9) + 1]) == 0
        assert read.sum_s >= 0.3 * sum(read.counts)


def test_only_who_waited_for_a_layer_counts_as_waiting(tmp_path: Path) -> None:
    with on_device(tmp_path) as (store, clock, _):

        def waits() -> int:
            return sum(store.latency()["layer_wait"].counts)

        kv = store.cache(layout())
        with kv.load(kv.match(kv.keys(prompt(BLOCKS))), deadline="1000d") as load:
            with pytest.raises(TimeoutError):
                load.wait(0, timeout="1ms")
            assert waits() == 1
            until(lambda: clock.advance(0.001) or load.core.layer(3) is not None)
            load.wait(3)
            run(_ready_layer(load))
            assert waits() == 1
        assert bytes(kv.get_blocking(kv.keys(prompt(BLOCKS))[0]).data)  # its waits are no layer's
        assert waits() == 1


async def _ready_layer(load: Any) -> None:
    await load.layer(2)


def test_waits_of_an_event_loop_count(tmp_path: Path) -> None:
    with on_device(tmp_path) as (store, clock, _):
        kv = store.cache(layout())

        async def main() -> None:
            async with kv.load(kv.match(kv.keys(prompt(BLOCKS))), deadline="1000d") as load:
                waiting = asyncio.create_task(load.layer(0))
                while not waiting.done():
                    await asyncio.sleep(0)  # it asks before the device does anything
                    clock.advance(0.001)
                await waiting
                load.cancel()

        run(main())
        assert sum(store.latency()["layer_wait"].counts) == 1


# ---- the collector -------------------------------------------------------------------------------


def test_every_number_of_the_reports_is_exported_as_it_is(store: Store) -> None:
    load_all(filled(store))
    seen, stats, root = Scrape(store), store.stats(), store.info().roots[0]
    assert seen("kvstore_extents") == stats.extents == 2
    assert seen("kvstore_blocks") == stats.blocks == BLOCKS
    assert seen("kvstore_pool_bytes") == store.info().pool.bytes
    assert seen("kvstore_root_used_bytes") == root.used_bytes
    assert seen("kvstore_root_capacity_bytes") == root.capacity_bytes
    assert seen("kvstore_root_io_depth") == 64
    assert seen("kvstore_root_owner") == 1
    assert seen("kvstore_root_info", engine=root.engine, role="owner", root=root.path) == 1
    assert seen("kvstore_build_info", version=store.info().build.version) == 1


def test_fallbacks_are_counted_by_what_they_are_of(tmp_path: Path) -> None:
    with opened(tmp_path / "a", tmp_path / "b", engine="threads") as store:
        found = Scrape(store).by("kvstore_fallbacks", "where")
        assert {str(tmp_path / "a"), str(tmp_path / "b"), "pool", "files"} <= set(found)
        assert sum(found.values()) == len(store.info().fallbacks)


def test_it_can_be_parsed_in_both_formats(store: Store) -> None:
    scrape = Scrape(store)
    text = generate_latest(scrape.registry).decode()
    assert text.endswith("# EOF\n")
    server, thread = metrics.serve(0, registry=scrape.registry)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/metrics") as answer:
            families = {
                family.name: family
                for family in text_string_to_metric_families(answer.read().decode())
            }
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert families["kvstore_pool_bytes"].samples[0].value == store.info().pool.bytes


def test_stores_of_one_registry_share_its_families(tmp_path: Path) -> None:
    with opened(tmp_path / "a") as first, opened(tmp_path / "b") as second:
        filled(first)
        seen = Scrape(
            first, second, labels=[{"store": "a", "gpu": "0"}, {"store": "b", "gpu": "1"}]
        )
        assert seen.by("kvstore_blocks", "store") == {"a": BLOCKS, "b": 0}
        assert seen.by("kvstore_blocks", "gpu") == {"0": BLOCKS, "1": 0}
        with pytest.raises(ValueError, match="use the same"):
            metrics.register(second, registry=_with(first, {"gpu": "0"}))
        with pytest.raises(ValueError, match="class"):
            metrics.register(first, registry=CollectorRegistry(), labels={"class": "x"})


def _with(store: Store, labels: dict[str, str]) -> CollectorRegistry:
    registry = CollectorRegistry()
    metrics.register(store, registry=registry, labels=labels)
    return registry


def test_a_store_leaves_when_it_is_unregistered_closed_or_gone(tmp_path: Path) -> None:
    registry = CollectorRegistry()

    def stores() -> set[str]:
        families = [family for family in registry.collect() if family.name == "kvstore_blocks"]
        return {sample.labels["store"] for sample in families[0].samples}

    with opened(tmp_path / "a") as first, opened(tmp_path / "b") as second:
        metrics.register(first, registry=registry, labels={"store": "a"})
        metrics.register(second, registry=registry, labels={"store": "b"})
        metrics.register(second, registry=registry, labels={"store": "c"})
        assert stores() == {"a", "c"}
        metrics.unregister(first, registry=registry)
        metrics.unregister(first, registry=registry)
        assert stores() == {"c"}
    assert stores() == set()
    with opened(tmp_path / "a") as again:
        metrics.register(again, registry=registry)
    del again
    gc.collect()
    assert stores() == set()


def test_without_prometheus_client_the_error_says_what_to_install() -> None:
    program = "import sys; sys.modules['prometheus_client'] = None; import kvstore.metrics"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 1
    assert "pip install 'kvstore-nvme[metrics]'" in done.stderr
    assert not subprocess.run([sys.executable, "-c", program.replace(".metrics", "")]).returncode
