"""Explanations as plain text."""

from kvstore.explain.compare import Explanation, Side
from kvstore.explain.lint import Lint


def render(told: Explanation) -> str:
    about = "" if told.exact else "about "
    lines = [
        f"cause    {told.cause.value}: {told.evidence}",
        f"advice   {told.advice}",
        f"first    differing token {about}{told.first_token:,}"
        f" (block {told.first_token // told.block_tokens:,} of {told.block_tokens} tokens)",
        f"hit      {about}{told.hit_tokens:,} of {told.b.tokens:,} tokens,"
        f" {told.hit_blocks:,} blocks; {about}{told.missed_tokens:,} are computed",
        f"fixed    {about}{told.recoverable_tokens:,} tokens more would hit"
        + (f", worth ${told.saved_if_fixed:.6f} a request" if told.saved_if_fixed else "")
        + (
            f"; then {told.further_differences} more differences"
            if told.further_differences
            else ""
        ),
        *_side("A", told.a),
        *_side("B", told.b),
    ]
    if not told.exact:
        lines.append("note     tokens are estimated; pass --tokenizer tokenizer.json to count them")
    return "\n".join(lines)


def _side(letter: str, side: Side) -> list[str]:
    lines = [
        f"{letter}        {side.name}, {side.path}, character {side.character:,}",
        f"         ...{_shown(side.before)}[[{_shown(side.differs)}]]{_shown(side.after)}...",
    ]
    if side.ids:
        lines.append("         ids " + " ".join(map(str, side.ids)))
    return lines


def _shown(text: str) -> str:
    """On one line, whatever it holds."""
    return text.encode("unicode_escape").decode("ascii").replace("\\\\", "\\")


def render_lint(told: Lint) -> str:
    share = told.hit_tokens / told.prompt_tokens if told.prompt_tokens else 0.0
    about = "" if told.exact else "about "
    lines = [
        f"{told.requests:,} requests, {about}{told.prompt_tokens:,} tokens; a store that forgets"
        f" nothing serves {about}{told.hit_tokens:,} of them ({share:.1%})",
        "",
        f"{'cause':<20}{'requests':>9}{'tokens lost':>14}  worst",
    ]
    for loss in told.losses:
        worth = f"  ${loss.saved_if_fixed:.4f}" if loss.saved_if_fixed else ""
        lines.append(
            f"{loss.cause.value:<20}{loss.requests:>9,}{loss.recoverable_tokens:>14,}"
            f"  {loss.worst.b.name}: {loss.worst.evidence}{worth}"
        )
        lines.append(f"{'':<20}{loss.advice}")
    if not told.losses:
        lines.append("nothing is lost: every request begins with all it has in common with another")
    lines += [f"not read: {why}" for why in told.unreadable]
    return "\n".join(lines)
