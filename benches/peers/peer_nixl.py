"""nixl, POSIX plug-in: one file a value, transfer requests of many descriptors.

Best: use_uring, O_DIRECT descriptors. As shipped: the plug-in's own defaults (Linux AIO first),
plain descriptors. Files stay open, because registering them is part of opening the cache, not of a
load.
"""

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from nixl_cu12._api import nixl_agent, nixl_agent_config

from benches.peers.work import Bytes, Facts, Setup, Slots, file_name

AGENT = "peers"


class Nixl:
    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.flags = os.O_DIRECT if setup.huge else 0
        self.slots = Slots(setup)
        self.agent = nixl_agent(AGENT, nixl_agent_config(backends=[]))
        options = {"use_uring": "true"} if setup.huge else {}
        self.agent.create_backend("POSIX", options)
        self._register("DRAM", [(self.slots.address, self.slots.bytes.size, 0, "")])
        source = setup.source.bytes
        self._register("DRAM", [(source.ctypes.data, source.size, 0, "")])
        self.files: dict[int, list[int]] = {}
        self.facts = Facts(
            {**options, "O_DIRECT": setup.huge, "huge pages": setup.huge, "files": "kept open"},
            "no checksum, no index, no names, no capacity, no sync: it moves bytes only",
            buffered=not setup.huge,
        )

    def put(self, generation: int, count: int) -> None:
        self.files[generation] = files = [self._create(generation, i) for i in range(count)]
        self._register("FILE", [(0, self.setup.work.slot_bytes, fd, "") for fd in files])
        source = self.setup.source
        addresses = [source.slot(generation, i).ctypes.data for i in range(count)]
        self._finish(self._start("WRITE", addresses, files))

    def load(
        self, generation: int, batches: Sequence[Sequence[int]], ready: Callable[[int], None]
    ) -> None:
        """The next batch is posted before the one before it is waited for."""
        files = self.files[generation]
        running: Any = None
        for number, batch in enumerate(batches):
            posted = self._start(
                "READ", [self.slots.address_of(i) for i in batch], [files[i] for i in batch]
            )
            if running is not None:
                self._finish(running)
                ready(number - 1)
            running = posted
        self._finish(running)
        ready(len(batches) - 1)

    def value(self, index: int) -> Bytes:
        return self.slots[index]

    def forget(self) -> None:
        pass

    def delete(self, generation: int, count: int) -> None:
        for index, fd in enumerate(self.files.pop(generation)):
            os.close(fd)
            self._path(generation, index).unlink()

    def close(self) -> None:
        for generation in list(self.files):
            for fd in self.files.pop(generation):
                os.close(fd)

    def _path(self, generation: int, index: int) -> Path:
        return self.setup.folder / file_name(generation, index)

    def _create(self, generation: int, index: int) -> int:
        flags = os.O_CREAT | os.O_RDWR | self.flags
        return os.open(self._path(generation, index), flags, 0o600)

    def _register(self, kind: str, ranges: list[tuple[int, int, int, str]]) -> None:
        if self.agent.register_memory(ranges, kind, backends=["POSIX"]) is None:
            raise OSError(f"nixl did not register {kind}")

    def _start(self, operation: str, addresses: Sequence[int], files: Sequence[int]) -> Any:
        size = self.setup.work.slot_bytes
        local = self.agent.get_xfer_descs([(a, size, 0) for a in addresses], "DRAM")
        remote = self.agent.get_xfer_descs([(0, size, fd) for fd in files], "FILE")
        handle = self.agent.initialize_xfer(operation, local, remote, AGENT, backends=["POSIX"])
        if self.agent.transfer(handle) == "ERR":
            raise OSError(f"nixl {operation} was not posted")
        return handle

    def _finish(self, handle: Any) -> None:
        """Its only way to wait is to ask; the naps are what an engine's loop would do meanwhile."""
        while (state := self.agent.check_xfer_state(handle)) == "PROC":
            time.sleep(50e-6)
        if state != "DONE":
            raise OSError("nixl transfer failed")
        self.agent.release_xfer_handle(handle)


open_peer = Nixl
