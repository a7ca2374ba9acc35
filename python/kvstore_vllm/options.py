"""What `kv_connector_extra_config` may say, checked once. Pure.

Sizes and durations are written as kvstore writes them ("2TB", "10s").
"""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from kvstore.options import RETENTION
from kvstore.units import parse_duration, parse_size


class StoreOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of both seats, connector and tier.

    paths: one directory per device. capacity, pool, role, retention, default_class, reserve,
    io_timeout, engine: as `kvstore.open` takes them; role is that of the workers.
    retain: retention class of what is saved; None: the store's default class.
    deadline: of one load; what is not there by then is recomputed. lookup_timeout: how long a
      request waits while names are walked on disk; then it takes what is known.
    """

    paths: tuple[str, ...]
    capacity: int | str | tuple[int | str, ...] | None = None
    pool: int | str = "1GB"
    role: Literal["auto", "owner", "peer"] = "auto"
    retention: dict[str, float | str] = msgspec.field(default_factory=lambda: dict(RETENTION))
    default_class: str = "chat"
    reserve: int | str | None = None
    io_timeout: float | str = "10s"
    engine: str = "auto"
    retain: str | None = None
    deadline: float | str = "10s"
    lookup_timeout: float | str = "1s"

    def __post_init__(self) -> None:
        """What the store does not check itself, before anything is opened."""
        if not self.paths:
            raise ValueError("paths must name at least one directory")
        if self.retain is not None and self.retain not in self.retention:
            raise ValueError(f"retain {self.retain!r} is not one of {list(self.retention)}")
        for name in ("deadline", "lookup_timeout"):
            parse_duration(getattr(self, name), name)

    @property
    def lookup_timeout_s(self) -> float:
        return parse_duration(self.lookup_timeout, "lookup_timeout") / 1e9

    @property
    def deadline_s(self) -> float:
        return parse_duration(self.deadline, "deadline") / 1e9


class Options(StoreOptions, frozen=True, kw_only=True):
    """Of the connector.

    mode: "layerwise" loads while the step that needs the blocks computes, and waits for each layer
      just before its attention; "async" parks the request until all of it is there.
    keys: "engine" uses the engine's block hashes, "own" kvstore's chain over the token ids.
    save_decode: also save blocks that were generated. save_buffer: bytes of copies that wait for
      the writer; above it, blocks are not saved. extent_blocks: see `kvstore.Layout`.
    gate: do not load what is computed sooner. load_gbps, prefill_tps: where its estimates start
      (GB and tokens per second); None: loads go ahead until the first measurement.
      request_overhead: what a load costs besides its bytes.
    """

    mode: Literal["layerwise", "async"] = "layerwise"
    keys: Literal["engine", "own"] = "engine"
    save_decode: bool = True
    save_buffer: int | str = "256MB"
    extent_blocks: int | None = None
    gate: bool = True
    load_gbps: float | None = None
    prefill_tps: float | None = None
    request_overhead: float | str = "2ms"

    def __post_init__(self) -> None:
        super().__post_init__()
        parse_duration(self.request_overhead, "request_overhead")
        parse_size(self.save_buffer, "save_buffer")
        for name in ("load_gbps", "prefill_tps"):
            given = getattr(self, name)
            if given is not None and given <= 0:
                raise ValueError(f"{name} must be above 0, not {given}")

    @property
    def save_buffer_bytes(self) -> int:
        return parse_size(self.save_buffer, "save_buffer")

    @property
    def request_overhead_s(self) -> float:
        return parse_duration(self.request_overhead, "request_overhead") / 1e9


def options_of(extra_config: Mapping[str, Any]) -> Options:
    """From `kv_connector_extra_config`. ValueError that says what is wrong with which word."""
    try:
        return msgspec.convert(dict(extra_config), Options)
    except msgspec.ValidationError as error:
        raise ValueError(f"kv_connector_extra_config: {error}") from None
