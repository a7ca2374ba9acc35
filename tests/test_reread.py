"""A cell that failed its check in the caller's memory is read again, whatever became of its
extent meanwhile."""

from __future__ import annotations

from errno import EMFILE
from pathlib import Path

from kvstore import Layout, Pages, alloc
from kvstore.testing import Fault, FileCall, Io
from tests.support.prompts import BLOCK_TOKENS, GRID, eventually, extent_files, load, put
from tests.support.prompts import tokens as tokens_of
from tests.support.troubled import in_flight, troubled

PAGE = 4096
LAYERS = 3


def test_a_cell_is_read_again_from_a_file_that_its_extent_has_let_go_of(tmp_path: Path) -> None:
    """Found by reading: where descriptors are short a load holds no file of its own, only its reads
    do. When the extent was deleted before a read of it failed its check, there was none to read
    again: a NULL pointer."""
    aligned = Layout(
        parts_by_layer=((("latent", PAGE),),) * LAYERS,
        model="aligned",
        block_tokens=BLOCK_TOKENS,
        extent_blocks=GRID,
    )
    with troubled(tmp_path) as it:
        kv = it.store.cache(aligned)
        others = kv.keys(tokens_of("others", 20 * GRID))
        assert put(kv, others) == len(others)
        it.store.drop_ram()
        it.files.add(FileCall.OPEN_READ, EMFILE, skip=18, count=1)
        assert load(kv, kv.match(others)) == (len(others), None)
        known = set(extent_files(tmp_path))
        chain = kv.keys(tokens_of("one", GRID))
        assert put(kv, chain) == GRID
        (path,) = set(extent_files(tmp_path)) - known
        with path.open("r+b") as file:
            file.seek(-PAGE // 2, 2)  # in the last layer
            file.write(b"harm")
        it.store.drop_ram()
        it.device.add(Fault.STALL, io=Io.READ, count=0)
        memory = [alloc(GRID * PAGE) for _ in range(LAYERS)]
        into = Pages.contiguous({"latent": memory})
        with kv.load(kv.match(chain), into=into, deadline="1d") as running:
            eventually(lambda: in_flight(it.device) == LAYERS, "all of it is being read")
            assert kv.delete_blocking(chain[0]) == 1
            it.device.clear()
            it.device.release_stalled()
            ends = [(layer.blocks, layer.reason) for layer in running]
            assert ends == [(GRID, None), (GRID, None), (GRID - 1, "damaged")]
            running.wait_drained()
