"""`kvstore fsck`: its exit codes, beside a live owner, and that recency stays without O_NOATIME."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvstore import extent_check, fsck
from kvstore.cli import main
from kvstore.extent_check import last_use_kept
from kvstore.fsck_report import KINDS
from tests.support.filled_root import (
    BLOCKS,
    LAYOUT,
    POOL,
    extents,
    fill,
    kinds,
    run_fsck,
    times,
)
from tests.support.stores import cells_of, check_load, opened, prompt, write

DAY_S = 86_400


@pytest.fixture(autouse=True)
def strict_umask() -> Iterator[None]:
    """Files that a test puts there have the modes of the store's own."""
    old = os.umask(0o077)
    yield
    os.umask(old)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return fill(tmp_path / "kv")


# --------------------------------------------------------------------------------- exit codes


def test_codes_add_up(root: Path) -> None:
    """Quarantine cannot be made, so the damage stays; the mode can be set right."""
    first, second = extents(root)
    second.chmod(0o640)
    os.truncate(first, 100)
    (root / "quarantine").write_text("in the way")
    code, told = run_fsck(root, "--repair")
    assert code == 1 | 4
    corrected = {f["kind"]: f["corrected"] for f in told["findings"] if f["error"]}
    assert corrected == {"header": False, "mode": True}
    assert first.exists()


def test_what_cannot_be_read_is_8(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(extent_check.os, "preadv", refuse)
    code, told = run_fsck(root)
    assert code & 8 and "unreadable" in kinds(told)


def test_no_store_is_8(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fsck", str(tmp_path / "missing")]) == 8
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "a.txt").write_text("dear")
    assert main(["fsck", str(tmp_path / "letters"), "--repair"]) == 8
    assert "is no store" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "letters").iterdir()] == ["a.txt"]


@pytest.mark.parametrize("name", ["tmp", "quarantine"])
def test_a_directory_with_a_name_like_ours_is_no_store(name: str, tmp_path: Path) -> None:
    """Everybody has a tmp/: on the word of a wrong path nothing in it is touched."""
    mine = tmp_path / name / "kv-old.tmp"
    mine.parent.mkdir()
    mine.parent.chmod(0o755)
    mine.write_text("mine")
    os.utime(mine, (1, 1))
    (tmp_path / "lost+found").mkdir()
    assert main(["fsck", str(tmp_path), "--repair"]) == 8
    assert main(["quarantine", "rm", str(tmp_path), "--all"]) == 1
    assert mine.read_text() == "mine" and mine.parent.stat().st_mode & 0o777 == 0o755
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["lost+found", name])


@pytest.mark.parametrize("words", [["fsck"], ["fsck", ".", "--yaml"], ["fsck", ".", "--ttl", "x"]])
def test_a_wrong_command_line_is_16(words: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 16


def test_cancelled_is_32_with_what_was_found_so_far(root: Path) -> None:
    os.truncate(extents(root)[0], 100)
    os.truncate(extents(root)[1], 100)

    def cancel(checked: int, _: int) -> None:
        raise KeyboardInterrupt

    report = fsck.check(root, progress=cancel)
    assert report.code == 32 | 4
    assert len(report.findings) == 1


def test_for_people_it_says_what_is_wrong_and_what_repair_would_do(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.truncate(extents(root)[0], 100)
    assert main(["fsck", str(root)]) == 4
    text = capsys.readouterr().out
    assert KINDS["header"].meaning in text and KINDS["header"].repair in text
    assert text.endswith("0 errors corrected, 1 left\n")
    assert main(["fsck", str(root), "--repair"]) == 1
    assert main(["fsck", str(root)]) == 0
    assert "clean (headers and names" in capsys.readouterr().out


def test_progress_is_drawn_on_a_terminal_and_nowhere_else(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["fsck", str(root)]) == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr("kvstore.commands.fsck._PROGRESS_S", 0)
    assert main(["fsck", str(root), "--deep"]) == 0
    drawn = capsys.readouterr().err
    assert "2 extents" in drawn and "\n" not in drawn


# ------------------------------------------------------------------------ beside a live owner


def test_beside_a_live_owner_it_reads_and_refuses_to_repair(root: Path) -> None:
    with opened(root, pool=POOL) as store:
        kv = store.cache(LAYOUT)
        code, told = run_fsck(root, "--deep")
        assert (code, told["findings"]) == (0, [])
        assert str(os.getpid()) in told["owner"]
        # Another process asks, so the lock is still there after ours looked at it.
        words = [sys.executable, "-m", "kvstore.cli", "fsck", str(root)]
        other = subprocess.run([*words, "--repair"], capture_output=True, text=True, timeout=60)
        assert other.returncode == 8
        assert f"process {os.getpid()}" in other.stderr
        with kv.load(kv.find_blocking(kv.keys(prompt(BLOCKS)))) as load:
            check_load(load, cells_of(LAYOUT, BLOCKS), BLOCKS)


def test_beside_an_owner_that_writes_and_deletes_nothing_is_wrong(root: Path) -> None:
    ended = threading.Event()
    with opened(root, pool=POOL) as store:
        kv = store.cache(LAYOUT)
        cells = cells_of(LAYOUT, BLOCKS)

        def live() -> None:
            seed = 1
            while not ended.is_set():
                chain = kv.keys(prompt(BLOCKS, seed))
                write(kv, chain, cells)
                kv.delete_blocking(chain[0])
                seed += 1

        thread = threading.Thread(target=live)
        thread.start()
        try:
            reports = [fsck.check(root, deep=True) for _ in range(5)]
        finally:
            ended.set()
            thread.join()
    for report in reports:
        assert {finding.kind for finding in report.findings} <= {"empty-bucket"}
        assert report.code == 0


def test_a_file_that_is_evicted_meanwhile_is_no_finding(root: Path) -> None:
    def evict(*_: int) -> None:
        for path in extents(root):
            path.unlink()

    report = fsck.check(root, progress=evict)
    assert (report.code, report.extents) == (0, 1)
    assert {finding.kind for finding in report.findings} == {"empty-bucket"}


# ------------------------------------------------------------------------------------ recency


def test_recency_stays_without_the_right_to_o_noatime(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = []
    real = os.open

    def other_user(path: Any, flags: int, *rest: Any, **words: Any) -> int:
        if flags & os.O_NOATIME:
            refused.append(path)
            raise PermissionError(1, "Operation not permitted")
        return real(path, flags, *rest, **words)

    for path in extents(root):  # with mtime ahead of atime every read moves atime (relatime)
        os.utime(path, (time.time() - DAY_S, path.stat().st_mtime))
    before = times(root)
    monkeypatch.setattr(extent_check.os, "open", other_user)
    code, told = run_fsck(root, "--deep")
    assert (code, told["findings"]) == (0, [])
    assert len(refused) >= 2
    assert times(root) == before


def test_a_last_use_that_another_process_wrote_meanwhile_is_left(root: Path) -> None:
    path = extents(root)[0]
    fd = os.open(path, os.O_RDONLY)
    try:
        before = os.fstat(fd)
        used_s = int(before.st_atime) + 30
        os.utime(path, (used_s, before.st_mtime))
        assert last_use_kept(fd, before)
        assert path.stat().st_atime == used_s
    finally:
        os.close(fd)
