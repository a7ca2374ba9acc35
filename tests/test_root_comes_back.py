"""A root whose disk goes away while the store is open, and comes back: unmounted, shut down,
replaced. Meanwhile nothing is made in the bare directory, and other roots go on.

The first half moves directories about, the second mounts real disks.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from kvstore.store import open_blocking
from kvstore.testing import Injection, VirtualClock
from tests.support.mounted import Disk, mounted
from tests.support.prompts import GRID, assert_whole, eventually, load, put
from tests.support.tight import chain_named
from tests.support.troubled import ROOMY, Troubled, troubled

GOING_DOWN = {"ext4": 0x8004587D, "xfs": 0x8004587D}  # FS_IOC_GOINGDOWN
NO_LOG_FLUSH = 2
LOOK_S = 11  # a root's path is compared with the directory in use every 10 s


def goes_down(it: Troubled, number: int = 0) -> str:
    """Until the path was looked at; why it went down."""
    it.tick(LOOK_S)
    eventually(lambda: it.root(number).state != "up", "the store noticed")
    return it.root(number).trouble


def stays_down(it: Troubled, number: int = 0) -> str:
    """Through a few probes; the last one's finding."""
    for _ in range(4):
        it.tick(60)
        eventually(lambda: it.root(number).state == "down", "the probe ended")
    return it.root(number).trouble


# ---- directories ---------------------------------------------------------------------------------


@pytest.mark.parametrize("there", ["nothing", "an empty directory", "another store"])
def test_a_root_that_is_not_at_its_path_is_down_and_nothing_is_made_there(
    there: str, tmp_path: Path
) -> None:
    root, away = tmp_path / "root", tmp_path / "away"
    with troubled(root) as it:
        chain = it.stored()
        root.rename(away)
        if there == "an empty directory":
            root.mkdir()
        elif there == "another store":
            open_blocking(root, capacity="1MB", pool="8MB").close_blocking()
        before = sorted(root.rglob("*")) if root.exists() else None
        assert "is its disk mounted?" in goes_down(it)
        why = stays_down(it)
        expected = {
            "nothing": "its path cannot be opened: No such file or directory",
            "an empty directory": "there is no root.json at its path: is its disk mounted?",
            "another store": "the directory at its path is another store's",
        }
        assert expected[there] in why
        assert put(it.kv, chain_named(it.kv, "meanwhile")) == 0
        assert load(it.kv, it.kv.match(chain)) == (0, "root_down")
        assert (sorted(root.rglob("*")) if root.exists() else None) == before
        shutil.rmtree(root, ignore_errors=True)
        away.rename(root)
        it.until_up()
        assert_whole(it.kv, chain)
        assert it.root().is_owner
        assert put(it.kv, chain_named(it.kv, "after")) == GRID


def test_a_copy_of_the_root_at_its_path_is_taken_in_its_place(tmp_path: Path) -> None:
    """The same uuid, another directory: what a disk looks like that is mounted anew."""
    root, away = tmp_path / "root", tmp_path / "away"
    with troubled(root) as it:
        kept, lost = it.stored(name="kept"), it.stored(name="lost")
        with it.kv.lease(it.kv.match(kept)):  # its files stay open until it ends
            root.rename(away)
            shutil.copytree(away, root, copy_function=shutil.copy2)
            for path in root.rglob(f"{lost[0].hex()}.kv"):
                path.unlink()
            goes_down(it)
            it.until_up()
        assert it.kv.match(lost).blocks == 0
        assert_whole(it.kv, kept)
        new = chain_named(it.kv, "new")
        assert put(it.kv, new) == GRID
        assert list(root.rglob(f"{new[0].hex()}.kv"))
        assert not list(away.rglob(f"{new[0].hex()}.kv"))
        assert it.root().is_owner
        physical = sum(path.stat().st_blocks * 512 for path in root.rglob("*.kv"))
        eventually(lambda: it.root().used_bytes == physical, "the budget counts what is there")
        open_here = [os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.exists()]
        assert not [path for path in open_here if path.startswith(str(away))]


