"""A clock that a test drives, a device and a file system that fail on request, a device that costs
nothing. (What the real device gives without a store is `kvstore.raw_io`'s.)

Thin faces over csrc/testing/. Pass them to `open(..., _testing=Injection(...))`. They are further
implementations of the core's two waists, so the code under test is the code that ships.
"""

import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from pathlib import Path

import msgspec

from kvstore import _core

START_WALL_S = 1_700_000_000
_KILL = 4096  # KVS_FS_FAULT_KILL


class Fault(IntEnum):
    """What goes wrong with an operation; the meaning of `value` in brackets."""

    ERRNO = 0  # [positive errno]
    SHORT = 1  # [bytes that do move]
    DELAY = 2  # [extra nanoseconds]
    BIT_FLIP = 3  # [bit number in the operation's bytes]
    STALL = 4  # completes only at release_stalled
    CUT = 5  # this and all later writes are lost, every later operation is EIO


class Io(IntEnum):
    ANY = -1
    READ = 0
    WRITE = 1


class FileCall(IntEnum):
    """The calls of fs.h."""

    OPEN_ROOT = 0
    MAKE_DIRECTORY = 1
    OPEN_READ = 2
    OPEN_TEMP = 3
    ALLOCATE = 4
    LINK = 5
    RENAME = 6
    UNLINK = 7
    SET_TIMES = 8
    STAT_FD = 9
    STAT_PATH = 10
    LIST = 11
    SPACE = 12
    SYNC = 13
    SYNC_FILE = 14
    READ_AT = 15
    WRITE_AT = 16
    CLOSE = 17
    LOCK = 18
    DIRECT_UNIT = 19
    REPLACE = 20
    REMOVE_DIRECTORY = 21


class Poor(IntFlag):
    """What a file system pretends not to have."""

    DIRECT = 1  # files are open without O_DIRECT, as after EINVAL for it
    ATIME_ZERO = 2  # last use reads as 0
    ATIME_MTIME = 4  # last use reads as mtime


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One operation that reached the device. Times are virtual; completed_ns -1: in flight."""

    sequence: int
    io_kind: int
    fd: int
    inode: int
    offset: int
    bytes: int
    submitted_ns: int
    completed_ns: int
    result: int
    buffer: int


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One change on disk. Which fields mean something depends on the call; see history.h."""

    call: FileCall | None  # None: cells were written, through io.h
    path: str
    target: str
    data: bytes
    inode: int  # 0: none
    offset: int
    atime_s: int
    mtime_s: int


class History:
    """Every change that the devices and files it is given to make on disk, in one order.

    It is kept in the file `path`, made new. One root only: paths are relative to it.
    """

    ENTRY = struct.Struct("=IIIIQQqq")  # struct kvs_history_entry
    CELLS = 1000

    def __init__(self, path: Path) -> None:
        self.path = path
        self.core = _core.History(os.fsencode(path))

    def changes(self) -> list[Change]:
        """All so far."""
        data, at = self.path.read_bytes(), 0
        found = []
        while at < len(data):
            call, *lengths, inode, offset, atime_s, mtime_s = self.ENTRY.unpack_from(data, at)
            at += self.ENTRY.size
            pieces = []
            for length in lengths:
                pieces.append(data[at : at + length])
                at += length
            path, target, written = pieces
            found.append(
                Change(
                    call=None if call == self.CELLS else FileCall(call),
                    path=os.fsdecode(path),
                    target=os.fsdecode(target),
                    data=written,
                    inode=inode,
                    offset=offset,
                    atime_s=atime_s,
                    mtime_s=mtime_s,
                )
            )
        return found


class VirtualClock:
    """Starts at boot time 1 s and the wall time given; moves only when told to."""

    def __init__(self, wall_s: int = START_WALL_S) -> None:
        self.core = _core.VirtualClock(wall_s)

    @property
    def now_ns(self) -> int:
        return self.core.now_ns()

    def advance(self, seconds: float) -> None:
        """Boot and wall time together; wakes what waits on them."""
        self.core.advance(round(seconds * 1e9))

    def step_wall(self, seconds: int) -> None:
        """The wall clock alone, as an operator or NTP would."""
        self.core.step_wall(seconds)


