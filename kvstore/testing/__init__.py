"""For tests and benches, of kvstore and of what is built on it.

A store in memory with faults to inject (`open_fake`, `FakeDisk`) is for engines' own tests. A clock
that a test drives, a device and a file system that fail on request (`Injection`) go into a real
store, or a device that costs nothing (`NullDevice`). What a real one gives: `kvstore.raw_io`.
"""

from kvstore.testing.fake import open_fake, open_fake_blocking
from kvstore.testing.fake_disk import FakeDisk
from kvstore.testing.injection import (
    START_WALL_S,
    Change,
    Fault,
    FaultDevice,
    FaultFiles,
    FileCall,
    History,
    Injection,
    Io,
    NullDevice,
    Poor,
    Record,
    VirtualClock,
)

__all__ = [
    "START_WALL_S",
    "Change",
    "FakeDisk",
    "Fault",
    "FaultDevice",
    "FaultFiles",
    "FileCall",
    "History",
    "Injection",
    "Io",
    "NullDevice",
    "Poor",
    "Record",
    "VirtualClock",
    "open_fake",
    "open_fake_blocking",
]
