"""Explanations as plain text."""

from kvstore.explain.compare import Explanation, Side
from kvstore.explain.lint import Lint
from kvstore.explain.store import Answer, StoreExplanation


def render(told: Explanation) -> str:
    about = "" if told.exact else "about "
    lines = [
        f"cause    {told.cause.value}: {told.evidence}",
        f"advice   {told.advice}",
        f"first    differing token {about}{told.first_token:,}"
        f" (block {told.first_token // told.block_tokens:,} of {told.block_tokens} tokens)",
        f"hit      {about}{told.hit_tokens:,} of {told.b.tokens:,} tokens,"
        f" {told.hit_blocks:,} blocks; {about}{told.missed_tokens:,} are computed",
        f"fixed    {about}{told.recoverable_tokens:,} tokens more would agree: whole blocks hit"
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


def render_store(told: StoreExplanation) -> str:
    lines = [f"prompt   {told.prompt}, {told.tokens:,} tokens, in {', '.join(told.roots)}"]
    if not told.answers:
        lines.append("cause    never-stored: there is nothing in these roots")
    for number, answer in enumerate(told.answers):
        lines += ["", *_answer(answer)] if number == 0 else [_other(answer)]
    return "\n".join(lines)


def _answer(answer: Answer) -> list[str]:
    size = answer.block_tokens
    lines = [
        f"layout   {answer.model or 'unknown model'} ({answer.namespace}), blocks of {size} tokens,"
        f" {answer.extents:,} extents",
        f"cause    {answer.cause.value}: {answer.evidence}",
        f"advice   {answer.advice}",
    ]
    if answer.first_token is not None and answer.end_token is not None:
        where = f"token {answer.first_token:,}"
        if answer.end_token > answer.first_token + 1:
            where = f"tokens {answer.first_token:,} to {answer.end_token - 1:,}"
        lines.append(f"first    block that misses {answer.hit_blocks:,}: {where}, key {answer.key}")
    lines.append(
        f"hit      {answer.hit_tokens:,} tokens, {answer.hit_blocks:,} of {answer.blocks:,} whole"
        f" blocks; {answer.missed_tokens:,} tokens are computed"
    )
    if answer.lost_tokens:
        worth = f", worth ${answer.saved_if_fixed:.6f} a request" if answer.saved_if_fixed else ""
        lines.append(f"fixed    {answer.lost_tokens:,} tokens more would hit{worth}")
    if answer.siblings:
        lines.append(f"beside   {answer.siblings:,} stored prompts go on differently there")
    if answer.difference:
        lines += [*_side("A", answer.difference.a), *_side("B", answer.difference.b)]
    return lines


def _other(answer: Answer) -> str:
    return (
        f"         under {answer.model or 'unknown model'} ({answer.namespace}):"
        f" {answer.hit_tokens:,} tokens hit; {answer.cause.value}: {answer.evidence}"
    )
