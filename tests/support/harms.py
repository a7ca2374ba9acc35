"""What can happen to an extent file below a store, and what a store has to make of it. For tests.

A harm takes the file's path and that of another good extent of the same store; what it puts outside
the root goes to `outside(path)`. Bits and lengths one by one are in test_damage_bits.py.
"""

from __future__ import annotations

import os
import shutil
import socket
import stat
import struct
from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import replace as changed
from pathlib import Path

from tests.support.extent_bytes import replace, sealed, times_kept
from tests.support.extent_reader import read_extent
from tests.support.make_extents import as_made, encode

Do = Callable[[Path, Path], None]


@dataclass(frozen=True)
class Harm:
    """reason: of the miss. A damaged file is moved aside by the owner and counted, any other is
    left alone. while_open: the same for who has the file open already; None: he may go on serving
    it. listed: whether a scan, which lists files, comes upon it; else it is met by name only."""

    do: Do
    reason: str | None
    while_open: str | None = None
    listed: bool = True
    needs_root: bool = False
    needs_user: bool = False


def outside(path: Path) -> Path:
    """A directory beside the root, for what links lead to."""
    found = path.parents[3] / "outside"
    found.mkdir(exist_ok=True)
    return found


def cut(where: str) -> Do:
    def harm(path: Path, other: Path) -> None:
        data = path.read_bytes()
        header = struct.unpack_from("<I", data, 12)[0]
        lengths = {
            "nothing left": 0, "within the header": header - 1, "at the header": header,
            "in a region": (header + len(data)) // 2 + 1, "a page short": len(data) - 4096,
        }  # fmt: skip
        with times_kept(path):
            os.truncate(path, lengths[where])

    return harm


def appended(size: int) -> Do:
    def harm(path: Path, other: Path) -> None:
        with times_kept(path), path.open("ab") as file:
            file.write(bytes(size))

    return harm


