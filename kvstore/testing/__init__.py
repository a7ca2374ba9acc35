"""For tests and benches, of kvstore and of what is built on it.

A store in memory with faults to inject (`open_fake`, `FakeDisk`) is for engines' own tests. A clock
that a test drives, a device and a file system that fail on request (`Injection`) go into a real
store. `raw_read_ceiling` is what a device can do at best.
"""

from kvstore.testing.fake import open_fake, open_fake_blocking
from kvstore.testing.fake_disk import FakeDisk
from kvstore.testing.injection import (
    DEPTHS,
    START_WALL_S,
    Ceiling,
    Change,
    Fault,
    FaultDevice,
    FaultFiles,
    FileCall,
    History,
    Injection,
    Io,
    Poor,
    Record,
    VirtualClock,
    raw_read_ceiling,
)

__all__ = [
    "DEPTHS",
    "START_WALL_S",
    "Ceiling",
    "Change",
    "FakeDisk",
    "Fault",
    "FaultDevice",
    "FaultFiles",
    "FileCall",
    "History",
    "Injection",
    "Io",
    "Poor",
    "Record",
    "VirtualClock",
    "open_fake",
    "open_fake_blocking",
    "raw_read_ceiling",
]
