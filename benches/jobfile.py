"""Job files in fio's words, plus those that a KV store needs. Pure: text in, jobs out.

[global] holds for all sections, each other section is a job. Sizes are fio's (k, m, g are powers of
1024). A word that is neither fio's nor ours is an error, never ignored. WORDS explains them all.
"""

import configparser
import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvstore import Layout
from kvstore.models import MODELS

SUFFIXES = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
ENGINES = {"libaio": "aio", "psync": "threads"}  # fio's names; ours pass
READS = ("read", "randread")
ALWAYS = ("name", "rw", "iodepth", "numjobs")

WORDS = {
    # fio's
    "rw": "read: load; randread: get of single blocks, in random order; write: put; rw: both (with"
    " turns= or write_rate=)",
    "bs": "bytes of one cell (one block of one layer), instead of layout=",
    "size": "bytes of the prefix, instead of prefix_tokens=",
    "iodepth": "operations in flight per root",
    "numjobs": "prefixes that are loaded or put, and blocks that are got, at the same time",
    "loops": "rounds; each samples the ceiling, too",
    "runtime": "seconds after which no further round begins",
    "verify": "1: every byte is also held against what was put, outside the timing",
    "ioengine": "auto, io_uring, io_uring_plain, libaio (aio) or psync (threads)",
    "directory": "where, on the disk that is measured",
    # the KV store's
    "layout": "a model that `kvstore plan` knows, or the path of a config.json",
    "layers": "of a layout given by bs=",
    "prefix_tokens": "of each prefix; up to whole extents",
    "common_tokens": "that all prefixes begin with",
    "extent_blocks": "most blocks in one file",
    "roots": "directories of the store, all on this disk",
    "pool": "memory of the store",
    "into": "pool: views; caller: memory of the caller; paged: the same by a shuffled block table;"
    " ordinary: memory that is not aligned, through the pool",
    "turns": "rw=rw: an agent's turns; each loads all so far and puts turn_tokens more",
    "turn_tokens": "that a turn adds",
    "write_rate": "rw=rw: percent of what the device writes, put and evicted beside the loads",
    "filesystem": "ext4 or xfs: on an image of its own (root), instead of the directory's",
    "full": "1: the store is full before the first put, so that each put evicts as much",
}


class JobError(ValueError):
    """A job file that cannot be meant; the message says where and why."""


