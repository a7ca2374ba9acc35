"""What can go wrong, as exceptions. Missing or damaged data is none: it is a miss with a reason.

Exceptions are for misuse (ValueError, TypeError), a closed or forked store, a pool that cannot hold
what was asked, and `open` (whose message says what to do). `error_of` is the one place where codes
of the core become exceptions.
"""

import errno
import os


class KvstoreError(Exception):
    """Base of the errors below; catch this one to catch all that are ours."""


class OpenError(KvstoreError):
    """The store cannot be opened; the message says why and what to do."""


class StoreClosed(KvstoreError):
    """The store was closed; only views that are already held stay readable."""


class StoreForked(KvstoreError):
    """A store does not cross `fork`: open one of its own (role "peer") in the child."""


class PoolTooSmall(KvstoreError):
    """What a load holds at once (a layer; the block of a `get`) can never fit the pool: open the
    store with a pool of `needed` bytes."""

    def __init__(self, needed: int) -> None:
        super().__init__(
            f"this load needs {needed} bytes of the pool at once, which is smaller: "
            "open the store with a larger pool, or load fewer blocks at a time"
        )
        self.needed = needed


class LayoutWarning(UserWarning):
    """A layout that works but wastes space or speed."""


def error_of(code: int, doing: str) -> Exception:
    """The exception for the negative errno `code` that the core answered while `doing`."""
    number = -code
    if number == errno.ESHUTDOWN:
        return StoreClosed(f"{doing}: the store is closed")
    if number == errno.ECHILD:
        return StoreForked(f"{doing}: the store was opened before fork; open one in this process")
    if number == errno.EINVAL:
        return ValueError(f"{doing}: not allowed by the core (a number is out of range)")
    if number == errno.ENOMEM:
        return MemoryError(f"{doing}: out of memory")
    if number == errno.ETIMEDOUT:
        return TimeoutError(f"{doing}: not done in time")
    return OSError(number, f"{doing}: {os.strerror(number)}")
