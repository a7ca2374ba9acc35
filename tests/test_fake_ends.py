"""The contract of test_fake.py where loads end early and stores close, over both stores."""

from __future__ import annotations

import select
from pathlib import Path

import pytest

import kvstore
from kvstore import OpenError, Pages, StoreClosed
from tests.support.stores import LAYERS, PART_BYTES, cells_of, check_load, prompt, until, write
from tests.support.stores import layout as direct_layout
from tests.support.subjects import DEADLINE_S, Fake, Real, Subject, filled, layout, opened

BLOCKS = 21  # more than one extent of 16
pytestmark = pytest.mark.filterwarnings("ignore::kvstore.LayoutWarning")


@pytest.fixture(params=["fake", "real"])
def subject(request: pytest.FixtureRequest, tmp_path: Path) -> Subject:
    return Fake() if request.param == "fake" else Real(tmp_path / "kv")


@pytest.mark.parametrize("how", ["cancelled", "deadline", "close"])
def test_a_load_ends_at_once_and_is_drained_when_its_read_has_landed(
    subject: Subject, how: str
) -> None:
    with opened(subject) as store:
        kv = store.cache(direct_layout())
        chain = kv.keys(prompt(3))
        write(kv, chain, cells_of(kv.layout, 3))
        subject.hold_reads(store)
        into = Pages.contiguous({"latent": [kvstore.alloc(3 * PART_BYTES) for _ in range(LAYERS)]})
        load = kv.load(kv.match(chain), into=into, deadline=DEADLINE_S)
        with pytest.raises(TimeoutError):
            load.wait(0, timeout=0)
        until(lambda: isinstance(subject, Fake) or store.info().roots[0].ops_in_flight)
        ends = {"cancelled": load.cancel, "deadline": subject.pass_deadlines, "close": load.close}
        ends[how]()
        if how == "close":
            with pytest.raises(ValueError, match="closed"):
                load.wait(0)
        else:
            layer = load.wait(0, timeout=30)
            assert (layer.blocks, layer.reason) == (0, how)
            assert load.failed_blocks == range(3)
        assert not load.wait_drained(0)
        subject.release()
        assert load.wait_drained(30)
        if how != "close":
            assert select.select([load.drained_fd()], [], [], 30)[0]
        load.close()


def test_names_that_are_not_known_yet_are_pending(subject: Subject) -> None:
    store = subject.open()
    kv, chain, cells = filled(store, 3)
    store = subject.hold_names(store)
    try:
        kv = store.cache(layout())
        hit = kv.match(chain)
        assert hit.pending and hit.blocks == 0
        subject.release()
        assert kv.find_blocking(chain).blocks == 3
    finally:
        store.close_blocking()


def test_a_closed_store_says_so_and_another_one_remembers(subject: Subject) -> None:
    store = subject.open()
    kv, chain, cells = filled(store)
    load = kv.load(kv.match(chain))
    load.wait(3)
    with pytest.raises(OpenError):
        subject.open()
    store.close_blocking()
    store.close_blocking()
    for call in (store.stats, store.info, lambda: kv.match(chain), lambda: kv.writer(chain)):
        with pytest.raises(StoreClosed):
            call()
    assert load.wait(0).blocks == BLOCKS and load.wait_drained(30)
    load.close()
    with opened(subject) as store:
        kv = store.cache(layout())
        with kv.load(kv.match(chain)) as load:
            check_load(load, cells, BLOCKS)
