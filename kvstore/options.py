"""The words given to `open`, checked once before anything is touched."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kvstore import _core
from kvstore.units import parse_duration, parse_rate, parse_size

if TYPE_CHECKING:
    from kvstore.testing import Injection

RETENTION = {"agent": "3d", "chat": "7d"}
IO_DEPTH_MAX = 4096

AnyPath = str | bytes | os.PathLike[str] | os.PathLike[bytes]
Capacity = int | str | Sequence[int | str] | None


@dataclass(frozen=True)
class Options:
    """As `kvstore.open` documents them. Raises ValueError or TypeError for what makes no sense."""

    paths: Sequence[AnyPath]
    capacity: Capacity
    pool: int | str
    role: str
    retention: Mapping[str, float | str]
    default_class: str
    engine: str
    io_depth: int
    reserve: int | str | None
    min_age: float | str
    io_timeout: float | str
    scrub: int | str | None
    admission: str
    write_budget: int | str | None
    keep_token_ids: bool
    testing: "Injection | None"

    def __post_init__(self) -> None:
        if not 1 <= len(self.paths) <= _core.ROOTS_MAX:
            raise ValueError(f"open takes 1 to {_core.ROOTS_MAX} directories, not {self.paths}")
        if any("\0" in os.fsdecode(path) for path in self.paths):
            raise ValueError(f"a path holds a zero byte: {self.paths}")
        if self.role not in _core.ROLES:
            raise ValueError(f"role must be one of {list(_core.ROLES)}, not {self.role!r}")
        if self.engine not in _core.ENGINES:
            raise ValueError(f"engine must be one of {list(_core.ENGINES)}, not {self.engine!r}")
        if not 1 <= self.io_depth <= IO_DEPTH_MAX:
            raise ValueError(f"io_depth must be 1 to {IO_DEPTH_MAX}, not {self.io_depth}")
        if parse_size(self.pool, "pool") == 0:
            raise ValueError("pool must be larger than 0")
        _check_retention(self.retention, self.default_class)
        _check_capacity(self.capacity, len(self.paths))
        parse_duration(self.min_age, "min_age")
        if parse_duration(self.io_timeout, "io_timeout") == 0:
            raise ValueError("io_timeout must be longer than 0")
        if self.reserve is not None:
            parse_size(self.reserve, "reserve")
        if self.scrub is not None and parse_rate(self.scrub, "scrub") == 0:
            raise ValueError("scrub must be larger than 0 bytes a second; None is off")
        if self.admission not in _core.ADMISSIONS:
            raise ValueError(
                f"admission must be one of {list(_core.ADMISSIONS)}, not {self.admission!r}"
            )
        if self.write_budget is not None and write_budget_bytes(self.write_budget) == 0:
            raise ValueError("write_budget must be larger than 0 bytes a day; None is no bound")

    def open_core(self) -> _core.Store:
        """Opens the core's store; blocks. OpenError."""
        paths = [Path(os.fsdecode(path)) for path in self.paths]
        injected = self.testing
        return _core.Store(
            roots=list(zip(map(os.fsencode, paths), capacities(self.capacity, paths), strict=True)),
            classes=[(name.encode(), _ttl_s(ttl)) for name, ttl in self.retention.items()],
            default_class=list(self.retention).index(self.default_class),
            role=_core.ROLES[self.role],
            engine=_core.ENGINES[self.engine],
            io_depth=self.io_depth,
            pool_bytes=parse_size(self.pool, "pool"),
            reserve_bytes=_reserve_bytes(self.reserve),
            min_age_s=-(-parse_duration(self.min_age, "min_age") // 10**9),
            io_timeout_ns=parse_duration(self.io_timeout, "io_timeout"),
            scrub_bytes_per_s=0 if self.scrub is None else parse_rate(self.scrub, "scrub"),
            helpers=injected.helpers if injected else -1,
            admission=_core.ADMISSIONS[self.admission],
            write_budget_bytes=write_budget_bytes(self.write_budget),
            manual_ticks=injected is not None and injected.manual_ticks,
            clock=injected.core_clock if injected else None,
            files=injected.core_files if injected else None,
            engines=injected.core_engines if injected else None,
        )


def capacities(capacity: Capacity, paths: Sequence[Path]) -> list[int]:
    """Bytes per root, 0 for the default. A total is split by file-system size."""
    if capacity is None:
        return [0] * len(paths)
    if not isinstance(capacity, (int, str)):
        return [parse_size(one, "capacity") for one in capacity]
    total = parse_size(capacity, "capacity")
    sizes = [_file_system_bytes(path) for path in paths]
    return [max(1, total * size // sum(sizes)) for size in sizes]


def write_budget_bytes(budget: int | str | None) -> int:
    """Bytes a day; 0, as for the core, is no bound. ValueError."""
    return 0 if budget is None else parse_rate(budget, "write_budget", per="day")


def _file_system_bytes(path: Path) -> int:
    """Of the file system that the directory is on, or will be made on."""
    places = (path.absolute(), *path.absolute().parents)
    space = os.statvfs(next(place for place in places if place.exists()))
    return max(1, space.f_frsize * space.f_blocks)


def _reserve_bytes(reserve: int | str | None) -> int:
    """For the core 0 is the default, so that none at all is its smallest number: one byte."""
    return 0 if reserve is None else max(1, parse_size(reserve, "reserve"))


def _ttl_s(ttl: float | str) -> int:
    return parse_duration(ttl, "time to live") // 10**9


def _check_retention(retention: Mapping[str, float | str], default_class: str) -> None:
    if default_class not in retention:
        raise ValueError(f"default_class {default_class!r} is not one of {list(retention)}")
    if len(retention) > _core.CLASSES_MAX:
        raise ValueError(f"at most {_core.CLASSES_MAX} retention classes, not {len(retention)}")
    for name, ttl in retention.items():
        if not 1 <= len(name.encode()) < _core.CLASS_NAME_BYTES:
            raise ValueError(
                f"a retention class name has 1 to {_core.CLASS_NAME_BYTES - 1} bytes: {name!r}"
            )
        if _ttl_s(ttl) < 1:
            raise ValueError(f"retention class {name!r} must live a second or more, not {ttl!r}")


def _check_capacity(capacity: Capacity, roots: int) -> None:
    if capacity is None:
        return
    given = [capacity] if isinstance(capacity, (int, str)) else list(capacity)
    if not isinstance(capacity, (int, str)) and len(given) != roots:
        raise ValueError(f"{len(given)} capacities for {roots} directories")
    if any(parse_size(one, "capacity") == 0 for one in given):
        raise ValueError("capacity must be larger than 0; None takes the default")
