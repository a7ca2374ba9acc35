"""Chunks of an engine's memory tier: stored, loaded, missed, over the fake and the real store."""

from __future__ import annotations

import mmap
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

import kvstore
from kvstore import Layout
from kvstore_vllm import chunks as module
from kvstore_vllm.chunks import Chunks, Finished, parts_of_row
from tests.support.stores import until
from tests.support.subjects import DEADLINE_S, Fake, Real, Subject, opened

ROWS = 12
ROW_BYTES = 20 * 4096
PIECE = 8 * 4096  # two and a half in a row

pytestmark = pytest.mark.filterwarnings("ignore::kvstore.LayoutWarning")


@pytest.fixture(params=["fake", "real"])
def subject(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Subject:
    monkeypatch.setattr(module, "PIECE_BYTES", PIECE)
    return Fake() if request.param == "fake" else Real(tmp_path / "kv")


def layout() -> Layout:
    return Layout(
        parts_by_layer=parts_of_row(ROW_BYTES), model="chunks", block_tokens=64, extent_blocks=1
    )


def key(number: int, group: int = 0) -> bytes:
    """As vLLM packs them: a hash and a group of layers."""
    return bytes([number]) * 32 + group.to_bytes(4, "big")


class Tier:
    """Chunks over memory as an engine has it: shared, page after page."""

    def __init__(self, store: kvstore.Store) -> None:
        memory = mmap.mmap(-1, ROWS * ROW_BYTES)
        self.rows = np.frombuffer(memory, np.uint8).reshape(ROWS, ROW_BYTES)
        self.rows[:] = np.random.default_rng(1).integers(0, 256, self.rows.shape, dtype=np.uint8)
        self.before: npt.NDArray[np.uint8] = self.rows.copy()
        self.chunks = Chunks(store.cache(layout()), self.rows, deadline=DEADLINE_S)
        self._jobs = 0

    def store(self, keys: Sequence[bytes], rows: Sequence[int]) -> int:
        self._jobs += 1
        self.chunks.store(self._jobs, keys, rows)
        return self._jobs

    def load(self, keys: Sequence[bytes], rows: Sequence[int], request: str = "r") -> int:
        self._jobs += 1
        self.chunks.load(self._jobs, keys, rows, request)
        return self._jobs

    def result(self, job: int) -> Finished:
        """Of the only job that runs."""
        found: list[Finished] = []
        until(lambda: found.extend(self.chunks.finished()) or found)
        assert [one.job_id for one in found] == [job] and not self.chunks.busy
        return found[0]

    def stored(self, keys: Sequence[bytes], rows: Sequence[int]) -> int:
        return self.result(self.store(keys, rows)).good

    def loaded(self, keys: Sequence[bytes], rows: Sequence[int]) -> int:
        return self.result(self.load(keys, rows)).good


def test_rows_go_to_disk_and_come_back_to_other_rows(subject: Subject) -> None:
    assert [size for ((_, size),) in parts_of_row(ROW_BYTES)] == [PIECE, PIECE, PIECE // 2]
    with opened(subject) as store:
        tier = Tier(store)
        keys = [key(number) for number in range(5)]
        assert tier.chunks.look_up(keys[0], "r") is False
        done = tier.result(tier.store(keys, [3, 1, 4, 0, 2]))
        assert (done.is_load, done.good, done.nbytes) == (False, 5, 5 * ROW_BYTES)
        assert [tier.chunks.look_up(one, "r") for one in keys] == [True] * 5
        assert tier.chunks.look_up(key(0, group=1), "r") is False
        store.drop_ram()
        done = tier.result(tier.load(keys[1:4], [11, 6, 9]))
        assert (done.is_load, done.keys, done.good) == (True, keys[1:4], 3)
        wanted = tier.before.copy()
        wanted[[11, 6, 9]] = tier.before[[1, 4, 0]]
        assert np.array_equal(tier.rows, wanted)


def test_chunks_that_are_there_are_stored_once(subject: Subject) -> None:
    with opened(subject) as store:
        tier = Tier(store)
        assert tier.stored([key(0), key(1)], [0, 1]) == 2
        assert tier.stored([key(1), key(0), key(2)], [1, 0, 2]) == 3
        assert store.stats().published_extents == 3
        tier.chunks.touch([key(0), key(7)])
        assert store.stats().blocks == 3


def test_they_survive_a_restart_one_by_one(subject: Subject) -> None:
    with opened(subject) as store:
        tier = Tier(store)
        before = tier.before
        assert tier.stored([key(number) for number in range(6)], range(6)) == 6
    for role in ("owner", "peer"):
        store = subject.open(role=role)
        tier = Tier(store)
        for number in (4, 2, 5):
            until(lambda number=number: tier.chunks.look_up(key(number), "r"))
        assert tier.loaded([key(4), key(2), key(5)], [0, 1, 2]) == 3
        assert np.array_equal(tier.rows[:3], before[[4, 2, 5]])
        store.close_blocking()


def test_a_chunk_that_is_looked_for_is_asked_again_and_then_a_miss(subject: Subject) -> None:
    store = subject.open()
    assert Tier(store).stored([key(0)], [0]) == 1
    store = subject.hold_names(store)
    try:
        chunks = Tier(store).chunks
        first = chunks.look_up(key(0), "r")
        assert first is None or first, "it may be found while it is asked for"
        subject.release()
        until(lambda: chunks.look_up(key(0), "r"))
        chunks.forget("r")
    finally:
        store.close_blocking()


def test_what_was_not_loaded_is_not_offered_to_the_same_request_again(subject: Subject) -> None:
    with opened(subject) as store:
        tier = Tier(store)
        keys = [key(number) for number in range(4)]
        assert tier.stored(keys, range(4)) == 4
        assert tier.chunks.look_up(keys[0], "r") is True
        subject.hold_reads(store)
        job = tier.load(keys, [8, 9, 10, 11])
        assert list(tier.chunks.finished()) == []
        subject.pass_deadlines()
        until(lambda: isinstance(subject, Fake) or not store.stats().loads_running)
        subject.release()
        assert tier.result(job).good == 0
        assert [tier.chunks.look_up(one, "r") for one in keys] == [False] * 4
        assert tier.chunks.look_up(keys[0], "another") is True
        tier.chunks.forget("r")
        assert tier.chunks.look_up(keys[0], "r") is True


def test_a_damaged_chunk_costs_itself_and_those_behind_it(subject: Subject) -> None:
    with opened(subject) as store:
        tier = Tier(store)
        keys = [key(number) for number in range(4)]
        assert tier.stored(keys, range(4)) == 4
        kv = store.cache(layout())
        chain = tier.chunks._chain(keys)
        subject.damage(kv, chain, 2, layer=1)
        done = tier.result(tier.load(keys, [8, 9, 10, 11]))
        assert done.good == 2
        assert np.array_equal(tier.rows[8:10], tier.before[:2])
        assert [tier.chunks.look_up(one, "next") for one in keys] == [True, True, False, True]
        assert tier.stored(keys, range(4)) == 4
        assert tier.loaded(keys, [8, 9, 10, 11]) == 4
        assert np.array_equal(tier.rows[8:12], tier.before[:4])


def test_chunks_evicted_between_lookup_and_load_are_a_failed_job(subject: Subject) -> None:
    with opened(subject) as store:
        tier = Tier(store)
        assert tier.stored([key(0), key(1)], [0, 1]) == 2
        assert tier.chunks.look_up(key(1), "r") is True
        kv = store.cache(layout())
        assert kv.delete_blocking(tier.chunks._chain([key(1)])[0]) == 1
        assert tier.loaded([key(0), key(1)], [5, 6]) == 1
        assert np.array_equal(tier.rows[5], tier.before[0])
        assert np.array_equal(tier.rows[7:], tier.before[7:])


def test_refused_puts_are_a_failed_job(subject: Subject) -> None:
    with opened(subject) as store:
        tier = Tier(store)
        subject.refuse_puts()
        assert tier.stored([key(0), key(1)], [0, 1]) == 0
        assert tier.chunks.look_up(key(0), "r") is False
        subject.heal()
        assert tier.stored([key(0), key(1)], [0, 1]) == 2


def test_nothing_waits_while_the_device_does_not_answer(subject: Subject) -> None:
    """submit and poll return; only drain waits, and reports every job."""
    with opened(subject) as store:
        tier = Tier(store)
        assert tier.stored([key(0), key(1)], [0, 1]) == 2
        subject.hold_reads(store)
        subject.hold_commits()
        loading, storing = tier.load([key(0)], [5]), tier.store([key(2)], [2])
        for _ in range(3):
            assert list(tier.chunks.finished()) == []
            assert tier.chunks.look_up(key(1), "r") is True
        subject.release()
        tier.chunks.drain()
        found = {one.job_id: one.good for one in tier.chunks.finished()}
        assert found == {loading: 1, storing: 1}
        assert np.array_equal(tier.rows[5], tier.before[0])


def test_a_load_that_ended_is_not_reported_before_it_is_drained(subject: Subject) -> None:
    """Reported, its row is another chunk's: nothing may write it then."""
    with opened(subject) as store:
        tier = Tier(store)
        assert tier.stored([key(0)], [0]) == 1
        subject.hold_reads(store)
        job = tier.load([key(0)], [5])
        until(lambda: isinstance(subject, Fake) or store.info().roots[0].ops_in_flight)
        tier.chunks.cancel()
        assert list(tier.chunks.finished()) == []
        subject.release()
        assert tier.result(job).good == 0


def test_closing_lets_go_of_the_memory(subject: Subject) -> None:
    """Which the engine unmaps next: a view that is left would refuse that."""
    with opened(subject) as store:
        memory = mmap.mmap(-1, ROWS * ROW_BYTES)
        rows = np.frombuffer(memory, np.uint8).reshape(ROWS, ROW_BYTES)
        chunks = Chunks(store.cache(layout()), rows)
        chunks.store(1, [key(0)], [0])
        chunks.drain()
        chunks.load(2, [key(0)], [1], "r")
        chunks.cancel()
        store.close_blocking()
        chunks.close()
        del rows
        memory.close()
        assert memory.closed


def test_a_closed_store_fails_jobs_and_raises_nothing(subject: Subject) -> None:
    store = subject.open()
    tier = Tier(store)
    store.close_blocking()
    assert tier.result(tier.store([key(0)], [0])).good == 0
    assert tier.result(tier.load([key(0)], [0])).good == 0


def test_a_random_life_keeps_every_byte(subject: Subject) -> None:
    rng = random.Random(20261130)
    with opened(subject) as store:
        tier = Tier(store)
        stored: dict[int, npt.NDArray[np.uint8]] = {}
        for _ in range(60):
            numbers = rng.sample(range(20), rng.randint(1, 4))
            rows = rng.sample(range(ROWS), len(numbers))
            if all(number in stored for number in numbers):
                assert tier.loaded([key(number) for number in numbers], rows) == len(numbers)
                for number, row in zip(numbers, rows, strict=True):
                    assert np.array_equal(tier.rows[row], stored[number])
            else:
                tier.rows[rows] = [
                    stored.get(number, rng.randbytes(1)[0] * np.ones(ROW_BYTES, np.uint8))
                    for number in numbers
                ]
                assert tier.stored([key(number) for number in numbers], rows) == len(numbers)
                stored |= {n: tier.rows[row].copy() for n, row in zip(numbers, rows, strict=True)}
