"""A result in words. Pure."""

from kvstore.replay.result import ClassResult, Result
from kvstore.units import format_size

_SPANS = (("d", 86400.0), ("h", 3600.0), ("m", 60.0), ("s", 1.0))


def render(result: Result) -> str:
    """For people; `kvstore replay` prints it."""
    lines = [*_head(result), *_hits(result), *_moved(result), *_left(result), *_needed(result)]
    lines += _beside(result)
    if result.money:
        money = result.money
        lines.append(
            f"money    {money.with_hits:,.2f} for the input instead of {money.without:,.2f}:"
            f" {money.saved:,.2f} saved ({_percent(money.saved, money.without)})"
        )
    if result.curve:
        lines.append("curve    LRU of one-block extents, no times to live (stack distances)")
        lines += [
            f"         {point.capacity_blocks:>10,} blocks ({point.share_of_unique:7.1%})"
            f"   {point.hit_rate_tokens:.4f}"
            for point in result.curve
        ]
    return "\n".join(lines)


def _head(result: Result) -> list[str]:
    if result.capacity_blocks is not None:
        room = f"{result.capacity_blocks:,} blocks"
    elif result.capacity_bytes is not None:
        room = format_size(result.capacity_bytes)
    else:
        room = "no limit"
    lines = [
        f"trace    {result.trace} ({result.format}): {result.requests:,} requests in"
        f" {duration(result.duration_s)}, {result.input_tokens:,} input tokens,"
        f" {result.unique_blocks:,} different blocks of {result.block_tokens} tokens"
        f" ({format_size(result.unique_blocks * result.block_bytes)})",
        f"cache    {room}, extents of {result.extent_blocks} blocks, admission"
        f" {result.admission}{_budget(result)}, clock x{result.speed:g}, io {result.io},"
        f" {format_size(result.block_bytes)} a block: {result.layout}",
    ]
    if result.out_of_order:
        lines.append(
            f"note     {result.out_of_order:,} lines are earlier than the line before them and"
            " were taken as of the same time"
        )
    return lines


def _budget(result: Result) -> str:
    budget = result.write_budget_bytes
    return "" if budget is None else f", at most {format_size(budget)} written a day"


def _hits(result: Result) -> list[str]:
    lines = [
        f"hits     {result.hit_rate_tokens:.4f} of the input tokens (with endless room and time"
        f" {result.ideal_hit_rate_tokens:.4f}): {result.hit_tokens:,} hit,"
        f" {result.missed_tokens:,} missed"
    ]
    lines += [
        f"class    {name}: {of.requests:,} requests, {of.hit_rate_tokens:.4f}"
        f" ({of.hit_tokens:,} hit, {of.missed_tokens:,} missed)"
        for name, of in result.classes.items()
        if of.requests
    ]
    tiers = ", ".join(f"{name} {tokens:,}" for name, tokens in result.hit_tokens_by_tier.items())
    lines.append(f"tier     hit tokens from {tiers}")
    if result.missed_blocks_by_reason:
        reasons = ", ".join(
            f"{name} {count:,}" for name, count in sorted(result.missed_blocks_by_reason.items())
        )
        lines.append(f"missed   blocks by reason: {reasons}")
    return lines


def _moved(result: Result) -> list[str]:
    lines = [
        f"moved    {format_size(result.bytes_written)} written ({result.blocks_stored:,} blocks),"
        f" {format_size(result.bytes_read)} read"
        + (
            f"; {result.blocks_without_room:,} blocks found no room"
            if result.blocks_without_room
            else ""
        )
    ]
    if any(result.blocks_refused.values()):
        refused = ", ".join(
            f"{name} {count:,}" for name, count in result.blocks_refused.items() if count
        )
        lines.append(f"refused  blocks by reason: {refused}")
    if result.real:
        lines.append(
            f"checked  {format_size(result.real.verified_bytes)} of cells, every byte as it was put"
        )
    return lines


def _left(result: Result) -> list[str]:
    counted = [("evicted", result.evicted_extents, result.evicted_blocks)]
    counted.append(("expired", result.expired_extents, result.expired_blocks))
    words = [
        f"{name} {extents:,} extents" + ("" if blocks is None else f" ({blocks:,} blocks)")
        for name, extents, blocks in counted
    ]
    lines = [f"left     {', '.join(words)}"]
    for name, of in result.classes.items():
        if of.evicted_idle_s:
            ages = ", ".join(f"{key} {duration(age)}" for key, age in of.evicted_idle_s.items())
            lines.append(
                f"retains  {name}: when evicted, not used for {ages}; promised"
                f" {duration(of.ttl_s)}, {of.evicted_before_ttl_extents:,} extents left earlier"
            )
    return lines


def _needed(result: Result) -> list[str]:
    lines = [f"needs    {_need(name, of, result)}" for name, of in result.classes.items()]
    if result.reuse_gap_s:
        gaps = ", ".join(f"{name} {duration(gap)}" for name, gap in result.reuse_gap_s.items())
        shares = ", ".join(
            f"{name} {share:.1%}" for name, share in result.reuse_gap_share.items() if share
        )
        lines.append(f"gaps     between two uses (tokens): {gaps}; {shares}")
    return lines


def _need(name: str, of: ClassResult, result: Result) -> str:
    more = " or more: the trace is shorter than that" if of.whole_trace else ""
    return (
        f"{of.kept_for_ttl_blocks:,} blocks ({format_size(of.kept_for_ttl_bytes)}) to keep all for"
        f" {duration(of.ttl_s)} ({name}){more}"
    )


def _beside(result: Result) -> list[str]:
    lines = []
    if result.one_block_extents:
        single = result.one_block_extents.hit_rate_tokens
        lines.append(
            f"extents  of one block would hit {single:.4f}: extents of {result.extent_blocks} cost"
            f" {100 * (single - result.hit_rate_tokens):.2f} points"
        )
    if result.always_admitted:
        always = result.always_admitted
        lost = always.hit_tokens - result.hit_tokens
        lines.append(
            f"admits   all would hit {always.hit_rate_tokens:.4f} and write"
            f" {format_size(always.bytes_written)}: {result.admission}{_budget(result)} costs"
            f" {100 * (always.hit_rate_tokens - result.hit_rate_tokens):.2f} points"
            f" ({lost:,} hit tokens) and saves"
            f" {_percent(always.bytes_written - result.bytes_written, always.bytes_written)} of the"
            " writes"
        )
    return lines


def duration(seconds: float) -> str:
    """ "3d", "1.5h", "20s"."""
    for unit, length in _SPANS:
        if seconds >= length:
            return f"{seconds / length:.3g}{unit}"
    return f"{seconds:.2g}s"


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "nothing"
