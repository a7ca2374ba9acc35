"""Room in the pool: emptying the RAM tier, and what puts do when staging is full."""

from pathlib import Path

import numpy as np

from kvstore import Layout
from tests.support.stores import (
    BLOCK_TOKENS,
    PART_BYTES,
    cells_of,
    check_load,
    layout,
    opened,
    prompt,
    until,
    write,
)

BLOCKS = 20


def test_drop_ram_leaves_nothing_that_a_later_load_could_be_served_from(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        kv = store.cache(layout())
        chain, cells = kv.keys(prompt(BLOCKS)), cells_of(kv.layout, BLOCKS)
        assert write(kv, chain, cells) == BLOCKS
        hit = kv.match(chain)
        with kv.load(hit) as held:
            views = held.wait(0).gather("latent"), held.wait(0).spans
            for _ in range(20):  # right behind a load, too, whose last read has hardly ended
                store.drop_ram()
                with kv.load(hit) as load:
                    check_load(load, cells, BLOCKS)
                    stats = load.stats()
                    assert (stats.ram_bytes, stats.disk_bytes) == (0, BLOCKS * 4 * PART_BYTES)
            assert np.array_equal(np.concatenate([span.cells for span in views[1]]), views[0])


def test_a_cell_put_again_after_its_layer_left_takes_no_room(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        kv = store.cache(layout())
        chain, cells = kv.keys(prompt(BLOCKS)), cells_of(kv.layout, BLOCKS)
        with kv.writer(chain) as writer:
            for layer, parts in enumerate(cells):
                writer.put(layer, range(BLOCKS), parts).wait()
            until(lambda: writer.stats().bytes_written == BLOCKS * kv.layout.block_bytes)
            store.drop_ram()
            writer.put(0, range(BLOCKS), cells[0]).wait()
            assert writer.commit_blocking() == BLOCKS
        store.drop_ram()
        until(lambda: store.stats().regions == 0)
        assert store.stats().pool_free_bytes == store.stats().pool_bytes


def test_a_put_of_many_times_the_pool_waits_for_room_and_drops_nothing(tmp_path: Path) -> None:
    """Also while the files are still being made, before the first write is under way."""
    wide = Layout(
        parts_by_layer=((("latent", 16 * 4096),),) * 12, model="wide", block_tokens=BLOCK_TOKENS
    )
    with opened(tmp_path, pool="12MiB") as store:
        kv = store.cache(wide)
        chain, cells = kv.keys(prompt(64)), cells_of(wide, 64)
        with kv.writer(chain) as writer:
            handles = [writer.put(layer, range(64), parts) for layer, parts in enumerate(cells)]
            assert [handle.wait() for handle in handles] == [0] * 12
            assert writer.commit_blocking() == 64
        with kv.load(kv.match(chain)) as load:
            check_load(load, cells, 64)
