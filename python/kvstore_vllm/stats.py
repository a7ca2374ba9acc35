"""Counters of the connector, as vLLM collects them from workers and scheduler and exports them.

A counter is a number since the last time it was asked for; a reason is a part of its name after a
colon ("skips:gate").
"""

from collections.abc import Mapping
from typing import Any

from prometheus_client import Counter as PromCounter
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
    KVConnectorPromMetrics,
    KVConnectorStats,
)

# name -> (what it counts, whether it comes with a reason)
COUNTERS = {
    "lookups": ("requests that waited for names on disk", False),
    "hit_tokens": ("tokens of prompts that are loaded from disk", False),
    "skips": ("requests that were on disk, but are computed", True),
    "loads": ("loads started", False),
    "loaded_blocks": ("blocks loaded and verified", False),
    "lost_blocks": ("blocks that did not load and are computed again", False),
    "loaded_bytes": ("bytes loaded and verified", False),
    "layer_wait_us": ("microseconds in which a step waited for layers", False),
    "saved_bytes": ("bytes handed to writers", False),
    "saved_blocks": ("blocks that were committed, or were there already", False),
    "writers": ("writers opened", False),
    "saves_spoiled": ("saves dropped because a page before them failed to load", False),
    "saves_failed": ("puts and commits that the store refused", False),
    "cells_not_saved_busy": ("cells not saved because the writer was behind", False),
}


class KVStoreStats(KVConnectorStats):
    """data: counter name -> number."""

    data: dict[str, float]

    def reset(self) -> None:
        self.data = {}

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        for name, number in other.data.items():
            self.data[name] = self.data.get(name, 0) + number
        return self

    def reduce(self) -> dict[str, int | float]:
        return {name: round(number, 4) for name, number in sorted(self.data.items())}

    def is_empty(self) -> bool:
        return not any(self.data.values())


def stats_of(counts: Mapping[str, float]) -> KVStoreStats | None:
    """None when nothing happened."""
    found = {name: number for name, number in counts.items() if number}
    return KVStoreStats(data=found) if found else None


class KVStorePromMetrics(KVConnectorPromMetrics):
    """`vllm:kvstore_*_total`, per engine."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._counters: dict[str, Any] = {}
        for name, (help_text, reasoned) in COUNTERS.items():
            labels = [*self._labelnames, "reason"] if reasoned else self._labelnames
            self._counters[name] = self._counter_cls(
                name=f"vllm:kvstore_{name}",
                documentation=f"kvstore: {help_text}.",
                labelnames=labels,
            )

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        values = self.per_engine_labelvalues[engine_idx]
        for full_name, number in transfer_stats_data.items():
            name, _, reason = full_name.partition(":")
            labels = [*values, reason] if reason else values
            counter: PromCounter = self._counters[name].labels(*labels)
            counter.inc(number)
