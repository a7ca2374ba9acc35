"""One store per process and set of directories, shared by connectors and tiers that live in it.

Scheduler and worker of one engine may be in one process or in two. In one, they share the store
that the worker opened; in two, the scheduler's process opens its own as a peer.
"""

import os
import threading
from dataclasses import dataclass

from kvstore import Store, open_blocking
from kvstore_vllm.options import StoreOptions


@dataclass
class _Entry:
    store: Store
    users: int


_lock = threading.Lock()
_entries: dict[tuple[object, ...], _Entry] = {}


def acquire(options: StoreOptions, *, role: str, pool: int | str) -> Store:
    """The process's store over these directories; opened with `role` and `pool` if there is none.

    Pair it with `release`. Raises what `kvstore.open` raises.
    """
    key = _key(options)
    with _lock:
        entry = _entries.get(key)
        if entry is None:
            store = open_blocking(
                *options.paths,
                capacity=options.capacity,
                pool=pool,
                role=role,
                retention=options.retention,
                default_class=options.default_class,
                reserve=options.reserve,
                io_timeout=options.io_timeout,
                engine=options.engine,
            )
            entry = _entries[key] = _Entry(store, 0)
        entry.users += 1
        return entry.store


def release(store: Store) -> None:
    """Closes the store when its last user lets go. Blocks as `Store.close_blocking` does."""
    with _lock:
        for key, entry in list(_entries.items()):
            if entry.store is store:
                entry.users -= 1
                if entry.users:
                    return
                del _entries[key]
                break
        else:
            return
    store.close_blocking()


def _key(options: StoreOptions) -> tuple[object, ...]:
    """A forked child must not use its parent's store, so the process is part of the key."""
    return (os.getpid(), *(os.path.realpath(path) for path in options.paths))
