"""Who may see what lies on disk, and what open() says where there can be no store.

The part about errors of other kinds (a bad word for an option) is in test_api_edges.py.
"""

import os
import stat
from pathlib import Path

import numpy as np
import pytest

import kvstore
from kvstore import OpenError
from tests.support.extent_bytes import flip, regions
from tests.support.refusals import life
from tests.support.stores import BLOCK_TOKENS, cells_of, layout, opened, until, write

BLOCKS = 20
SECRET = "the secret of the prompt"
POOL = "16MiB"


@pytest.fixture
def loose_umask() -> object:
    """The modes are the store's own, not the umask's."""
    old = os.umask(0)
    yield
    os.umask(old)


def fill(root: Path) -> None:
    """A store with every kind of file: extents, a single block, one in quarantine, the locks."""
    with opened(root, pool=POOL) as store:
        kv = store.cache(layout())
        chain = kv.keys(tokens(), salt=SECRET.encode(), extras=[("image", 3, SECRET.encode())])
        cells = cells_of(kv.layout, BLOCKS)
        assert write(kv, chain, cells) == BLOCKS
        assert kv.put_blocking(b"\1" * 32, np.zeros(kv.layout.block_bytes, np.uint8))
        path = next(root.glob(f"*/*/{chain[16].hex()}.kv"))
        flip(path, 8 * regions(path.read_bytes())[0][0])
        store.drop_ram()
        with kv.load(kv.match(chain)) as load:
            assert load.wait(kv.layout.layers - 1).reason == "damaged"
        until(lambda: list((root / "quarantine").glob("*")))
        store.flush_blocking()


def tokens() -> list[int]:
    return [700_000 + i for i in range(BLOCKS * BLOCK_TOKENS)]


def below(root: Path) -> list[Path]:
    return [root, *root.rglob("*")]


@pytest.mark.usefixtures("loose_umask")
def test_directories_are_0700_and_files_0600(tmp_path: Path) -> None:
    root = tmp_path / "kv"
    fill(root)
    kinds = {path.name.rpartition(".")[2] for path in below(root) if path.is_file()}
    assert {"kv", "json", "lock"} <= kinds
    wrong = [
        f"{path}: {stat.filemode(path.lstat().st_mode)}"
        for path in below(root)
        if stat.S_IMODE(path.lstat().st_mode) != (0o700 if path.is_dir() else 0o600)
    ]
    assert not wrong


def test_neither_prompt_nor_salt_nor_token_ids_lie_on_disk(tmp_path: Path) -> None:
    fill(tmp_path / "kv")
    # Two ids in a row, as little- and big-endian 32 and 64 bits, and as text.
    first, second = tokens()[:2]
    needles = [SECRET.encode(), f"{first}, {second}".encode(), f"{first},{second}".encode()]
    needles += [
        np.array([first, second], dtype).tobytes() for dtype in ("<i4", ">i4", "<i8", ">i8")
    ]
    files = [path for path in below(tmp_path) if path.is_file()]
    assert len(files) > 5
    for path in files:
        data = path.read_bytes()
        assert not any(needle in data for needle in needles), path
        assert SECRET not in str(path)


def test_a_directory_of_the_users_own_keeps_its_mode(tmp_path: Path) -> None:
    root = tmp_path / "kv"
    root.mkdir(mode=0o750)
    root.chmod(0o750)
    with opened(root, pool=POOL):
        pass
    assert stat.S_IMODE(root.stat().st_mode) == 0o750


# ------------------------------------------------------------------------- where none can be


def refused(*roots: Path, **words: object) -> str:
    with pytest.raises(OpenError) as caught:
        kvstore.open_blocking(*roots, **({"pool": POOL} | words))  # type: ignore[arg-type]
    return str(caught.value)


def test_a_missing_parent_is_refused_and_nothing_is_made(tmp_path: Path) -> None:
    """It may be a disk that is not mounted: filling the disk below its mount point helps nobody."""
    message = refused(tmp_path / "nvme0" / "kv")
    assert str(tmp_path / "nvme0" / "kv") in message and "parent must exist" in message
    assert not (tmp_path / "nvme0").exists()


def test_a_file_where_the_directory_should_be_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("mine")
    message = refused(path)
    assert str(path) in message and "directory" in message
    assert path.read_text() == "mine"


def test_a_link_to_nothing_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "link"
    path.symlink_to("nothing")
    assert str(path) in refused(path)


def test_one_bad_root_of_two_is_named_and_the_good_one_is_free_again(tmp_path: Path) -> None:
    assert str(tmp_path / "none" / "b") in refused(tmp_path / "a", tmp_path / "none" / "b")
    with opened(tmp_path / "a", pool=POOL) as store:
        assert store.info().roots[0].is_owner


def test_a_directory_that_may_not_be_written_is_refused_with_advice(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("needs an ordinary user: root may write everywhere")
    root = tmp_path / "kv"
    with opened(root, pool=POOL):
        pass
    (root / "owner.lock").unlink()
    root.chmod(0o500)
    try:
        message = refused(root)
        assert str(root) in message and "write" in message
        assert str(root / "new") in refused(root / "new")
    finally:
        root.chmod(0o700)


def test_a_memory_file_system_serves_and_says_that_it_is_slower(tmp_path: Path) -> None:
    """Right bytes, no speed: the engine is threads and info() says why."""
    shm = Path("/dev/shm")
    if not os.access(shm, os.W_OK):
        pytest.skip("/dev/shm cannot be written here")
    root = shm / f"kvstore-test-{os.getpid()}"
    try:
        found = life(root)
        assert found["info"]["roots"][0]["file_system"] == "tmpfs"
        assert found["info"]["roots"][0]["engine"] == "threads"
        assert any("tmpfs" in note for note in found["info"]["fallbacks"])
        assert any("tmpfs" in line for line in found["log"])
    finally:
        for path in sorted(root.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        if root.exists():
            root.rmdir()


@pytest.mark.parametrize("pool", [0, "0", "-1GB", "many", "1XB", 1.5, None])
def test_a_pool_that_makes_no_sense_is_refused(pool: object, tmp_path: Path) -> None:
    with pytest.raises((ValueError, TypeError), match="pool"):
        kvstore.open_blocking(tmp_path / "kv", pool=pool)  # type: ignore[arg-type]
    assert not (tmp_path / "kv").exists()


def test_a_pool_larger_than_any_memory_is_refused_with_advice(tmp_path: Path) -> None:
    assert "smaller pool" in refused(tmp_path / "kv", pool="4000TB")


@pytest.mark.parametrize("capacity", [0, -1, "no", [1, 2], []])
def test_a_capacity_that_makes_no_sense_is_refused(capacity: object, tmp_path: Path) -> None:
    with pytest.raises((ValueError, TypeError), match="capacit"):
        kvstore.open_blocking(tmp_path / "kv", capacity=capacity)  # type: ignore[arg-type]


def test_a_second_owner_is_told_who_the_first_one_is(tmp_path: Path) -> None:
    with opened(tmp_path / "kv", pool=POOL):
        message = refused(tmp_path / "kv")
        assert str(os.getpid()) in message
        assert 'role="peer"' in message
