"""Real prompts, and what people do to them that makes a prefix cache miss: one function per cause.

Each takes a request in OpenAI's shape and a random source, and gives two requests (or two texts)
that differ by that cause alone.
"""

import copy
import gzip
import json
import random
import unicodedata
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvstore.explain import Cause

Request = dict[str, Any]
Pair = tuple[Any, Any]

_DATA = Path(__file__).parents[1] / "data" / "agent_prompts.json.gz"
_NAMES = [
    "Ada Lovelace",
    "Grace Hopper",
    "Linus",
    "Margaret Hamilton",
    "Jean-Luc",
    "de la Cruz",
    "Zo\u00eb O'Brien",
    "ada@example.org",
    "\u738b\u5c0f\u660e",
    "\u0418\u0432\u0430\u043d \u041f\u0435\u0442\u0440\u043e\u0432",
    "\u0645\u062d\u0645\u062f",
    "\u3055\u304f\u3089",
    "\u0928\u0947\u0939\u093e",
]
_COMPOSED = [
    "caf\u00e9",
    "na\u00efve",
    "\u00c5ngstr\u00f6m",
    "M\u00fcller",
    "\ufb01le",
    "\ud55c\uad6d",
    "\uff21\uff22\uff23",
    "\u0439\u043e\u0434",
    "Vi\u1ec7t",
]
_JSON_LINE = '{{"app": "desk", "%s": "{}", "version": 3}}'
_BEGINNINGS = ["<s>", "<|begin_of_text|>", "<\uff5cbegin\u2581of\u2581sentence\uff5c>"]
_MONTHS = ["January", "February", "March", "April", "October", "November", "December"]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"{verb} in the repository that is checked out.",
            "parameters": {
                "type": "object",
                "properties": {
                    "path": {"type": "string", "description": "Relative to the root."},
                    "limit": {"type": "integer", "minimum": 1, "maximum": top},
                },
                "required": ["path"],
            },
        },
    }
    for name, verb, top in (
        ("read_file", "Reads a file", 4000),
        ("list_files", "Lists a directory", 500),
        ("run_tests", "Runs the tests below a path", 60),
        ("search", "Searches a pattern", 200),
    )
]


def real_requests() -> list[Request]:
    """20 requests of a coding agent, each with the tools above."""
    requests: list[Request] = json.loads(gzip.decompress(_DATA.read_bytes()))
    return [request | {"tools": copy.deepcopy(TOOLS)} for request in requests]


def as_text(request: Request) -> str:
    """By a template of its own, with the tools as indented JSON in the system prompt."""
    head = f"<|system|>\n{json.dumps(request['tools'], indent=1)}\n"
    return head + "".join(
        f"<|{message['role']}|>\n{message['content']}<|end|>\n" for message in request["messages"]
    )


def _with_line(request: Request, line: str, rng: random.Random) -> Request:
    """The line put into the system prompt, at its beginning or after some line of it."""
    changed = copy.deepcopy(request)
    system = changed["messages"][0]
    lines = system["content"].split("\n")
    lines.insert(rng.choice([0, 2, 5, min(12, len(lines))]), line)
    system["content"] = "\n".join(lines)
    return changed


def _two_lines(request: Request, template: str, one: object, other: object, seed: int) -> Pair:
    a = _with_line(request, template.format(one), random.Random(seed))
    b = _with_line(request, template.format(other), random.Random(seed))
    return a, b


def _two(rng: random.Random, draw: Callable[[], str]) -> tuple[str, str]:
    one = draw()
    other = draw()
    while other == one:
        other = draw()
    return one, other


def timestamp(request: Request, rng: random.Random) -> Pair:
    def draw() -> str:
        hour, minute, second = rng.randrange(24), rng.randrange(60), rng.randrange(60)
        return rng.choice(
            [
                f"2026-11-29T{hour:02}:{minute:02}:{second:02}Z",
                f"{hour:02}:{minute:02}",
                str(1_760_000_000 + rng.randrange(10**7)),
                f"1760{rng.randrange(10**9):09}",
                f"1760{rng.randrange(10**6):06}.{rng.randrange(1000):03}",
                f"Sun, 29 Nov 2026 {hour:02}:{minute:02}:{second:02} GMT",
                f"20261129T{hour:02}{minute:02}{second:02}Z",
                f"{hour % 12 + 1}.{minute:02} {'ap'[hour // 12]}.m.",
                f"{hour:02}h{minute:02}",
            ]
        )

    state = rng.getstate()
    one = draw()
    form = len(one)
    other = draw()
    while other == one or len(other) != form:
        other = draw()
    rng.setstate(state)
    template = rng.choice(
        ["Current time: {}.", "It is now {} UTC", "[{}] session began", _JSON_LINE % "now"]
    )
    return _two_lines(request, template, one, other, rng.randrange(2**30))


