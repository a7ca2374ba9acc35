"""The same work on kvstore and on what one would pick instead: put, then cold load by key.

Every peer is a process of its own (worker.py). A round asks each for each kind of load in turn,
beginning with another peer each time, and samples the device's ceiling; what is buffered starts
from a dropped page cache. Prints tables; --keep writes every measurement as JSON lines.

    python -m benches.peers.run            everything; makes .venv-peers when it is not there
    python -m benches.peers.run --small    under a minute, with what is installed already
"""

import argparse
import json
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what benches share

from benches.peers import environment
from benches.peers.child import Child, PeerFailed
from benches.peers.report import Record, phase_lines
from benches.peers.work import Work
from ceiling import ReadCeiling
from kvstore.raw_io import whole_files
from measure import check_place

RAW_BYTES = 1 << 20
DEPTHS = (8, 16, 32)
PUT_VALUES_BYTES = 150_000_000  # of one put that is timed


@dataclass(frozen=True)
class Candidate:
    name: str
    module: str
    environment: str = "peers"
    kinds: tuple[str, ...] = ("bulk", "keys", "layers", "put")


CANDIDATES = (
    Candidate("kvstore", "peer_kvstore", "kvstore"),
    Candidate("kvstore single", "peer_kvstore_single", "kvstore", ("keys", "put")),
    Candidate("preadv threads", "peer_preadv"),
    Candidate("nixl POSIX", "peer_nixl"),
    Candidate("LMCache raw_block", "peer_lmcache_raw_block"),
    Candidate("LMCache fs_native", "peer_lmcache_fs_native"),
    Candidate("LMCache LocalDisk", "peer_lmcache_local_disk"),
    Candidate("vLLM fs tier", "peer_vllm_fs", "vllm"),
    Candidate("pyuring", "peer_pyuring"),
    Candidate("safetensors mmap", "peer_safetensors"),
    Candidate("diskcache", "peer_diskcache"),
    Candidate("lmdb", "peer_lmdb"),
)


@dataclass(frozen=True)
class Phase:
    title: str
    work: Work
    kinds: tuple[str, ...]
    mode: str = "best"


