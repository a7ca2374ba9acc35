"""What a replay found, as plain data: `--json` prints it as it is."""

import msgspec

from kvstore.replay.real import RealStats


class ClassResult(msgspec.Struct, frozen=True, kw_only=True):
    """One retention class. evicted_idle_s: how long blocks had not been used when they were
    evicted, on the scaled clock: what the capacity made of the time to live. kept_for_ttl: the most
    different blocks used within ttl_s: the capacity that would honour it. whole_trace: the trace is
    shorter than that, so it may take more."""

    ttl_s: int
    requests: int
    hit_tokens: int
    missed_tokens: int
    hit_rate_tokens: float
    evicted_before_ttl_extents: int
    evicted_idle_s: dict[str, float]
    kept_for_ttl_blocks: int
    kept_for_ttl_bytes: int
    whole_trace: bool


class Beside(msgspec.Struct, frozen=True, kw_only=True):
    """The same requests under another rule, for comparison."""

    hit_tokens: int
    hit_rate_tokens: float
    blocks_stored: int
    bytes_written: int


class Money(msgspec.Struct, frozen=True, kw_only=True):
    """Input tokens at the given prices per million, with hits and if all had missed."""

    with_hits: float
    without: float
    saved: float


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """An LRU of one-block extents without times to live, by stack distance."""

    capacity_blocks: int
    share_of_unique: float
    hit_rate_tokens: float


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens are input tokens. *_s: seconds of the trace's clock unless said otherwise. Bytes are
    of cells. None: not asked for, or (evicted_blocks, expired_blocks) not known of a real store."""

    trace: str
    format: str
    io: str
    admission: str
    write_budget_bytes: int | None
    speed: float
    requests: int
    out_of_order: int
    duration_s: float
    input_tokens: int
    output_tokens: int
    block_tokens: int
    block_bytes: int
    layout: str
    extent_blocks: int
    capacity_blocks: int | None
    capacity_bytes: int | None
    block_refs: int
    unique_blocks: int
    hit_tokens: int
    missed_tokens: int
    hit_rate_tokens: float
    ideal_hit_rate_tokens: float
    hit_tokens_by_tier: dict[str, int]
    classes: dict[str, ClassResult]
    missed_blocks_by_reason: dict[str, int]
    blocks_stored: int
    blocks_without_room: int
    blocks_refused: dict[str, int]
    evicted_extents: int
    expired_extents: int
    evicted_blocks: int | None
    expired_blocks: int | None
    bytes_written: int
    bytes_read: int
    reuse_gap_s: dict[str, float]
    reuse_gap_share: dict[str, float]
    one_block_extents: Beside | None
    always_admitted: Beside | None
    money: Money | None
    curve: list[Point] | None
    real: RealStats | None
    wall_s: float
