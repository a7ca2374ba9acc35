"""A root with very many extents of one small block each, made without a store.

One extent is put by a store; the others are its header page with another key (docs/FORMAT.md) and a
hole where its cell, which is all zeros, would be. So a file takes 4 KiB of disk and every one of
them is whole. Removes nothing: the caller owns the directory.
"""

import os
import struct
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

from kvstore import Layout, LayoutWarning, _core
from kvstore.chain import Chain, chain_of_tokens
from kvstore.store import Store, open_blocking

PAGE, CELL, BLOCK_TOKENS = 4096, 4096, 4
PAGE_SUM = 24  # offset of the page's checksum
TABLE, TABLE_ENTRY, KEYS_SECTION = 48, 24, 3
KNOWN = 64  # of the prompts below

with warnings.catch_warnings():
    warnings.simplefilter("ignore", LayoutWarning)  # small on purpose
    LAYOUT = Layout(
        parts_by_layer=((("latent", CELL),),),
        model="scale",
        block_tokens=BLOCK_TOKENS,
        extent_blocks=16,
    )


def opened(root: Path) -> Store:
    """A store with a small pool: faulting it in is part of what open takes."""
    return open_blocking(root, capacity="1TB", reserve="1GB", pool="16MiB")


def known_chain(number: int) -> Chain:
    """The prompt whose block is in the file with this number, for numbers below KNOWN."""
    return chain_of_tokens([number] * BLOCK_TOKENS, block_tokens=BLOCK_TOKENS)


class Template:
    """The header of one extent of one block, to be given other keys."""

    def __init__(self, header: bytes) -> None:
        self.page = bytearray(header)
        sections = struct.unpack_from("<H", header, 10)[0]
        for at in range(TABLE, TABLE + sections * TABLE_ENTRY, TABLE_ENTRY):
            kind, _, offset = struct.unpack_from("<HHI", header, at)
            if kind == KEYS_SECTION:
                self.key_at, self.key_sum_at = offset, at + 16

    def with_key(self, key: bytes) -> bytearray:
        page = self.page
        page[self.key_at : self.key_at + 32] = key
        struct.pack_into("<Q", page, self.key_sum_at, _core.xxh3(key))
        struct.pack_into("<Q", page, PAGE_SUM, 0)
        struct.pack_into("<Q", page, PAGE_SUM, _core.xxh3(page))
        return page


def put_template(root: Path) -> Path:
    with opened(root) as store:
        kv = store.cache(LAYOUT)
        with kv.writer(known_chain(0)) as writer:
            writer.put(0, (0, 1), [np.zeros((1, CELL), dtype=np.uint8)]).wait("30s")
            writer.commit_blocking("30s")
    return next(root.glob("*/???/*.kv"))


def keys_between(first: int, end: int) -> Iterator[bytes]:
    random = np.random.default_rng(first)
    for number in range(first, end):
        yield known_chain(number)[0] if number < KNOWN else random.bytes(32)


def write_files(path: Path, first: int, end: int) -> int:
    """Files with numbers first to end beside the one at `path`; how many."""
    template = Template(path.read_bytes()[:PAGE])
    namespace = os.open(path.parent.parent, os.O_RDONLY)
    times = (path.stat().st_atime_ns, path.stat().st_mtime_ns)
    file_bytes = path.stat().st_size
    for key in keys_between(first, end):
        name = f"{key.hex()[:3]}/{key.hex()}.kv"
        fd = os.open(name, os.O_WRONLY | os.O_CREAT, 0o666, dir_fd=namespace)
        os.write(fd, template.with_key(key))
        os.ftruncate(fd, file_bytes)
        os.utime(fd, ns=times)
        os.close(fd)
    os.close(namespace)
    return end - first


def make(root: Path, count: int) -> None:
    """`count` extents below `root`, by as many processes as there are processors."""
    path = put_template(root)
    for bucket in range(4096):
        (path.parent.parent / f"{bucket:03x}").mkdir(exist_ok=True)
    share = 4096
    firsts = range(1, count, share)
    with ProcessPoolExecutor() as processes:
        tasks = [
            processes.submit(write_files, path, first, min(first + share, count))
            for first in firsts
        ]
        for task in tasks:
            task.result()