@dataclass(frozen=True)
class Job:
    """One section. Fields are its words; sizes in bytes, seconds where it is a time."""

    name: str
    rw: str = "read"
    bs: int = 0
    size: int = 0
    iodepth: int = 64
    numjobs: int = 1
    loops: int = 0
    runtime: float = 0
    verify: int = 0
    ioengine: str = "auto"
    directory: str = "."
    layout: str = "DeepSeek-V3"
    layers: int = 61
    prefix_tokens: int = 0
    common_tokens: int = 0
    extent_blocks: int = 0
    roots: int = 1
    pool: int = 2**30
    into: str = "pool"
    turns: int = 0
    turn_tokens: int = 0
    write_rate: float = 0
    filesystem: str = ""
    full: int = 0

    def __post_init__(self) -> None:
        check(self)

    @property
    def rounds(self) -> int:
        return self.loops or (7 if self.rw in READS else 15)

    def options(self) -> dict[str, str]:
        """What differs from the defaults, as fio prints its "job options", and what readers of
        them always look for."""
        return {
            field.name: str(getattr(self, field.name))
            for field in dataclasses.fields(self)
            if field.name in ALWAYS or getattr(self, field.name) != field.default
        }

    def kv_layout(self) -> Layout:
        """JobError for a model that is not known, or is stored by no layout."""
        extent_blocks = self.extent_blocks or None
        if self.bs:
            parts = ((("cell", self.bs),),) * self.layers
            return Layout(parts_by_layer=parts, model="plain", extent_blocks=extent_blocks)
        try:
            return layout_of(self.layout, extent_blocks)
        except (KeyError, ValueError, OSError) as error:
            raise JobError(f"[{self.name}] layout={self.layout}: {error}") from error

    def blocks(self, layout: Layout) -> int:
        """Of one prefix: whole extents, at least one."""
        wanted = self.prefix_tokens // layout.block_tokens or self.size // layout.block_bytes
        extent = layout.blocks_per_extent
        return max(1, -(-wanted // extent)) * extent


def layout_of(model: str, extent_blocks: int | None = None) -> Layout:
    """Of a name of kvstore.models or a config.json. KeyError, ValueError, OSError."""
    if model in MODELS:
        config: Any = dict(MODELS[model])
        if "bytes_per_token" in config:
            raise ValueError("its cache is no chain of equal blocks")
        config.setdefault("model_type", "llama")  # of those with heads; others say more
    else:
        config = model
    return Layout.from_config(config, model=model, extent_blocks=extent_blocks)


def check(job: Job) -> None:
    words = {
        "rw": (*READS, "write", "rw"),
        "into": ("pool", "caller", "paged", "ordinary"),
        "filesystem": ("", "ext4", "xfs"),
        "verify": (0, 1),
        "full": (0, 1),
    }
    for word, allowed in words.items():
        if getattr(job, word) not in allowed:
            raise JobError(f"[{job.name}] {word}={getattr(job, word)}: one of {allowed}")
    if min(job.numjobs, job.iodepth, job.roots, job.layers) < 1:
        raise JobError(f"[{job.name}] numjobs, iodepth, roots and layers are at least 1")
    if job.rw == "rw" and bool(job.turns) == bool(job.write_rate):
        raise JobError(f"[{job.name}] rw=rw takes either turns= or write_rate=")
    if job.rw == "randread" and job.into != "pool":
        raise JobError(f"[{job.name}] rw=randread gets blocks in the pool: no into=")
    if job.turns and not job.turn_tokens:
        raise JobError(f"[{job.name}] turns= needs turn_tokens=")


def parse_number(text: str) -> int:
    """fio's integers: 4096, 4k, 4KiB, 128m, 30 %."""
    plain = text.strip().lower().removesuffix("b").removesuffix("i").rstrip("% ")
    digits = plain.rstrip("kmgt")
    if not digits.isdigit() or plain[len(digits) :] not in SUFFIXES:
        raise ValueError(f"{text!r} is no number like 4096, 4k or 1g")
    return int(digits) * SUFFIXES[plain[len(digits) :]]


def parse_value(word: str, text: str) -> Any:
    """Of a word's kind. ValueError."""
    kind = next(field.type for field in dataclasses.fields(Job) if field.name == word)
    if word == "ioengine":
        return ENGINES.get(text, text)
    if word == "verify":  # fio names methods; there is one here, and it is more than fio's
        return 0 if text in ("0", "none") else 1
    if kind is int:
        return parse_number(text)
    if kind is float:
        return float(text.strip().removesuffix("%").removesuffix("s"))
    return text.strip()


def values_of(section: str, given: Mapping[str, str | None]) -> dict[str, Any]:
    found = {}
    for word, text in given.items():
        if word not in WORDS:
            raise JobError(f"[{section}] {word}: not a word here; there are {', '.join(WORDS)}")
        try:
            found[word] = parse_value(word, "1" if text is None else text)
        except ValueError as error:
            raise JobError(f"[{section}] {word}: {error}") from error
    return found


def parse(text: str, overrides: Mapping[str, str] | None = None) -> list[Job]:
    """The jobs of a file's text, in order; overrides hold for all of them. JobError."""
    parser = configparser.ConfigParser(
        allow_no_value=True,
        delimiters=("=",),
        comment_prefixes=(";", "#"),
        interpolation=None,
        default_section="global",
    )
    try:
        parser.read_string(text)
    except configparser.Error as error:
        raise JobError(str(error)) from error
    if not parser.sections():
        raise JobError("no section besides [global]: there is no job")
    more = values_of("command line", overrides or {})
    return [
        Job(**{"name": name, **values_of(name, dict(parser[name])), **more})
        for name in parser.sections()
    ]


def smaller(job: Job, words: Mapping[str, str]) -> Job:
    """The job with these words where it has them at all, and no larger than it was."""
    fresh = {word: parse_value(word, text) for word, text in words.items()}
    kept = {word: value for word, value in fresh.items() if getattr(job, word) > value}
    return dataclasses.replace(job, **{"loops": fresh.get("loops", job.loops), **kept})


def read(paths: list[Path], overrides: Mapping[str, str] | None = None) -> Iterator[Job]:
    """The jobs of all files. JobError names the file."""
    for path in paths:
        try:
            yield from parse(path.read_text(), overrides)
        except (OSError, JobError) as error:
            raise JobError(f"{path}: {error}") from error


def words_help() -> str:
    return "\n".join(f"  {word:<14} {means}" for word, means in WORDS.items())
