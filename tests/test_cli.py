"""The `kvstore` command: what it prints, its exit codes, and that it changes nothing."""

import json
from pathlib import Path

import pytest

import kvstore
from kvstore.cli import main
from tests.support.stores import cells_of, layout, opened, prompt, until, write


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
