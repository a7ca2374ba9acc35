"""Histories: what stores do to one root, life after life, with every change on disk recorded.

The bytes of every block follow from its key (prompts.py), so what an image gives back can be judged
whatever was put when.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from kvstore.cache import Cache
from kvstore.chain import Chain
from kvstore.store import Store, open_blocking
from kvstore.testing import (
    Change,
    FaultDevice,
    FaultFiles,
    FileCall,
    History,
    Injection,
    VirtualClock,
)
from kvstore.writer import Writer
from tests.support.power_cut import Disk, Found, tree
from tests.support.prompts import eventually, load, put_layer, small_layout, tokens

LAYOUT = small_layout()
LAYERS = [layer for layer in range(LAYOUT.layers) if LAYOUT.cell_bytes(layer)]
POOL = "1MB"


@dataclass(frozen=True)
class Promise:
    """What a flush promised, from that number of changes on."""

    at: int
    whole: frozenset[str] = frozenset()  # names of chains that are there
    gone: frozenset[bytes] = frozenset()  # keys that were deleted


class Recording:
    """Lives of a store on `root`. `chains`: all that was ever put, by name.

    promises: the last one up to a cut is what the disk has to keep. seed: of the order in
    which writers put their layers.
    """

    def __init__(self, folder: Path, seed: int = 0) -> None:
        self.root = folder / "root"
        self.before: list[Found] = []
        self.history = History(folder / "history")
        self.clock = VirtualClock()
        self.random = random.Random(seed)
        self.chains: dict[str, Chain] = {}
        self.promises = [Promise(0)]
        self.deleted: set[bytes] = set()
        self.planted: list[tuple[int, list[Change]]] = []
        self.store: Store
        self.kv: Cache

    @contextmanager
    def life(self, *, capacity: str = "1GB", recorded: bool = True) -> Iterator[Store]:
        history = self.history if recorded else None
        injection = Injection(
            clock=self.clock,
            files=FaultFiles(history),
            devices=[FaultDevice(self.clock, history=history)],
            manual_ticks=True,
        )
        with open_blocking(
            self.root, capacity=capacity, pool=POOL, min_age="0s", _testing=injection
        ) as store:
            self.store, self.kv = store, store.cache(LAYOUT)
            eventually(lambda: not store.info().roots[0].warming, "the scan ended")
            yield store

    @contextmanager
    def earlier(self) -> Iterator[Store]:
        """A life before the history: what it leaves is on disk for certain."""
        with self.life(recorded=False) as store:
            yield store
        self.before = tree(self.root)

    # ---- steps ---------------------------------------------------------------------------------

    def chain(self, name: str, blocks: int) -> Chain:
        """Of the prompt `name`; of "a+b" a prompt that is a's up to block 3 and then b's."""
        stem, _, branch = name.partition("+")
        ids = tokens(stem, blocks)
        if branch:
            ids = ids[: 3 * LAYOUT.block_tokens] + tokens(branch, blocks - 3)
        self.chains[f"{name} {blocks}"] = self.kv.keys(ids)
        return self.chains[f"{name} {blocks}"]

    def writer(self, name: str, blocks: int) -> Writer:
        """With everything put, layer by layer in random order, and not committed."""
        chain = self.chain(name, blocks)
        if self.deleted & {*chain}:
            self.deleted -= {*chain}
            last = self.promises[-1]
            self.promises.append(Promise(self.length(), last.whole, last.gone - {*chain}))
        writer = self.kv.writer(chain)
        for layer in self.random.sample(LAYERS, len(LAYERS)):
            put_layer(self.kv, writer, layer, writer.start, len(writer.chain))
        return writer

    def put(self, name: str, blocks: int) -> None:
        writer = self.writer(name, blocks)
        assert writer.commit_blocking("30s") == blocks

    def load(self, name: str, blocks: int) -> tuple[int, str | None]:
        self.store.drop_ram()
        return load(self.kv, self.kv.match(self.chain(name, blocks)))

    def flush(self) -> None:
        """From now on all that is whole must stay so, until told otherwise."""
        whole = frozenset(
            name
            for name, chain in self.chains.items()
            if self.kv.find_blocking(chain).blocks == len(chain)
        )
        self.store.flush_blocking()
        kept = self.promises[-1].whole
        self.promises.append(Promise(self.length(), kept | whole, frozenset(self.deleted)))

    def may_go(self, *names: str) -> None:
        """Whatever was promised of these prompts, or of all: they are about to be removed."""
        last = self.promises[-1]
        kept = frozenset(n for n in last.whole if names and n.split()[0] not in names)
        self.promises.append(Promise(self.length(), kept, last.gone))

    def delete(self, name: str, blocks: int, block: int) -> None:
        key = self.chain(name, blocks)[block]
        self.may_go(name)
        self.kv.delete_blocking(key)
        self.deleted.add(key)

    def plant(self, path: Path, data: bytes) -> None:
        """A file that another process wrote, in the history too."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        name = str(path.relative_to(self.root))
        stat = path.stat()
        born = Change(
            call=FileCall.OPEN_TEMP, path="", target=f"{Path(name).parts[0]}/tmp", data=b"",
            inode=stat.st_ino, offset=0, atime_s=0, mtime_s=0,
        )  # fmt: skip
        change = msgspec.structs.replace
        made = [
            change(born, call=FileCall.MAKE_DIRECTORY, path=str(Path(name).parent)),
            born,
            change(born, call=FileCall.WRITE_AT, data=data),
            change(born, call=FileCall.LINK, target=name),
        ]
        self.planted.append((len(self.history.changes()), made))

    # ---- afterwards ----------------------------------------------------------------------------

    def length(self) -> int:
        return len(self.history.changes()) + sum(len(made) for _, made in self.planted)

    def disk(self, *, with_temporary_names: bool = False) -> Disk:
        changes = self.history.changes()
        for at, made in reversed(self.planted):
            changes[at:at] = made
        return Disk(changes, self.before, with_temporary_names=with_temporary_names)

    def promised(self, cut: int) -> Promise:
        return [promise for promise in self.promises if promise.at <= cut][-1]
