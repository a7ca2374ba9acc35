"""The device that costs nothing: cells of its pattern pass the store's checks, others do not."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import kvstore
from kvstore.testing import Injection, NullDevice

LAYOUT = kvstore.Layout.mla(model="test/null", layers=8)
BLOCKS = 32


def put(kv: kvstore.Cache, chain: kvstore.Chain, cells: np.ndarray) -> None:
    with kv.writer(chain) as writer:
        for layer in range(LAYOUT.layers):
            writer.put(layer, range(BLOCKS), [cells])
        assert writer.commit_blocking() == BLOCKS


def load(store: kvstore.Store, kv: kvstore.Cache, chain: kvstore.Chain) -> tuple[int, str | None]:
    store.drop_ram()
    with kv.load(kv.match(chain)) as load:
        for layer in load:
            blocks, reason = layer.blocks, layer.reason
            for span in layer.spans:
                assert (span.cells.reshape(-1, 64) == np.arange(64)).all()
        assert load.stats().ram_bytes == 0
    return blocks, reason


def test_cells_of_its_pattern_are_verified_and_others_are_a_miss(tmp_path: Path) -> None:
    cells = np.resize(
        np.frombuffer(NullDevice.PATTERN, np.uint8), (BLOCKS, LAYOUT.cell_bytes(0))
    ).copy()
    with kvstore.open_blocking(
        tmp_path, pool="64MB", _testing=Injection(devices=[NullDevice()])
    ) as store:
        assert store.info().roots[0].engine == "null"
        kv = store.cache(LAYOUT)
        good, bad = kv.keys(range(BLOCKS * 64)), kv.keys(range(1, BLOCKS * 64 + 1))
        put(kv, good, cells)
        assert load(store, kv, good) == (BLOCKS, None)
        cells[20, 5] ^= 1
        put(kv, bad, cells)
        assert load(store, kv, bad) == (20, "damaged")


def test_nothing_it_was_given_reaches_the_disk(tmp_path: Path) -> None:
    cells = np.full((BLOCKS, LAYOUT.cell_bytes(0)), 7, np.uint8)
    with kvstore.open_blocking(
        tmp_path, pool="64MB", _testing=Injection(devices=[NullDevice()])
    ) as store:
        kv = store.cache(LAYOUT)
        put(kv, kv.keys(range(BLOCKS * 64)), cells)
    files = list(tmp_path.rglob("*.kv"))
    assert files
    for path in files:
        assert bytes([7] * 64) not in path.read_bytes()
