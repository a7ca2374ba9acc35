"""Does a disk pay for this model? Time to load a prompt's cache against time to compute it. Pure
arithmetic, but for `measure_gbps`, which reads a disk.

    load = bytes of the prompt / bandwidth         prefill = tokens / prefill speed
    break-even bandwidth = bytes of the prompt / prefill

Assumes that the prompt is found whole and that nothing else has to be loaded. Layer streaming hides
part of the load behind what is computed, so these loads are upper bounds of what is waited for.
"""

import math
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from kvstore.footprint import Footprint
from kvstore.raw_io import raw_read_ceiling

PROMPT_TOKENS = 131_072
PREFILL_S = 13.0  # of that prompt without a cache: DeepSeek, news of 2024-08-02
PREFILL_TPS = PROMPT_TOKENS / PREFILL_S
TARGET_S = 0.5  # the same with a cache
GBPS = (7.0, 14.0, 28.0, 50.0)  # one drive, two, four, a 400 Gbps network card
BLOCK_TOKENS = 64
_MEASURE_BYTES = 1 << 30
_MEASURE_IO_BYTES = 1 << 20


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One model. load_s: seconds at each bandwidth asked for. pays: at each, is loading faster than
    computing. break_even_gbps: where both take as long. break_even_tps: an engine that prefills
    faster than so many tokens a second at the first bandwidth gains nothing. target_gbps: to load
    the prompt within the target."""

    model: str
    attention: str
    layers: int
    bytes_per_token: int
    state_bytes: int
    block_bytes: int
    prompt_bytes: int
    gbps: list[float]
    load_s: list[float]
    pays: list[bool]
    prefill_s: float
    break_even_gbps: float
    break_even_tps: float
    target_gbps: float


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """prompt_tokens and prefill_tps are what was asked; target_s the time to load within."""

    prompt_tokens: int
    prefill_tps: float
    target_s: float
    rows: list[Row]


def plan(
    footprints: Mapping[str, Footprint],
    *,
    gbps: Sequence[float] = GBPS,
    prompt_tokens: int = PROMPT_TOKENS,
    prefill_tps: float = PREFILL_TPS,
    target_s: float = TARGET_S,
    block_tokens: int = BLOCK_TOKENS,
) -> Plan:
    """The break-even table. gbps: 1e9 bytes a second. ValueError for what is not positive
    and finite."""
    rates = (prefill_tps, target_s, *gbps)
    if min(prompt_tokens, block_tokens) < 1 or not all(0 < rate < math.inf for rate in rates):
        raise ValueError(
            "prompt, block, prefill speed, target and bandwidths must be positive and finite"
        )
    prefill_s = prompt_tokens / prefill_tps
    rows = []
    for model, one in footprints.items():
        prompt_bytes = one.prompt_bytes(prompt_tokens)
        loads = [prompt_bytes / (speed * 1e9) for speed in gbps]
        rows.append(
            Row(
                model=model,
                attention=one.attention,
                layers=one.layers,
                bytes_per_token=one.bytes_per_token,
                state_bytes=one.state_bytes,
                block_bytes=one.bytes_per_token * block_tokens,
                prompt_bytes=prompt_bytes,
                gbps=list(gbps),
                load_s=loads,
                pays=[seconds < prefill_s for seconds in loads],
                prefill_s=prefill_s,
                break_even_gbps=prompt_bytes / prefill_s / 1e9,
                break_even_tps=prompt_tokens / loads[0],
                target_gbps=prompt_bytes / target_s / 1e9,
            )
        )
    return Plan(prompt_tokens=prompt_tokens, prefill_tps=prefill_tps, target_s=target_s, rows=rows)


def verdict(row: Row) -> str:
    """One sentence about the first bandwidth."""
    load, gbps = row.load_s[0], row.gbps[0]
    if not row.pays[0]:
        return (
            f"{row.model}: does not pay at {gbps:g} GB/s: loading takes {load:.2f} s, computing"
            f" {row.prefill_s:.2f} s; {row.break_even_gbps:.1f} GB/s would break even"
        )
    return (
        f"{row.model}: pays at {gbps:g} GB/s: loading takes {load:.2f} s instead of"
        f" {row.prefill_s:.2f} s ({row.prefill_s / load:.1f} times faster), as long as the engine"
        f" prefills fewer than {row.break_even_tps:,.0f} tokens a second"
    )


def measure_gbps(root: Path) -> float:
    """What reads of 1 MiB reach on the disk below `root`: writes 1 GiB there, reads it, removes it.

    Takes some seconds. OSError when it cannot be written or has no O_DIRECT.
    """
    with tempfile.NamedTemporaryFile(dir=root, prefix=".kvstore-plan-") as file:
        piece = bytes(range(256)) * (_MEASURE_IO_BYTES // 256)
        for _ in range(_MEASURE_BYTES // _MEASURE_IO_BYTES):
            file.write(piece)
        file.flush()
        return raw_read_ceiling([file.name], _MEASURE_IO_BYTES, depths=(8, 32))["gbps"]
