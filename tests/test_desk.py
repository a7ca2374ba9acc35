"""`kvstore stat|ls|show|du|top`: what they print for people and as JSON, and their exit codes.

What they print from is in test_survey.py.
"""

import json
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvstore.cli import main
from tests.support.desk_root import BRANCH_AT, LAYOUT, OTHER, POOL, fill
from tests.support.filled_root import times
from tests.support.prompts import GRID
from tests.support.stores import opened

Command = Callable[..., tuple[int, Any]]
Text = Callable[..., str]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "kv"


@pytest.fixture
def keys(root: Path) -> tuple[list[bytes], list[bytes]]:
    return fill(root)


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """Calls a word with --json; (exit code, what it told)."""

    def call(*words: object) -> tuple[int, Any]:
        code = main([*map(str, words), "--json"])
        return code, json.loads(capsys.readouterr().out)

    return call


@pytest.fixture
def text(capsys: pytest.CaptureFixture[str]) -> Text:
    """What a word prints for people; it must end well."""

    def call(*words: object) -> str:
        assert main([*map(str, words)]) == 0
        printed = capsys.readouterr()
        assert printed.err == ""
        return printed.out

    return call


Keys = tuple[list[bytes], list[bytes]]


# ---------------------------------------------------------------------------------------- stat


def test_stat_tells_sums_of_each_root(
    root: Path, keys: Keys, tmp_path: Path, command: Command, text: Text
) -> None:
    second = tmp_path / "second"
    fill(second)
    code, (first, other) = command("stat", root, second)
    assert (code, first["root"], other["root"]) == (0, str(root), str(second))
    assert first["total"]["extents"] == other["total"]["extents"] == 5
    assert first["classes"]["agent"]["tokens"] == 40 * LAYOUT.block_tokens
    told = text("stat", root)
    assert "none: nobody has it open" in told
    assert f"{LAYOUT.namespace} desk" in told and "class agent" in told
    with opened(root, pool=POOL):
        assert f"process {os.getpid()}" in text("stat", root)


def test_stat_of_a_store_without_extents(root: Path, text: Text) -> None:
    with opened(root, pool=POOL):
        pass
    assert "never" in text("stat", root)
    assert text("ls", root) == "no extents\n"


# ------------------------------------------------------------------------------------------ ls


def test_ls_sorts_as_asked(root: Path, keys: Keys, command: Command) -> None:
    paths = sorted(root.glob("*/*/*.kv"))
    now_s = int(time.time())
    for i, path in enumerate(paths):
        os.utime(path, (now_s + 10 * i, now_s + 1000 - 10 * i))
    order = [path.stem for path in paths]
    code, told = command("ls", root, "--sort", "expiry")
    assert (code, [one["key"] for one in told]) == (0, order[::-1])
    sizes = [one["bytes"] for one in command("ls", root, "--sort", "size")[1]]
    assert sizes == sorted(sizes, reverse=True)
    starts = [
        one["start"]
        for one in command("ls", root, "--sort", "start", "--namespace", LAYOUT.namespace[:6])[1]
    ]
    assert starts == [0, GRID, BRANCH_AT, 2 * GRID]
    created = [one["created_s"] for one in command("ls", root, "--sort", "age")[1]]
    assert created == sorted(created) and len(created) == 5


def test_ls_shows_first_what_is_evicted_first_and_no_more_than_asked(
    root: Path, keys: Keys, command: Command
) -> None:
    paths = sorted(root.glob("*/*/*.kv"))
    for i, path in enumerate(paths):
        put_s = int(path.stat().st_ctime)
        os.utime(path, (put_s + 1 + i, path.stat().st_mtime))
    _, told = command("ls", root, "--limit", 2)
    assert [one["key"] for one in told] == [path.stem for path in paths[:2]]
    assert all(one["blocks"] for one in told)


def test_ls_of_the_expired_only(root: Path, keys: Keys, command: Command, text: Text) -> None:
    path = next(root.glob("*/*/*.kv"))
    os.utime(path, (path.stat().st_atime, time.time() - 1))
    _, (one,) = command("ls", root, "--expired")
    assert one["key"] == path.stem
    head, line = text("ls", root, "--expired").splitlines()
    assert line.startswith(path.stem[:16]) and line.endswith("expired")


def test_ls_prints_a_line_an_extent(root: Path, keys: Keys, text: Text) -> None:
    head, *lines = text("ls", root, "--namespace", LAYOUT.namespace, "--sort", "start").splitlines()
    assert head.split()[:3] == ["key", "namespace", "blocks"]
    assert [line.split()[1] for line in lines] == [LAYOUT.namespace[:8]] * 4
    assert [line.split()[2] for line in lines] == ["0-15", "16-31", "20-31", "32-39"]
    assert [line.split()[3] for line in lines] == ["agent", "agent", "chat", "agent"]


# ---------------------------------------------------------------------------------------- show


def test_show_tells_where_a_block_lies(
    root: Path, keys: Keys, command: Command, text: Text
) -> None:
    key = keys[0][BRANCH_AT + 1].hex()
    code, told = command("show", root, key[:8])
    assert code == 0
    assert [block["key"] for block in told["blocks"]] == [key]
    lines = text("show", root, key[:8]).splitlines()
    assert lines[0] == f"block       {key}"
    assert lines[1].split()[:5] == ["number", "21", "of", "its", "chain,"]
    assert [line.split()[0] for line in lines if line[0] != " "] == [
        "block", "held", "above", "below", "beside",
    ]  # fmt: skip
    assert lines[3].split()[:2] == ["blocks", "16-31,"] and lines[3].endswith("4 layers")
    assert lines[4].split()[0] == "put" and lines[4].endswith("class keeps it for 3 d")
    assert lines[-1].split()[1:4] == [keys[1][BRANCH_AT].hex()[:16], "blocks", "20-31,"]


