"""Traces as requests in order of time: formats are told apart by the fields of the first line.

    Mooncake        a request a line; timestamp in ms, hash_ids of 512 tokens
    the same with block_size (or block_tokens): tokens of a block
    Bailian         a request a line; chat_id, timestamp in s, hash_ids of 16 tokens
    Weka            a session a line (or a file of a directory); requests with t, in, out, and
                    runs b [first, count] or hash_ids
    token sessions  a session a line; t0_us, requests with t, keep, add, out

Requests of equal time keep the order of the file. Lines of a request each are streamed, and one
that is earlier than the line before is taken as of the same time and counted. Sessions overlap, so
all of them are read first and kept in their compact form.

Pure but for reading the file. A line that is not what its format says is a TraceError that names
it: nothing is guessed and nothing is skipped.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np

from kvstore.chain import KEY_BYTES, chain_of_tokens
from kvstore.replay.files import Line, Lines, TraceError
from kvstore.replay.request import ChainNumbers, Numbers, Request

_RUN_IDS_MAX = 2**28  # of a whole trace: an array of 2 GiB is indexed by them
_KNOWN = (
    "a trace is Mooncake JSONL (timestamp, input_length, hash_ids), Bailian JSONL (the same with"
    " chat_id), Weka sessions (id, block_size, requests) or token sessions (t0_us, requests with"
    " keep and add)"
)
T = TypeVar("T")


@dataclass(kw_only=True)
class Options:
    """How a trace is read. block_tokens: of token sessions, or of hash ids that do not say; None:
    the format's own. stagger_s: Weka sessions start that far apart. only_set: of token sessions."""

    block_tokens: int | None = None
    stagger_s: float = 0.0
    only_set: str | None = None


@dataclass
class Trace:
    """Iterate once."""

    path: Path
    options: Options = field(default_factory=Options)
    format: str = ""
    out_of_order: int = 0
    _fraction: float = 0.0

    def __post_init__(self) -> None:
        self._lines = Lines(self.path)

    @property
    def fraction(self) -> float:
        """How much of it was given out, about."""
        return self._fraction if self.format in ("weka", "tokens") else self._lines.fraction

    def __iter__(self) -> Iterator[Request]:
        lines = iter(self._lines)
        first = next(lines, None)
        if first is None:
            raise TraceError(f"{self.path} is empty; {_KNOWN}")
        self.format = format_of(first)
        self._check_options()
        every = chain([first], lines)
        if self.format == "weka":
            return self._in_order(_weka(every, self.options))
        if self.format == "tokens":
            return self._in_order(_tokens(every, self.options))
        return self._streamed(_rows(every, self.format, self.options))

    def _check_options(self) -> None:
        """TraceError for what this format has no use for: it would be ignored."""
        for word, given, format in (
            ("--stagger", self.options.stagger_s > 0, "weka"),
            ("--set", self.options.only_set is not None, "tokens"),
        ):
            if given and self.format != format:
                raise TraceError(
                    f"{self.path}: {word} is of {format} sessions, this is {self.format}; leave it"
                    " out"
                )

    def _streamed(self, rows: Iterator[Request]) -> Iterator[Request]:
        latest = -np.inf
        for row in rows:
            if row.at_s < latest:
                self.out_of_order += 1
                row = Request(
                    latest, row.input_tokens, row.output_tokens, row.block_tokens, row.kind,
                    row.blocks,
                )  # fmt: skip
            latest = row.at_s
            yield row

    def _in_order(self, sessions: "Sessions") -> Iterator[Request]:
        order = np.argsort(np.array(sessions.times), kind="stable")
        for done, which in enumerate(order):
            self._fraction = done / len(order)
            yield sessions.request(int(which))


class Sessions:
    """Requests of all sessions, in file order, made when their time comes."""

    times: list[float]

    def request(self, number: int) -> Request:
        raise NotImplementedError


