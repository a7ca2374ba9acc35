"""Raw writes at a steady pace beside raw reads: what mixed load costs on the device and its file
system alone. They make and remove files as a full store does, because that is what makes a journal
or a log write: into files that are there already, the same bytes cost reads next to nothing.
"""

import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from ceiling import fresh_files, layer_major
from kvstore.raw_io import PAGE, RawIo

DEPTH = 16
STEPS = 16  # between looks at the clock


class PacedWriter:
    """A context manager: makes one fresh file after the other below `folder`, in a thread of its
    own, at `gbps`, and removes the one before; each has these regions."""

    def __init__(self, folder: Path, regions: Sequence[int], gbps: float) -> None:
        self.folder, self.regions, self.gbps = folder, regions, gbps
        self.nbytes = 0
        self.error: OSError | None = None
        self._stop = threading.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._write, name="paced-writer")

    def _write(self) -> None:
        try:
            self._began = time.perf_counter()
            while not self._stop.is_set():
                self._write_file()
        except OSError as error:
            self.error = error
        finally:
            self._ready.set()

    def _write_file(self) -> None:
        with tempfile.TemporaryDirectory(dir=self.folder) as name:
            paths = fresh_files(Path(name), 1, PAGE + sum(self.regions))
            steps = layer_major(1, PAGE, self.regions)
            raw = RawIo(paths, steps, writes=True, depth_max=DEPTH)
            for _ in range(0, len(steps), STEPS):
                self.nbytes += raw.run(DEPTH, 60, steps=STEPS).bytes
                self._ready.set()
                ahead = self.nbytes / self.gbps / 1e9 - (time.perf_counter() - self._began)
                if self._stop.wait(max(0.0, ahead)):
                    return

    def __enter__(self) -> "PacedWriter":
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        if self.error is not None:
            raise self.error
