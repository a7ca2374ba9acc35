"""What lies in a root's `quarantine/`, without a store: listing, removing, moving aside.

Works beside a live owner: it only unlinks or adds names there. Names sort by age: 12 digits of the
time in seconds, 6 digits that count, the name that the file had.
"""

import os
import re
import shutil
import stat
from collections.abc import Sequence
from pathlib import Path

import msgspec

from kvstore.fsck.extent import Checked, Checker

DIRECTORY = "quarantine"
FILES_MAX = 64  # as the core keeps at most
_NAME = re.compile(r"(\d{12})-(\d{6})-(.+)", re.DOTALL)
_KEY = re.compile(r"([0-9a-f]{64})\.kv")
_NAME_BYTES_MAX = 70  # of the name that the file had


class Moved(msgspec.Struct, frozen=True, kw_only=True):
    """One file in quarantine. key, namespace: hex, "" where they cannot be told. moved_s: wall
    seconds, 0 where the name does not say. why: what is wrong with it, "" when nothing is."""

    name: str
    key: str
    namespace: str
    bytes: int
    moved_s: int
    why: str


def names(root: Path) -> list[str]:
    """Names in quarantine, the oldest first; none when there is no such directory. OSError, also
    when it is a link: what it leads to is not ours."""
    place = root / DIRECTORY
    try:
        if not stat.S_ISDIR(place.lstat().st_mode):
            raise NotADirectoryError(f"{place} is no directory")
    except FileNotFoundError:
        return []
    return sorted(os.listdir(place))


def moved_at(name: str) -> int:
    """Wall seconds of the move; 0 for a name that is not of our making."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else 0


def key_of(name: str) -> str:
    """The key in hex that the file was named by; "" when that cannot be told."""
    match = _NAME.fullmatch(name)
    key = _KEY.fullmatch(match[3]) if match else None
    return key[1] if key else ""


def listing(root: Path) -> list[Moved]:
    """Each file, read and verified again. Costs reading them all."""
    checker = Checker()
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        found = [_look(checker, fd, name) for name in names(root)]
    finally:
        os.close(fd)
    return [moved for moved in found if moved is not None]


def remove(root: Path, wanted: Sequence[str]) -> list[str]:
    """Removes them; returns those that were there. OSError, also for a name that leads elsewhere;
    then nothing was removed."""
    there = set(names(root))
    for name in wanted:
        if name != os.path.basename(name) or name in ("", ".", ".."):
            raise OSError(f"{name!r} is no name in {DIRECTORY}/")
    removed = []
    for name in there.intersection(wanted):
        path = root / DIRECTORY / name
        try:
            if stat.S_ISDIR(path.lstat().st_mode):
                shutil.rmtree(path)
            else:
                path.unlink()
        except FileNotFoundError:
            continue
        removed.append(name)
    return sorted(removed)


def move(root: Path, path: str, *, now_s: int) -> str:
    """Moves `path` (below the root) aside and keeps the bound; where it is now. OSError."""
    os.makedirs(root / DIRECTORY, mode=0o700, exist_ok=True)
    there = names(root)
    counts = [int(match[2]) for name in there if (match := _NAME.fullmatch(name))]
    number = max(counts, default=-1) + 1
    target = f"{now_s:012d}-{number % 10**6:06d}-{os.path.basename(path)[:_NAME_BYTES_MAX]}"
    os.rename(root / path, root / DIRECTORY / target)
    remove(root, there[: max(0, len(there) + 1 - FILES_MAX)])
    return f"{DIRECTORY}/{target}"


def _look(checker: Checker, root_fd: int, name: str) -> Moved | None:
    """None: it is gone by now."""
    path = f"{DIRECTORY}/{name}"
    key = key_of(name)
    try:
        size = os.stat(path, dir_fd=root_fd, follow_symlinks=False).st_size
        checked = checker.check(root_fd, path, deep=True)
    except FileNotFoundError:
        return None
    except OSError as error:
        checked = Checked(trouble="unreadable", detail=error.strerror or "")
    header = checked.header
    if header and key and not checked.trouble and bytes.fromhex(key) not in header["keys"]:
        checked.trouble = "misnamed"
    return Moved(
        name=printable(name),
        key=key,
        namespace=header["fingerprint"].hex()[:32] if header else "",
        bytes=size,
        moved_s=moved_at(name),
        why=": ".join(word for word in (checked.trouble, checked.detail) if word),
    )


def printable(name: str) -> str:
    """A file name as text that can be printed and encoded, whatever its bytes are."""
    text = os.fsencode(name).decode(errors="backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
