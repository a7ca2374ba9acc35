"""Explanations as one self-contained HTML page, the difference marked."""

from html import escape

from kvstore.explain.compare import Explanation, Side
from kvstore.explain.lint import Lint
from kvstore.explain.store import Answer, StoreExplanation

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
  color: #1b1f24; background: #fff }
table { border-collapse: collapse; width: 100% } td, th { padding: .3rem .6rem; text-align: left;
  border-bottom: 1px solid #d8dee4; vertical-align: top } td.n, th.n { text-align: right }
pre { white-space: pre-wrap; overflow-wrap: anywhere; background: #f6f8fa; padding: .8rem }
del { background: #ffd7d5 } ins { background: #c6f6d1 } del, ins { text-decoration: none }
.cause { font-weight: 600 } .dim { color: #57606a }
"""


def page(told: Explanation) -> str:
    """Of two prompts."""
    return _document("Why this prompt missed", _explanation(told))


def lint_page(told: Lint) -> str:
    """Of a folder: the ranking, then the worst request of each cause."""
    share = told.hit_tokens / told.prompt_tokens if told.prompt_tokens else 0.0
    rows = "".join(
        f"<tr><td class=cause>{escape(loss.cause.value)}</td><td class=n>{loss.requests:,}</td>"
        f"<td class=n>{loss.recoverable_tokens:,}</td><td>{escape(loss.advice)}</td></tr>"
        for loss in told.losses
    )
    head = (
        f"<p>{told.requests:,} requests, {told.prompt_tokens:,} tokens, {share:.1%} of them found."
        "<table><tr><th>cause<th class=n>requests<th class=n>tokens lost<th>advice</tr>"
        f"{rows}</table>"
    )
    worst = "".join(_explanation(loss.worst) for loss in told.losses)
    unread = "".join(f"<p class=dim>not read: {escape(why)}" for why in told.unreadable)
    return _document("What these prompts lose", head + worst + unread)


def store_page(told: StoreExplanation) -> str:
    """Of a prompt and the roots of a store: each namespace, what serves most first."""
    head = (
        f"<p>{escape(told.prompt)}, {told.tokens:,} tokens, in {escape(', '.join(told.roots))}"
        + ("" if told.answers else "<p>There is nothing in these roots.")
    )
    return _document("Why this prompt missed", head + "".join(map(_answer, told.answers)))


def _answer(answer: Answer) -> str:
    facts = [
        ("cause", f"{answer.cause.value}: {answer.evidence}"),
        ("advice", answer.advice),
        (
            "hit",
            f"{answer.hit_tokens:,} tokens, {answer.hit_blocks:,} of {answer.blocks:,} whole blocks"
            f" of {answer.block_tokens:,}; {answer.missed_tokens:,} tokens are computed",
        ),
        ("would hit if fixed", f"{answer.lost_tokens:,} tokens more"),
    ]
    if answer.first_token is not None and answer.end_token is not None:
        where = f"{answer.first_token:,} to {answer.end_token - 1:,}"
        facts.append(("first tokens that miss", f"{where} (block {answer.hit_blocks:,})"))
    rows = "".join(f"<tr><td class=dim>{name}<td>{escape(value)}</tr>" for name, value in facts)
    sides = ""
    if answer.difference:
        sides = _side(answer.difference.a, "del") + _side(answer.difference.b, "ins")
    name = f"{answer.model or 'unknown model'} ({answer.namespace})"
    return f"<h2>{escape(name)}</h2><table>{rows}</table>{sides}"


def _explanation(told: Explanation) -> str:
    about = "" if told.exact else "about "
    facts = (
        ("advice", told.advice),
        ("first differing token", f"{about}{told.first_token:,}"),
        ("hit", f"{about}{told.hit_tokens:,} of {told.b.tokens:,} tokens"),
        ("would agree if fixed", f"{about}{told.recoverable_tokens:,} tokens more"),
    )
    rows = "".join(f"<tr><td class=dim>{name}<td>{escape(value)}</tr>" for name, value in facts)
    return (
        f"<h2>{escape(told.cause.value)}</h2><p>{escape(told.evidence)}<table>{rows}</table>"
        f"{_side(told.a, 'del')}{_side(told.b, 'ins')}"
    )


def _side(side: Side, mark: str) -> str:
    differs = escape(side.differs) or "&empty;"
    ids = f"\nids {' '.join(map(str, side.ids))}" if side.ids else ""
    return (
        f"<p class=dim>{escape(side.name)}, {escape(side.path)}, character {side.character:,}"
        f"<pre>{escape(side.before)}<{mark}>{differs}</{mark}>{escape(side.after)}{ids}</pre>"
    )


def _document(title: str, body: str) -> str:
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style><h1>{escape(title)}</h1>{body}</html>\n"
    )