def phases(blocks: int, *, small: bool) -> list[Phase]:
    bf16 = Work("bf16", 73_728, 61, blocks)
    every = [
        Phase("best mode, 64 tokens bf16, 4,497,408 B a value", bf16, ("bulk", "keys", "put")),
        Phase(
            "best mode, layer by layer, 73,728 B a value",
            Work("layers", 73_728, 61, blocks // 2, by_layer=True),
            ("layers",),
        ),
        Phase(
            "best mode, 64 tokens fp8, 2,561,024 B a value",
            Work("fp8", 41_984, 61, blocks),
            ("bulk", "keys"),
        ),
        Phase(
            "best mode, 256 tokens bf16, 17,989,632 B a value",
            Work("256", 294_912, 61, blocks // 4),
            ("bulk", "keys"),
        ),
        Phase("as shipped, 4,497,408 B a value", bf16, ("bulk", "keys", "put"), "shipped"),
    ]
    return every[:2] if small else every


class Run:
    """One phase: its workers, its rounds, its records."""

    def __init__(self, phase: Phase, folder: Path, options: argparse.Namespace) -> None:
        self.phase, self.folder, self.options = phase, folder, options
        self.records: list[Record] = []
        self.failed: dict[str, str] = {}
        self.children: dict[Candidate, Child] = {}

    def start(self, stack: ExitStack, candidates: Sequence[Candidate]) -> None:
        """All at once, since most of it is importing; then one after another."""
        for candidate in candidates:
            if set(candidate.kinds) & set(self.phase.kinds):
                with self.blaming(candidate):
                    self.children[candidate] = child = self.child(candidate)
                    stack.callback(child.kill)
        for candidate, child in list(self.children.items()):
            with self.blaming(candidate):
                child.start()
                self.fill(candidate)

    def blaming(self, candidate: Candidate) -> "Blame":
        return Blame(self, candidate)

    def child(self, candidate: Candidate) -> Child:
        python = environment.interpreter(candidate.environment)
        place = self.folder / candidate.module
        place.mkdir()
        huge = self.phase.mode == "best"
        return Child(python, candidate.module, place, self.phase.work, self.phase.mode,
                     environment.variables(huge=huge))  # fmt: skip

    def fill(self, candidate: Candidate) -> None:
        """Puts what is loaded later, and holds every byte of it against the source, by each way."""
        child = self.children[candidate]
        child.ask(op="put", generation=0, count=self.phase.work.values)
        for kind in self.loads(candidate):
            child.ask(op="forget")
            child.ask(op="check", kind=kind)
        child.ask(op="forget")

    def loads(self, candidate: Candidate) -> list[str]:
        return [k for k in self.phase.kinds if k in candidate.kinds and k != "put"]

    def round(self, number: int, ceiling: ReadCeiling) -> None:
        ceiling.sample()
        for candidate in self.in_turn(number):
            for kind in self.loads(candidate):
                with self.blaming(candidate):
                    self.children[candidate].ask(op="forget")
                    drop_page_cache()
                    found = self.children[candidate].ask(op="load", kind=kind)
                    self.children[candidate].ask(op="forget")
                    self.note(candidate, kind, number, found)

    def write_round(self, number: int) -> None:
        work = self.phase.work
        count = max(1, min(work.values, PUT_VALUES_BYTES // work.value_bytes))
        for candidate in self.in_turn(number):
            if "put" in candidate.kinds:
                with self.blaming(candidate):
                    found = self.children[candidate].ask(
                        op="put", generation=number + 1, count=count
                    )
                    self.note(candidate, "put", number, found)

    def in_turn(self, number: int) -> Iterator[Candidate]:
        alive = list(self.children)
        for index in range(len(alive)):
            candidate = alive[(index + number) % len(alive)]
            if candidate in self.children:
                yield candidate

    def note(self, candidate: Candidate, kind: str, number: int, found: Record) -> None:
        where = {"phase": self.phase.title, "peer": candidate.name, "kind": kind, "round": number}
        self.records.append({**where, **found})

    def note_ceiling(self, ceiling: ReadCeiling) -> None:
        for (memory, depth), values in ceiling.samples.rounds.items():
            for number, gbps in enumerate(values):
                self.records.append(
                    {"phase": self.phase.title, "kind": "ceiling", "memory": memory,
                     "depth": depth, "round": number, "gbps": gbps}
                )  # fmt: skip


class Blame:
    """Trouble within is the candidate's: it is noted and takes no further part."""

    def __init__(self, run: Run, candidate: Candidate) -> None:
        self.run, self.candidate = run, candidate

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        if not isinstance(error, PeerFailed | FileNotFoundError | KeyError):
            return False
        self.run.failed.setdefault(self.candidate.name, str(error))
        child = self.run.children.pop(self.candidate, None)
        if child is not None:
            child.kill()
        return True


def drop_page_cache() -> None:
    """For all peers alike, so that nobody's neighbour decides what is warm. Needs root."""
    os.sync()
    if os.geteuid() == 0:
        Path("/proc/sys/vm/drop_caches").write_text("1")


def write_raw_file(path: Path, nbytes: int) -> None:
    with path.open("wb") as file:
        for _ in range(-(-nbytes // RAW_BYTES)):
            file.write(os.urandom(RAW_BYTES))
        os.fsync(file.fileno())


def run_phase(phase: Phase, raw: Path, folder: Path, options: argparse.Namespace) -> Run:
    with tempfile.TemporaryDirectory(dir=folder) as place, ExitStack() as stack:
        run = Run(phase, Path(place), options)
        run.start(stack, [c for c in CANDIDATES if not options.only or c.name in options.only])
        ceiling = ReadCeiling(
            [raw],
            list(whole_files([raw], RAW_BYTES)),
            memory_bytes=phase.work.nbytes,
            seconds=options.seconds,
            depths=DEPTHS,
            with_fio=not options.small,
        )
        ceiling.warm_up()
        for number in range(options.rounds):
            run.round(number, ceiling)
        if "put" in phase.kinds:
            for number in range(options.writes):
                run.write_round(number)
        run.note_ceiling(ceiling)
        for child in run.children.values():
            child.close()
        return run


def facts_lines(run: Run) -> list[str]:
    lines = []
    for candidate, child in run.children.items():
        facts = child.facts
        settings = ", ".join(f"{k} {v}" for k, v in facts["settings"].items())
        how = "page cache" if facts["buffered"] else "O_DIRECT"
        lines += [f"{candidate.name:<24} {settings} ({how})", f"{'':<24} lacks: {facts['lacks']}"]
    lines += [f"{name:<24} NOT RUN: {why}" for name, why in run.failed.items()]
    return lines


def keep(runs: Sequence[Run], head: dict[str, Any]) -> Path:
    folder = environment.HERE / "results"
    folder.mkdir(exist_ok=True)
    path = folder / time.strftime("%Y%m%d-%H%M%S.jsonl")
    facts = [
        {"phase": run.phase.title, "peer": candidate.name, "facts": child.facts}
        for run in runs
        for candidate, child in run.children.items()
    ]
    failed = [
        {"phase": run.phase.title, "peer": name, "failed": why}
        for run in runs
        for name, why in run.failed.items()
    ]
    every = [head, *facts, *failed, *(one for run in runs for one in run.records)]
    path.write_text("".join(json.dumps(one) + "\n" for one in every))
    return path


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, default=Path.cwd(), help="where, on the disk measured")
    parser.add_argument("--small", action="store_true", help="under a minute, what is installed")
    parser.add_argument("--blocks", type=int, help="of 64 tokens: 128, small 16")
    parser.add_argument("--rounds", type=int, help="of loads: 7, small 3")
    parser.add_argument("--writes", type=int, help="rounds of puts: 15, small 3")
    parser.add_argument("--seconds", type=float, help="of raw reads per depth and kind in a round")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="of the peers")
    parser.add_argument("--phase", type=int, nargs="+", metavar="N", help="0 is the first")
    parser.add_argument("--keep", action="store_true", help="raw JSON lines below results/")
    options = parser.parse_args()
    names = [candidate.name for candidate in CANDIDATES]
    if unknown := set(options.only or ()) - set(names):
        parser.error(f"--only: {sorted(unknown)} are not among {names}")
    count = len(phases(16, small=options.small))
    if any(not 0 <= number < count for number in options.phase or ()):
        parser.error(f"--phase: numbers are 0 to {count - 1}")
    options.blocks = options.blocks or (16 if options.small else 128)
    options.rounds = options.rounds or (3 if options.small else 7)
    options.writes = options.writes or (3 if options.small else 15)
    options.seconds = options.seconds or (0.05 if options.small else 0.1)
    return options


def main() -> None:
    options = parsed()
    command = shlex.join(["python", "-m", "benches.peers.run", *sys.argv[1:]])
    notes = [] if options.small else environment.make_peers()
    chosen = phases(options.blocks, small=options.small)
    chosen = [chosen[i] for i in options.phase] if options.phase else chosen
    most = max(phase.work.nbytes for phase in chosen)
    place = check_place(options.dir, 3 * most * len(CANDIDATES))
    began, runs = time.monotonic(), []
    print(f"$ {command}\n{place.file_system} on {place.device}, Linux {place.kernel}")
    if os.geteuid() != 0:
        notes.append("not root: the page cache was not dropped, buffered peers were warm")
    with tempfile.TemporaryDirectory(prefix="kvstore-peers-", dir=options.dir) as folder:
        raw = Path(folder, "raw")
        write_raw_file(raw, most)
        for phase in chosen:
            run = run_phase(phase, raw, Path(folder), options)
            runs.append(run)
            print("\n".join(phase_lines(phase.title, run.records) + facts_lines(run)), flush=True)
    print(f"{len(notes)} notes, {time.monotonic() - began:.0f} s", *notes, sep="\n")
    if options.keep:
        print(f"kept: {keep(runs, {'command': command, 'place': vars(place)})}")


if __name__ == "__main__":
    main()