def date(request: Request, rng: random.Random) -> Pair:
    kind = rng.randrange(8)

    def draw() -> str:
        day, month = rng.randrange(1, 29), rng.randrange(12)
        name = _MONTHS[month % len(_MONTHS)]
        return [
            f"2026-{month + 1:02}-{day:02}",
            f"{name} {day}, 2026",
            f"{day} {name} 2026",
            f"{day:02}.{month + 1:02}.2026",
            f"2026\u5e74{month + 1}\u6708{day}\u65e5",
            f"2026{month + 1:02}{day:02}",
            ["Sunday", "Monday", "Tuesday", "Friday"][day % 4],
            f"the {day}th of {name}",
        ][kind]

    one, other = _two(rng, draw)
    template = rng.choice(["Today is {}.", "Current date: {}", "Knowledge as of {}, inclusive."])
    return _two_lines(request, template, one, other, rng.randrange(2**30))


def request_id(request: Request, rng: random.Random) -> Pair:
    def draw() -> str:
        whole = uuid.UUID(int=rng.getrandbits(128))
        digits = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
        return [
            str(whole),
            f"req_{whole.hex[:20]}",
            whole.hex[:16],
            "01J" + "".join(rng.choice(digits) for _ in range(23)),
            f"chatcmpl-{whole.hex[:24]}",
            str(whole).upper(),
        ][kind]

    kind = rng.randrange(6)
    one, other = _two(rng, draw)
    template = rng.choice(
        ["Request id: {}", "<trace>{}</trace>", "session {}", _JSON_LINE % "trace"]
    )
    return _two_lines(request, template, one, other, rng.randrange(2**30))


def user_name(request: Request, rng: random.Random) -> Pair:
    one, other = _two(rng, lambda: rng.choice(_NAMES))
    template = rng.choice(
        [
            "You are helping {}.",
            "The user's name is {}.",
            "Customer: {}",
            "Signed in as {}.",
            _JSON_LINE % "user",
        ]
    )
    return _two_lines(request, template, one, other, rng.randrange(2**30))


def counter(request: Request, rng: random.Random) -> Pair:
    one = rng.randrange(1, 5000)
    template = rng.choice(
        [
            "This is turn {} of the conversation.",
            "Attempt #{}",
            "Remaining budget: {} steps",
            "step{}of9000",
            "scratch/run_{}/out.txt",
            _JSON_LINE % "turn",
        ]
    )
    return _two_lines(request, template, one, one + rng.randrange(1, 9), rng.randrange(2**30))


def template(request: Request, rng: random.Random) -> Pair:
    """Another begin-of-sequence token, or another chat template; as text."""
    text = as_text(request)
    if rng.random() < 0.5:
        return text, rng.choice(
            ["<s>", "<|begin_of_text|>", "<\uff5cbegin\u2581of\u2581sentence\uff5c>"]
        ) + text
    return text, text.replace("<|system|>\n", "### System:\n").replace("<|end|>", "</s>")


def whitespace(request: Request, rng: random.Random) -> Pair:
    changed = copy.deepcopy(request)
    system = changed["messages"][0]
    kind = rng.randrange(6)
    if kind == 4:
        system["content"] = system["content"].replace(" ", "\t", 1)
    elif kind == 5:
        changed["messages"][1]["content"] += "\n\n"
    elif kind == 0:
        system["content"] += "\n"
    elif kind == 1:
        system["content"] = " " + system["content"]
    elif kind == 2:
        system["content"] = system["content"].replace("\n", "\r\n")
    else:
        lines = system["content"].split("\n")
        at = rng.randrange(1, len(lines))
        lines[at] = lines[at] + "  "
        system["content"] = "\n".join(lines)
    return request, changed


