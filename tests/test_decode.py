"""A writer that stays open through decode: the chain grows block by block, over grid cuts."""

from pathlib import Path

import numpy as np

from tests.support.extent_reader import read_root
from tests.support.stores import LAYERS, cells_of, check_load, layout, opened, prompt, until

PROMPT = 5
END = 40


def test_blocks_that_come_one_by_one_make_whole_extents(tmp_path: Path) -> None:
    """Lengths are fixed at grid cuts and at commit: 5 of the prompt, 11 up to 16, 16, and 8."""
    with opened(tmp_path) as store:
        kv = store.cache(layout())
        chain = kv.keys(prompt(END))
        cells = cells_of(kv.layout, END)
        with kv.writer(chain[:PROMPT]) as writer:
            for layer in range(LAYERS):
                writer.put(layer, (0, PROMPT), {"latent": cells[layer]["latent"][:PROMPT]})
            for block in range(PROMPT, END):
                writer.extend(chain[: block + 1])
                for layer in range(LAYERS):
                    here = {"latent": cells[layer]["latent"][block : block + 1]}
                    writer.put(layer, (block, block + 1), here)
            assert kv.match(chain).blocks == 0, "visible before its commit"
            assert writer.commit_blocking() == END
            assert writer.stats().extents == 4
        store.drop_ram()
        with kv.load(kv.match(chain)) as load:
            check_load(load, cells, END)
    lengths = sorted(len(extent.keys) for extent in read_root(tmp_path).values())
    assert lengths == [5, 8, 11, 16]


def test_decode_that_outgrows_the_pool_is_dropped_counted_and_ends(tmp_path: Path) -> None:
    """Staged cells hold at most half of the pool: what has no room is left out, never waited for
    without hope, and the blocks before it are published."""
    with opened(tmp_path, pool="32MiB") as store:
        kv = store.cache(layout())
        chain = kv.keys(prompt(64))
        cells = cells_of(kv.layout, 64)
        writers = [kv.writer(kv.keys(prompt(1, seed=number))) for number in range(1, 9)]
        for number, writer in enumerate(writers, 1):
            writer.extend(kv.keys(prompt(9, seed=number)))
            for layer in range(LAYERS):
                writer.put(layer, (0, 9), {"latent": cells[layer]["latent"][:9]}).wait(60)
        published = [writer.commit_blocking() for writer in writers]
        dropped = sum(writer.stats().blocks_dropped for writer in writers)
        assert dropped > 0 and min(published) < 9 <= max(published)
        assert store.stats().dropped_blocks == dropped
        for number, blocks in enumerate(published, 1):
            hit = kv.match(kv.keys(prompt(9, seed=number)))
            assert hit.blocks == blocks
        until(lambda: store.stats().pool_free_bytes + store.stats().pool_cached_bytes >= 32 << 20)
        with kv.writer(chain[:4]) as writer:
            for layer in range(LAYERS):
                writer.put(
                    layer, (0, 4), {"latent": np.ascontiguousarray(cells[layer]["latent"][:4])}
                )
            assert writer.commit_blocking() == 4, "room is there again"
