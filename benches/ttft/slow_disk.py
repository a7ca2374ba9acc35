"""A disk as slow as wanted, for one process group: reads are throttled by a blkio control group.

Needs root and cgroup v1's blkio controller; says so where they are missing. A group that was made
is removed again; its processes go back to the root group first.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CONTROLLER = Path("/sys/fs/cgroup/blkio")


def processes_of(group_id: int) -> list[int]:
    """The processes of a process group that are alive."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            after_name = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended meanwhile
        if int(after_name[2]) == group_id:
            found.append(int(path.parent.name))
    return found


@contextmanager
def slow_reads(group_id: int, folder: Path, bytes_per_s: int) -> Iterator[None]:
    """Processes of `group_id` read the device of `folder` no faster. OSError where it cannot be."""
    group = CONTROLLER / f"kvstore-bench-{group_id}"
    number = os.stat(folder).st_dev
    limit = f"{os.major(number)}:{os.minor(number)} {bytes_per_s}"
    group.mkdir()
    try:
        (group / "blkio.throttle.read_bps_device").write_text(limit)
        for process in processes_of(group_id):
            (group / "cgroup.procs").write_text(str(process))
        yield
    finally:
        for process in (group / "cgroup.procs").read_text().split():
            (CONTROLLER / "cgroup.procs").write_text(process)
        group.rmdir()