def test_show_of_what_left_tells_why_and_ends_with_1(
    root: Path, keys: Keys, command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    with opened(root, pool=POOL) as store:
        store.cache(LAYOUT).delete_blocking(keys[1][BRANCH_AT])
    key = keys[1][BRANCH_AT].hex()
    code, told = command("show", root, key)
    assert (code, told["blocks"], told["left"][0]["reason"]) == (1, [], "deleted")
    for asked, words in ((key, "deleted"), (key[:8], "16 digits"), ("0" * 16, "nothing is known")):
        assert main(["show", str(root), asked]) == 1
        assert words in capsys.readouterr().out
    assert main(["show", str(root), "letters"]) == 1
    assert "8 to 64" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------ du


def test_du_tells_bytes_by_directory(
    root: Path, keys: Keys, command: Command, text: Text, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, told = command("du", root)
    assert code == 0
    assert {one["path"] for one in told} >= {str(root), str(root / LAYOUT.namespace)}
    assert told[-1]["path"] == str(root)
    lines = text("du", root, "--depth", 0, "--bytes").splitlines()
    assert [line.split()[0] for line in lines] == [str(told[-1]["bytes"])]
    by_class = text("du", root, "--class")
    assert f"{root / LAYOUT.namespace} agent" in by_class

    def refuse(*_: object) -> int:
        raise AssertionError("a file was read")

    monkeypatch.setattr("kvstore.fsck.quiet.open_quietly", refuse)
    monkeypatch.setattr("kvstore.fsck.extent.open_quietly", refuse)
    assert text("du", root, "--depth", 2).count("\n") > len(told)


# ----------------------------------------------------------------------------------------- top


def test_top_prints_a_json_object_a_look(
    root: Path, keys: Keys, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    second = tmp_path / "second"
    fill(second)
    before = times(root)
    words = ["top", str(root), str(second), "--json", "--count", "3", "--interval", "20ms"]
    assert main(words) == 0
    looks = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(looks) == 3
    assert [[one["root"] for one in look["roots"]] for look in looks] == [
        [str(root), str(second)]
    ] * 3
    assert [look["roots"][0]["elapsed_s"] > 0 for look in looks] == [False, True, True]
    assert times(root) == before


def test_top_once_is_one_look_for_people(root: Path, keys: Keys, text: Text) -> None:
    lines = text("top", root, "--once").splitlines()
    assert lines[0] == f"root     {root}"
    assert lines[5].split()[:2] == ["namespace", "extents"]
    found = {tuple(line.split()[:3]) for line in lines[6:] if line}
    assert found == {(LAYOUT.namespace[:8], "desk", "4"), (OTHER.namespace[:8], "other", "1")}


@pytest.mark.parametrize("words", [["--interval", "0s"], ["--count", "0"], ["--interval", "soon"]])
def test_top_refuses_what_makes_no_sense(root: Path, words: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["top", str(root), *words])
    assert ended.value.code == 2


@pytest.mark.parametrize("without_rich", [False, True])
@pytest.mark.parametrize("end", [b"q", b"\x03"])
def test_top_on_a_terminal_follows_the_store_and_ends_with_q_or_ctrl_c(
    root: Path, keys: Keys, end: bytes, without_rich: bool
) -> None:
    """In a child with a terminal of its own. That somebody opens the store is drawn; the key ends
    it."""
    hide = "import sys; sys.modules['rich.live'] = None; " if without_rich else ""
    code = f"{hide}from kvstore.cli import main; raise SystemExit(main())"
    words = [sys.executable, "-c", code, "top", str(root), "--interval", "50ms"]
    master, terminal = pty.openpty()
    child = subprocess.Popen(
        words, stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True,
        preexec_fn=_take_terminal, env=os.environ | {"TERM": "xterm"},
    )  # fmt: skip
    os.close(terminal)
    try:
        drawn = _read_until(master, b"desk")
        with opened(root, pool=POOL):
            drawn += _read_until(master, f"owner    process {os.getpid()}".encode())
        assert (b"\x1b[" in drawn) == (not without_rich)
        os.write(master, end)
        _read_until(master, None)
        assert child.wait(60) == 0
    finally:
        child.kill()
        child.wait()
        os.close(master)


def _take_terminal() -> None:
    """The child's stdin is its controlling terminal, so that Ctrl-C is a signal."""
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _read_until(fd: int, wanted: bytes | None) -> bytes:
    """What comes until `wanted` is there; None: until the other side is gone."""
    got, end_s = b"", time.monotonic() + 60
    while wanted is None or wanted not in got:
        assert time.monotonic() < end_s, got[-2000:]
        if not select.select([fd], [], [], 1)[0]:
            continue
        try:
            piece = os.read(fd, 65536)
        except OSError:
            piece = b""
        if not piece:
            assert wanted is None, got[-2000:]
            break
        got += piece
    return got


# ---------------------------------------------------------------------------------------- all


@pytest.mark.parametrize("word", ["stat", "ls", "show", "du", "top"])
def test_what_is_no_store_is_an_error_that_says_what_to_do(
    word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key = ["00000000"] if word == "show" else []
    for place in (tmp_path, tmp_path / "missing"):
        assert main([word, str(place), *key]) == 1
        printed = capsys.readouterr()
        assert printed.out == ""
        assert str(place) in printed.err and "; name " in printed.err
        assert printed.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
