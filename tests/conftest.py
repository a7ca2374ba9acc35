"""What all tests share: no hidden skips, repeatable hypothesis runs, a run without torch.

Not here: fixtures of single areas; they live in the test file that uses them.

Every skip is counted and shown at the end with its reason. With CI set, a reason that is not in
expected_skips.txt fails the run: a suite that skips what it cannot do here would stay green.
"""

import os
import re
import signal
from collections import Counter
from pathlib import Path

import hypothesis
import pytest

# An example that takes long is not an error here (a busy machine); a failure prints its seed.
hypothesis.settings.register_profile("kvstore", deadline=None, print_blob=True)
hypothesis.settings.load_profile("kvstore")

# A shell that starts a run in the background has it ignore Ctrl-C, and children would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

EXPECTED = Path(__file__).with_name("expected_skips.txt")
# An import or a quoted name: importorskip("torch"), [sys.executable, "-m", "mla_prefill"].
NEEDS_TORCH = re.compile(
    r"""(^\s*(import|from)\s|["'])(torch|safetensors|tokenizers|mla_prefill|kvstore_demo)\b""",
    re.MULTILINE,
)
SKIPS = pytest.StashKey[Counter[str]]()


def expected_patterns(text: str, *, root: bool) -> list[re.Pattern[str]]:
    """Patterns of expected_skips.txt that hold for whom the suite runs as."""
    who = {"any", "root" if root else "user"}
    lines = [line.split(maxsplit=1) for line in text.splitlines()]
    return [re.compile(line[1]) for line in lines if line and line[0] in who]


def unexpected(reasons: Counter[str], patterns: list[re.Pattern[str]]) -> Counter[str]:
    """The skips whose reason no pattern matches as a whole."""
    return Counter(
        {
            reason: count
            for reason, count in reasons.items()
            if not any(pattern.fullmatch(reason) for pattern in patterns)
        }
    )


def surprises(config: pytest.Config) -> Counter[str]:
    patterns = expected_patterns(EXPECTED.read_text(), root=os.geteuid() == 0)
    return unexpected(config.stash[SKIPS], patterns)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--without-torch",
        action="store_true",
        help="leave out test files that import torch or what is built on it",
    )
    parser.addoption("--seed", type=int, help="repeat a random test with the seed it printed")
    parser.addoption("--rounds", type=int, default=1, help="of each case of the crash matrix")
    parser.addoption("--seconds", type=float, default=3, help="a crash comes within that time")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[SKIPS] = Counter()
    config.pluginmanager.register(SkipCounter(config), "skip-counter")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if config.getoption("--without-torch") and collection_path.suffix == ".py":
        if NEEDS_TORCH.search(collection_path.read_text()):
            return True
    return None


class SkipCounter:
    """Counts the reasons of skipped tests and of skipped modules; xfails are no skips."""

    def __init__(self, config: pytest.Config) -> None:
        self.reasons = config.stash[SKIPS]

    def note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
            self.reasons[str(reason).removeprefix("Skipped: ")] += 1

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.note(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self.note(report)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if os.environ.get("CI") and surprises(session.config) and session.exitstatus == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    reasons = config.stash[SKIPS]
    if not reasons:
        return
    odd = surprises(config)
    terminalreporter.section(f"{sum(reasons.values())} skipped, {sum(odd.values())} unexpectedly")
    for reason, count in sorted(reasons.items()):
        mark = "UNEXPECTED" if reason in odd else "expected"
        terminalreporter.write_line(f"{mark:>10}  {count} x {reason}")
    if odd and os.environ.get("CI"):
        terminalreporter.write_line("This fails the run: see tests/expected_skips.txt", red=True)
