"""The lines of a trace file: plain, gzip or zstd, told apart by their first bytes; or of all files
of a directory, in the order of their names.

Streams: a file is never held as a whole. A file that ends in the middle of its compression is an
error that says so, never a shorter trace.
"""

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from kvstore.errors import KvstoreError

_CHUNK_BYTES = 1 << 18
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_WINDOW_MAX = 1 << 31  # zstd --long=31


class TraceError(KvstoreError):
    """The trace cannot be read; the message names file and line and says what was expected."""


@dataclass(frozen=True, slots=True)
class Line:
    """Number from 1, in the file `path`."""

    path: Path
    number: int
    text: bytes

    def error(self, message: str) -> TraceError:
        return TraceError(f"{self.path}:{self.number}: {message}")


class Lines:
    """Iterate once. `fraction` says how much of the files was read."""

    def __init__(self, path: Path) -> None:
        self._paths = _files(path)
        self._bytes = max(1, sum(file.stat().st_size for file in self._paths))
        self._before = 0
        self._file: BinaryIO | None = None

    @property
    def fraction(self) -> float:
        here = self._file.tell() if self._file and not self._file.closed else 0
        return min(1.0, (self._before + here) / self._bytes)

    def __iter__(self) -> Iterator[Line]:
        for path in self._paths:
            with path.open("rb") as self._file:
                number = 0
                for number, text in enumerate(_split(_chunks(path, self._file)), 1):
                    if text and not text.isspace():
                        yield Line(path, number, text)
            self._before += path.stat().st_size


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = sorted(file for file in path.iterdir() if ".json" in file.name and file.is_file())
    if not found:
        raise TraceError(f"{path}: no .json or .jsonl files in this directory")
    return found


def _split(chunks: Iterator[bytes]) -> Iterator[bytes]:
    rest: list[bytes] = []  # of a line that goes on
    for chunk in chunks:
        first, *others = chunk.split(b"\n")
        rest.append(first)
        for text in others:
            yield b"".join(rest)
            rest = [text]
    yield b"".join(rest)


def _chunks(path: Path, file: BinaryIO) -> Iterator[bytes]:
    start = file.read(4)
    file.seek(0)
    if start[:2] == _GZIP:
        yield from _unpacked(path, file, "gzip", lambda: zlib.decompressobj(wbits=31))
    elif start == _ZSTD:
        yield from _unpacked(path, file, "zstd", _zstd_unit(path))
    else:
        while chunk := file.read(_CHUNK_BYTES):
            yield chunk


def _zstd_unit(path: Path) -> Callable[[], Any]:
    try:
        import zstandard
    except ImportError:
        raise TraceError(
            f"{path} is zstd: install what reads it (pip install 'kvstore-nvme[cli]'), or unpack"
            " it (zstd -d)"
        ) from None
    whole = zstandard.ZstdDecompressor(max_window_size=_WINDOW_MAX)
    return lambda: whole.decompressobj()


def _unpacked(path: Path, file: BinaryIO, kind: str, unit: Callable[[], Any]) -> Iterator[bytes]:
    """All members or frames of the file, one after the other."""
    running = None
    while packed := file.read(_CHUNK_BYTES):
        while packed:
            running = running or unit()
            try:
                yield running.decompress(packed)
            except Exception as error:  # each library has its own
                raise TraceError(f"{path}: the {kind} data is damaged ({error})") from error
            packed = running.unused_data.lstrip(b"\0") if running.eof else b""
            running = None if running.eof else running
    if running is not None:
        raise TraceError(f"{path} ends in the middle of its {kind} data: copy it once more")
