"""Sizes and durations as people write them: "2TB", "512MiB", "3d", "1.5h". Pure.

KB, MB, GB, TB are powers of 1000; KiB, MiB, GiB, TiB of 1024. Numbers pass through: a size is in
bytes, a duration in seconds. Inside, sizes are integers of bytes and durations integers of ns.
"""

import re
from datetime import datetime, timezone

_SIZE_UNITS = {
    "": 1, "B": 1,
    "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "PB": 10**15,
    "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40, "PIB": 2**50,
}  # fmt: skip
_DURATION_UNITS_NS = {
    "ns": 1, "us": 10**3, "ms": 10**6, "": 10**9, "s": 10**9,
    "m": 60 * 10**9, "min": 60 * 10**9, "h": 3600 * 10**9, "d": 86400 * 10**9,
    "w": 7 * 86400 * 10**9,
}  # fmt: skip
_NUMBER = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")
_INT64_MAX = 2**63 - 1

FOREVER_NS = -1  # what the core takes for "no limit"


def parse_size(value: int | str, what: str = "size") -> int:
    """Bytes. ValueError for negative or unreadable sizes."""
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise TypeError(f'{what} must be bytes as an int or a string like "8GB", not {value!r}')
    if isinstance(value, int):
        result = value
    else:
        number, unit = _split(value, what, '"8GB" or "512MiB"')
        factor = _SIZE_UNITS.get(unit.upper())
        if factor is None:
            raise ValueError(f'{what}: unit {unit!r} is not known; write "8GB" or "512MiB"')
        result = _scaled(number, factor)
    if not 0 <= result <= _INT64_MAX:
        raise ValueError(f"{what} is out of range: {value!r}")
    return result


def parse_rate(value: int | str, what: str = "rate", per: str = "s") -> int:
    """Bytes per second, or per day: a size, "20MB/s" or "1TB/day". ValueError for negative or
    unreadable rates."""
    if isinstance(value, str):
        value = value.strip().removesuffix(f"/{per}")
    return parse_size(value, what)


def parse_duration(value: float | str, what: str = "duration") -> int:
    """Nanoseconds; numbers are seconds. ValueError for negative or unreadable durations."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise TypeError(f'{what} must be seconds or a string like "30s" or "3d", not {value!r}')
    if isinstance(value, str):
        number, unit = _split(value, what, '"30s" or "3d"')
        factor = _DURATION_UNITS_NS.get(unit)
        if factor is None:
            raise ValueError(f'{what}: unit {unit!r} is not known; write "30s", "10m", "3d"')
        result = _scaled(number, factor)
    elif not 0 <= value < _INT64_MAX / 1e9:  # also refuses NaN
        raise ValueError(f"{what} is out of range: {value!r}")
    else:
        result = round(value * 10**9)
    if not 0 <= result <= _INT64_MAX:
        raise ValueError(f"{what} is out of range: {value!r}")
    return result


def timeout_ns(value: float | str | None, what: str = "timeout") -> int:
    """Like `parse_duration`; None is FOREVER_NS."""
    return FOREVER_NS if value is None else parse_duration(value, what)


def format_size(size_bytes: int) -> str:
    """ "1.5 GB": three digits, decimal units."""
    size = float(size_bytes)
    for unit in ("B", "KB", "MB", "GB", "TB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} PB"


def format_duration(seconds: float) -> str:
    """ "45 s", "12 min", "5.5 h", "3 d": up to three digits, as `parse_duration` reads them."""
    for unit, unit_s, below_s in (("s", 1, 120), ("min", 60, 7200), ("h", 3600, 48 * 3600)):
        if abs(seconds) < below_s:
            return f"{seconds / unit_s:.{1 if unit == 'h' else 0}f} {unit}".replace(".0 ", " ")
    return f"{seconds / 86400:.1f} d".replace(".0 ", " ")


def ago(time_s: float, now_s: float) -> str:
    """ "on 2026-11-29 at 10:15:00Z (3.2 h ago)": the moment in UTC, and how far off it is."""
    when = datetime.fromtimestamp(time_s, timezone.utc).strftime("%Y-%m-%d at %H:%M:%SZ")
    far = format_duration(abs(now_s - time_s))
    return f"on {when} ({far} ago)" if time_s <= now_s else f"on {when} (in {far})"


def _split(value: str, what: str, example: str) -> tuple[str, str]:
    match = _NUMBER.fullmatch(value)
    if match is None:
        raise ValueError(f"{what}: cannot read {value!r}; write it like {example}")
    return match[1], match[2]


def _scaled(number: str, factor: int) -> int:
    """number * factor without the rounding of a float for whole numbers."""
    whole, _, fraction = number.partition(".")
    digits = int(whole + fraction) * factor
    shift: int = 10 ** len(fraction)
    return digits // shift