def front_and_back(path: Path) -> dict[str, tuple[int, int]]:
    size = path.stat().st_size
    return {"all": (0, size), "front": (0, size // 2), "back": (size // 2, size)}


def zeroed(part: str) -> Do:
    def harm(path: Path, other: Path) -> None:
        first, end = front_and_back(path)[part]
        with times_kept(path), path.open("r+b") as file:
            file.seek(first)
            file.write(bytes(end - first))

    return harm


def hole(part: str) -> Do:
    """A file whose blocks are gone, as after a crash of some file systems: it reads as zeros."""

    def harm(path: Path, other: Path) -> None:
        data = path.read_bytes()
        first, end = front_and_back(path)[part]
        first, end = -(-first // 4096) * 4096, end // 4096 * 4096
        with times_kept(path):
            path.unlink()
            with path.open("wb") as file:
                file.write(data[:first])
                file.seek(end)
                file.write(data[end:])
                file.truncate(len(data))

    return harm


def swapped(path: Path, other: Path) -> None:
    aside = path.with_suffix(".aside")
    path.rename(aside)
    other.rename(path)
    aside.rename(other)


def a_copy_of_another(path: Path, other: Path) -> None:
    replace(path, other.read_bytes())


def of_another_layout(path: Path, other: Path) -> None:
    replace(path, encode(changed(as_made(read_extent(path)), fingerprint=b"\7" * 32)))


def of_a_layout_whose_name_is_the_same(path: Path, other: Path) -> None:
    """Directory names hold half a fingerprint."""
    made = as_made(read_extent(path))
    replace(path, encode(changed(made, fingerprint=made.fingerprint[:16] + b"\7" * 16)))


def with_cells_of_another_size(path: Path, other: Path) -> None:
    made = as_made(read_extent(path))
    replace(path, encode(changed(made, cells=[layer + layer for layer in made.cells])))


def of_version(version: int) -> Do:
    def harm(path: Path, other: Path) -> None:
        data = bytearray(path.read_bytes())
        struct.pack_into("<H", data, 8, version)
        replace(path, sealed(data))

    return harm


def with_an_unknown_section(*, required: bool) -> Do:
    def harm(path: Path, other: Path) -> None:
        more = [(40_000, int(required), b"something new" * 400)]
        replace(path, encode(changed(as_made(read_extent(path)), more_sections=more)))

    return harm


def made_before_time_began(path: Path, other: Path) -> None:
    """Nothing is wrong with it but its date: ages must not overflow."""
    replace(path, encode(changed(as_made(read_extent(path)), created_s=-(2**63))))


def unreadable(path: Path, other: Path) -> None:
    path.chmod(0)


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


def a_device(path: Path, other: Path) -> None:
    path.unlink()
    os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 5))  # zeros without an end


def a_link_to_the_file(path: Path, other: Path) -> None:
    aside = path.with_suffix(".aside")
    path.rename(aside)
    path.symlink_to(aside.name)


def a_link_to_nothing(path: Path, other: Path) -> None:
    path.unlink()
    path.symlink_to("nothing")


def a_link_to_a_device(path: Path, other: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def a_link_out_of_the_root(path: Path, other: Path) -> None:
    """To a good extent, with the right key."""
    target = outside(path) / path.name
    with times_kept(path):
        shutil.copy2(path, target)
    path.unlink()
    path.symlink_to(target)


def removed(path: Path, other: Path) -> None:
    path.unlink()


def its_bucket_removed(path: Path, other: Path) -> None:
    shutil.rmtree(path.parent)


def its_bucket_a_file(path: Path, other: Path) -> None:
    shutil.rmtree(path.parent)
    path.parent.write_bytes(b"something")


def its_bucket_a_fifo(path: Path, other: Path) -> None:
    shutil.rmtree(path.parent)
    os.mkfifo(path.parent)


def its_bucket_a_link_out_of_the_root(path: Path, other: Path) -> None:
    target = outside(path) / path.parent.name
    path.parent.rename(target)
    path.parent.symlink_to(target)


def in_capitals(path: Path, other: Path) -> None:
    path.rename(path.with_name(path.name.upper()))


def with_something_behind_its_name(path: Path, other: Path) -> None:
    path.rename(path.with_name(path.name + "~"))


def in_the_wrong_bucket(path: Path, other: Path) -> None:
    bucket = path.parent.with_name("fff" if path.parent.name != "fff" else "000")
    bucket.mkdir(exist_ok=True)
    path.rename(bucket / path.name)


IN_PLACE: dict[str, Harm] = {
    "cut: nothing left": Harm(cut("nothing left"), "damaged", "damaged"),
    "cut: within the header": Harm(cut("within the header"), "damaged", "damaged"),
    "cut: at the header": Harm(cut("at the header"), "damaged", "damaged"),
    "cut: in a region": Harm(cut("in a region"), "damaged", "damaged"),
    "cut: a page short": Harm(cut("a page short"), "damaged", "damaged"),
    "a byte appended": Harm(appended(1), "damaged"),
    "a page appended": Harm(appended(4096), "damaged"),
    "zeros: all": Harm(zeroed("all"), "damaged", "damaged"),
    "zeros: front": Harm(zeroed("front"), "damaged", "damaged"),
    "zeros: back": Harm(zeroed("back"), "damaged", "damaged"),
    "unreadable": Harm(unreadable, "foreign", needs_user=True),
}
REPLACED: dict[str, Harm] = {
    "hole: all": Harm(hole("all"), "damaged"),
    "hole: front": Harm(hole("front"), "damaged"),
    "hole: back": Harm(hole("back"), "damaged"),
    "version 2": Harm(of_version(2), "foreign"),
    "version 65535": Harm(of_version(65535), "foreign"),
    "unknown section, required": Harm(with_an_unknown_section(required=True), "foreign"),
    "unknown section, optional": Harm(with_an_unknown_section(required=False), None),
    **{
        harm.__name__: Harm(harm, "damaged")
        for harm in (
            swapped, a_copy_of_another, of_another_layout, of_a_layout_whose_name_is_the_same,
            with_cells_of_another_size, a_fifo, a_socket, a_link_to_the_file, a_link_to_nothing,
            a_link_to_a_device, a_link_out_of_the_root,
        )
    },
    "a_directory": Harm(a_directory, "damaged", listed=False),
    "a_full_directory": Harm(a_full_directory, "damaged", listed=False),
    "a_device": Harm(a_device, "damaged", needs_root=True),
    "made_before_time_began": Harm(made_before_time_began, None),
    **{
        harm.__name__: Harm(harm, "absent")
        for harm in (
            removed, its_bucket_removed, its_bucket_a_file, its_bucket_a_fifo,
            its_bucket_a_link_out_of_the_root, in_capitals, with_something_behind_its_name,
            in_the_wrong_bucket,
        )
    },
}  # fmt: skip
HARMS = {
    name: harm
    for name, harm in (IN_PLACE | REPLACED).items()
    if not (harm.needs_user if os.geteuid() == 0 else harm.needs_root)
}
