"""A store opened to keep token ids writes them into its extents, and only such a one does.

The section itself, its limits and damage to it are in tests/c/test_format.c and test_format.py.
"""

from pathlib import Path

import msgspec
import numpy as np
import pytest

import kvstore
from kvstore import Chain, Hit, Layout, _core
from kvstore.report import render
from kvstore.store import open_blocking
from tests.support.extent_reader import read_root
from tests.support.stores import (
    BLOCK_TOKENS,
    LAYERS,
    cells_of,
    check_load,
    layout,
    opened,
    prompt,
    write,
)

BLOCKS = 20
GRID = 16
IDS = [700_000 + i for i in range(BLOCKS * BLOCK_TOKENS)]


def put_ids(root: Path, *, blocks: int = BLOCKS, keep: bool = True) -> None:
    with opened(root, keep_token_ids=keep) as store:
        kv = store.cache(layout())
        chain = kv.keys(IDS)[:blocks]
        assert write(kv, chain, cells_of(kv.layout, blocks)) == blocks


def kept(root: Path) -> dict[int, list[int] | None]:
    """Ids by the number of the extent's first block, as the independent reader finds them."""
    return {extent.start or 0: extent.token_ids for extent in read_root(root).values()}


def test_what_is_read_back_is_what_was_given(tmp_path: Path) -> None:
    put_ids(tmp_path)
    cut = GRID * BLOCK_TOKENS
    assert kept(tmp_path) == {0: IDS[:cut], GRID: IDS[cut:]}
    for path in tmp_path.glob("*/*/*.kv"):
        header = _core.decode_header(path.read_bytes())
        assert isinstance(header, dict)
        first = header["start"] * BLOCK_TOKENS
        ids = np.frombuffer(header["token_ids"], np.int32).tolist()
        assert ids == IDS[first : first + len(header["keys"]) * BLOCK_TOKENS]


def test_a_store_without_the_word_reads_them_after_a_restart_and_keeps_none(tmp_path: Path) -> None:
    put_ids(tmp_path)
    with opened(tmp_path) as store:
        kv = store.cache(layout())
        hit = kv.find_blocking(kv.keys(IDS))
        assert hit.blocks == BLOCKS
        with kv.load(hit) as load:
            check_load(load, cells_of(kv.layout, BLOCKS), BLOCKS)
        other = kv.keys(prompt(3))
        assert write(kv, other, cells_of(kv.layout, 3)) == 3
    found = [extent.token_ids is None for extent in read_root(tmp_path).values()]
    assert sorted(found) == [False, False, True]


@pytest.mark.parametrize("words", [{}, {"keep_token_ids": False}])
def test_none_are_kept_by_default(tmp_path: Path, words: dict[str, bool]) -> None:
    """Not even of a chain that carries them, made by another store."""
    with opened(tmp_path / "keeps", keep_token_ids=True) as keeps:
        chain = keeps.cache(layout()).keys(IDS)
    assert chain.token_ids is not None
    with opened(tmp_path / "plain", **words) as store:
        kv = store.cache(layout())
        assert not store.info().keeps_token_ids
        assert kv.keys(IDS).token_ids is None
        assert write(kv, chain, cells_of(kv.layout, BLOCKS)) == BLOCKS
    assert kept(tmp_path / "plain") == {0: None, GRID: None}


def test_info_says_that_prompts_can_be_read(tmp_path: Path) -> None:
    with opened(tmp_path, keep_token_ids=True) as store:
        assert store.info().keeps_token_ids
        assert "token ids are kept on disk" in render(store.info())


