"""The denominator of benches: raw I/O is what it says, and refuses what it cannot do."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kvstore.raw_io import RawIo, Step, raw_read_ceiling, whole_files


def test_a_ceiling_is_the_best_of_its_depths(tmp_path: Path) -> None:
    paths = [tmp_path / "long", tmp_path / "short"]
    paths[0].write_bytes(os.urandom(3 * 65536 + 4096 + 100))
    paths[1].write_bytes(os.urandom(5000))
    found = raw_read_ceiling(paths, 65536, [1, 4], 0.02)
    assert found["gbps"] == max(found["by_depth"].values()) == found["by_depth"][found["depth"]] > 0
    assert sorted(found["by_depth"]) == [1, 4]
    assert found["engine"] in ("io_uring", "aio", "threads")


@pytest.mark.parametrize("engine", ["io_uring_plain", "aio", "threads"])
def test_the_engine_that_is_asked_for_reads(tmp_path: Path, engine: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(3 * 65536))
    found = raw_read_ceiling([path], 65536, [2], 0.01, engine=engine)
    assert (found["engine"], found["registered"]) == (engine.removesuffix("_plain"), False)
    assert found["gbps"] > 0


@pytest.mark.parametrize("memory", [0, 5 * 65536])
def test_one_read_at_a_time_walks_whole_files_tails_included(tmp_path: Path, memory: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(65536 + 4096 + 100))
    raw = RawIo([path], whole_files([path], 65536), depth_max=2, memory_bytes=memory)
    assert [raw.run(1, 0).bytes for _ in range(4)] == [65536, 4096, 65536, 4096]
    assert raw.run(2, 0).bytes == 65536 + 4096
    assert sum(raw.latency_counts()) == 6


def test_a_run_of_counted_steps_writes_just_those(tmp_path: Path) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]
    for path in paths:
        path.write_bytes(bytes(3 * 8192))
    steps = [Step(file, layer * 8192, 8192) for layer in range(3) for file in range(2)]
    raw = RawIo(paths, steps, writes=True, depth_max=4)
    moved = raw.run(4, 60, steps=5)
    assert (moved.bytes, moved.steps) == (5 * 8192, 5)
    written = b"".join(path.read_bytes() for path in paths)
    assert 0 not in written[: 5 * 8192]
    assert not any(written[5 * 8192 :])


@pytest.mark.parametrize("io_bytes", [0, 4095, 1 << 27])
def test_a_size_that_direct_reads_cannot_have_is_refused(tmp_path: Path, io_bytes: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(1 << 27))
    with pytest.raises((ValueError, OSError)):
        raw_read_ceiling([path], io_bytes, [1], 0.01)
    with pytest.raises((ValueError, OSError)):
        RawIo([path], [Step(0, 0, io_bytes)])


def test_files_without_a_page_and_files_not_there_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(100))
    with pytest.raises((ValueError, OSError)):
        raw_read_ceiling([path], 4096, [1], 0.01)
    with pytest.raises(OSError):
        raw_read_ceiling([tmp_path / "none"], 4096, [1], 0.01)
    with pytest.raises(ValueError):
        raw_read_ceiling([], 4096)
