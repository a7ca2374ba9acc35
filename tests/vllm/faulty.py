"""Engines over simulated devices: what a test injects into the store that a connector opens, and
what it sees and does at the hooks."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import kvstore
from kvstore.testing import FaultDevice, Injection, Io, VirtualClock
from kvstore_vllm import shared
from kvstore_vllm.worker import Worker


def open_on(monkeypatch: pytest.MonkeyPatch, injection: Injection) -> None:
    """Stores that connectors open from now on run on the simulated parts."""

    def open_blocking(*paths: str, **options: Any) -> kvstore.Store:
        return kvstore.open_blocking(*paths, **options, _testing=injection)

    monkeypatch.setattr(shared, "open_blocking", open_blocking)


@contextmanager
def seconds_passing(clock: VirtualClock) -> Iterator[None]:
    """The clock goes on, a second each millisecond, as long as the block runs."""
    stop = threading.Event()

    def tick() -> None:
        while not stop.wait(0.001):
            clock.advance(1)

    ticking = threading.Thread(target=tick)
    ticking.start()
    try:
        yield
    finally:
        stop.set()
        ticking.join()


@dataclass
class Overlap:
    """Of the first step with a load. read_at_start: reads that were complete when start_load_kv
    returned. in_flight: per layer, reads under way when its attention began."""

    read_at_start: int = -1
    in_flight: list[int] = field(default_factory=list)


def reads(device: FaultDevice, *, complete: bool) -> int:
    found = [record for record in device.log() if record.io_kind == Io.READ]
    return sum((record.completed_ns >= 0) is complete for record in found)


def one_read_at_a_time(
    monkeypatch: pytest.MonkeyPatch, clock: VirtualClock, device: FaultDevice
) -> Overlap:
    """Time stands still until a layer is waited for; then it moves until one read more is complete.
    Of loads in which a layer is one read, that is the one that the layer needs."""
    seen = Overlap()
    start, wait = Worker.start_loads, Worker.wait_layer

    def start_loads(self: Worker) -> None:
        start(self)
        if self.loading and seen.read_at_start < 0:
            seen.read_at_start = reads(device, complete=True)

    def wait_layer(self: Worker, name: str) -> None:
        layer = self.pages.index_of[name]
        loads = self.loading
        while loads and reads(device, complete=True) <= layer:
            if device.next_ns() >= 0:
                clock.advance(max(0, device.next_ns() - clock.now_ns) / 1e9)
            device.settle()
        wait(self, name)
        if loads:
            device.settle()
            seen.in_flight.append(reads(device, complete=False))

    monkeypatch.setattr(Worker, "start_loads", start_loads)
    monkeypatch.setattr(Worker, "wait_layer", wait_layer)
    return seen


def extents(root: Path) -> list[Path]:
    return sorted(path for path in root.glob("*/*/*") if path.parent.name != "tmp")


def before_the_load(monkeypatch: pytest.MonkeyPatch, harm: Any) -> None:
    """`harm` happens once, after lookup and lease, when the worker is about to load."""
    start = Worker.start_loads
    left = [harm]

    def start_loads(self: Worker) -> None:
        if self.ordered_loads and left:
            left.pop()()
        start(self)

    monkeypatch.setattr(Worker, "start_loads", start_loads)


def flip_a_bit(root: Path) -> None:
    for path in extents(root):
        with path.open("r+b") as file:
            file.seek(os.stat(path).st_size // 2)
            byte = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte[0] ^ 1]))
