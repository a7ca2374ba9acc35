"""A file system of its own for a bench: an image on the measured disk, on a loop device with
direct I/O. For what a root disk would answer by its mount options: metadata, eviction, mixed load.

Needs root and loop devices; says what is missing. The image is unmounted and removed at the end.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MKFS = {"ext4": ["mkfs.ext4", "-q", "-F"], "xfs": ["mkfs.xfs", "-q", "-f"]}
MIB = 1 << 20


class Refused(Exception):
    """There can be no such file system here; the message says why."""


def run(*command: str) -> str:
    try:
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise Refused(f"{command[0]} is not installed") from error
    except subprocess.CalledProcessError as error:
        said = error.stderr.strip() or f"exit {error.returncode}"
        raise Refused(f"{' '.join(command)}: {said}") from error
    return done.stdout.strip()


def write_zeros(image: Path, mebibytes: int) -> None:
    """Really written: the first write into what is only allocated would cost its host file system
    a change of metadata, and a file system that prefers fresh space would pay it all the time."""
    where = f"of={image}"
    run("dd", "if=/dev/zero", where, "bs=1M", f"count={mebibytes}", "oflag=direct", "conv=fsync")


@contextmanager
def mounted_image(folder: Path, kind: str, nbytes: int) -> Iterator[Path]:
    """A fresh file system of that kind; yields where it is mounted. Refused."""
    if kind not in MKFS:
        raise Refused(f"file system {kind!r} is not one of {', '.join(MKFS)}")
    if os.geteuid() != 0:
        raise Refused("a loop device needs root")
    image, mount = folder / f"{kind}.img", folder / kind
    mount.mkdir()
    device = ""
    try:
        write_zeros(image, max(nbytes, 320 * MIB) // MIB)
        device = run("losetup", "--find", "--show", "--direct-io=on", str(image))
        run(*MKFS[kind], device)
        run("mount", device, str(mount))
        yield mount
    finally:
        if mount.is_mount():
            run("umount", "-l", str(mount))
        if device:
            run("losetup", "--detach", device)
        image.unlink(missing_ok=True)
        shutil.rmtree(mount, ignore_errors=True)
