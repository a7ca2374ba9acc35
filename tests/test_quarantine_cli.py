"""`kvstore quarantine`: lists what was moved aside and why, removes some or all of it, also beside
a live store, and changes no times.
"""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvstore import quarantine
from kvstore.cli import main
from kvstore.fsck.check import check
from tests.support import extent_bytes
from tests.support.filled_root import BLOCKS, LAYOUT, POOL, extents, fill, times
from tests.support.harms import a_fifo, a_full_directory, swapped
from tests.support.stores import cells_of, opened, prompt, until, write

Command = Callable[..., tuple[int, Any]]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return fill(tmp_path / "kv")


@pytest.fixture
def command(root: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    def call(do: str, *words: str) -> tuple[int, Any]:
        code = main(["quarantine", do, str(root), *words, "--json"])
        return code, json.loads(capsys.readouterr().out)

    return call


def moved(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "quarantine").glob("*"))


def move_aside(root: Path) -> list[str]:
    """By a repair; the names in quarantine, the oldest first."""
    check(root, deep=True, repair=True)
    return moved(root)


def test_what_a_load_moved_aside_is_listed_with_its_reason(root: Path, command: Command) -> None:
    path = extents(root)[0]
    size = path.stat().st_size
    at, cell = extent_bytes.regions(path.read_bytes())[1]
    extent_bytes.flip(path, 8 * (at + 3 * cell))
    with opened(root, pool=POOL) as store:
        kv = store.cache(LAYOUT)
        with kv.load(kv.find_blocking(kv.keys(prompt(BLOCKS)))) as load:
            assert load.wait(1).reason == "damaged"
        until(lambda: moved(root))
        before = times(root)
        code, (told,) = command("ls")
        changed = {path for path, seen in times(root).items() if before.get(path) != seen}
        assert changed <= {root / "removed.ring"}, "the live store may write that one just now"
        assert (code, told["name"]) == (0, moved(root)[0])
        assert (told["key"], told["namespace"]) == (path.stem, kv.namespace)
        assert (told["bytes"], told["why"]) == (size, "cell: layer 1, block 3")
        assert abs(told["moved_s"] - time.time()) < 3600
        assert command("rm", told["name"]) == (0, {"removed": [told["name"]], "missing": []})
        assert write(kv, kv.keys(prompt(BLOCKS)), cells_of(LAYOUT, BLOCKS)) == BLOCKS
    assert moved(root) == []


def test_nothing_in_quarantine_is_fine(root: Path, command: Command) -> None:
    assert command("ls") == (0, [])
    assert command("rm", "--all") == (0, {"removed": [], "missing": []})


def test_of_everything_it_says_why(root: Path, command: Command) -> None:
    swapped(*extents(root))
    move_aside(root)
    (root / "quarantine" / "notes").write_text("put there by hand")
    code, told = command("ls")
    assert code == 0
    assert {one["why"].split(":")[0] for one in told} == {"misnamed", "header"}
    assert [one["moved_s"] for one in told if one["name"] == "notes"] == [0]


def test_what_is_no_file_is_removed_like_one(root: Path, command: Command) -> None:
    first, second = extents(root)
    a_full_directory(first, second)
    a_fifo(second, first)
    outside = root / "outside"
    outside.write_text("stays")
    assert len(move_aside(root)) == 2
    (root / "quarantine" / "link").symlink_to(outside)
    os.mkfifo(root / "quarantine" / "an odd name \udcff\n")
    code, told = command("ls")
    assert {one["why"] for one in told} == {"not-a-file"}
    code, told = command("rm", "--all")
    assert (code, len(told["removed"]), moved(root)) == (0, 4, [])
    assert outside.read_text() == "stays"


def test_older_removes_what_was_moved_before_that(root: Path, command: Command) -> None:
    place = root / "quarantine"
    place.mkdir(mode=0o700)
    old, new = (f"{int(time.time()) - age_s:012d}-000000-x.kv" for age_s in (8 * 86_400, 60))
    for name in (old, new, "by hand"):
        (place / name).write_bytes(b"x")
    assert command("rm", "--older", "7d") == (0, {"removed": [old], "missing": []})
    assert moved(root) == sorted([new, "by hand"])


def test_a_name_that_is_not_there_is_told_and_one_that_leads_elsewhere_refused(
    root: Path, command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("rm", "nothing") == (1, {"removed": [], "missing": ["nothing"]})
    assert main(["quarantine", "rm", str(root), "../root.json"]) == 1
    assert "../root.json" in capsys.readouterr().err
    assert (root / "root.json").exists()


def test_a_linked_quarantine_is_not_followed(root: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "mine").write_text("stays")
    (root / "quarantine").symlink_to(elsewhere)
    assert main(["quarantine", "ls", str(root)]) == 1
    assert main(["quarantine", "rm", str(root), "--all"]) == 1
    os.truncate(extents(root)[0], 100)
    assert check(root, repair=True).code == 4
    assert [path.name for path in elsewhere.iterdir()] == ["mine"]


@pytest.mark.parametrize("words", [["ls", "--all"], ["rm"], ["rm", "x", "--all"], ["mv"]])
def test_a_wrong_command_line_ends_with_2(words: list[str], root: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["quarantine", words[0], str(root), *words[1:]])
    assert ended.value.code == 2


def test_for_people_a_line_each(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["quarantine", "ls", str(root)]) == 0
    assert capsys.readouterr().out == "nothing in quarantine\n"
    os.truncate(extents(root)[0], 100)
    (name,) = move_aside(root)
    assert main(["quarantine", "ls", str(root)]) == 0
    line = capsys.readouterr().out
    assert line.startswith(f"{name}  100 B") and "header: short" in line
    assert main(["quarantine", "rm", str(root), name]) == 0
    assert capsys.readouterr().out == "removed 1\n"


def test_repairs_keep_the_bound(root: Path) -> None:
    place = root / "quarantine"
    place.mkdir(mode=0o700)
    for i in range(quarantine.FILES_MAX):
        (place / f"{i:012d}-{i:06d}-x.kv").write_bytes(b"x")
    os.truncate(extents(root)[0], 100)
    names = move_aside(root)
    assert len(names) == quarantine.FILES_MAX
    assert names[0].startswith("000000000001-")
    assert names[-1][13:19] == f"{quarantine.FILES_MAX:06d}"
