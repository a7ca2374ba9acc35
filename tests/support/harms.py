"""What can happen to an extent file below a store: cut, zeroed, swapped, replaced. For tests.

Each takes the file's path and that of another good extent of the same store.
"""

from __future__ import annotations

import os
import shutil
import socket
import struct
from collections.abc import Callable
from dataclasses import replace as changed
from pathlib import Path

from tests.support.extent_bytes import replace, sealed, times_kept
from tests.support.extent_reader import read_extent
from tests.support.make_extents import as_made, encode

Harm = Callable[[Path, Path], None]


def cut(where: str) -> Harm:
    def harm(path: Path, other: Path) -> None:
        data = path.read_bytes()
        header = struct.unpack_from("<I", data, 12)[0]
        lengths = {
            "nothing left": 0, "within the fixed header": 20, "within the first page": 4095,
            "at the first page": 4096, "within the header": header - 1, "at the header": header,
            "in a region": (header + len(data)) // 2 + 1, "a byte short": len(data) - 1,
            "a page short": len(data) - 4096,
        }  # fmt: skip
        with times_kept(path):
            os.truncate(path, lengths[where])

    return harm


def appended(size: int) -> Harm:
    def harm(path: Path, other: Path) -> None:
        with times_kept(path), path.open("ab") as file:
            file.write(bytes(size))

    return harm


def zeroed(part: str) -> Harm:
    def harm(path: Path, other: Path) -> None:
        size = path.stat().st_size
        first, end = {"all": (0, size), "front": (0, size // 2), "back": (size // 2, size)}[part]
        with times_kept(path), path.open("r+b") as file:
            file.seek(first)
            file.write(bytes(end - first))

    return harm


IN_PLACE: dict[str, Harm] = {
    **{f"cut: {where}": cut(where) for where in (
        "nothing left", "within the fixed header", "within the first page", "at the first page",
        "within the header", "at the header", "in a region", "a byte short", "a page short",
    )},
    "a byte appended": appended(1),
    "a page appended": appended(4096),
    **{f"zeros: {part}": zeroed(part) for part in ("all", "front", "back")},
}  # fmt: skip


def swapped(path: Path, other: Path) -> None:
    aside = path.with_suffix(".aside")
    path.rename(aside)
    other.rename(path)
    aside.rename(other)


def of_another_layout(path: Path, other: Path) -> None:
    found = read_extent(path)
    made = as_made(found)
    replace(path, encode(changed(made, fingerprint=b"\7" * 32)))


def of_a_later_version(path: Path, other: Path) -> None:
    data = bytearray(path.read_bytes())
    struct.pack_into("<H", data, 8, 2)
    replace(path, sealed(data))


def with_an_unknown_required_section(path: Path, other: Path) -> None:
    made = changed(as_made(read_extent(path)), more_sections=[(40_000, 1, b"something new")])
    replace(path, encode(made))


def a_directory(path: Path, other: Path) -> None:
    path.unlink()
    path.mkdir()


def a_full_directory(path: Path, other: Path) -> None:
    a_directory(path, other)
    (path / "file").write_bytes(b"something")


def a_fifo(path: Path, other: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def a_socket(path: Path, other: Path) -> None:
    path.unlink()
    before = os.getcwd()
    os.chdir(path.parent)  # from anywhere else the name is too long to bind
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind("s")
        os.rename("s", path.name)
    finally:
        os.chdir(before)


def a_link_to_the_file(path: Path, other: Path) -> None:
    aside = path.with_suffix(".aside")
    path.rename(aside)
    path.symlink_to(aside.name)


def a_link_to_nothing(path: Path, other: Path) -> None:
    path.unlink()
    path.symlink_to("nothing")


def a_device(path: Path, other: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def removed(path: Path, other: Path) -> None:
    path.unlink()


def its_directory_removed(path: Path, other: Path) -> None:
    shutil.rmtree(path.parent)


REPLACED: dict[str, Harm] = {
    harm.__name__: harm
    for harm in (
        swapped, of_another_layout, of_a_later_version, with_an_unknown_required_section,
        a_directory, a_full_directory, a_fifo, a_socket, a_link_to_the_file, a_link_to_nothing,
        a_device, removed, its_directory_removed,
    )
}  # fmt: skip