def unicode_form(request: Request, rng: random.Random) -> Pair:
    word = rng.choice(_COMPOSED)
    form = "NFKC" if unicodedata.normalize("NFD", word) == word else "NFD"
    other = unicodedata.normalize(form, word)
    return _two_lines(request, "Ask at {} first.", word, other, rng.randrange(2**30))


def json_form(request: Request, rng: random.Random) -> Pair:
    changed = copy.deepcopy(request)
    if rng.random() < 0.5:
        one = rng.choice(changed["tools"])
        function = one["function"]
        one["function"] = dict(reversed(list(function.items())))
        return request, changed
    text = as_text(request)
    compact = json.dumps(request["tools"], separators=(",", ":"))
    return text, text.replace(json.dumps(request["tools"], indent=1), compact)


def tool_order(request: Request, rng: random.Random) -> Pair:
    changed = copy.deepcopy(request)
    while changed["tools"] == request["tools"]:
        rng.shuffle(changed["tools"])
    if rng.random() < 0.5:
        return request, changed
    return as_text(request), as_text(changed)


def truncated(request: Request, rng: random.Random) -> Pair:
    changed = copy.deepcopy(request)
    drop = rng.choice([1, 2, 3])
    del changed["messages"][2 : 2 + drop]
    if rng.random() < 0.5:
        return request, changed
    return as_text(request), as_text(changed)


def summarised(request: Request, rng: random.Random) -> Pair:
    changed = copy.deepcopy(request)
    lead = rng.choice(
        ["Summary of the conversation so far: ", "[Summary] ", "Earlier in this conversation: "]
    )
    text = lead + "the agent looked at some files and found the class that has to change."
    changed["messages"][2:6] = [{"role": "user", "content": text}]
    if rng.random() < 0.5:
        return request, changed
    return as_text(request), as_text(changed)


def system_edited(request: Request, rng: random.Random) -> Pair:
    changed = copy.deepcopy(request)
    words = changed["messages"][0]["content"].split(" ")
    at = rng.randrange(3, len(words) // 2)
    words[at:at] = rng.choice(
        [
            "please, without exception,",
            "as a careful engineer",
            "and never in a hurry",
            "IMPORTANT: ask the user first,",
            "2 or 3 times if need be,",
            "in the Monday meeting's words,",
            "(user: hello)",
        ]
    ).split()
    changed["messages"][0]["content"] = " ".join(words)
    return request, changed


def another_content(request: Request, rng: random.Random) -> Pair:
    """The user's own text was edited: no fault of whoever puts prompts together."""
    changed = copy.deepcopy(request)
    words = changed["messages"][1]["content"].split(" ")
    at = rng.randrange(3, len(words) - 2)
    words[at : at + 1] = ["quite", "another", "thing,"]
    changed["messages"][1]["content"] = " ".join(words)
    return request, changed


def continues(request: Request, rng: random.Random) -> Pair:
    changed = copy.deepcopy(request)
    changed["messages"].append({"role": "user", "content": "Now write a test for it."})
    return request, changed


def _identity(word: str) -> Callable[[Request, random.Random], Pair]:
    def mutate(request: Request, rng: random.Random) -> Pair:
        one, other = _two(rng, lambda: f"{word}-{rng.randrange(1000)}")
        return request | {word: one}, request | {word: other}

    return mutate


MUTATIONS: dict[Cause, Callable[[Request, random.Random], Pair]] = {
    Cause.TIMESTAMP: timestamp,
    Cause.DATE: date,
    Cause.UUID: request_id,
    Cause.NAME: user_name,
    Cause.COUNTER: counter,
    Cause.TEMPLATE: template,
    Cause.WHITESPACE: whitespace,
    Cause.UNICODE: unicode_form,
    Cause.JSON_FORM: json_form,
    Cause.TOOL_ORDER: tool_order,
    Cause.TRUNCATED: truncated,
    Cause.SUMMARISED: summarised,
    Cause.SYSTEM: system_edited,
    Cause.OTHER: another_content,
    Cause.CONTINUES: continues,
    Cause.SALT: _identity("salt"),
    Cause.MODEL: _identity("model"),
    Cause.LAYOUT: _identity("layout"),
    Cause.LORA: _identity("lora"),
}
