"""The ceiling as fio measures it, where fio is installed: a tool that nobody here wrote.

fio's buffers get huge pages by glibc's tunable, without privileges and without reserving any; how
many it really had is looked up while it runs. It reads into the same `iodepth` buffers again and
again, so on a virtual disk it may be faster than anyone who keeps what he reads.
"""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from measure import GIB

FILES_MAX = 16  # more make its file list too long
SETTLE_S = 60


class Refused(Exception):
    """fio did not do what was asked; the message says why."""


@dataclass(frozen=True)
class Run:
    """huge_coverage: share of its buffers on huge pages, 0..1, at its best moment. cpu: processor
    seconds per GiB."""

    gbps: float
    huge_coverage: float
    cpu: float


def version() -> str:
    """Refused, with advice, where there is none."""
    if shutil.which("fio") is None:
        raise Refused("fio is not installed (apt-get install fio): no ceiling by fio")
    return subprocess.run(["fio", "--version"], capture_output=True, text=True).stdout.strip()


def read(
    paths: Sequence[Path], io_bytes: int, depth: int, seconds: float, *, offset: int = 0
) -> Run:
    """Direct reads from `offset` on, one piece of each file in turn, as a load walks its layers."""
    return run(
        "read", io_bytes, depth,
        f"--filename={':'.join(map(str, paths[:FILES_MAX]))}",
        f"--offset={offset}",
        "--time_based", f"--runtime={round(seconds * 1000)}ms", "--readonly",
    )  # fmt: skip


def write(folder: Path, files: int, file_bytes: int, io_bytes: int, depth: int) -> Run:
    """Direct writes of fresh, preallocated files, one piece of each in turn; removed at the end."""
    whole = file_bytes // io_bytes * io_bytes
    return run(
        "write", io_bytes, depth,
        f"--directory={folder}", f"--nrfiles={files}", f"--filesize={whole}",
        f"--size={whole * files}", "--fallocate=native", "--unlink=1",
    )  # fmt: skip


def run(direction: str, io_bytes: int, depth: int, *words: str) -> Run:
    command = [
        "fio", "--name=ceiling", f"--rw={direction}", f"--bs={io_bytes}", f"--iodepth={depth}",
        "--ioengine=io_uring", "--direct=1", "--mem=malloc", "--iomem_align=2m", "--thread",
        "--file_service_type=roundrobin:1", "--output-format=json", *words,
    ]  # fmt: skip
    huge = os.environ | {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
    with subprocess.Popen(
        command, env=huge, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as fio:
        huge_bytes = watch(fio)
        said, complaint = fio.communicate(timeout=SETTLE_S)
    if fio.returncode:
        raise Refused(f"fio: {(complaint or said).strip().splitlines()[-1]}")
    job = json.loads(said[said.index("{") :])["jobs"][0]
    busy_s = (job["usr_cpu"] + job["sys_cpu"]) / 100 * job["job_runtime"] / 1000
    return Run(
        gbps=job[direction]["bw_bytes"] / 1e9,
        huge_coverage=min(1.0, huge_bytes / (io_bytes * depth)),
        cpu=busy_s / (job[direction]["io_bytes"] / GIB),
    )


def watch(fio: "subprocess.Popen[str]") -> int:
    """Most bytes on huge pages that it was seen with. Ends when it does. Refused: it hangs."""
    most, until = 0, time.monotonic() + SETTLE_S
    while fio.poll() is None:
        if time.monotonic() > until:
            fio.kill()
            raise Refused(f"fio did not end within {SETTLE_S} s")
        most = max(most, huge_bytes_of(fio.pid))
        time.sleep(0.02)
    return most


def huge_bytes_of(pid: int) -> int:
    """0 when it has just ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("AnonHugePages"))
