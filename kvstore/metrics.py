"""Metrics for Prometheus, by prometheus-client (`pip install 'kvstore-nvme[metrics]'`).

    kvstore.metrics.register(store)
    kvstore.metrics.serve(9100)         # or expose prometheus_client's registry as you do already

Reads `Store.stats()`, `latency()` and `info()` when it is scraped, and nothing at any other time:
loads and puts pay nothing for it. What is exported: docs/METRICS.md.

Invariants
  1. All stores of one registry share one collector, and so one help text per metric.
  2. A store is not kept alive by being registered. A closed one drops out at the next scrape.
"""

import threading
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

from kvstore.errors import StoreClosed, StoreForked
from kvstore.metric_table import LATENCY, METRICS, Metric, Snapshot
from kvstore.store import Store
from kvstore.units import parse_duration

try:
    import prometheus_client
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
    )
    from prometheus_client.core import (
        Metric as Family,
    )
    from prometheus_client.registry import REGISTRY, Collector, CollectorRegistry
except ImportError as error:
    raise ImportError(
        "kvstore.metrics needs prometheus-client: pip install 'kvstore-nvme[metrics]'"
    ) from error

_lock = threading.Lock()
_collectors: "weakref.WeakKeyDictionary[CollectorRegistry, StoreCollector]" = (
    weakref.WeakKeyDictionary()
)


def register(
    store: Store,
    *,
    registry: CollectorRegistry = REGISTRY,
    labels: Mapping[str, str] | None = None,
) -> None:
    """Exports the store from now on; again: with other labels.

    Every sample has the label `store`, the path of the first root unless `labels` says otherwise,
    and the further labels given. ValueError: another store of this registry has other label names,
    or a name that a metric has already.
    """
    values = {"store": store.info().roots[0].path, **(labels or {})}
    taken = {label for metric in METRICS for label in metric.labels} | {LATENCY.label, "le"}
    if clash := taken & set(values):
        raise ValueError(f"label names that metrics have already: {', '.join(sorted(clash))}")
    with _lock:
        collector = _collectors.get(registry) or StoreCollector()
        collector.add(store, values)
        if registry not in _collectors:
            registry.register(collector)
            _collectors[registry] = collector


def unregister(store: Store, *, registry: CollectorRegistry = REGISTRY) -> None:
    """Ends the export of a store. Idempotent; not needed for one that is closed."""
    with _lock:
        collector = _collectors.get(registry)
        if collector is not None:
            collector.remove(store)


def serve(port: int, *, address: str = "127.0.0.1", registry: CollectorRegistry = REGISTRY) -> Any:
    """prometheus_client.start_http_server: (server, thread). Without a password: mind `address`."""
    return prometheus_client.start_http_server(port, addr=address, registry=registry)


class StoreCollector(Collector):
    """The stores of one registry, read when it is scraped."""

    def __init__(self) -> None:
        self._stores: weakref.WeakKeyDictionary[Store, dict[str, str]] = weakref.WeakKeyDictionary()

    def add(self, store: Store, labels: dict[str, str]) -> None:
        """ValueError when the other stores have other label names."""
        for other, known in self._stores.items():
            if other is not store and list(known) != list(labels):
                raise ValueError(f"this registry has stores labelled {list(known)}: use the same")
        self._stores[store] = labels

    def remove(self, store: Store) -> None:
        self._stores.pop(store, None)

    def describe(self) -> list[Family]:
        """Nothing: else registering would scrape."""
        return []

    def collect(self) -> Iterator[Family]:
        """All families, each with the samples of every open store."""
        seen = self._snapshots()
        names = list(seen[0][0]) if seen else ["store"]
        for metric in METRICS:
            family = _family(metric, names)
            for labels, snapshot in seen:
                for values, number in metric.read(snapshot):
                    family.add_metric([*labels.values(), *values], number)
            yield family
        times = HistogramMetricFamily(LATENCY.name, LATENCY.meaning, labels=[*names, LATENCY.label])
        for labels, snapshot in seen:
            for stage, buckets, total in LATENCY.read(snapshot):
                times.add_metric([*labels.values(), stage], buckets, total)
        yield times

    def _snapshots(self) -> list[tuple[dict[str, str], Snapshot]]:
        with _lock:
            stores = list(self._stores.items())
        found = []
        for store, labels in stores:
            try:
                found.append((labels, snapshot_of(store)))
            except (StoreClosed, StoreForked):
                with _lock:
                    self.remove(store)
        return found


def snapshot_of(store: Store) -> Snapshot:
    """What one scrape reads of a store. StoreClosed, StoreForked."""
    return Snapshot(
        stats=store.stats(),
        info=store.info(),
        latency=store.latency(),
        ttls_s={
            name: parse_duration(ttl, "time to live") / 1e9 for name, ttl in store.retention.items()
        },
    )


def _family(metric: Metric, names: list[str]) -> CounterMetricFamily | GaugeMetricFamily:
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    return kind(metric.name, metric.meaning, labels=[*names, *metric.labels])
