"""One namespace of a root: its layout, its buckets, its extents, its temporaries. See check.py."""

import hashlib
import json
import re
from array import array
from typing import Any

import numpy as np

from kvstore.fsck.extent import Checker
from kvstore.fsck.quiet import Entry
from kvstore.fsck.report import NamespaceReport
from kvstore.fsck.run import Run

_NAMESPACE = re.compile(r"[0-9a-f]{32}")
_BUCKET = re.compile(r"[0-9a-f]{3}")
_EXTENT = re.compile(r"([0-9a-f]{64})\.kv")
_ALONE = {"later-version"}  # left where it is


def is_namespace(entry: Entry) -> bool:
    return entry.is_directory and _NAMESPACE.fullmatch(entry.name) is not None


def is_bucket(entry: Entry) -> bool:
    return entry.is_directory and _BUCKET.fullmatch(entry.name) is not None


def key_of_name(name: str) -> str:
    """The key in hex that an extent's file is named by; "" when it is no such name."""
    found = _EXTENT.fullmatch(name)
    return found[1] if found else ""


def check_namespace(run: Run, checker: Checker, entry: Entry) -> None:
    """Everything below it; adds its sums to the report."""
    run.check_mode(entry)
    found = run.entries(entry.path)
    layout = _layout(run, entry, found)
    space = NamespaceReport(name=entry.name, model=str(layout.get("model", "")))
    run.report.namespaces.append(space)
    tags = array("Q")
    for inner in found:
        if is_bucket(inner):
            _check_bucket(run, checker, space, layout, inner, tags)
        elif inner.name == "tmp" and inner.is_directory:
            run.check_mode(inner)
            run.check_temporaries(inner.path)
        elif inner.name != "layout.json":
            run.other(inner)
            run.found("foreign", inner.path)
    space.duplicate_blocks = len(tags) - len(np.unique(np.frombuffer(tags, np.uint64)))


def _layout(run: Run, space: Entry, found: list[Entry]) -> dict[str, Any]:
    """What layout.json says, when that is what the directory is named after; else nothing."""
    entry = next((one for one in found if one.name == "layout.json"), None)
    if entry is None:
        run.found("no-layout", f"{space.path}/layout.json")
        return {}
    run.other(entry)
    run.check_mode(entry)
    text = (run.bytes_of(entry) or b"").rstrip(b" \n")
    try:
        told = json.loads(text)
    except ValueError:
        told = None
    if not isinstance(told, dict):
        run.found("layout", entry.path, "not JSON", run.remove)
        return {}
    fingerprint = hashlib.sha256(text).digest()
    if fingerprint.hex()[:32] == space.name:
        return told | {"fingerprint": fingerprint}
    if "parts_by_layer" in told:
        run.found("layout", entry.path, "its fingerprint names another directory", run.remove)
    return {}  # described by a program of its own: nothing can be told


def _check_bucket(
    run: Run,
    checker: Checker,
    space: NamespaceReport,
    layout: dict[str, Any],
    bucket: Entry,
    tags: "array[int]",
) -> None:
    run.check_mode(bucket)
    unread = len(run.report.findings)
    found = run.entries(bucket.path)
    if not found and len(run.report.findings) == unread:
        run.found("empty-bucket", bucket.path, fix=run.remove_directory)
    for entry in found:
        key = key_of_name(entry.name)
        if not key:
            run.other(entry)
            run.found("foreign", entry.path)
            continue
        run.extents += 1
        _check_extent(run, checker, space, layout, entry, bytes.fromhex(key), tags)
        run.progress(run.extents, run.report.read_bytes)


def _check_extent(
    run: Run,
    checker: Checker,
    space: NamespaceReport,
    layout: dict[str, Any],
    entry: Entry,
    key: bytes,
    tags: "array[int]",
) -> None:
    run.check_mode(entry)
    try:
        checked = checker.check(run.root_fd, entry.path, deep=run.report.deep)
    except FileNotFoundError:
        return  # evicted meanwhile
    except OSError as error:
        run.other(entry)
        run.found("unreadable", entry.path, error.strerror or "")
        return
    header = checked.header
    trouble = checked.trouble or _misplaced(space, layout, entry, key, header)
    if not checked.kept:
        run.found("recency", entry.path)
    if trouble:
        fix = None if trouble in _ALONE else run.move_aside
        if not run.found(trouble, entry.path, checked.detail, fix):
            run.other(entry)
        return
    assert header is not None  # without trouble it was read
    _count(run, space, entry, header, key, tags)


def _misplaced(
    space: NamespaceReport,
    layout: dict[str, Any],
    entry: Entry,
    key: bytes,
    header: dict[str, Any] | None,
) -> str:
    """The kind of trouble of a whole file that lies where it does not belong."""
    if header is None:
        return ""
    if header["fingerprint"].hex()[:32] != space.name or _other_shape(layout, header):
        return "namespace"
    if key not in header["keys"]:
        return "misnamed"
    return "" if entry.path.split("/")[1] == entry.name[:3] else "bucket"


def _other_shape(layout: dict[str, Any], header: dict[str, Any]) -> bool:
    """Of another layout than the one that is described here: no load would serve it."""
    if not layout:
        return False
    if layout["fingerprint"] != header["fingerprint"]:
        return True
    cells = tuple(sum(size for _, size in parts) for parts in layout["parts_by_layer"])
    shape = (cells, layout["block_tokens"])
    return shape != (header["cell_bytes"], header["block_tokens"])


def _count(
    run: Run,
    space: NamespaceReport,
    entry: Entry,
    header: dict[str, Any],
    key: bytes,
    tags: "array[int]",
) -> None:
    served = header["keys"][header["keys"].index(key) :]
    space.extents += 1
    space.blocks += len(served)
    space.charged_bytes += entry.physical_bytes
    tags.extend(int.from_bytes(one[:8], "little") for one in served)
    run.longest_ttl_s = max(run.longest_ttl_s, header["ttl_s"])
    now_s = run.now_s()
    if entry.stat.st_mtime <= now_s:
        run.found("expired", entry.path)
    if entry.stat.st_atime > now_s or entry.stat.st_mtime > now_s + run.longest_ttl_s:
        run.late.append((entry.path, entry.stat, now_s))
