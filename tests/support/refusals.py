"""A process that gives up something of the system for good, and then lives with a store.

Run as a program (see `live`): what it gives up cannot be had back, so each life has a child of its
own. It opens the directory, puts a prompt, loads it from disk, opens it again and loads it again;
every byte is compared. What the store said of itself comes back as JSON.
"""

import ctypes
import errno
import json
import logging
import os
import resource
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

import kvstore
from tests.support.stores import cells_of, check_load, layout, opened, prompt, write

NOBODY = 65534
POOL = "16MiB"
BLOCKS = 20
TIMEOUT_S = 100

PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, PR_SET_THP_DISABLE = 22, 38, 41
SECCOMP_MODE_FILTER = 2
RET_ALLOW, RET_ERRNO = 0x7FFF0000, 0x00050000
LOAD, JUMP_EQUAL, JUMP_ANY_BIT, RETURN = 0x20, 0x15, 0x45, 0x06
# In struct seccomp_data: the call's number, and the low half of its third argument.
NUMBER, THIRD = 0, 32

CALLS = {
    "x86_64": {"openat": 257, "io_setup": 206, "io_getevents": 208, "io_submit": 209},
    "aarch64": {"openat": 56, "io_setup": 0, "io_getevents": 4, "io_submit": 2},
}
URING = {"io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427}  # everywhere


def live(root: Path, refused: Mapping[str, Any]) -> dict[str, Any]:
    """A life in a child that gives up what `refused` names: keyword arguments of `give_up`, and
    "role" and "engine" for `open`. Raises AssertionError with the child's words when it failed."""
    here = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.refusals", json.dumps(refused)],
        cwd=root,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(here), *sys.path])},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def give_up(
    *,
    calls: Sequence[str] = (),
    error: int = errno.EPERM,
    open_flags: int = 0,
    open_error: int = errno.EINVAL,
    user: bool = False,
    memlock: int | None = None,
    files: int | None = None,
    huge_pages: bool = False,
) -> None:
    """calls fail with `error`, openat with open_error when it has one of open_flags. user: becomes
    nobody. memlock, files: limits. huge_pages: there are none."""
    if memlock is not None:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (memlock, memlock))
    if huge_pages:
        control(PR_SET_THP_DISABLE, 1)
    if user:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    if calls or open_flags:
        control(PR_SET_NO_NEW_PRIVS, 1)
    if open_flags:
        number = CALLS[os.uname().machine]["openat"]
        install(refuse_flags(number, open_flags, open_error))
    if calls:
        known = CALLS[os.uname().machine] | URING
        install(refuse_calls([known[name] for name in calls], error))
    if files is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))


def control(option: int, value: int, argument: ctypes.Array[ctypes.c_char] | None = None) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), argument, ctypes.c_ulong(0), ctypes.c_ulong(0)):
        raise OSError(ctypes.get_errno(), f"prctl {option}")


def step(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("=HBBI", code, yes, no, value)


def refuse_calls(numbers: Sequence[int], error: int) -> list[bytes]:
    tests = [step(JUMP_EQUAL, n, yes=len(numbers) - i) for i, n in enumerate(numbers)]
    return [step(LOAD, NUMBER), *tests, step(RETURN, RET_ALLOW), step(RETURN, RET_ERRNO | error)]


def refuse_flags(number: int, flags: int, error: int) -> list[bytes]:
    return [
        step(LOAD, NUMBER),
        step(JUMP_EQUAL, number, no=3),
        step(LOAD, THIRD),
        step(JUMP_ANY_BIT, flags, no=1),
        step(RETURN, RET_ERRNO | error),
        step(RETURN, RET_ALLOW),
    ]


def install(code: list[bytes]) -> None:
    """A seccomp filter. It holds for threads started later, too."""
    program = ctypes.create_string_buffer(b"".join(code))
    face = struct.pack("@HP", len(code), ctypes.addressof(program))
    control(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.create_string_buffer(face))


class Lines(logging.Handler):
    """What the package logs."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def life(root: Path, **words: Any) -> dict[str, Any]:
    """Two lives of a store in this process: info as builtins, what was logged at the first open."""
    log = Lines()
    logging.getLogger("kvstore").addHandler(log)
    try:
        with opened(root, **{"pool": POOL} | words) as store:
            logged = list(log.lines)
            kv = store.cache(layout())
            chain, cells = kv.keys(prompt(BLOCKS)), cells_of(kv.layout, BLOCKS)
            if words.get("role") != "peer":
                assert write(kv, chain, cells) == BLOCKS
            store.drop_ram()
            with kv.load(kv.find_blocking(chain)) as load:
                check_load(load, cells, BLOCKS)
                assert load.stats().disk_bytes == kv.layout.block_bytes * BLOCKS
            info: dict[str, Any] = msgspec.to_builtins(store.info())
        with opened(root, **{"pool": POOL} | words) as store:
            kv = store.cache(layout())
            with kv.load(kv.find_blocking(chain)) as load:
                check_load(load, cells, BLOCKS)
    finally:
        logging.getLogger("kvstore").removeHandler(log)
    return {"info": info, "log": logged, "blocks": BLOCKS}


def many_extents(root: Path, **words: Any) -> dict[str, Any]:
    """As `life`, of a prompt that lies in as many extents as it has blocks."""
    of = layout(extent_blocks=1)
    cells = cells_of(of, BLOCKS)
    with opened(root, **{"pool": POOL} | words) as store:
        kv = store.cache(of)
        chain = kv.keys(prompt(BLOCKS))
        for block in range(BLOCKS):  # a writer keeps a file open per extent
            head = [{name: array[: block + 1] for name, array in parts.items()} for parts in cells]
            assert write(kv, chain[: block + 1], head, start=block) == 1
        for _ in range(3):
            store.drop_ram()
            loads = [kv.load(kv.match(chain)) for _ in range(2)]
            for load in loads:
                with load:
                    check_load(load, cells, BLOCKS)
        store.drop_ram()
        info: dict[str, Any] = msgspec.to_builtins(store.info())
        open_files = store.stats().open_files
    return {"info": info, "log": [], "blocks": BLOCKS, "open_files": open_files}


def main() -> None:
    refused = json.loads(sys.argv[1])
    words = {name: refused.pop(name) for name in ("role", "engine") if name in refused}
    run = many_extents if refused.pop("many", False) else life
    cells_of(layout(), 1)  # whatever is imported late: nobody may not be able to read it
    give_up(**refused)
    try:
        found = run(Path("."), **words)
    except kvstore.OpenError as error:
        found = {"refused": str(error)}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
