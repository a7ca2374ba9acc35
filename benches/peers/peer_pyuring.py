"""pyuring: a ring from Python; one file a value, one call a read, 32 in flight.

It has no batches over registered buffers and no names; the loop here is what its user writes.
Best: O_DIRECT on huge pages. As shipped: buffered files, plain pages.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from pyuring import UringCtx

from benches.peers.work import KEYS_IN_FLIGHT, Bytes, Facts, Setup, Slots, file_name


class Pyuring:
    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.flags = os.O_DIRECT if setup.huge else 0
        self.slots = Slots(setup)
        self.ring = UringCtx(entries=2 * KEYS_IN_FLIGHT)
        self.facts = Facts(
            {"entries": 2 * KEYS_IN_FLIGHT, "O_DIRECT": setup.huge, "huge pages": setup.huge},
            "no checksum, no index, no names, no capacity, no sync: it is a ring only",
            buffered=not setup.huge,
        )

    def put(self, generation: int, count: int) -> None:
        source = self.setup.source
        flags = os.O_CREAT | os.O_WRONLY
        self._run(
            generation,
            flags,
            self.ring.write_async_ptr,
            [(i, source.slot(generation, i).ctypes.data) for i in range(count)],
        )

    def load(
        self, generation: int, batches: Sequence[Sequence[int]], ready: Callable[[int], None]
    ) -> None:
        for number, batch in enumerate(batches):
            self._run(
                generation,
                os.O_RDONLY,
                self.ring.read_async_ptr,
                [(i, self.slots.address_of(i)) for i in batch],
            )
            ready(number)

    def value(self, index: int) -> Bytes:
        return self.slots[index]

    def forget(self) -> None:
        pass

    def delete(self, generation: int, count: int) -> None:
        for index in range(count):
            self._path(generation, index).unlink()

    def close(self) -> None:
        self.ring.close()

    def _path(self, generation: int, index: int) -> Path:
        return self.setup.folder / file_name(generation, index)

    def _run(
        self,
        generation: int,
        flags: int,
        start: Callable[..., int],
        values: Sequence[tuple[int, int]],
    ) -> None:
        """Keeps KEYS_IN_FLIGHT operations going. values: (index, address)."""
        size = self.setup.work.slot_bytes
        files: dict[int, int] = {}
        todo = iter(values)
        for _ in range(len(values) + KEYS_IN_FLIGHT):
            while len(files) < KEYS_IN_FLIGHT and (one := next(todo, None)):
                index, address = one
                fd = os.open(self._path(generation, index), flags | self.flags, 0o600)
                files[index] = fd
                start(fd, address, size, 0, index)
                self.ring.submit()
            if not files:
                return
            index, moved = self.ring.wait_completion()
            os.close(files.pop(index))
            if moved != size:
                raise OSError(f"value {index}: {moved} of {size} bytes were moved")


open_peer = Pyuring
