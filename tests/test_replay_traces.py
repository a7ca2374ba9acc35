"""Every format, read as it is meant; what is not of the format is named with its line."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvstore.chain import chain_of_tokens
from kvstore.replay.files import TraceError
from kvstore.replay.request import ChainNumbers, Request, keys_of_numbers
from kvstore.replay.traces import Options, Trace
from tests.support.traces import (
    bailian_rows,
    mooncake_rows,
    token_sessions,
    weka_sessions,
    write_lines,
)


def read(path: Path, **options: Any) -> list[Request]:
    return list(Trace(path, Options(**options)))


def told(requests: list[Request]) -> list[tuple[Any, ...]]:
    return [(r.at_s, r.input_tokens, r.block_tokens, r.kind, r.blocks.tolist()) for r in requests]


# ---- formats -------------------------------------------------------------------------------------


def test_mooncake(tmp_path: Path) -> None:
    rows = [
        {"timestamp": 0, "input_length": 600, "output_length": 3, "hash_ids": [5, 9]},
        {"timestamp": 1500, "input_length": 1024, "output_length": 4, "hash_ids": [5, 7]},
    ]
    trace = Trace(write_lines(tmp_path / "t.jsonl", rows))
    first, second = trace
    assert trace.format == "mooncake"
    assert told([first, second]) == [
        (0.0, 600, 512, "chat", [0, 1]),
        (1.5, 1024, 512, "chat", [0, 2]),
    ]
    assert (first.tokens_of(1), first.tokens_of(2)) == (512, 600), "the last block is partial"
    assert second.output_tokens == 4


@pytest.mark.parametrize("field", ["block_size", "block_tokens"])
def test_mooncake_with_its_own_block_size(field: str, tmp_path: Path) -> None:
    rows = [{"input_length": 96, "hash_ids": ["a", "b", "c"], field: 32}]
    (request,) = read(write_lines(tmp_path / "t.jsonl", rows))
    assert (request.block_tokens, request.at_s, len(request.blocks)) == (32, 0.0, 3)


def test_block_tokens_say_what_a_trace_does_not(tmp_path: Path) -> None:
    rows = [{"timestamp": 0, "input_length": 64, "hash_ids": [1, 2]}]
    (request,) = read(write_lines(tmp_path / "t.jsonl", rows), block_tokens=32)
    assert request.block_tokens == 32


def test_the_same_hash_id_after_another_parent_is_another_block(tmp_path: Path) -> None:
    rows = [{"timestamp": 0, "input_length": 1024, "hash_ids": [first, 7]} for first in (1, 2)]
    one, other = read(write_lines(tmp_path / "t.jsonl", rows))
    assert one.blocks[1] != other.blocks[1]


def test_bailian(tmp_path: Path) -> None:
    trace = Trace(write_lines(tmp_path / "t.jsonl", bailian_rows(3)))
    requests = list(trace)
    assert trace.format == "bailian"
    assert [(r.at_s, r.block_tokens, r.kind) for r in requests] == [
        (0.0, 16, "chat"),
        (0.5, 16, "chat"),
        (1.0, 16, "chat"),
    ]


def test_weka_sessions_start_together_or_one_after_the_other(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "t.jsonl", weka_sessions(3, 2))
    together = read(path)
    assert [r.at_s for r in together] == [0, 0, 0, 10, 10, 10]
    assert [len(r.blocks) for r in together] == [20, 21, 22, 23, 24, 25], "ties: file order"
    assert [r.at_s for r in read(path, stagger_s=7)] == [0, 7, 10, 14, 17, 24]
    assert {r.kind for r in together} == {"agent"}
    heads = {int(r.blocks[0]) for r in together}
    assert len(heads) == 3, "ids are of their session alone"
    assert all(np.array_equal(a.blocks, b.blocks[:20]) for a, b in [(together[0], together[3])])


def test_weka_as_published_lists_of_ids_and_nested_requests(tmp_path: Path) -> None:
    nested = {"t": 3.0, "type": "n", "in": 130, "out": 1, "hash_ids": [1, 9]}
    session = {
        "id": "a", "models": ["m"], "block_size": 64, "hash_id_scope": "local",
        "requests": [
            {"t": 0.0, "type": "n", "in": 128, "out": 1, "hash_ids": [1, 2]},
            {"t": 2.0, "requests": [nested]},
        ],
    }  # fmt: skip
    folder = tmp_path / "traces"
    folder.mkdir()
    for name in ("trace_1.json", "trace_2.json"):
        (folder / name).write_text(json.dumps(session))
    requests = read(folder)
    assert [(r.at_s, len(r.blocks)) for r in requests] == [(0, 2), (0, 2), (3, 2), (3, 2)]
    assert requests[0].blocks[0] == requests[2].blocks[0] != requests[1].blocks[0]
    for name in ("trace_1.json", "trace_2.json"):
        (folder / name).write_text(json.dumps(session | {"hash_id_scope": "global"}))
    shared = read(folder)
    assert shared[0].blocks.tolist() == shared[1].blocks.tolist()


def test_runs_and_lists_in_one_file_never_share_a_number(tmp_path: Path) -> None:
    listed = {"block_size": 64, "requests": [{"t": 0, "in": 128, "hash_ids": [1, 2]}]}
    runs = {"block_size": 64, "requests": [{"t": 0, "in": 128, "b": [[1, 2]]}]}
    first, second, third = read(write_lines(tmp_path / "t.jsonl", [listed, runs, listed]))
    numbers = [*first.blocks, *second.blocks, *third.blocks]
    assert len(set(map(int, numbers))) == 6


def test_token_sessions_go_through_the_real_chain(tmp_path: Path) -> None:
    sessions = token_sessions()
    path = write_lines(tmp_path / "t.jsonl", sessions)
    requests = read(path, block_tokens=16)
    assert len(requests) == 24
    assert [r.at_s for r in requests] == sorted(r.at_s for r in requests)
    prompt: list[int] = []
    mine = [r for r in requests if r.at_s % 1 < 0.5e-6]  # session 0
    for request, wanted in zip(mine, sessions[0]["requests"], strict=True):
        prompt = prompt[: wanted["keep"]] + wanted["add"]
        assert request.input_tokens == len(prompt)
        assert request.keys == chain_of_tokens(prompt, block_tokens=16).keys
        assert request.output_tokens == 2
    first = [r for r in requests if r.input_tokens == 200]
    assert len({int(r.blocks[11]) for r in first}) == 1, "equal prompts are equal blocks"
    assert len(read(path, only_set="odd")) == 12
    assert {r.block_tokens for r in read(path)} == {64}


# ---- packing -------------------------------------------------------------------------------------


def test_gzip_and_zstd_read_like_the_plain_file(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    plain = write_lines(tmp_path / "t.jsonl", mooncake_rows())
    data = plain.read_bytes()
    wanted = told(read(plain))
    half = data.index(b"\n", len(data) // 2)  # members meet within a line
    packed = {
        "t.gz": gzip.compress(data),
        "two.gz": gzip.compress(data[:half]) + gzip.compress(data[half:]),
        "t.zst": zstandard.compress(data),
        "two.zst": zstandard.compress(data[:half]) + zstandard.compress(data[half:]),
    }
    for name, bytes_ in packed.items():
        path = tmp_path / name
        path.write_bytes(bytes_)
        assert told(read(path)) == wanted, name


@pytest.mark.parametrize("kind", ["gzip", "zstd"])
def test_a_file_that_was_cut_off_is_an_error_not_a_shorter_trace(kind: str, tmp_path: Path) -> None:
    data = "".join(json.dumps(row) + "\n" for row in mooncake_rows(2000)).encode()
    pack = gzip.compress if kind == "gzip" else pytest.importorskip("zstandard").compress
    packed = pack(data)
    path = tmp_path / "t"
    path.write_bytes(packed[: len(packed) * 3 // 4])
    with pytest.raises(TraceError, match=f"{path} ends in the middle of its {kind} data"):
        read(path)


def test_damaged_gzip_is_named(tmp_path: Path) -> None:
    data = bytearray(gzip.compress(json.dumps(mooncake_rows(1)[0]).encode() * 99))
    data[len(data) // 2] ^= 0xFF
    path = tmp_path / "t.gz"
    path.write_bytes(data)
    with pytest.raises(TraceError, match=str(path)):
        read(path)


def test_a_line_may_be_longer_than_what_is_read_at_once(tmp_path: Path) -> None:
    row = {"timestamp": 0, "input_length": 512 * 200_000, "hash_ids": list(range(200_000))}
    path = write_lines(tmp_path / "t.jsonl", [row, row])
    assert path.stat().st_size > 2 << 20
    assert [len(r.blocks) for r in read(path)] == [200_000, 200_000]


# ---- order ---------------------------------------------------------------------------------------


def test_ties_keep_file_order_and_earlier_lines_are_counted(tmp_path: Path) -> None:
    rows = [
        {"timestamp": at, "input_length": length, "hash_ids": []}
        for at, length in [(5, 1), (5, 2), (9, 3), (7, 4), (9, 5)]
    ]
    trace = Trace(write_lines(tmp_path / "t.jsonl", rows))
    requests = list(trace)
    assert [r.input_tokens for r in requests] == [1, 2, 3, 4, 5]
    assert [r.at_s for r in requests] == [0.005, 0.005, 0.009, 0.009, 0.009]
    assert trace.out_of_order == 1


def test_a_trace_is_streamed(tmp_path: Path) -> None:
    """A bad line far behind does not keep the first requests from coming."""
    path = write_lines(tmp_path / "t.jsonl", mooncake_rows(6000))
    with path.open("a") as file:
        file.write("{bad\n")
    trace = Trace(path)
    requests = iter(trace)
    next(requests)
    assert trace.fraction < 0.5
    with pytest.raises(TraceError, match=f"{path}:6001: "):
        list(requests)


# ---- what is wrong -------------------------------------------------------------------------------

GOOD = json.dumps({"timestamp": 0, "input_length": 1000, "hash_ids": [1, 2]})
TOKENS = json.dumps({"t0_us": 0, "requests": [{"t": 0, "keep": 0, "add": [1]}]})


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ('{"timestamp": 1', "truncated"),
        ('{"timestamp": 1, "input_length": 1000}', "hash_ids"),
        ('{"timestamp": 1, "input_length": "x", "hash_ids": []}', r"\$\.input_length"),
        ('{"timestamp": 1, "input_length": 9, "hash_ids": [1, [2]]}', r"\$\.hash_ids\[1\]"),
        ('{"timestamp": 1, "input_length": -9, "hash_ids": []}', "negative"),
        ('{"timestamp": 1, "input_length": 9, "hash_ids": [1, 2]}', "--block-tokens"),
        ('{"timestamp": 1, "input_length": 9, "hash_ids": [], "block_size": 0}|16', "leave"),
    ],
)
def test_a_bad_line_is_named_with_what_was_expected(
    second: str, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "t.jsonl"
    text, _, block_tokens = second.partition("|")
    if block_tokens:
        text = text.replace('"block_size": 0', '"block_size": 32')
    path.write_text(f"{GOOD}\n\n{text}\n")
    options = {"block_tokens": 512} if block_tokens else {}
    with pytest.raises(TraceError, match=f"{path}:3: .*{message}"):
        read(path, **options)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty; a trace is Mooncake"),
        ("nonsense\n", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[1]\n", "not a JSON object"),
        ('{"prompt": "hello"}\n', r"fields \['prompt'\] are of no format known here"),
        ('{"hash_ids": {"sys_prompt": [1]}, "timestamp": 0}\n', "of no format"),
        ('{"block_size": 64, "requests": [{"in": 64, "b": [[1, 2]]}]}\n', "2 blocks of 64"),
        ('{"block_size": 64, "requests": [{"in": 64, "b": [[1, 0]]}]}\n', "a run of ids"),
        ('{"block_size": 64, "requests": [{"in": 9, "b": [[1]]}]}\n', r"\$\.requests\[0\]\.b"),
        ('{"block_size": 64, "requests": [{"in": 64, "b": [[2000000000, 1]]}]}\n', "in all"),
        ('{"block_size": 0, "requests": []}\n', "block_size is 0"),
        (TOKENS.replace('"keep": 0', '"keep": 3'), "keeps 3 of 0"),
        (TOKENS.replace("[1]", "[-1]"), "token id"),
        (TOKENS, "no session of the set 'other'"),
    ],
)
def test_what_is_no_trace_says_so(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(text)
    with pytest.raises(TraceError, match=message):
        read(path, only_set="other" if text == TOKENS else None)


def test_an_empty_directory_and_a_missing_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no .json"):
        read(tmp_path)
    with pytest.raises(FileNotFoundError, match="missing"):
        read(tmp_path / "missing")


# ---- numbers and keys ----------------------------------------------------------------------------


def test_keys_of_numbers_are_all_different_and_spread() -> None:
    numbers = np.arange(100_000)
    keys = np.frombuffer(keys_of_numbers(numbers), dtype=np.uint64).reshape(-1, 4)
    for column in range(4):
        assert len(np.unique(keys[:, column])) == len(numbers)
    tags = keys[:, 0]
    for shift in (0, 20, 40, 56):
        counts = np.bincount(((tags >> np.uint64(shift)) & np.uint64(255)).astype(np.int64))
        assert counts.min() > 250, "each of 256 values some 390 times"


def test_scopes_keep_chains_apart() -> None:
    numbers = ChainNumbers()
    everyone, mine, theirs = numbers.of([1, 2]), numbers.of([1, 2], -2), numbers.of([1, 2], -3)
    assert len({*everyone.tolist(), *mine.tolist(), *theirs.tolist()}) == 6
    assert numbers.of([1, 2], -2).tolist() == mine.tolist()
