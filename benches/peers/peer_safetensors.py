"""safetensors: one file a value (one tensor), mapped and copied out, 4 threads.

Best: copied into huge-page memory. As shipped: load_file() of NumPy, whatever it returns.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
from safetensors.numpy import load_file, save_file

from benches.peers.work import Facts, Setup, Slots, file_name, on_threads

THREADS = 4
TENSOR = "cells"


class Safetensors:
    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.slots = Slots(setup) if setup.huge else None
        self.found: dict[int, Any] = {}
        self.threads = ThreadPoolExecutor(THREADS)
        self.facts = Facts(
            {"threads": THREADS, "files": "one a value", "mmap": True},
            "no checksum, no index, no capacity, no sync",
            buffered=True,
            versions={"safetensors": safetensors.__version__},
        )

    def put(self, generation: int, count: int) -> None:
        list(self.threads.map(lambda i: self._write(generation, i), range(count)))

    def load(
        self, generation: int, batches: Sequence[Sequence[int]], ready: Callable[[int], None]
    ) -> None:
        on_threads(self.threads, lambda index: self._read(generation, index), batches, ready)

    def value(self, index: int) -> Any:
        return self.slots[index] if self.slots else self.found[index]

    def forget(self) -> None:
        self.found.clear()

    def delete(self, generation: int, count: int) -> None:
        for index in range(count):
            self._path(generation, index).unlink()

    def close(self) -> None:
        self.threads.shutdown()

    def _path(self, generation: int, index: int) -> Path:
        return self.setup.folder / file_name(generation, index)

    def _write(self, generation: int, index: int) -> None:
        save_file(
            {TENSOR: self.setup.source.value(generation, index)}, self._path(generation, index)
        )

    def _read(self, generation: int, index: int) -> None:
        path = self._path(generation, index)
        if not self.slots:
            self.found[index] = load_file(path)[TENSOR]
            return
        with safetensors.safe_open(path, framework="np") as file:
            tensor = file.get_tensor(TENSOR)
            np.copyto(self.slots[index][: tensor.size], tensor)


open_peer = Safetensors
