"""The binding against what it mirrors: the stub has its names, the .pxd has the core's numbers."""

import ast
import re
from pathlib import Path

import pytest

import kvstore
from kvstore import _core, testing
from tests.support.stores import opened

ROOT = Path(__file__).parents[1]
STUB = ast.parse((ROOT / "kvstore" / "_core.pyi").read_text())
HEADERS = "\n".join(path.read_text() for path in sorted((ROOT / "csrc").rglob("*.h")))


def stub_names(body: list[ast.stmt]) -> set[str]:
    named = {node.name for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    fields = {
        node.target.id
        for node in body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    return named | fields


def public(of: object) -> set[str]:
    return {name for name in dir(of) if not name.startswith("_")}


def test_the_stub_has_the_names_of_the_binding() -> None:
    imported = {"os", "time", "OpenError", "PoolTooSmall", "StoreClosed", "StoreForked", "error_of"}
    assert stub_names(STUB.body) == public(_core) - imported


CLASSES = [node for node in STUB.body if isinstance(node, ast.ClassDef)]


@pytest.mark.parametrize("node", CLASSES, ids=[node.name for node in CLASSES])
def test_the_stub_has_the_methods_of_each_class(node: ast.ClassDef) -> None:
    named = {name for name in stub_names(node.body) if not name.startswith("_")}
    assert named == public(getattr(_core, node.name))


def enum_of(name: str) -> list[str]:
    """The enumerators of a C enum, in order."""
    found = re.search(rf"enum {name} {{(.*?)}}", HEADERS, re.DOTALL)
    assert found, name
    text = re.sub(r"/\*.*?\*/", "", found[1], flags=re.DOTALL)
    return [item.split("=")[0].strip() for item in text.split(",") if item.strip()]


@pytest.mark.parametrize(
    ("kind", "prefix", "mirror"),
    [
        ("kvs_fault_kind", "KVS_FAULT_", testing.Fault),
        ("kvs_fs_call", "KVS_FS_", testing.FileCall),
    ],
)
def test_the_enums_of_the_fault_engines_are_those_of_the_headers(
    kind: str, prefix: str, mirror: type[testing.Fault] | type[testing.FileCall]
) -> None:
    names = [name.removeprefix(prefix) for name in enum_of(kind) if not name.endswith("_COUNT")]
    assert names == [member.name for member in mirror]
    assert [member.value for member in mirror] == list(range(len(names)))


def test_what_the_fault_file_system_pretends_is_that_of_the_header() -> None:
    names = [name.removeprefix("KVS_FS_POOR_") for name in enum_of("kvs_fs_poor")]
    assert [(name, 1 << i) for i, name in enumerate(names)] == [
        (member.name, member.value) for member in testing.Poor
    ]


def test_every_reason_has_a_name_of_its_own() -> None:
    assert len(_core.REASONS) == len(set(_core.REASONS)) == len(enum_of("kvs_reason")) - 1
    assert {"absent", "expired", "evicted", "pending", "warming", "deadline"} < set(_core.REASONS)


def test_the_tables_of_stats_have_the_lengths_of_the_core(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        raw = store.core.stats()
    assert len(raw["misses_by_reason"]) == len(_core.REASONS)
    assert len(raw["removed_in_class"]) == _core.CLASSES_MAX
    declared = re.search(r"struct kvs_stats {(.*?)};", HEADERS, re.DOTALL)
    assert declared
    names = re.findall(r"(\w+)(?:\[\w+\])?[,;]", re.sub(r"/\*.*?\*/", "", declared[1]))
    assert list(raw) == names


def test_the_public_names_are_listed_and_there() -> None:
    assert len(set(kvstore.__all__)) == len(kvstore.__all__)
    for name in kvstore.__all__:
        assert name == "__version__" or getattr(kvstore, name).__doc__, f"{name} has no docstring"