def test_an_owner_whose_root_was_taken_by_another_comes_back_as_a_peer(tmp_path: Path) -> None:
    root, away = tmp_path / "root", tmp_path / "away"
    with troubled(root) as it:
        chain = it.stored()
        root.rename(away)
        shutil.copytree(away, root, copy_function=shutil.copy2)
        injected = Injection(clock=VirtualClock())
        with open_blocking(root, capacity="64MB", pool="8MB", _testing=injected) as other:
            assert other.info().roots[0].is_owner
            goes_down(it)
            it.until_up()
            assert not it.root().is_owner
            assert_whole(it.kv, chain)
        it.tick(2)  # the keeper tries for the lock
        eventually(lambda: it.root().is_owner, "it owns the root again")


def test_a_relative_path_is_the_directory_it_was_at_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with troubled(Path("root")) as it:
        chain = it.stored()
        monkeypatch.chdir(tmp_path / "elsewhere")
        for _ in range(3):
            it.tick(LOOK_S)
            eventually(lambda: not it.root().warming, "nothing is under way")
        assert it.root().state == "up"
        assert_whole(it.kv, chain)
        assert not list((tmp_path / "elsewhere").iterdir())


# ---- mounts --------------------------------------------------------------------------------------


def shut_down(disk: Disk) -> None:
    """From now on every access is an error, as if the disk had been pulled."""
    fd = os.open(disk.path, os.O_RDONLY)
    try:
        fcntl.ioctl(fd, GOING_DOWN["ext4"], struct.pack("I", NO_LOG_FLUSH))
    finally:
        os.close(fd)


def loops(disk: Disk) -> int:
    """Loop devices of the image: more than one while somebody still holds an old mount."""
    done = subprocess.run(
        ["losetup", "-j", str(disk.image)], capture_output=True, text=True, check=True
    )
    return len(done.stdout.splitlines())


@pytest.mark.root
@pytest.mark.parametrize("kind", ["ext4", "xfs"])
@pytest.mark.parametrize("at", ["mount point", "directory below"])
def test_a_disk_that_fails_and_is_mounted_again_is_used_again(
    kind: str, at: str, tmp_path: Path
) -> None:
    with mounted(tmp_path, kind, mebibytes=320) as disk:
        root = disk.path if at == "mount point" else disk.path / "kv"
        healthy = tmp_path / "healthy"
        with troubled(root, healthy, capacity=[ROOMY, ROOMY]) as it:
            chain = it.stored(8 * GRID)
            os.sync()  # the names too: the shutdown below loses what is not on disk
            shut_down(disk)
            for number in range(400):  # other names each time: half of them fall to this root
                if it.root().state != "up":
                    break
                it.store.drop_ram()
                load(it.kv, it.kv.match(chain))
                put(it.kv, chain_named(it.kv, f"while dead {number}", GRID))
            assert it.root().state != "up", "a dead disk is still being asked"
            disk.unmount(lazy=True)
            assert "is its disk mounted?" in stays_down(it)
            assert put(it.kv, chain_named(it.kv, "meanwhile", 4 * GRID)) == 4 * GRID
            assert not list(disk.path.iterdir()), "something was made in the bare mount point"
            assert it.root(1).state == "up"
            disk.mount()
            it.until_up()
            assert it.root().is_owner
            assert_whole(it.kv, chain)
            new = chain_named(it.kv, "after", 8 * GRID)
            assert put(it.kv, new) == len(new)
            assert_whole(it.kv, new)
            eventually(lambda: loops(disk) == 1, "the old mount is let go")


@pytest.mark.root
def test_a_disk_that_is_unmounted_and_mounted_again_loses_nothing(tmp_path: Path) -> None:
    with mounted(tmp_path, "ext4", mebibytes=64) as disk:
        root = disk.path / "kv"
        root.mkdir()
        with troubled(root) as it:
            chain = it.stored()
            disk.unmount(lazy=True)
            assert "is its disk mounted?" in goes_down(it)
            stays_down(it)
            assert put(it.kv, chain_named(it.kv, "meanwhile")) == 0
            assert not list(disk.path.iterdir()), "something was made in the bare mount point"
            disk.mount()
            it.until_up()
            assert_whole(it.kv, chain)
            assert put(it.kv, chain_named(it.kv, "after")) == GRID
