"""The torture itself: it can tell, and what it tells by is right. The rounds are `make torture`,
ten of them in `make test-all`.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstore.store import open_blocking
from kvstore.testing import FileCall
from tests.support.prompts import extent_files
from tests.torture.crowd import Broken, Child, Crowd
from tests.torture.deeds import Lane, Lie, Scene
from tests.torture.faces import Blocking
from tests.torture.flat import Sample, judge
from tests.torture.ledger import GONE, MAYBE, SURE, Ledger
from tests.torture.universe import (
    BLOCKS_MAX,
    CLASSES,
    LAYOUTS,
    cells_of,
    chain_of,
    parts_of,
    private_number,
    split,
)
from tests.torture.verify import verify
from tests.torture.worker import Part

ROOMY = 1 << 30
PRIVATE = private_number(0, 0)


def stored(root: Path, numbers: dict[int, int], ledger: Ledger) -> None:
    """Prompts of the second space, acknowledged."""
    with open_blocking(
        root, capacity=ROOMY, pool="16MB", retention=CLASSES, default_class="kept"
    ) as store:
        for number, blocks in numbers.items():
            ledger.note("putting", 1, number, 0, blocks)
            with store.cache(LAYOUTS[1]).writer(chain_of(number, blocks)) as writer:
                keys = split(writer.chain.keys)
                for layer in range(LAYOUTS[1].layers):
                    writer.put(layer, range(blocks), parts_of(1, layer, keys)).wait("60s")
                assert writer.commit_blocking("60s") == blocks
            ledger.note("stored", 1, number, 0, blocks)


# ----------------------------------------------------------------------------- what it can tell


def test_a_sound_root_passes_and_all_of_it_is_looked_at(tmp_path: Path) -> None:
    ledger = Ledger()
    stored(tmp_path, {0: BLOCKS_MAX, 1: 5, PRIVATE: 3}, ledger)
    found = verify(tmp_path, ledger, ROOMY, roomy=True)
    assert (found.blocks, found.sure, found.missing) == (46, 46, 0)


def test_a_lost_extent_is_noticed(tmp_path: Path) -> None:
    ledger = Ledger()
    stored(tmp_path, {0: BLOCKS_MAX}, ledger)
    extent_files(tmp_path)[1].unlink()
    with pytest.raises(Broken, match="prompt 0 block .* was acknowledged: lost"):
        verify(tmp_path, ledger, ROOMY, roomy=True)


def test_a_deleted_prompt_that_is_still_there_is_noticed(tmp_path: Path) -> None:
    ledger = Ledger()
    stored(tmp_path, {PRIVATE: 3}, ledger)
    ledger.note("forgetting", 1, PRIVATE)
    ledger.note("forgot", 1, PRIVATE)
    with pytest.raises(Broken, match="was deleted and is there"):
        verify(tmp_path, ledger, ROOMY, roomy=True)


def test_wrong_bytes_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger()
    stored(tmp_path, {0: 3}, ledger)
    monkeypatch.setattr("tests.torture.verify.cells_of", lambda s, i, k: cells_of(s, i, k[::-1]))
    with pytest.raises(Broken, match="wrong bytes"):
        verify(tmp_path, ledger, ROOMY, roomy=True)


def test_what_lies_in_quarantine_or_was_left_half_done_is_noticed(tmp_path: Path) -> None:
    ledger = Ledger()
    stored(tmp_path, {0: 3}, ledger)
    left = extent_files(tmp_path)[0].parents[1] / "tmp" / "kv-1-1-fresh.tmp"
    left.parent.mkdir(mode=0o700, exist_ok=True)
    left.touch(mode=0o600)
    with pytest.raises(Broken, match="temporaries of dead processes"):
        verify(tmp_path, ledger, ROOMY, roomy=True)
    left.unlink()
    (tmp_path / "quarantine").mkdir(mode=0o700, exist_ok=True)
    (tmp_path / "quarantine" / "something").touch(mode=0o600)
    with pytest.raises(Broken, match="in quarantine"):
        verify(tmp_path, ledger, ROOMY, roomy=True)


def test_the_books_follow_what_was_acknowledged() -> None:
    ledger = Ledger()
    first, third = ((0, chain_of(PRIVATE, 3)[i]) for i in (0, 2))
    ledger.note("putting", 0, PRIVATE, 0, 3)
    assert ledger.state[first] == ledger.state[third] == MAYBE
    ledger.note("stored", 0, PRIVATE, 0, 2)
    assert (ledger.state[first], ledger.state[third]) == (SURE, MAYBE)
    ledger.note("putting", 0, PRIVATE, 0, 3)
    assert ledger.state[first] == SURE, "putting it again takes nothing away"
    ledger.note("forgetting", 0, PRIVATE)
    assert ledger.state[first] == MAYBE
    ledger.note("forgot", 0, PRIVATE)
    assert ledger.state[first] == ledger.state[third] == GONE
    ledger.note("putting", 0, PRIVATE, 0, 1)
    assert (ledger.state[first], ledger.state[third]) == (MAYBE, GONE)


# ------------------------------------------------------------------------------------- children


@pytest.fixture
def crowd() -> Iterator[Crowd]:
    with Crowd(Ledger()) as crowd:
        yield crowd


def start(crowd: Crowd, root: Path, cut: tuple[int, int] | None = None) -> Child:
    scene = Scene(slot=0, first=0, roomy=True, private=False)
    part = Part(root=str(root), role="owner", capacity=ROOMY, seed="1", scene=scene, cut=cut)
    return crowd.start(part)


def test_a_cut_ends_a_process_before_the_call_and_what_it_told_is_kept(
    crowd: Crowd, tmp_path: Path
) -> None:
    child = start(crowd, tmp_path, cut=(FileCall.LINK, 12))
    crowd.until(lambda: child.ended, "the process dies at its thirteenth link")
    assert child.process.exitcode == -signal.SIGKILL
    assert len(extent_files(tmp_path)) <= 12
    assert SURE in crowd.ledger.state.values(), "it had told something by then"
    verify(tmp_path, crowd.ledger, ROOMY, roomy=True)


def test_a_child_that_ends_by_itself_or_lies_fails_the_round(crowd: Crowd, tmp_path: Path) -> None:
    child = start(crowd, tmp_path)
    crowd.until(lambda: child.is_open, "a store opens")
    with pytest.raises(Broken, match="owner in slot 0: broke: a story"):
        crowd.take(child, "broke", "a story")
    os.kill(child.pid, signal.SIGTERM)
    with pytest.raises(Broken, match="ended by itself, exit code -15"):
        crowd.until(lambda: child.ended, "it ends")


def test_a_lane_knows_wrong_bytes_from_right_ones(tmp_path: Path) -> None:
    keys = split(chain_of(0, 3).keys)
    with open_blocking(tmp_path, pool="16MB") as store:
        scene = Scene(slot=0, first=0, roomy=True, private=False)
        lane = Lane(store, Blocking(), random.Random(1), lambda *_: None, scene)
        lane.same(1, 2, keys, cells_of(1, 2, keys))
        for wrong in (cells_of(1, 3, keys), cells_of(1, 2, keys[::-1])):
            with pytest.raises(Lie, match="wrong bytes: space 1 layer 2"):
                lane.same(1, 2, keys, wrong)
        one_bit = cells_of(1, 2, keys).copy()
        one_bit[1, 4000] ^= 8
        with pytest.raises(Lie, match=r"blocks \[1\]"):
            lane.same(1, 2, keys, one_bit)


# ----------------------------------------------------------------------------------------- soak


def sample(seconds: float, *, resting: bool = False, **changed: int) -> Sample:
    usual = {"rss": 60 << 20, "descriptors": 12, "open_files": 40, "threads": 8, "leases": 0}
    return Sample(seconds, "owner 0", resting, **{**usual, "regions": 0, **changed})


def wobbling(**grows: int) -> list[Sample]:
    """Memory up and down by 20 MB, with a rest every tenth; `grows`: per second, of a field."""
    return [
        sample(
            second,
            resting=second % 10 == 9,
            rss=(60 << 20) + (20 << 20) * (second % 3 == 0) + grows.get("rss", 0) * second,
            **{name: 12 + by * second for name, by in grows.items() if name != "rss"},
        )
        for second in range(200)
    ]


def test_a_table_that_only_wobbles_is_flat() -> None:
    assert judge(wobbling()) == []


@pytest.mark.parametrize(
    ("grows", "said"),
    [
        ({"rss": 100_000}, "memory grew"),
        ({"descriptors": 1}, "descriptors at rest"),
        ({"threads": 1}, "threads at rest"),
    ],
)
def test_what_grows_slowly_is_named(grows: dict[str, int], said: str) -> None:
    (finding,) = judge(wobbling(**grows))
    assert said in finding


def test_what_is_in_use_at_rest_is_named() -> None:
    table = [*wobbling(), sample(201, resting=True, leases=1)]
    assert judge(table) == ["owner 0: at rest 201 s: 1 leases"]
