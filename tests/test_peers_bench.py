"""The comparison with peers: all do the same work, wrong bytes are noticed, figures are made from
the records they claim to be made from, and a peer that fails is told, not left out."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from benches.peers import environment, report
from benches.peers.child import Child, PeerFailed
from benches.peers.run import CANDIDATES, phases
from benches.peers.work import (
    HUGE_PAGE,
    PAGE,
    Setup,
    Slots,
    Source,
    Work,
    batches_of,
    check,
    memory,
)

BLOCKS = Work("blocks", 5000, 3, 40)  # cells that are not whole pages
LAYERS = Work("layers", PAGE, 3, 4, by_layer=True)


# ---- the work ------------------------------------------------------------------------------------


@pytest.mark.parametrize("work", [BLOCKS, LAYERS])
@pytest.mark.parametrize("kind", ["bulk", "keys", "layers"])
def test_every_kind_of_load_asks_for_every_value_once(work: Work, kind: str) -> None:
    if kind == "layers" and not work.by_layer:
        with pytest.raises(ValueError, match="layer by layer"):
            batches_of(work, kind)
        return
    batches = batches_of(work, kind)
    assert sorted(i for batch in batches for i in batch) == list(range(work.values))
    if kind == "layers":
        assert [len(batch) for batch in batches] == [work.blocks] * work.layers


@pytest.mark.parametrize("work", [BLOCKS, LAYERS])
def test_values_of_a_generation_begin_at_pages_of_their_own(work: Work) -> None:
    """Else a peer that mixes two up would pass the check. (It once did: cells of a layer used to be
    those of the next block's layer before.)"""
    source = Source(work, huge=False)
    for generation in (0, 5):
        starts = {source.value(generation, i)[:8].tobytes() for i in range(work.values)}
        assert len(starts) == work.values
        assert all(source.offset(generation, i) % PAGE == 0 for i in range(work.values))
    assert not np.array_equal(source.value(0, 0), source.value(5, 0))


def test_a_whole_block_is_its_cells_in_layer_order() -> None:
    """Chains and single values are the same bytes: what kvstore puts by layer, peers put by key."""
    source = Source(BLOCKS, huge=False)
    for layer in range(BLOCKS.layers):
        start = source.cell_offset(2, layer, 7)
        cell = source.value(2, 7)[layer * 5000 : (layer + 1) * 5000]
        assert np.array_equal(source.bytes[start : start + 5000], cell)


@pytest.mark.parametrize(
    ("at", "whole", "noticed"),
    [(0, False, True), (-1, False, True), (2500, False, False), (2500, True, True)],
)
def test_a_wrong_byte_is_noticed(at: int, whole: bool, noticed: bool) -> None:
    source = Source(BLOCKS, huge=False)
    values = [source.value(0, index).copy() for index in range(BLOCKS.values)]
    check(source, 0, values.__getitem__, whole=True)
    values[7][at] ^= 1
    if noticed:
        with pytest.raises(ValueError, match="value 7"):
            check(source, 0, values.__getitem__, whole=whole)
    else:  # of each timed load only both ends are looked at; all bytes are once a phase
        check(source, 0, values.__getitem__, whole=whole)


def test_a_value_that_is_too_short_is_noticed() -> None:
    source = Source(BLOCKS, huge=False)
    with pytest.raises(ValueError, match="value 0"):
        check(source, 0, lambda index: source.value(0, index)[:-1], whole=False)


def test_memory_begins_at_a_huge_page_and_slots_do_not_overlap(tmp_path: Path) -> None:
    assert memory(100, huge=True).ctypes.data % HUGE_PAGE == 0
    slots = Slots(Setup(tmp_path, BLOCKS, Source(BLOCKS, huge=False), huge=False))
    for index in range(BLOCKS.values):
        slots[index][:] = index
        assert slots.address_of(index) % PAGE == 0
    assert [int(slots[i][0]) for i in range(40)] == [int(slots[i][-1]) for i in range(40)]


# ---- figures -------------------------------------------------------------------------------------


def record(peer: str, number: int, seconds: float, kind: str = "bulk") -> report.Record:
    return {"peer": peer, "kind": kind, "round": number, "bytes": 10**9, "seconds": seconds,
            "cpu_s": 0.5, "first_s": 0.001, "sync_s": 1.0}  # fmt: skip


RECORDS = [
    *(record("kvstore", i, s) for i, s in enumerate((0.5, 1.0, 0.25))),
    *(record("nixl POSIX", i, s) for i, s in enumerate((0.25, 0.5, 0.5))),
    *(record("lmdb", i, s) for i, s in enumerate((1.0, 2.0))),  # it failed in the third round
]


def test_ratios_are_of_the_same_round_only() -> None:
    rows = report.rows_of(RECORDS, "bulk")
    assert list(rows) == ["kvstore", "nixl POSIX", "lmdb"]  # 2, 2 and 0.75 GB/s
    assert report.ratios(rows["nixl POSIX"], rows["kvstore"]) == [2.0, 2.0, 0.5]
    assert report.ratios(rows["lmdb"], rows["kvstore"]) == [0.5, 0.5]
    assert report.ratios(rows["lmdb"], []) == []


def test_who_is_faster_is_said() -> None:
    said = report.kind_lines(RECORDS, "bulk", {})[-1]
    assert said == "faster than kvstore: nixl POSIX 2.00 [0.50..2.00]"
    slow = [one for one in RECORDS if one["peer"] != "nixl POSIX"]
    assert report.kind_lines(slow, "bulk", {})[-1] == "faster than kvstore: none"


def test_shares_are_of_the_best_depth_of_the_same_run() -> None:
    samples = [("fresh", 8, 2.0), ("fresh", 16, 2.5), ("fresh", 16, 2.7), ("hot", 8, 4.0)]
    ceiling = [
        {"kind": "ceiling", "memory": memory, "depth": depth, "gbps": gbps}
        for memory, depth, gbps in samples
    ]
    assert report.ceilings(ceiling) == {"best": 4.0, "fresh": 2.6}
    assert report.ceilings([]) == {}
    line = next(
        line
        for line in report.phase_lines("title", [*RECORDS, *ceiling])
        if line.startswith("kvstore")
    )
    assert line.split()[1:4] == ["2.00", "[1.00..4.00]", "0.50"]


def test_a_put_is_shown_with_the_sync_that_makes_it_last() -> None:
    lines = report.kind_lines([record("kvstore", 0, 1.0, "put")], "put", {"best": 1.0})
    assert "with sync 0.50" in lines[0]


def test_phases_hold_what_they_say() -> None:
    every = phases(128, small=False)
    sizes = [phase.work.value_bytes for phase in every]
    assert sizes == [4_497_408, 73_728, 2_561_024, 17_989_632, 4_497_408]
    assert all(f"{size:,} B" in phase.title for size, phase in zip(sizes, every, strict=True))
    assert {phase.mode for phase in every} == {"best", "shipped"}
    assert set(report.REFERENCES.values()) <= {candidate.name for candidate in CANDIDATES}


# ---- peers that fail -----------------------------------------------------------------------------


def child(folder: Path, module: str) -> Child:
    folder.mkdir()
    work = Work("tiny", PAGE, 2, 3)
    return Child(Path(sys.executable), module, folder, work, "best", dict(os.environ))


def test_a_peer_that_is_not_installed_is_told_with_its_error(tmp_path: Path) -> None:
    started = child(tmp_path / "peer", "peer_that_nobody_wrote")
    with pytest.raises(PeerFailed, match="ModuleNotFoundError"):
        started.start()
    started.kill()


def test_the_plainest_peer_does_the_work(tmp_path: Path) -> None:
    """Over the same lines that all peers are driven by, on whatever file system there is."""
    peer = child(tmp_path / "peer", "peer_preadv")
    try:
        peer.start()
        assert peer.facts["lacks"]
        for generation in (0, 1):
            assert peer.ask(op="put", generation=generation, count=3)["bytes"] == 3 * 2 * PAGE
        assert sorted(path.name for path in (tmp_path / "peer").iterdir()) == ["0-0", "0-1", "0-2"]
        for kind in ("bulk", "keys"):
            peer.ask(op="check", kind=kind)
            found = peer.ask(op="load", kind=kind)
            assert found["bytes"] == 3 * 2 * PAGE and 0 < found["first_s"] <= found["seconds"]
        (tmp_path / "peer" / "0-1").write_bytes(bytes(2 * PAGE))
        with pytest.raises(PeerFailed, match="value 1 of generation 0 came back wrong"):
            peer.ask(op="load", kind="bulk")
    finally:
        peer.kill()


def test_a_peer_that_died_is_told(tmp_path: Path) -> None:
    peer = child(tmp_path / "peer", "peer_preadv")
    peer.start()
    peer.process.kill()
    peer.process.wait()
    with pytest.raises(PeerFailed):
        peer.ask(op="forget")
    peer.kill()


def test_kvstore_does_the_work_in_every_way(tmp_path: Path) -> None:
    for number, module in enumerate(("peer_kvstore", "peer_kvstore_single")):
        peer = child(tmp_path / str(number), module)
        try:
            peer.start()
            peer.ask(op="put", generation=0, count=3)
            for kind in ("bulk", "keys"):
                peer.ask(op="forget")
                peer.ask(op="check", kind=kind)
            peer.ask(op="close")
        finally:
            peer.kill()


def test_the_version_of_torch_is_that_of_the_constraints() -> None:
    assert environment.pinned_torch("# why\ntorch==2.13.0\nruff==0.1\n") == "2.13.0"
    with pytest.raises(ValueError, match="no version of torch"):
        environment.pinned_torch("ruff==0.1\n")
