"""Sizes and durations as people write them."""

import pytest

from kvstore.units import (
    FOREVER_NS,
    format_duration,
    format_size,
    parse_duration,
    parse_rate,
    parse_size,
    timeout_ns,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2TB", 2 * 10**12),
        ("512MiB", 512 * 2**20),
        ("1.5 GB", 1_500_000_000),
        ("0.1GiB", 2**30 // 10),
        ("64KB", 64_000),
        ("7", 7),
        ("7b", 7),
        (12345, 12345),
        (0, 0),
    ],
)
def test_sizes_are_read_in_powers_of_1000_and_1024(text: int | str, expected: int) -> None:
    assert parse_size(text) == expected


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "1XB", "1 2GB", "1e9", -1, 2**63, "9999999PB"])
def test_unreadable_sizes_are_value_errors_that_name_the_setting(text: int | str) -> None:
    with pytest.raises(ValueError, match="pool"):
        parse_size(text, "pool")


@pytest.mark.parametrize("value", [1.5, None, True, b"1GB"])
def test_sizes_of_other_types_are_type_errors(value: object) -> None:
    with pytest.raises(TypeError, match="size"):
        parse_size(value)  # type: ignore[arg-type]


def test_rates_are_sizes_a_second() -> None:
    assert [parse_rate(text) for text in ("20MB/s", " 1MiB/s ", "7", 7)] == [
        20_000_000,
        2**20,
        7,
        7,
    ]
    for text in ("20MB/h", "/s", "fast", -1):
        with pytest.raises(ValueError, match="scrub"):
            parse_rate(text, "scrub")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("3d", 259200), ("7d", 604800), ("60s", 60), ("2m", 120), ("1.5h", 5400), ("250ms", 0.25),
     (0.5, 0.5), (30, 30), ("30", 30), ("1w", 604800)],
)  # fmt: skip
def test_durations_are_read_to_nanoseconds(text: float | str, seconds: float) -> None:
    assert parse_duration(text) == seconds * 10**9


@pytest.mark.parametrize("text", ["", "d", "-1s", "1y", -1, float("inf"), float("nan"), 1e300])
def test_unreadable_durations_are_value_errors(text: float | str) -> None:
    with pytest.raises(ValueError, match="ttl"):
        parse_duration(text, "ttl")


def test_no_timeout_means_for_ever() -> None:
    assert timeout_ns(None) == FOREVER_NS
    assert timeout_ns(0) == 0
    assert timeout_ns("1s") == 10**9


def test_sizes_are_shown_with_three_digits() -> None:
    assert [format_size(n) for n in (0, 999, 1_500, 2 * 10**12, 10**18)] == [
        "0 B", "999 B", "1.5 KB", "2 TB", "1e+03 PB",
    ]  # fmt: skip


def test_durations_are_shown_so_that_they_can_be_read_again() -> None:
    shown = {
        0: "0 s", 119: "119 s", 120: "2 min", 7199: "120 min", 7200: "2 h", 9_000: "2.5 h",
        172_800: "2 d", 216_000: "2.5 d", -60: "-60 s",
    }  # fmt: skip
    assert {seconds: format_duration(seconds) for seconds in shown} == shown
    assert parse_duration("2.5 d") == 216_000 * 10**9
    assert parse_duration("120 min") == 7200 * 10**9
