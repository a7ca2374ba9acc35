"""Every figure of the demo, as typed records. They travel from the phases to the parent as JSON,
and all together they are demo.json. Sizes are bytes, times seconds, rates 10^9 bytes per second.
"""

import statistics

import msgspec


class LayerSpan(msgspec.Struct, frozen=True, kw_only=True):
    """When one layer was loaded and computed, from the start of its prefill. 0..0: not loaded."""

    layer: int
    load_start: float
    load_end: float
    compute_start: float
    compute_end: float


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """Two results' logits compared. `bitwise`: the same bytes, not only the same numbers."""

    bitwise: bool
    max_abs: float
    same_argmax: bool


class Prefill(msgspec.Struct, frozen=True, kw_only=True):
    """One prefill. `used_tokens` is the hit after rounding: what was really taken from the store.

    A block that turns out damaged while loading restarts the prefill with a shorter prefix.
    `acknowledged_s` is when every put was committed and flushed, counted from the start as well.
    `against_cold` compares the logits with those of the cold prefill of the same mode, if asked.
    """

    exact: bool
    prompt_tokens: int
    hit_tokens: int
    used_tokens: int
    computed_by_layer: list[int]
    restarts: int
    ttft_s: float
    store_wait_s: float
    acknowledged_s: float
    bytes_read: int
    blocks_put: int
    bytes_written: int
    quarantined: int
    direct: bool
    logits_sha256: str
    against_cold: Difference | None
    timeline: list[LayerSpan]

    @property
    def computed_tokens(self) -> int:
        """Tokens that went through every layer once; restarts add to the earlier layers only."""
        return self.computed_by_layer[-1]


class LoadRound(msgspec.Struct, frozen=True, kw_only=True):
    """One cold load, and the device's ceiling measured next to it."""

    gbps: float
    ceiling_gbps: float
    ceiling_depth: int
    ceiling_engine: str
    blocks: int
    ram_bytes: int

    @property
    def share(self) -> float:
        """The load's part of the ceiling of that moment; above 1 means a noisy disk."""
        return self.gbps / self.ceiling_gbps


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """The load without compute, several times. `io_bytes` is the size of the ceiling's reads,
    `store` what the store says of itself (engine, pool, roots).
    """

    bytes: int
    io_bytes: int
    page_cache_bytes: int
    store: dict[str, object]
    rounds: list[LoadRound]

    def median_gbps(self) -> float:
        """Median over the rounds."""
        return statistics.median(r.gbps for r in self.rounds)

    def median_share(self) -> float:
        """Median of the rounds' shares, which is not the share of the medians."""
        return statistics.median(r.share for r in self.rounds)


class Lookup(msgspec.Struct, frozen=True, kw_only=True):
    """One match in the store, nothing loaded."""

    blocks: int
    reason: str


class Damage(msgspec.Struct, frozen=True, kw_only=True):
    """Where one bit was flipped. `block` is absolute; its extent starts at `extent_block`."""

    file: str
    offset: int
    bit: int
    layer: int
    block: int
    extent_block: int


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """The demo's model: its layers, and the bytes that a token takes in the store over all."""

    compute_threads: int
    layers: int
    token_bytes: int
    block_tokens: int


class Demo(msgspec.Struct, frozen=True, kw_only=True):
    """All figures of one run. `changed_token_block` is the block of the edit in the middle."""

    session: str
    file_system: str
    cpus: int
    model: Model
    cold_exit_code: int
    cold: Prefill
    warm: Prefill
    cold_default: Prefill
    warm_default: Prefill
    load: Load
    changed_at_start: Lookup
    changed_in_middle: Lookup
    changed_token_block: int
    next_turn: Prefill
    damage: Damage
    after_damage: Prefill
    total_s: float