def test_a_chain_that_grows_block_by_block_keeps_them_all(tmp_path: Path) -> None:
    with opened(tmp_path, keep_token_ids=True) as store:
        kv = store.cache(layout())
        chain, cells = kv.keys(IDS), cells_of(kv.layout, BLOCKS)
        with kv.writer(chain[:5]) as writer:
            for block in range(5, BLOCKS):
                writer.extend(kv.keys(IDS[: (block + 1) * BLOCK_TOKENS]))
            for layer in range(LAYERS):
                writer.put(layer, (0, BLOCKS), cells[layer])
            assert writer.commit_blocking() == BLOCKS
    found = kept(tmp_path)
    assert [len(found[start] or ()) // BLOCK_TOKENS for start in sorted(found)] == [5, 11, 4]
    assert sum((found[start] or [] for start in sorted(found)), []) == IDS


def test_extents_past_the_known_ids_do_without(tmp_path: Path) -> None:
    """A writer may go on with a chain made of keys alone."""
    with opened(tmp_path, keep_token_ids=True) as store:
        kv = store.cache(layout())
        chain, cells = kv.keys(IDS), cells_of(kv.layout, BLOCKS)
        with kv.writer(chain[:GRID]) as writer:
            writer.extend(Chain(chain.keys, BLOCK_TOKENS))
            for layer in range(LAYERS):
                writer.put(layer, (0, BLOCKS), cells[layer])
            assert writer.commit_blocking() == BLOCKS
    assert kept(tmp_path) == {0: IDS[: GRID * BLOCK_TOKENS], GRID: None}


def test_the_chain_outlives_the_buffer_that_it_was_made_of(tmp_path: Path) -> None:
    buffer = np.array(IDS, np.int32)
    with opened(tmp_path, keep_token_ids=True) as store:
        kv = store.cache(layout())
        chain = kv.keys(buffer)
        buffer[:] = 0
        assert write(kv, chain, cells_of(kv.layout, BLOCKS)) == BLOCKS
    assert kept(tmp_path)[0] == IDS[: GRID * BLOCK_TOKENS]


def test_the_winner_of_a_name_stays_as_it_is(tmp_path: Path) -> None:
    """Its blocks are there, ids or not: nothing is written again."""
    put_ids(tmp_path, keep=False)
    put_ids(tmp_path)
    assert kept(tmp_path) == {0: None, GRID: None}


def test_a_longer_prompt_keeps_the_ids_that_its_own_extents_hold(tmp_path: Path) -> None:
    put_ids(tmp_path, blocks=5, keep=False)
    put_ids(tmp_path)
    assert kept(tmp_path) == {0: None, 5: IDS[80:256], GRID: IDS[256:]}


def test_wrapped_and_single_blocks_have_none(tmp_path: Path) -> None:
    with opened(tmp_path, keep_token_ids=True) as store:
        kv = store.cache(layout())
        chain = kv.wrap([bytes([i]) * 32 for i in range(2)])
        assert write(kv, chain, cells_of(kv.layout, 2)) == 2
        assert kv.put_blocking(kv.keys(IDS)[0], np.zeros(kv.layout.block_bytes, np.uint8))
    assert [extent.token_ids for extent in read_root(tmp_path).values()] == [None, None]


def test_ids_that_make_the_header_too_long_are_left_out(tmp_path: Path) -> None:
    """64 blocks of 4,096 tokens have a mebibyte of ids: more than a header may hold."""
    wide = Layout(parts_by_layer=((("x", 64),),), model="wide", block_tokens=4096, extent_blocks=64)
    ids = np.arange(64 * 4096 + 4096, dtype=np.int32)
    with opened(tmp_path, keep_token_ids=True) as store:
        kv = store.cache(wide)
        chain = kv.keys(ids)
        assert write(kv, chain, cells_of(wide, 65)) == 65
        with kv.load(kv.match(chain)) as load:
            check_load(load, cells_of(wide, 65), 65)
    assert kept(tmp_path) == {0: None, 64: ids[64 * 4096 :].tolist()}


def test_hits_and_comparisons_know_nothing_of_ids(tmp_path: Path) -> None:
    with opened(tmp_path, keep_token_ids=True) as store:
        kv = store.cache(layout())
        chain = kv.keys(IDS)
        write(kv, chain, cells_of(kv.layout, BLOCKS))
        sent = msgspec.msgpack.encode(kv.match(chain))
    assert np.array(IDS[:2], np.int32).tobytes() not in sent
    assert msgspec.msgpack.decode(sent, type=Hit).blocks == BLOCKS
    plain = kvstore.chain.chain_of_tokens(IDS, block_tokens=BLOCK_TOKENS)
    assert chain == plain and hash(chain) == hash(plain)
    assert chain[:2].token_ids is not None and len(chain[:2].token_ids) == 2 * BLOCK_TOKENS


def test_cells_fit_their_checksums_where_ids_shift_them(tmp_path: Path) -> None:
    """fsck reads every cell behind the longer header."""
    put_ids(tmp_path)
    from kvstore.cli import main

    assert main(["fsck", str(tmp_path), "--deep"]) == 0
    with open_blocking(tmp_path, pool="64MiB") as store:
        assert store.stats().quarantined_extents == 0