def format_of(line: Line) -> str:
    """ "mooncake", "bailian", "weka" or "tokens"."""
    try:
        fields = msgspec.json.decode(line.text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise line.error(f"not JSON ({error}); {_KNOWN}") from None
    if not isinstance(fields, dict):
        raise line.error(f"not a JSON object; {_KNOWN}")
    if isinstance(fields.get("requests"), list):
        if "t0_us" in fields:
            return "tokens"
        if "block_size" in fields:
            return "weka"
    elif isinstance(fields.get("hash_ids"), list):
        return "bailian" if "chat_id" in fields else "mooncake"
    raise line.error(f"fields {sorted(fields)} are of no format known here; {_KNOWN}")


def _decoded(decoder: "msgspec.json.Decoder[T]", line: Line, what: str) -> T:
    try:
        return decoder.decode(line.text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise line.error(f"not {what}: {error}") from None


def _need(condition: bool, line: Line, message: str) -> None:
    if not condition:
        raise line.error(message)


# ---- a request a line ----------------------------------------------------------------------------


class _Row(msgspec.Struct):
    hash_ids: list[int | str]
    input_length: int
    output_length: int = 0
    timestamp: float = 0.0
    block_size: int | None = None
    block_tokens: int | None = None


_ROW = msgspec.json.Decoder(_Row)


def _rows(lines: Iterator[Line], format: str, options: Options) -> Iterator[Request]:
    numbers = ChainNumbers()
    usual, per_second = (16, 1.0) if format == "bailian" else (512, 1000.0)
    for line in lines:
        row = _decoded(_ROW, line, f"a request of a {format} trace")
        named = row.block_tokens or row.block_size
        block = named or options.block_tokens or usual
        _check_block(line, named, options)
        room = -(-row.input_length // block)
        _need(row.input_length >= 0 and row.output_length >= 0, line, "a length is negative")
        _need(
            len(row.hash_ids) <= room,
            line,
            f"{len(row.hash_ids)} hash_ids, but input_length {row.input_length} is {room} blocks of"
            f" {block} tokens; --block-tokens names another size",
        )
        yield Request(
            row.timestamp / per_second, row.input_length, row.output_length, block, "chat",
            numbers.of(row.hash_ids),
        )  # fmt: skip


def _check_block(line: Line, named: int | None, options: Options) -> None:
    _need(named is None or named > 0, line, f"a block of {named} tokens")
    _need(
        not named or options.block_tokens in (None, named),
        line,
        f"hash ids of {named} tokens cannot be cut into blocks of {options.block_tokens};"
        " leave --block-tokens out",
    )


# ---- Weka ----------------------------------------------------------------------------------------


class _WekaRequest(msgspec.Struct):
    """A request, or what holds the requests of a helper of the session's agent."""

    t: float = 0.0
    input: int = msgspec.field(name="in", default=0)
    output: int = msgspec.field(name="out", default=0)
    runs: list[tuple[int, int]] = msgspec.field(name="b", default_factory=list)
    hash_ids: list[int | str] = []
    requests: "list[_WekaRequest]" = []


class _WekaSession(msgspec.Struct):
    block_size: int
    requests: list[_WekaRequest]
    hash_id_scope: str = "local"


_WEKA = msgspec.json.Decoder(_WekaSession)


class _WekaSessions(Sessions):
    def __init__(self) -> None:
        self.times = []
        self.lengths: list[tuple[int, int, int]] = []
        self.blocks: list[Numbers | list[tuple[int, int]]] = []  # numbers, or runs of them

    def request(self, number: int) -> Request:
        blocks = self.blocks[number]
        if isinstance(blocks, list):
            runs = [np.arange(first, first + count) for first, count in blocks]
            blocks = np.concatenate(runs) if runs else np.zeros(0, dtype=np.int64)
        return Request(self.times[number], *self.lengths[number], "agent", blocks)


def _weka(lines: Iterator[Line], options: Options) -> _WekaSessions:
    """Ids in runs are numbers already, from 1 or so in each session: they are moved apart. Lists of
    ids go through a table; its numbers come after those of all runs."""
    sessions, numbers = _WekaSessions(), ChainNumbers()
    listed: list[int] = []
    base = 0
    for index, line in enumerate(lines):
        session = _decoded(_WEKA, line, "a Weka session")
        _need(session.block_size > 0, line, f"block_size is {session.block_size}")
        _check_block(line, session.block_size, options)
        scope = -1 if session.hash_id_scope == "global" else -2 - index
        start, top = (base if scope != -1 else 0), 0
        for request in _flat(session.requests):
            _check_weka(line, session, request)
            if request.hash_ids:
                listed.append(len(sessions.times))
                sessions.blocks.append(numbers.of(request.hash_ids, scope))
            else:
                top = max([top, *(first + count for first, count in request.runs)])
                moved = [(first + start, count) for first, count in request.runs]
                sessions.blocks.append(moved)
            sessions.times.append(request.t + index * options.stagger_s)
            sessions.lengths.append((request.input, request.output, session.block_size))
        _need(
            start + top < _RUN_IDS_MAX,
            line,
            f"ids in runs count from 0 or 1 in a session, to {_RUN_IDS_MAX - 1:,} in all",
        )
        base = max(base, start + top)
    for number in listed:
        sessions.blocks[number] = np.asarray(sessions.blocks[number]) + base
    return sessions


def _flat(requests: list[_WekaRequest]) -> Iterator[_WekaRequest]:
    """Nested requests inlined; their times are taken as of the session, too."""
    for request in requests:
        if request.requests:
            yield from _flat(request.requests)
        else:
            yield request


def _check_weka(line: Line, session: _WekaSession, request: _WekaRequest) -> None:
    _need(not (request.runs and request.hash_ids), line, "a request has both b and hash_ids")
    _need(request.input >= 0 and request.output >= 0, line, "a length is negative")
    _need(
        all(first >= 0 and count > 0 for first, count in request.runs),
        line,
        "a run of ids is [first, count] with first >= 0 and count > 0",
    )
    blocks = len(request.hash_ids) + sum(count for _, count in request.runs)
    room = -(-request.input // session.block_size)
    _need(
        blocks <= room,
        line,
        f"a request of {request.input} tokens with {blocks} blocks of {session.block_size}",
    )


# ---- token sessions ------------------------------------------------------------------------------


class _TokenRequest(msgspec.Struct):
    t: float
    keep: int
    add: list[int]
    out: list[int] | int = 0


class _TokenSession(msgspec.Struct):
    t0_us: int
    requests: list[_TokenRequest]
    set: str = ""


_TOKENS = msgspec.json.Decoder(_TokenSession)


class _TokenSessions(Sessions):
    """Prompts are made from what each request kept of the one before; keys by the real chain."""

    def __init__(self, block_tokens: int) -> None:
        self.times = []
        self._block_tokens = block_tokens
        self._requests: list[tuple[int, int, Any, int]] = []  # session, keep, add, out
        self._prompts: dict[int, Any] = {}
        self._numbers: dict[bytes, int] = {}

    def add(self, session: int, at_s: float, request: _TokenRequest) -> None:
        out = request.out if isinstance(request.out, int) else len(request.out)
        added = np.array(request.add, dtype=np.int32)
        self.times.append(at_s)
        self._requests.append((session, request.keep, added, out))

    def request(self, number: int) -> Request:
        session, keep, added, out = self._requests[number]
        before = self._prompts.get(session, added[:0])
        prompt = self._prompts[session] = np.concatenate([before[:keep], added])
        keys = chain_of_tokens(prompt, block_tokens=self._block_tokens).keys
        known = self._numbers
        blocks = [
            known.setdefault(keys[at : at + KEY_BYTES], len(known))
            for at in range(0, len(keys), KEY_BYTES)
        ]
        return Request(
            self.times[number], len(prompt), out, self._block_tokens, "agent",
            np.array(blocks, dtype=np.int64), keys,
        )  # fmt: skip


def _tokens(lines: Iterator[Line], options: Options) -> _TokenSessions:
    sessions = _TokenSessions(options.block_tokens or 64)
    sets = set()
    for index, line in enumerate(lines):
        session = _decoded(_TOKENS, line, "a session of tokens")
        sets.add(session.set)
        if options.only_set not in (None, session.set):
            continue
        length, latest = 0, -np.inf
        for number, request in enumerate(session.requests):
            where = f"request {number} of the session"
            _need(0 <= request.keep <= length, line, f"{where} keeps {request.keep} of {length}")
            _need(request.t >= latest, line, f"{where} is earlier than the one before it")
            _need(
                all(0 <= token < 2**31 for token in request.add), line, f"{where}: a token id is"
                " negative or above 2**31 - 1",
            )  # fmt: skip
            length, latest = request.keep + len(request.add), request.t
            sessions.add(index, session.t0_us / 1e6 + request.t, request)
    if not sessions.times:
        if options.only_set is None:
            raise TraceError("no requests: its sessions are empty")
        raise TraceError(f"no session of the set {options.only_set!r}; there are {sorted(sets)}")
    return sessions
