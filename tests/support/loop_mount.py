"""Real file systems in a file, mounted over a loop device with direct I/O, that can be stopped.

For root. However the test process ends, the mount, the loop device and the image go with it: the
image has no name any more, the device goes when nobody has it open, and a shell that reads from us
unmounts when there is nothing left to read.
"""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path

SHUTDOWN = 0x8004587D  # EXT4_IOC_SHUTDOWN, XFS_IOC_GOINGDOWN: _IOR('X', 125, __u32)
MEGABYTES = 400  # mkfs.xfs makes none below 300 MB
MKFS = {"ext4": ["mkfs.ext4", "-q", "-F"], "xfs": ["mkfs.xfs", "-q", "-f"]}


class Stop(IntEnum):
    """What reaches the disk before the file system stops."""

    EVERYTHING = 0
    LOG = 1  # the journal, not the data that the page cache holds
    NOTHING = 2


def call(*words: object) -> str:
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"{' '.join(map(str, words))}: {done.stderr.strip()}")
    return done.stdout.strip()


class LoopMount:
    def __init__(self, device: str, kind: str, path: Path) -> None:
        self.device, self.kind, self.path = device, kind, path

    def mount(self) -> None:
        call("mount", "-t", self.kind, self.device, self.path)

    def unmount(self) -> None:
        """The kernel lets go of a dead process's files a little later."""
        for _ in range(200):
            try:
                return call("umount", self.path) and None
            except OSError as error:
                if "busy" not in str(error):
                    raise
                time.sleep(0.05)
        call("umount", self.path)

    def stop(self, how: Stop) -> None:
        """As if the power went: from now on every call fails, and nothing more reaches the disk."""
        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(fd, SHUTDOWN, struct.pack("I", how))
        finally:
            os.close(fd)


@contextmanager
def loop_mount(kind: str, folder: Path) -> Iterator[LoopMount]:
    image, path = folder / f"{kind}.image", folder / kind
    path.mkdir()
    with image.open("wb") as file:
        file.truncate(MEGABYTES << 20)
    device = call("losetup", "--find", "--show", "--direct-io=on", image)
    held = os.open(device, os.O_RDONLY | os.O_CLOEXEC)  # between two mounts
    call("losetup", "--detach", device)  # once it is closed everywhere
    image.unlink()
    guard = subprocess.Popen(
        ["sh", "-c", 'read _; umount --lazy "$0"', path],
        stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        call(*MKFS[kind], device)
        mounted = LoopMount(device, kind, path)
        mounted.mount()
        yield mounted
    finally:
        guard.communicate()
        os.close(held)
