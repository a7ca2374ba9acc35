"""Small real file systems in a file, mounted by loop device: for what only a disk of its own shows.

Needs root. Whatever a test does, its image is unmounted and removed at the end.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

MKFS = {"ext4": ["mkfs.ext4", "-q", "-F"], "xfs": ["mkfs.xfs", "-q", "-f"]}


@dataclass
class Disk:
    """`path` is the mount point; below it is `image` as long as it is mounted."""

    path: Path
    image: Path

    def mount(self) -> None:
        run("mount", "-o", "loop", str(self.image), str(self.path))

    def is_mounted(self) -> bool:
        """Also when it was shut down and answers nothing any more."""
        places = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        return str(self.path) in places

    def unmount(self, *, lazy: bool = False) -> None:
        run("umount", *(["-l"] if lazy else []), str(self.path))


def run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}: {done.stderr}"


@contextmanager
def mounted(
    directory: Path, kind: str, *options: str, mebibytes: int, name: str = "disk"
) -> Iterator[Disk]:
    """A fresh file system of that kind; mkfs takes the options."""
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a loop device")
    if shutil.which(MKFS[kind][0]) is None:
        pytest.skip(f"{MKFS[kind][0]} is not installed")
    disk = Disk(directory / name, directory / f"{name}.img")
    disk.path.mkdir()
    with open(disk.image, "wb") as file:
        file.truncate(mebibytes << 20)
    try:
        run(*MKFS[kind], *options, str(disk.image))
        disk.mount()
        yield disk
    finally:
        while disk.is_mounted():
            disk.unmount(lazy=True)
        disk.image.unlink()
