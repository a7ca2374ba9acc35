"""The `kvstore` command: the habits of all its words, docs/CLI.md, and `kvstore info`."""

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import kvstore
from kvstore.cli import main, parser
from tests.support import desk_root
from tests.support.stores import cells_of, layout, opened, prompt, until, write
from tools.cli_manual import manual, words

ROOT = Path(__file__).parents[1]
WORDS = words(parser())
# What a word needs beside options, to be a right command line.
OPERANDS = {"quarantine": ["ls", "{}"], "show": ["{}", "0" * 8], "explain": ["{}", "{}"]}
OPERANDS |= {word: ["{}"] for word in WORDS if word not in {*OPERANDS, "plan"}} | {"plan": []}


def operands(word: str, place: Path) -> list[str]:
    return [one.format(place) for one in OPERANDS[word]]


def command_in_child(*arguments: str, **more: object) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-m", "kvstore.cli", *arguments], stderr=subprocess.PIPE, cwd=ROOT, **more
    )


# ---- every word ----------------------------------------------------------------------------------


def test_the_list_has_a_line_a_word(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main(["--help"])
    lines = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    for word, (_, told) in WORDS.items():
        assert [word, told] in lines


@pytest.mark.parametrize("word", WORDS)
def test_help_has_examples_and_exit_codes(
    word: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as ended:
        main([word, "--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    examples = text.partition("\nexamples:\n")[2].partition("\n\n")[0].splitlines()
    assert len(examples) >= 2
    assert "\nexit codes: " in text and "--json" in text
    assert "\x1b" not in text


@pytest.mark.parametrize("word", WORDS)
def test_examples_are_right_command_lines(word: str) -> None:
    for example in WORDS[word][0].examples:
        arguments = shlex.split(example.partition(" > ")[0])
        assert arguments[:2] == ["kvstore", word]
        assert parser().parse_args(arguments[1:]).command == word


@pytest.mark.parametrize("word", WORDS)
def test_a_wrong_option_is_one_line_that_names_the_help(
    word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([word, *operands(word, tmp_path), "--yaml"])
    assert ended.value.code == (16 if word == "fsck" else 2)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == (
        f"kvstore {word}: unrecognized arguments: --yaml; see kvstore {word} --help\n"
    )


@pytest.mark.parametrize("word", [word for word in WORDS if OPERANDS[word]])
def test_what_is_not_there_is_one_line_that_names_it(
    word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "missing"
    assert main([word, *operands(word, missing)]) == (8 if word == "fsck" else 1)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("kvstore: ") and printed.err.count("\n") == 1
    assert str(missing) in printed.err and ("; " in printed.err or ", or " in printed.err)


def test_want_of_memory_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def without(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("kvstore.plan.plan", without)
    assert main(["plan"]) == 1
    assert capsys.readouterr().err == "kvstore: out of memory\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["replay", "x", "--capacity", "2 hectares"],
        ["replay", "x", "--ttl", "soon"],
        ["plan", "--target", "soon"],
        ["plan", "--bytes-per-token", "many"],
        ["fsck", "x", "--ttl", "soon"],
        ["quarantine", "rm", "x", "--older", "soon"],
        ["top", "x", "--interval", "soon"],
    ],
)
def test_a_size_or_time_that_cannot_be_read_says_how_to_write_it(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code in (2, 16)
    told = capsys.readouterr().err
    assert told.count("\n") == 1 and "write " in told and '"' in told


def test_sizes_are_read_with_either_kind_of_unit() -> None:
    for text, size in (("2TB", 2 * 10**12), ("512MiB", 512 << 20), ("4096", 4096)):
        assert parser().parse_args(["replay", "x", "--capacity", text]).capacity == size


@pytest.mark.parametrize("word", WORDS)
def test_ctrl_c_ends_with_130_and_no_trace(
    word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(f"kvstore.commands.{word}.run", interrupted)
    assert main([word, *operands(word, tmp_path)]) == 130
    assert capsys.readouterr().err == ""


def test_ctrl_c_while_it_works_is_quiet(tmp_path: Path) -> None:
    """The child waits for a trace that nobody writes."""
    fifo = tmp_path / "trace.jsonl"
    os.mkfifo(fifo)
    child = command_in_child("replay", str(fifo))
    try:
        with open(fifo, "wb"):  # it is open on the other side: the word is at work
            child.send_signal(signal.SIGINT)
            _, err = child.communicate(timeout=60)
    finally:
        child.kill()
        child.wait()
    assert (child.returncode, err) == (130, b"")


@pytest.mark.parametrize("arguments", [["--help"], ["plan"], ["ls", "{}"], ["top", "{}"]])
def test_a_reader_that_goes_away_ends_it_quietly(tmp_path: Path, arguments: list[str]) -> None:
    desk_root.fill(tmp_path / "kv")
    read_end, write_end = os.pipe()
    os.close(read_end)
    words = [one.format(tmp_path / "kv") for one in arguments]
    child = command_in_child(*words, stdout=write_end)
    os.close(write_end)
    _, err = child.communicate(timeout=60)
    assert err == b""
    assert child.returncode in ((0, 141) if arguments == ["--help"] else (141,))  # argparse's own


def test_what_is_no_terminal_gets_no_colours_and_no_progress(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    desk_root.fill(tmp_path / "kv")
    for word, *more in (["info"], ["stat"], ["ls"], ["du"], ["top", "--once"], ["fsck", "--deep"]):
        assert main([word, str(tmp_path / "kv"), *more]) == 0
        printed = capsys.readouterr()
        assert printed.err == ""
        assert printed.out.isascii() and not {"\x1b", "\r"} & set(printed.out)


def test_the_manual_is_current() -> None:
    told = "docs/CLI.md is not what the parser says; run: python -m tools.cli_manual > docs/CLI.md"
    assert (ROOT / "docs" / "CLI.md").read_text() == manual(), told


# ---- info, and the command itself ----------------------------------------------------------------


def test_info_without_directories_tells_the_build(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info"]) == 0
    assert kvstore.__version__ in capsys.readouterr().out
    assert main(["info", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["liburing"] == kvstore.info().liburing


def test_info_of_a_store_in_use_tells_its_roots(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with opened(tmp_path) as store:
        kv = store.cache(layout())
        write(kv, kv.keys(prompt(2)), cells_of(kv.layout, 2))
        until(lambda: list(tmp_path.glob("*/layout.json")))  # a file worker writes it
        before = sorted(path.stat().st_mtime_ns for path in tmp_path.rglob("*"))
        assert main(["info", str(tmp_path)]) == 0
        text = capsys.readouterr().out
        assert main(["info", str(tmp_path), "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert before == sorted(path.stat().st_mtime_ns for path in tmp_path.rglob("*"))
        assert store.info().roots[0].is_owner
    assert str(tmp_path) in text
    assert "peer" in text
    (root,) = told["roots"]
    assert root["path"] == str(tmp_path)
    assert not root["is_owner"]
    assert root["file_system"]


def test_a_directory_that_is_not_there_is_named_and_not_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "missing"
    assert main(["info", str(missing)]) == 1
    assert str(missing) in capsys.readouterr().err
    assert not missing.exists()


@pytest.mark.parametrize("arguments", [[], ["nothing"], ["info", "--yaml"]])
def test_a_wrong_command_line_ends_with_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2


def test_version_is_the_one_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"kvstore {kvstore.__version__}\n"
