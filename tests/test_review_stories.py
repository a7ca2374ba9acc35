"""Bugs that were met once, each with the story of how it showed."""

import errno
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from kvstore import Cache, Chain
from kvstore.store import open_blocking
from kvstore.testing import FaultFiles, FileCall, Injection
from tests.support.stores import LAYERS, POOL, cells_of, check_load, layout, opened, prompt, write

BLOCKS = 16


def stored(kv: Cache, seed: int, blocks: int = BLOCKS) -> Chain:
    chain = kv.keys(prompt(blocks, seed=seed))
    assert write(kv, chain, cells_of(kv.layout, blocks, seed=seed)) == blocks
    return chain


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_lease_of_wrapped_keys_compares_all_of_them(tmp_path: Path) -> None:
    """Engine keys are no chain: two prompts may end in the same key. The same owner's second lease
    got the first one's blocks, because only the last key was compared."""
    with opened(tmp_path) as store:
        kv = store.cache(layout())
        loads = []
        for number in (1, 2):
            chain = kv.wrap([bytes([number]) * 16, b"z" * 16])
            cells = cells_of(kv.layout, 2, seed=number)
            for layer in range(LAYERS):  # the shared last key keeps what was put first
                if number == 2:
                    cells[layer]["latent"][1] = loads[0][1][layer]["latent"][1]
            assert write(kv, chain, cells) == 2
            loads.append((chain, cells))
        for chain, cells in loads:
            with kv.load(kv.lease(kv.match(chain), owner="engine")) as load:
                check_load(load, cells, 2)


FEW_FILES = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
import numpy as np
from kvstore import Layout
from kvstore.store import open_blocking
parts = ((("latent", 8192),),) * 3
layout = Layout(parts_by_layer=parts, model="few", block_tokens=16, extent_blocks=1)
with open_blocking(sys.argv[1], pool="32MiB") as store:
    kv = store.cache(layout)
    chain = kv.keys(range(16 * 300))
    data = np.arange(300 * 8192, dtype=np.uint64).astype(np.uint8).reshape(300, 8192)
    for first in range(0, 300, 50):
        with kv.writer(chain[: first + 50], start=first) as writer:
            for layer in range(3):
                writer.put(layer, (first, first + 50), [data[first : first + 50]])
            assert writer.commit_blocking() == 50
    for _ in range(2):
        store.drop_ram()
        with kv.load(kv.match(chain), deadline="60s") as load:
            for layer in load:
                assert (layer.blocks, layer.reason) == (300, None), (layer.blocks, layer.reason)
                assert np.array_equal(layer.gather("latent"), data)
print("whole")
"""


@pytest.mark.filterwarnings("ignore::kvstore.LayoutWarning")
def test_a_load_of_more_extents_than_files_may_be_open_is_whole(tmp_path: Path) -> None:
    """300 extents, 256 descriptors: the cache closed each file it had just opened for the load,
    which ended at its deadline with nothing."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(FEW_FILES), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.stdout.strip() == "whole", done.stderr


def test_a_file_that_cannot_be_unlinked_stays_charged_and_goes_later(tmp_path: Path) -> None:
    """delete() said 1, the bytes were given back, after a restart the prompt was there again."""
    files = FaultFiles()
    with open_blocking(tmp_path, pool=POOL, _testing=Injection(files=files)) as store:
        kv = store.cache(layout())
        chain = stored(kv, 1)
        used = store.info().roots[0].used_bytes
        files.add(FileCall.UNLINK, errno.EIO)
        with pytest.raises(OSError, match="Input/output"):
            kv.delete_blocking(chain[0])
        assert kv.match(chain).blocks == 0
        assert store.info().roots[0].used_bytes == used or not list(tmp_path.rglob("*.kv"))
    with opened(tmp_path) as store:
        kv = store.cache(layout())
        assert kv.find_blocking(kv.keys(prompt(BLOCKS, seed=1))).blocks == 0


def test_closing_while_a_load_opens_its_files_leaks_none(tmp_path: Path) -> None:
    """The files that opens in flight brought after the cache was emptied stayed open for ever."""
    of = layout(extent_blocks=1)
    before = 0
    for number in range(4):
        with opened(tmp_path) as store:
            kv = store.cache(of)
            chain = kv.keys(prompt(120))
            if number == 0:
                write(kv, chain, cells_of(of, 120))
            hit = kv.find_blocking(chain)
            kv.load(hit)
        before = before or open_files()
        assert open_files() <= before


def test_a_flush_after_a_failed_one_syncs_again(tmp_path: Path) -> None:
    """A failed fsync was reported once; the next flush passed without trying it again."""
    files = FaultFiles()
    with open_blocking(tmp_path, pool=POOL, _testing=Injection(files=files)) as store:
        stored(store.cache(layout()), 1)
        files.add(FileCall.SYNC, errno.EIO)
        with pytest.raises(OSError, match="Input/output"):
            store.flush_blocking()
        before = files.calls(FileCall.SYNC)
        store.flush_blocking()
        assert files.calls(FileCall.SYNC) > before


def test_a_writer_kept_after_its_commit_does_not_keep_its_extents(tmp_path: Path) -> None:
    """An engine that kept its writer objects silently stopped caching: nothing could be evicted."""
    of = layout()
    with opened(tmp_path, capacity=2 * (BLOCKS * of.block_bytes + (1 << 16))) as store:
        kv = store.cache(of)
        kept = []
        for seed in range(1, 6):
            chain = kv.keys(prompt(BLOCKS, seed=seed))
            writer = kv.writer(chain)
            for layer in range(LAYERS):
                writer.put(layer, (0, BLOCKS), [np.zeros((BLOCKS, 32 * 4096), np.uint8)])
            assert writer.commit_blocking() == BLOCKS
            kept.append(writer)
        assert store.stats().evicted_extents >= 3


def test_commit_counts_from_where_the_writer_began(tmp_path: Path) -> None:
    """Blocks 16.. were published and commit said 0, since block 0 was not there."""
    with opened(tmp_path) as store:
        kv = store.cache(layout())
        chain = kv.keys(prompt(2 * BLOCKS))
        cells = cells_of(kv.layout, 2 * BLOCKS)
        assert write(kv, chain, cells, start=BLOCKS) == BLOCKS
        assert kv.contains(chain[BLOCKS]) and not kv.contains(chain[0])


def test_a_file_that_another_process_replaced_is_no_damage(tmp_path: Path) -> None:
    """Under a name that the owner knew lay another whole file by then, of another length. It was
    moved to quarantine: it was fine, and its blocks were lost."""
    with opened(tmp_path) as owner, opened(tmp_path, role="peer") as peer:
        kv, other = owner.cache(layout()), peer.cache(layout())
        short, long = kv.keys(prompt(2)), kv.keys(prompt(3))
        cells = cells_of(layout(), 3)
        assert write(kv, short, [{"latent": parts["latent"][:2]} for parts in cells]) == 2
        owner.drop_ram()
        assert other.delete_blocking(short[0]) == 1
        assert write(other, long, cells) == 3
        with kv.load(kv.match(short)) as load:
            assert load.wait(0).blocks == 0, "what the owner knew is gone"
        assert owner.stats().quarantined_extents == 0
        assert write(kv, long, cells) == 3
        assert owner.stats().published_extents == 1, "it is there: nothing new is made"
        owner.drop_ram()
        with kv.load(kv.match(long)) as load:
            check_load(load, cells, 3)
