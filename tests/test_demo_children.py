"""How the demo runs its phases: results, progress, SIGKILL, and phases that fail or hang."""

import signal
from pathlib import Path

import pytest

from kvstore_demo import children

PHASES = """\
import signal, sys
name, lingers = sys.argv[1], "--linger" in sys.argv
print("a library talks", file=sys.stderr)
if name == "fails":
    sys.exit("the disk is on fire")
if name == "hangs":
    signal.pause()
print('{"type":"progress","done":1,"total":2}', flush=True)
print('{"type":"result","value":{"tokens":7}}', flush=True)
if lingers:
    signal.pause()
if name == "fails-late":
    sys.exit(3)
"""


@pytest.fixture(autouse=True)
def phases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "made_up_phases.py").write_text(PHASES)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(children, "PHASES", "made_up_phases")


def test_a_phase_gives_its_result_after_its_progress(tmp_path: Path) -> None:
    seen: list[children.Progress] = []
    value, code = children.run("works", [], log=tmp_path / "log", progress=seen.append)
    assert (value, code) == (b'{"tokens":7}', 0)
    assert seen == [children.Progress(1, 2)]
    assert "a library talks" in (tmp_path / "log").read_text()


def test_a_phase_to_be_killed_ends_by_sigkill_after_its_result(tmp_path: Path) -> None:
    value, code = children.run("works", [], log=tmp_path / "log", kill=True)
    assert (value, code) == (b'{"tokens":7}', -signal.SIGKILL)


@pytest.mark.parametrize(("name", "code"), [("fails", 1), ("fails-late", 3)])
def test_a_failed_phase_is_raised_with_the_end_of_its_log(
    tmp_path: Path, name: str, code: int
) -> None:
    with pytest.raises(children.PhaseFailed, match=f"{name} ended with code {code}") as failure:
        children.run(name, [], log=tmp_path / "log")
    assert "a library talks" in str(failure.value)


def test_a_phase_that_hangs_is_ended_by_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(children, "PHASE_LIMIT_S", 0.5)
    with pytest.raises(children.PhaseFailed, match="code -9"):
        children.run("hangs", [], log=tmp_path / "log")
