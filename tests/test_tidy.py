"""The house rules that a formatter does not check: sizes, imports, words, promises of the docs.

Knows sources by their place and ending; reads text only and runs nothing. A rule that hurts is
changed here, in the open, not worked around.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import conftest

ROOT = Path(__file__).parents[1]
PLACES = ["kvstore", "csrc", "python", "tests", "benches", "tools", "setup.py"]
SOURCE = {".c", ".h", ".py", ".pyi", ".pyx", ".pxd", ".pxi"}
TEXT = SOURCE | {".md", ".sh", ".mk", ".toml", ".txt"}
COLUMNS = 100
FILE_LINES = 400
# One extension is one translation unit: split, there would be two copies of the core.
LONGER_FILES = {"kvstore/_core.pyx": 1000}
FUNCTION_LINES = 70

# Nothing of ours below them, so that they can be read (and reused) on their own.
PURE = {"errors", "layout", "units"}
UNTRACKED_WORK = re.compile(r"\b(TODO|FIXME)\b(?!\s*\(#\d+\))")
# Places of one machine, and the circumstances under which a line was written.
FOREIGN = [
    re.compile(pattern)
    for pattern in (
        r"(?<![\w.])/(work|root)/",
        r"(?<![\w.])/home/\w+/",
        r"(?i)\bsub-?agent",
        r"(?i)\b(this|previous|earlier|another|later|our) session\b(?! (of|in) the (chat|agent))",
    )
]


def files(endings: set[str]) -> list[Path]:
    """Our files with these endings, below the places where sources live, docs and top level too."""
    found: list[Path] = [path for path in ROOT.iterdir() if path.is_file()]
    for place in [*PLACES, "docs", ".ci"]:
        found += (ROOT / place).rglob("*") if (ROOT / place).is_dir() else []
    return sorted(path for path in found if path.suffix in endings and path != Path(__file__))


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def numbered(path: Path) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(path.read_text().splitlines(), 1):
        yield f"{name(path)}:{number}", line


def complain(findings: list[str]) -> None:
    assert not findings, "\n" + "\n".join(findings)


# ---- sizes ---------------------------------------------------------------------------------------


def test_no_line_is_wider_than_the_limit() -> None:
    complain(
        [
            f"{where}: {len(line)} columns"
            for path in files(SOURCE)
            for where, line in numbered(path)
            if len(line) > COLUMNS
        ]
    )


def test_no_file_is_longer_than_the_limit() -> None:
    lengths = [(path, len(path.read_text().splitlines())) for path in files(SOURCE)]
    complain(
        [
            f"{name(path)}: {lines} lines"
            for path, lines in lengths
            if lines > LONGER_FILES.get(name(path), FILE_LINES)
        ]
    )


def c_functions(text: str) -> Iterator[tuple[int, int]]:
    """(line, lines) of every function, by the house style: its braces alone stand in column 0."""
    start = None
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("{"):
            start = number
        elif line.startswith("}") and start is not None:
            yield start, number - start + 1
            start = None


def python_functions(text: str) -> Iterator[tuple[int, int]]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno, (node.end_lineno or node.lineno) - node.lineno + 1


def cython_functions(text: str) -> Iterator[tuple[int, int]]:
    """By indentation: a function ends with the last line that is indented deeper than its head."""
    lines = text.splitlines()
    head = re.compile(r"^(\s*)(async def|def|cdef(?! class)|cpdef)\b[^=]*\(")
    for first, line in enumerate(lines):
        match = head.match(line)
        if not match or line.rstrip().endswith(";"):
            continue
        indent = len(match.group(1))
        last = first
        for number in range(first + 1, len(lines)):
            text_here = lines[number]
            if not text_here.strip():
                continue
            closes_head = re.match(r"\s*\).*:\s*$", text_here)
            if len(text_here) - len(text_here.lstrip()) <= indent and not closes_head:
                break
            last = number
        yield first + 1, last - first + 1


def test_no_function_is_longer_than_the_limit() -> None:
    readers = {
        ".c": c_functions,
        ".h": c_functions,
        ".py": python_functions,
        ".pyx": cython_functions,
        ".pxi": cython_functions,
    }
    complain(
        [
            f"{name(path)}:{line}: function of {lines} lines"
            for path in files(set(readers))
            for line, lines in readers[path.suffix](path.read_text())
            if lines > FUNCTION_LINES
        ]
    )


@pytest.mark.parametrize(
    ("reader", "text", "expected"),
    [
        (c_functions, "int f(void)\n{\n    if (x) {\n    }\n}\n", [(2, 4)]),
        (python_functions, "def f():\n    pass\n\n\nx = 1\n", [(1, 2)]),
        (cython_functions, "cdef f(\n    int x,\n) noexcept:\n    return x\n\ny = 1\n", [(1, 4)]),
        (cython_functions, "class A:\n    def f(self):\n        pass\n\n    x = 1\n", [(2, 2)]),
    ],
)
def test_function_sizes_are_read_right(reader, text, expected) -> None:
    assert list(reader(text)) == expected


# ---- words ---------------------------------------------------------------------------------------


def test_open_work_names_its_issue() -> None:
    complain(
        [
            f"{where}: {line.strip()}"
            for path in files(TEXT)
            for where, line in numbered(path)
            if UNTRACKED_WORK.search(line)
        ]
    )


def test_nothing_of_one_machine_or_of_how_it_was_written_is_left() -> None:
    complain(
        [
            f"{where}: {match.group()!r}"
            for path in files(TEXT)
            for where, line in numbered(path)
            for pattern in FOREIGN
            if (match := pattern.search(line))
        ]
    )


def test_code_is_ascii() -> None:
    complain(
        [
            f"{where}: {line.strip()}"
            for path in files(SOURCE | {".sh", ".mk"})
            for where, line in numbered(path)
            if not line.isascii()
        ]
    )


def test_every_c_file_opens_with_a_comment_on_what_it_does() -> None:
    opens = ("/*", "//")
    complain(
        [
            name(path)
            for path in files({".c", ".h"})
            if name(path).startswith("csrc/") and not path.read_text().startswith(opens)
        ]
    )


def test_every_python_module_opens_with_a_docstring() -> None:
    complain(
        [
            name(path)
            for path in files({".py"})
            if path.read_text().strip() and not ast.get_docstring(ast.parse(path.read_text()))
        ]
    )


# ---- directions ----------------------------------------------------------------------------------


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """(line, module) for every import at any depth, relative ones resolved against the file."""
    package = path.relative_to(ROOT).with_suffix("").parts[:-1]
    if package[:1] == ("python",):
        package = package[1:]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = list(package[: len(package) - node.level + 1]) if node.level else []
            module = ".".join([*base, *((node.module or "").split(".") if node.module else [])])
            yield node.lineno, module
            for alias in node.names:
                yield node.lineno, f"{module}.{alias.name}"


def broken_imports(folder: str, forbidden: re.Pattern[str], stems: set[str] | None) -> list[str]:
    return [
        f"{name(path)}:{line}: imports {module}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        if stems is None or path.stem in stems
        for line, module in imported(path)
        if forbidden.match(module)
    ]


def test_pure_modules_import_only_each_other() -> None:
    others = re.compile(rf"kvstore\.(?!({'|'.join(sorted(PURE))})\b)")
    complain(broken_imports("kvstore", others, PURE))


def test_the_package_does_not_know_what_is_built_on_it() -> None:
    above = [path.parent.name for path in ROOT.glob("python/*/__init__.py")]
    upward = re.compile(rf"({'|'.join([*above, 'tests', 'benches', 'tools'])})\b")
    complain(broken_imports("kvstore", upward, None))


def test_what_is_built_on_the_package_uses_its_public_names() -> None:
    complain(broken_imports("python", re.compile(r"kvstore(\.\w+)*\._"), None))


def test_the_c_core_does_not_know_python() -> None:
    complain(
        [
            where
            for path in files({".c", ".h"})
            if name(path).startswith("csrc/")
            for where, line in numbered(path)
            if re.match(r"\s*#\s*include\s*[<\"]Python\.h", line)
        ]
    )


# ---- promises ------------------------------------------------------------------------------------


def test_every_make_command_of_the_docs_exists() -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    called = re.compile(r"(?:^\s*\$?\s*|`)(?:\w+=\S+ )*make ([a-z][a-z-]*)")
    complain(
        [
            f"{where}: make {target}"
            for path in files({".md"})
            for where, line in numbered(path)
            for target in called.findall(line)
            if target not in targets
        ]
    )


def test_every_test_that_the_docs_name_exists() -> None:
    named = re.compile(r"`(test_\w+\.py)(?:::(\w+))?")
    findings = []
    for path in files({".md"}):
        for where, line in numbered(path):
            for module, test in named.findall(line):
                held = ROOT / "tests" / module
                text = held.read_text() if held.is_file() else ""
                if not text or (test and f"def test_{test}(" not in text):
                    findings.append(f"{where}: {module}::{test}")
    complain(findings)


def test_every_expected_skip_says_why() -> None:
    lines = conftest.EXPECTED.read_text().splitlines()
    for before, line in zip(["", *lines], lines, strict=False):
        if line and not line.startswith("#"):
            assert before.startswith("#"), f"no comment above: {line}"
            assert re.match(r"(any|root|user) \S", line), line


def test_a_skip_that_is_not_listed_is_told_apart() -> None:
    patterns = conftest.expected_patterns("# why\nany no GPU\\b.*\nuser needs root", root=True)
    reasons = conftest.Counter({"no GPU here": 2, "needs root": 1, "just so": 3})
    assert conftest.unexpected(reasons, patterns) == {"needs root": 1, "just so": 3}
