"""What a power cut may leave of a recorded history: images of the disk, whole directory trees.

A change that no sync covered was made, not made, torn at sectors, or made in another order. Three
kinds of file system, from kind to harsh, say which changes of names may be missing while later ones
are there, and what a sync covers; see `Rules`. Data is equally unsure in all of them: what is not
written is zeros, noise, or what the blocks held before.

Not here: making histories and judging images (test_power_cut.py).
"""

from __future__ import annotations

import hashlib
import itertools
import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path, PurePosixPath

from kvstore.testing import Change, FileCall

SECTOR = 512
WRITES = (FileCall.WRITE_AT, None)
SYNCS = (FileCall.SYNC_FILE, FileCall.SYNC)


class Rules(Enum):
    JOURNAL = "names and times come back as they were at one moment; any sync covers all before"
    DIRECTORIES = "each directory comes back as it was at some moment of its own"
    ANY = "any name, time or length may be missing alone"


class File:
    """One file, with or without a name. `content`: numbers of the changes made to it."""

    def __init__(self, data: bytes = b"", times: tuple[int, int] | None = None) -> None:
        self.data, self.times = data, times
        self.content: list[int] = []


@dataclass(frozen=True)
class Name:
    """A change of one name. file None: the name goes; a directory has a file without content."""

    number: int
    path: str
    file: File | None
    is_directory: bool = False

    @property
    def directory(self) -> str:
        return str(PurePosixPath(self.path).parent)


@dataclass(frozen=True)
class Found:
    """What lay on disk before the history."""

    path: str
    inode: int
    is_directory: bool
    data: bytes
    times: tuple[int, int]