class FaultDevice:
    """An I/O engine on a virtual device: serial bandwidth (0: no time passes) plus latency.

    auto_advance: a sleeping engine moves the clock to its next completion by itself. Belongs to the
    store that opens it and ends with it: read the log before closing.
    """

    def __init__(
        self,
        clock: VirtualClock,
        *,
        bytes_per_second: int = 0,
        latency_ns: int = 0,
        depth: int = 64,
        auto_advance: bool = True,
        history: History | None = None,
    ) -> None:
        changes = history.core if history else None
        self.core = _core.FaultEngine(
            clock.core, bytes_per_second, latency_ns, depth, auto_advance, changes
        )

    def add(
        self, fault: Fault, value: int = 0, *, io: Io = Io.ANY, skip: int = 0, count: int = 1
    ) -> None:
        """The fault hits `count` matching operations (0: all) after `skip` were let through."""
        self.core.add(fault, io, skip, count, value)

    def clear(self) -> None:
        self.core.clear()

    def release_stalled(self) -> None:
        self.core.release_stalled()

    def log(self, start: int = 0) -> list[Record]:
        """Every operation since the engine was made, in order of submission."""
        return [Record(**record) for record in self.core.log(start)]

    def next_ns(self) -> int:
        """Virtual time of the next completion not yet due, or -1."""
        return self.core.next_ns()

    def settle(self, timeout_s: float = 10.0) -> None:
        """Waits until the engine sleeps with nothing due. TimeoutError."""
        self.core.settle(round(timeout_s * 1e3))


class NullDevice:
    """An I/O engine that costs nothing: operations are done at once and move nothing.

    Cells made of PATTERN again and again, at multiples of its length, are "read" into the pool
    whole, for it is filled with them; memory given to a load must be filled by the caller. A write
    is thrown away, and what was read back of anything else is a miss. For benches.
    """

    PATTERN = bytes(range(64))  # KVS_NULL_PERIOD

    def __init__(self, depth: int = 64) -> None:
        self.core = _core.NullEngine(depth)


class FaultFiles:
    """The real file system with faults of single calls, and a pretended size."""

    def __init__(self, history: History | None = None) -> None:
        self.core = _core.FaultFiles(history.core if history else None)

    def add(self, call: FileCall, error: int, *, skip: int = 0, count: int = 1) -> None:
        """error: positive errno; 0: the call is dropped but reports success."""
        self.core.add(call, error, skip, count, False)

    def stall(self, call: FileCall, *, skip: int = 0, count: int = 0) -> None:
        """The calls (count 0: all from now on) keep their threads until `release_stalled`."""
        self.core.add(call, 0, skip, count, True)

    def release_stalled(self) -> None:
        self.core.release_stalled()

    @property
    def stalled(self) -> int:
        """How many calls keep their threads just now."""
        return self.core.stalled()

    def kill(self, call: FileCall, *, skip: int = 0) -> None:
        """SIGKILL ends the process just before the call, after `skip` of its kind."""
        self.core.add(call, _KILL, skip, 1, False)

    def clear(self) -> None:
        self.core.clear()

    def calls(self, call: FileCall) -> int:
        """How often the call was made."""
        return self.core.calls(call)

    def set_space(self, total_bytes: int, free_bytes: int) -> None:
        """What the file system pretends to have; 0: the real figures."""
        self.core.set_space(total_bytes, free_bytes)

    def set_poor(self, poor: Poor) -> None:
        """From now on; Poor(0) ends it."""
        self.core.set_poor(poor)

    def set_direct_unit(self, unit_bytes: int) -> None:
        """Bytes that direct transfers must be multiples of, it says; 0: the real figure."""
        self.core.set_direct_unit(unit_bytes)


@dataclass(frozen=True)
class Injection:
    """What a test puts into a store. devices: one per root (None: the real one), or ().

    manual_ticks: housekeeping runs only inside `store.tick()`. helpers: threads per root that help
    verifying; with none a device that sleeps means that what it read was told; < 0: by the cores.
    """

    clock: VirtualClock | None = None
    files: FaultFiles | None = None
    devices: Sequence[FaultDevice | NullDevice | None] = ()
    manual_ticks: bool = False
    helpers: int = 0

    @property
    def core_clock(self) -> _core.VirtualClock | None:
        return self.clock.core if self.clock else None

    @property
    def core_files(self) -> _core.FaultFiles | None:
        return self.files.core if self.files else None

    @property
    def core_engines(self) -> list[_core.InjectedEngine | None] | None:
        return [device.core if device else None for device in self.devices] or None
