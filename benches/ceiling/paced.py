"""Raw writes at a steady pace beside raw reads: what mixed load costs on the device alone."""

import threading
import time
from collections.abc import Sequence
from pathlib import Path

from kvstore.raw_io import RawIo, Step

DEPTH = 16
STEPS = 16  # between looks at the clock


class PacedWriter:
    """A context manager: writes the steps round and round, in a thread of its own, at `gbps`."""

    def __init__(self, paths: Sequence[Path], steps: Sequence[Step], gbps: float) -> None:
        self.paths, self.steps, self.gbps = paths, steps, gbps
        self.nbytes = 0
        self.error: OSError | None = None
        self._stop = threading.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._write, name="paced-writer")

    def _write(self) -> None:
        try:
            raw = RawIo(self.paths, self.steps, writes=True, depth_max=DEPTH)
            began = time.perf_counter()
            while not self._stop.is_set():
                self.nbytes += raw.run(DEPTH, 60, steps=STEPS).bytes
                self._ready.set()
                ahead = self.nbytes / self.gbps / 1e9 - (time.perf_counter() - began)
                self._stop.wait(max(0.0, ahead))
        except OSError as error:
            self.error = error
        finally:
            self._ready.set()

    def __enter__(self) -> "PacedWriter":
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        if self.error is not None:
            raise self.error