def read(path: Path) -> bytes:
    """Without touching its time of last use."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NOATIME)) as file:
        return file.read()


def tree(root: Path) -> list[Found]:
    found = []
    for path in sorted(root.rglob("*")):
        stat, is_directory = path.stat(), path.is_dir()
        data = b"" if is_directory else read(path)
        name = str(path.relative_to(root))
        times = int(stat.st_atime), int(stat.st_mtime)
        found.append(Found(name, stat.st_ino, is_directory, data, times))
    return found


@dataclass(frozen=True)
class Entry:
    """A file of an image."""

    data: bytes
    times: tuple[int, int] | None  # (atime, mtime); None: those of the cut
    allocated: int


@dataclass(frozen=True)
class Image:
    directories: tuple[str, ...]
    files: dict[str, Entry]

    def digest(self) -> bytes:
        parts = [repr(self.directories)]
        for path, entry in sorted(self.files.items()):
            data = hashlib.blake2b(entry.data).hexdigest()
            parts.append(repr((path, data, entry.times, entry.allocated)))
        return hashlib.blake2b("\n".join(parts).encode()).digest()

    def build(self, root: Path, wall_s: int) -> None:
        root.mkdir(mode=0o700)
        for directory in self.directories:
            (root / directory).mkdir(mode=0o700)
        for path, entry in self.files.items():
            with (root / path).open("wb") as file:
                os.fchmod(file.fileno(), 0o600)
                if entry.allocated:
                    os.posix_fallocate(file.fileno(), 0, entry.allocated)
                file.write(entry.data)
            os.utime(root / path, entry.times or (wall_s, wall_s))


@dataclass
class Choice:
    """What one cut does with what no sync covered."""

    names: set[int] = field(default_factory=set)  # index of Name
    made: set[int] = field(default_factory=set)  # number of an allocation, or of times set
    sectors: dict[int, set[int]] = field(default_factory=dict)  # of a write, those that were made
    order: list[int] = field(default_factory=list)  # of writes; the others come first
    fill: bytes = b""  # what lies where nothing was written, again and again; zeros


class Disk:
    """A history, ready to be cut. `before`: what was there when it began, taken as durable.

    with_temporary_names: as on a file system without O_TMPFILE, where a file has a name from its
    birth on.
    """

    def __init__(
        self,
        changes: Sequence[Change],
        before: Sequence[Found] = (),
        *,
        with_temporary_names: bool = False,
    ) -> None:
        self.changes = changes
        self.with_temporary_names = with_temporary_names
        self.names: list[Name] = []
        self.owner: dict[int, File] = {}  # of a change of content
        self.by_inode: dict[int, File] = {}
        self.now: dict[str, File] = {}  # as it is without a cut
        for found in before:
            file = self.by_inode[found.inode] = File(found.data, found.times)
            self._name(-1, found.path, file, found.is_directory)
        for number, change in enumerate(changes):
            self._follow(number, change)

    def _name(self, number: int, path: str, file: File | None, is_directory: bool = False) -> None:
        if file:
            self.now[path] = file
        else:
            self.now.pop(path, None)
        self.names.append(Name(number, path, file, is_directory))

    def _directory(self, number: int, path: str) -> None:
        for one in [*reversed(PurePosixPath(path).parents), PurePosixPath(path)]:
            if str(one) != "." and str(one) not in self.now:
                self._name(number, str(one), File(), True)

    def _follow(self, number: int, change: Change) -> None:
        call, path, target = change.call, change.path, change.target
        if call == FileCall.MAKE_DIRECTORY:
            self._directory(number, path)
        elif call == FileCall.OPEN_TEMP:
            self.by_inode[change.inode] = File()
            if path or self.with_temporary_names:
                path = path or f"{target}/kv-{number}.tmp"
                self._directory(number, str(PurePosixPath(path).parent))
                self._name(number, path, self.by_inode[change.inode])
        elif call == FileCall.LINK:
            file = self.by_inode[change.inode]
            temporary = [name for name, owner in self.now.items() if owner is file]
            self._name(number, target, file)
            for name in temporary:
                self._name(number, name, None)
        elif call == FileCall.RENAME:
            file = self.now[path]
            self._name(number, path, None)
            self._name(number, target, file)
        elif call in (FileCall.UNLINK, FileCall.REMOVE_DIRECTORY):
            self._name(number, path, None)
        elif call in (*WRITES, FileCall.ALLOCATE, FileCall.SET_TIMES):
            self.owner[number] = self.by_inode[change.inode]
            self.owner[number].content.append(number)

    # ---- what is certain -----------------------------------------------------------------------

    def synced(self, cut: int, rules: Rules) -> tuple[set[int], set[int]]:
        """Of the first `cut` changes, what a sync covered: (indices of names, content numbers)."""
        names = {i for i, name in enumerate(self.names) if name.number < 0}
        content: set[int] = set()
        for number, change in enumerate(self.changes[:cut]):
            if change.call not in SYNCS:
                continue
            if change.call == FileCall.SYNC or rules is Rules.JOURNAL:
                names |= {i for i, name in enumerate(self.names) if name.number < number}
                content |= {other for other in self.owner if other < number}
            else:
                of = self.by_inode[change.inode]
                content |= {other for other in of.content if other < number}
        return names, content

    # ---- choosing ------------------------------------------------------------------------------

    def sample(self, cut: int, rules: Rules, rng: random.Random) -> Image:
        """One image that a cut after the first `cut` changes may leave."""
        names, content = self.synced(cut, rules)
        luck = rng.choice((0.1, 0.5, 0.9, 0.98, 1.0))
        choice = Choice(names, content & self._metadata(cut))
        open_names = [i for i, n in enumerate(self.names) if n.number < cut and i not in names]
        open_content = [n for n in self.owner if n < cut and n not in content]
        if rules is Rules.JOURNAL:
            until = cut if rng.random() < luck else rng.randint(0, cut)
            choice.names |= {i for i in open_names if self.names[i].number < until}
            choice.made |= {n for n in open_content if n < until}
        elif rules is Rules.DIRECTORIES:
            untils: dict[str, int] = {}
            for i in open_names:
                until = cut if rng.random() < luck else rng.randint(0, cut)
                if self.names[i].number < untils.setdefault(self.names[i].directory, until):
                    choice.names.add(i)
        else:
            choice.names |= {i for i in open_names if rng.random() < luck}
        if rules is not Rules.JOURNAL:
            choice.made |= {n for n in open_content if rng.random() < luck}
        writes = [n for n in open_content if self.changes[n].call in WRITES]
        for number in writes:
            choice.sectors[number] = torn(len(self.changes[number].data), luck, rng)
        choice.order = rng.sample(writes, len(writes))
        choice.fill = self._fill(rng)
        return self.image(cut, choice)

    def _metadata(self, cut: int) -> set[int]:
        return {n for n in self.owner if n < cut and self.changes[n].call not in WRITES}

    def _fill(self, rng: random.Random) -> bytes:
        """Zeros, noise, or an older write: a page with a valid header of another file, say."""
        written = [change.data for change in self.changes if change.call in WRITES]
        return rng.choice((b"", rng.randbytes(4096), rng.choice(written)))

    def whole(self) -> Image:
        """Without a cut."""
        cut = len(self.changes)
        return self.image(cut, Choice(set(range(len(self.names))), self._metadata(cut)))

    def every(self, cut: int, path: str) -> Iterator[Image]:
        """All that a cut may leave of one named file, a write being made, not made, or made in its
        first or all but its last sector; everything else is whole."""
        file = self.now[path]
        mine = [number for number in file.content if number < cut]
        writes = [number for number in mine if self.changes[number].call in WRITES]
        other = [number for number in mine if self.changes[number].call not in WRITES]
        some = [
            [set(), {0}, set(range(count - 1)), set(range(count))]
            for count in (-(-len(self.changes[number].data) // SECTOR) for number in writes)
        ]
        names = {i for i, name in enumerate(self.names) if name.number < cut}
        made = self._metadata(cut) - set(other)
        for kept in itertools.product((False, True), repeat=len(other)):
            more = {number for number, keep in zip(other, kept, strict=True) if keep}
            for sectors in itertools.product(*some):
                yield self.image(
                    cut, Choice(names, made | more, dict(zip(writes, sectors, strict=True)))
                )

    # ---- making --------------------------------------------------------------------------------

    def image(self, cut: int, choice: Choice) -> Image:
        there: dict[str, Name] = {}
        for i, name in enumerate(self.names):
            if i in choice.names and name.file:
                there[name.path] = name
            elif i in choice.names:
                there.pop(name.path, None)
        directories: list[str] = []
        for path in sorted(p for p, name in there.items() if name.is_directory):
            if (parent := str(PurePosixPath(path).parent)) == "." or parent in directories:
                directories.append(path)
        reached = {".", *directories}
        files = {
            path: self._entry(name.file, cut, choice)
            for path, name in there.items()
            if name.file and not name.is_directory and name.directory in reached
        }
        return Image(tuple(directories), files)

    def _entry(self, file: File, cut: int, choice: Choice) -> Entry:
        mine = [number for number in file.content if number < cut]
        length, times, allocated = len(file.data), file.times, 0
        for number in mine:
            change = self.changes[number]
            if number in choice.made and change.call == FileCall.ALLOCATE:
                allocated = length = max(length, change.offset)
            elif number in choice.made and change.call == FileCall.SET_TIMES:
                times = change.atime_s, change.mtime_s
        writes = [number for number in mine if self.changes[number].call in WRITES]
        pieces = [
            piece
            for number in sorted(
                writes, key=lambda n: choice.order.index(n) if n in choice.order else -1
            )
            for piece in self._pieces(number, choice.sectors.get(number))
        ]
        length = max([length, *(offset + len(data) for offset, data in pieces)])
        fill = choice.fill or b"\0"
        data = bytearray((fill * (length // len(fill) + 1))[:length])
        data[: len(file.data)] = file.data
        for offset, piece in pieces:
            data[offset : offset + len(piece)] = piece
        return Entry(bytes(data), times, allocated)

    def _pieces(self, number: int, sectors: set[int] | None) -> Iterator[tuple[int, bytes]]:
        """(offset, bytes) of a write's sectors that were made; None: all."""
        change = self.changes[number]
        if sectors is None:
            yield change.offset, change.data
        for sector in sorted(sectors or ()):
            at = sector * SECTOR
            yield change.offset + at, change.data[at : at + SECTOR]


def torn(size: int, luck: float, rng: random.Random) -> set[int]:
    """Sectors of a write that reached the disk."""
    count = -(-size // SECTOR)
    if rng.random() < luck:
        return set(range(count))
    middle = rng.randint(0, count)
    return rng.choice(
        (
            set(),
            set(range(middle)),
            set(range(middle, count)),
            {sector for sector in range(count) if rng.random() < 0.5},
        )
    )
