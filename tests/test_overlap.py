"""Layers stream: what is read when, asserted on the device's log, and the time that a whole prefill
takes on a virtual device, held against the formula that the design promises."""

from __future__ import annotations

import warnings
from itertools import groupby
from pathlib import Path

import pytest

from kvstore import Layout, LayoutWarning
from tests.support.simulation import (
    RegionMap,
    Simulated,
    fill,
    finish,
    flow_shop_ns,
    is_ready,
    load_ns,
    move_to,
    run_prefill,
    simulated,
)
from tests.support.stores import BLOCK_TOKENS

BLOCKS = 40  # three extents, the last one half full
PIECE_BYTES = 1 << 20  # one read of the device at most

# One piece or several per region, cells that are no multiples of 4096, layers without parts.
V3_LIKE = ((("latent", 18 * 4096),),) * 13
UNEVEN = (
    (("latent", 41_984),),
    (("latent", 3 * 4096),),
    (),
    (("latent", 150 * 1024), ("index", 8_448)),
    (("latent", 656),),
    (("latent", 150 * 1024),),
    (),
)
SHAPES = {"v3_like": V3_LIKE, "uneven": UNEVEN}


def layout_of(shape: str) -> Layout:
    """ "uneven" has small blocks on purpose."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LayoutWarning)
        return Layout(
            parts_by_layer=SHAPES[shape], model=shape, block_tokens=BLOCK_TOKENS, extent_blocks=16
        )


@pytest.fixture(scope="module", params=SHAPES)
def filled(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Layout]:
    """A root with two prompts, written once for all tests of a shape."""
    root = tmp_path_factory.mktemp(request.param)
    layout = layout_of(request.param)
    fill(root, layout, BLOCKS, seeds=(0, 1))
    return root, layout


def layers_in_order(simulation: Simulated, root: Path, start: int) -> list[int]:
    regions = RegionMap(root, simulation.layout)
    return [regions.layer(record) for record in simulation.reads(start)]


# ---- the time of a whole prefill -----------------------------------------------------------------


@pytest.mark.parametrize("ratio", ["none", "load_bound", "equal", "compute_bound", "front", "back"])
def test_a_prefill_takes_exactly_what_the_flow_shop_formula_says(
    filled: tuple[Path, Layout], ratio: str
) -> None:
    """With 64 operations in flight; a single one keeps this device as busy (see the next test)."""
    root, layout = filled
    load = load_ns(layout, BLOCKS)
    last = layout.layers - 1
    compute = {
        "none": [0] * layout.layers,
        "load_bound": [ns // 3 + 7 for ns in load],
        "equal": load,
        "compute_bound": [3 * ns + 11 for ns in load],
        "front": [(last - k) * 500_001 for k in range(layout.layers)],
        "back": [k * 500_001 for k in range(layout.layers)],
    }[ratio]
    with simulated(root, layout, BLOCKS) as simulation:
        simulation.open_files()
        with simulation.load() as running:
            took = run_prefill(simulation, running, compute)
    assert took == flow_shop_ns(load, compute)


def test_the_device_is_never_idle_even_with_one_operation_in_flight(
    filled: tuple[Path, Layout],
) -> None:
    root, layout = filled
    load = load_ns(layout, BLOCKS)
    with simulated(root, layout, BLOCKS, depth=1) as simulation:
        simulation.open_files()
        with simulation.load() as running:
            assert run_prefill(simulation, running, load) == flow_shop_ns(load, load)


def test_the_formula_is_the_longest_path_through_both_machines() -> None:
    load, compute = [5, 1, 7, 2], [3, 4, 1, 6]
    loaded = computed = 0
    for need, work in zip(load, compute, strict=True):
        loaded += need
        computed = max(loaded, computed) + work
    assert flow_shop_ns(load, compute) == computed == 21


# ---- the order of reads --------------------------------------------------------------------------


def test_no_read_of_a_later_layer_is_submitted_before_all_reads_of_an_earlier_one(
    filled: tuple[Path, Layout],
) -> None:
    """The prefetch window is the operations in flight: layers follow each other without a gap, and
    none overtakes. Files are opened cold here, on real threads, in any order."""
    root, layout = filled
    with simulated(root, layout, BLOCKS, depth=8) as simulation:
        with simulation.load() as load:
            finish(simulation, load)
        layers = layers_in_order(simulation, root, 0)
    assert layers == sorted(layers)
    with_parts = [layer for layer in range(layout.layers) if layout.cell_bytes(layer)]
    assert [layer for layer, _ in groupby(layers)] == with_parts


def test_layer_0_is_ready_while_later_layers_are_incomplete(filled: tuple[Path, Layout]) -> None:
    root, layout = filled
    regions = RegionMap(root, layout)
    with simulated(root, layout, BLOCKS, depth=8) as simulation:
        simulation.open_files()
        start = len(simulation.device.log())
        with simulation.load() as load:
            simulation.settle()
            while not is_ready(load, 0):
                move_to(simulation, simulation.device.next_ns())
            records = simulation.reads(start)
            first = [record for record in records if regions.layer(record) == 0]
            later = [record for record in records if regions.layer(record) > 0]
            # Ready the very moment the last of its reads is done, with later layers under way.
            assert max(record.completed_ns for record in first) == simulation.clock.now_ns
            assert all(record.completed_ns >= 0 for record in first)
            assert any(record.completed_ns < 0 for record in later)
            assert not is_ready(load, layout.layers - 1)
            finish(simulation, load)


def test_a_second_load_catches_up_before_the_first_goes_on(filled: tuple[Path, Layout]) -> None:
    """Across loads the earlier layer goes first: a load that starts in the middle of another one
    waits only for what is in flight at that moment."""
    root, layout = filled
    regions = RegionMap(root, layout)
    with simulated(root, layout, BLOCKS, depth=2) as simulation:
        simulation.open_files(seeds=(0, 1))
        start = len(simulation.device.log())
        with simulation.load(0) as old:
            simulation.settle()
            while not is_ready(old, 2):
                move_to(simulation, simulation.device.next_ns())
            before = simulation.reads(start)
            with simulation.load(1) as new:
                finish(simulation, old)
                finish(simulation, new)
            after = simulation.reads(start)[len(before) :]
    files = {record.inode for record in before}
    reached = max(regions.layer(record) for record in before)
    behind = [r.sequence for r in after if r.inode not in files and regions.layer(r) < reached]
    assert len(behind) >= reached * 2, "the second load had nothing to catch up"
    # The rest of a region that was begun is all that may still go first.
    ahead = [r for r in after if r.inode in files and r.sequence < behind[-1]]
    assert all(r.bytes < PIECE_BYTES for r in ahead) and len(ahead) <= 1
