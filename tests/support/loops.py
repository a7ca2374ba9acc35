"""File systems of a test's own, in a file: loop devices with any sector size, any mount options."""

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest


def run(*command: object) -> str:
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, f"{words}: {done.stderr}"
    return done.stdout.strip()


@contextmanager
def mounted(
    where: Path,
    *,
    sector_bytes: int = 512,
    make: Sequence[str] = ("mkfs.ext4", "-q"),
    options: str = "defaults",
    image_bytes: int = 64 << 20,
) -> Iterator[Path]:
    """The mount point of a fresh file system, below `where`; nothing of it is left afterwards."""
    if os.geteuid() != 0:
        pytest.skip("needs root: a loop mount")
    image, point = where / "image", where / "mounted"
    point.mkdir()
    with ExitStack() as undo:
        undo.callback(lambda: image.unlink(missing_ok=True))
        with image.open("wb") as file:
            file.truncate(image_bytes)
        device = run("losetup", "--find", "--show", "--sector-size", sector_bytes, image)
        undo.callback(lambda: run("losetup", "--detach", device))
        run(*make, device)
        run("mount", "-o", options, device, point)
        undo.callback(lambda: os.path.ismount(point) and run("umount", point))
        yield point


@contextmanager
def read_only(directory: Path, where: Path) -> Iterator[Path]:
    """The directory, seen through a mount that nobody may write, not even root."""
    if os.geteuid() != 0:
        pytest.skip("needs root: a read-only mount")
    point = where / "read-only"
    point.mkdir()
    run("mount", "--bind", directory, point)
    try:
        run("mount", "-o", "remount,bind,ro", point)
        yield point
    finally:
        run("umount", point)


def have(program: str) -> bool:
    return shutil.which(program) is not None
