"""Small made-up traces of every format, a plain model of the cache, and the large traces if any.

The model is the definition of what a replay should find, written for clarity and for small traces:
longest resident prefix, then every block of the chain used, tail first, root last.
"""

import json
import random
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from kvstore.layout import Layout
from kvstore.replay.request import Request
from kvstore.replay.run import Plan, replay
from kvstore.replay.traces import Options, Trace

HERE = Path(__file__).parents[2]
LONG = {"agent": 10**8, "chat": 10**8}
# Two parts, a layer without any, and cells of 64 KiB: 512 KiB a block.
SMALL = Layout(
    parts_by_layer=((("k", 40_000), ("v", 25_536)), (), (("k", 65_536),)) * 4,
    model="replay",
    block_tokens=64,
    extent_blocks=1,
)


def shared_traces() -> Path | None:
    """`shared/traces` beside the checkout, or beside a directory that it lies in."""
    for parent in HERE.parents:
        if (parent / "shared" / "traces" / "right_values.json").is_file():
            return parent / "shared" / "traces"
    return None


def need_shared(name: str) -> Path:
    """A large trace; skips where they are not."""
    folder = shared_traces()
    if folder is None or not (folder / name).is_file():
        pytest.skip(f"no traces beside the checkout (shared/traces/{name}): not compared with it")
    return folder / name


# ---- made-up traces ------------------------------------------------------------------------------


def write_lines(path: Path, rows: Iterable[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def mooncake_rows(count: int = 200, seed: int = 1, **more: Any) -> list[dict[str, Any]]:
    """Conversations that grow and branch; several requests share each timestamp."""
    rng = random.Random(seed)
    chains: list[list[int]] = [[0, 1]]
    rows, fresh = [], 2
    for number in range(count):
        chain = list(rng.choice(chains[-12:]))
        chain = chain[: rng.randint(1, len(chain))]
        for _ in range(rng.randint(0, 5)):
            chain.append(fresh)
            fresh += 1
        chains.append(chain)
        partial = rng.randint(1, 512)
        rows.append(
            {
                "timestamp": number // 4 * 3000,
                "input_length": 512 * (len(chain) - 1) + partial,
                "output_length": rng.randint(1, 50),
                "hash_ids": chain,
            }
            | more
        )
    return rows


def bailian_rows(count: int = 60) -> list[dict[str, Any]]:
    return [
        {
            "chat_id": number,
            "parent_chat_id": -1,
            "timestamp": number * 0.5,
            "input_length": 16 * len(row["hash_ids"]),
            "output_length": row["output_length"],
            "type": "text",
            "turn": 1,
            "hash_ids": row["hash_ids"],
        }
        for number, row in enumerate(mooncake_rows(count))
    ]


def weka_sessions(sessions: int = 6, turns: int = 8) -> list[dict[str, Any]]:
    """Each turn goes on where the last ended; a fourth of them forget their tail first."""
    found = []
    for number in range(sessions):
        requests, runs, fresh = [], [[1, 20 + number]], 21 + number
        for turn in range(turns):
            blocks = sum(count for _, count in runs)
            requests.append({"t": 10.0 * turn, "in": 64 * blocks + 7, "out": 5, "b": list(runs)})
            if turn % 4 == 3:
                runs = [[1, 10], [fresh, 4]]
            else:
                runs = [*runs, [fresh, 3]]
            fresh += 4
        found.append({"id": f"s{number}", "block_size": 64, "requests": requests})
    return found


def token_sessions(sessions: int = 4, turns: int = 6) -> list[dict[str, Any]]:
    found = []
    for number in range(sessions):
        rng = random.Random(number)
        requests, length = [], 0
        for turn in range(turns):
            keep = max(0, length - 10)
            add = [7] * 200 if turn == 0 else [rng.randrange(100_000) for _ in range(150)]
            requests.append({"t": 2.0 * turn, "keep": keep, "add": add, "out": [1, 2]})
            length = keep + len(add)
        found.append(
            {"set": "even" if number % 2 == 0 else "odd", "id": str(number),
             "t0_us": 1_700_000_000_000_000 + number, "requests": requests}
        )  # fmt: skip
    return found


# ---- the model -----------------------------------------------------------------------------------


def lru_hits(requests: Sequence[Request], capacity: int) -> int:
    """Input tokens that hit."""
    kept: OrderedDict[int, None] = OrderedDict()
    hit = 0
    for request in requests:
        blocks = request.blocks.tolist()
        lead = 0
        while lead < len(blocks) and blocks[lead] in kept:
            lead += 1
        hit += request.tokens_of(lead)
        for block in reversed(blocks):
            kept[block] = None
            kept.move_to_end(block)
        while len(kept) > capacity:
            kept.popitem(last=False)
    return hit


def ttl_hits(requests: Sequence[Request], ttl_s: float, *, sliding: bool) -> int:
    """Input tokens that hit with endless room, when a block lives `ttl_s` from its last use, or
    (not sliding) from its last write; a use exactly at the end is in time."""
    counted_from: dict[int, float] = {}
    hit = 0
    for request in requests:
        blocks = request.blocks.tolist()
        alive = [request.at_s - counted_from.get(block, -1e18) <= ttl_s for block in blocks]
        lead = alive.index(False) if False in alive else len(alive)
        hit += request.tokens_of(lead)
        for block, lives in zip(blocks, alive, strict=True):
            if sliding or not lives:
                counted_from[block] = request.at_s
    return hit


def hits_of(path: Path, plan: Plan, **options: Any) -> int:
    return replay(Trace(path, Options(**options)), plan).hit_tokens
