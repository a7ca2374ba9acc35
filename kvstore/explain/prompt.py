"""Prompts as people have them: text, OpenAI-shape messages, token ids. What each becomes is text,
segments that say which part of the request a place belongs to, and ids where they are known.

Files: `*.json` with {"messages": [...], "tools": [...]} or a list of messages; with a list of ints
or {"token_ids": [...]}; anything else is text. A JSON object may also say "model", "layout",
"lora", "salt" and "timestamp": what else decides a hit, and when it was sent.

Messages are written out by one fixed plain template (tools, then role and content of each): it
shows where two requests differ, not what the engine's own template makes of them.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

IDENTITY = ("model", "layout", "lora", "salt")
LONGEST_CHARACTER = 8  # in ids that make it together
CHARACTERS_A_TOKEN = 4  # an estimate for English and code, used only without a tokenizer
_ROLES = "system|user|assistant|tool|developer|human"
_TURN = re.compile(
    rf"<\|(?:im_start\|>)?({_ROLES})\|?>?\n|^#{{2,3}} ({_ROLES}):?\n|^\[?({_ROLES})(?:: |\]\n)",
    re.IGNORECASE | re.MULTILINE,
)


class PromptError(ValueError):
    """A file that is no prompt; the message says what was expected."""


class Encoding(Protocol):
    """What is used of `tokenizers.Encoding`."""

    @property
    def ids(self) -> list[int]: ...
    @property
    def offsets(self) -> list[tuple[int, int]]: ...


class Tokenizer(Protocol):
    """What is used of `tokenizers.Tokenizer`."""

    def encode(self, text: str, /) -> Encoding: ...
    def decode(self, ids: list[int], /, *, skip_special_tokens: bool) -> str: ...


class Segment(msgspec.Struct, frozen=True):
    """Characters [start, end) come from `path` of the request; kind: "tools", a role, "text"."""

    path: str
    kind: str
    start: int
    end: int


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """ids: None without a tokenizer. ends: for each id, the character that it ends before."""

    name: str
    text: str
    segments: tuple[Segment, ...] = ()
    messages: tuple[tuple[str, str], ...] = ()
    tools: tuple[Any, ...] = ()
    ids: tuple[int, ...] | None = None
    ends: tuple[int, ...] = ()
    identity: dict[str, str] = {}
    timestamp: float | None = None

    @property
    def tokens(self) -> int:
        """Exact with a tokenizer, else estimated from the characters."""
        if self.ids is not None:
            return len(self.ids)
        return -(-len(self.text) // CHARACTERS_A_TOKEN)

    def token_of(self, character: int) -> int:
        """The token that holds the character (estimated without a tokenizer)."""
        if self.ids is None:
            return min(character, len(self.text)) // CHARACTERS_A_TOKEN
        low, high = 0, len(self.ends)
        while low < high:
            middle = (low + high) // 2
            if self.ends[middle] <= character:
                low = middle + 1
            else:
                high = middle
        return low

    def segment_of(self, character: int) -> Segment | None:
        return next((one for one in self.segments if one.start <= character < one.end), None)


def read_prompt(path: Path, tokenizer: Tokenizer | None = None) -> Prompt:
    """The prompt in a file. OSError; PromptError when it cannot be read as one."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise PromptError(f"{path} is not UTF-8 text: {error}") from error
    if path.suffix != ".json":
        return prompt_of_text(text, name=str(path), tokenizer=tokenizer)
    return prompt_of_json(decoded(text, str(path)), name=str(path), tokenizer=tokenizer)


def decoded(text: str, name: str) -> Any:
    """The value of JSON. PromptError, also for what is nested too deep and for half a character:
    neither can be written out again."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError) as error:
        raise PromptError(f"{name} is not JSON: {error}") from error


def prompt_of_json(value: Any, *, name: str, tokenizer: Tokenizer | None = None) -> Prompt:
    """Of a decoded request. PromptError."""
    facts = value if isinstance(value, Mapping) else {}
    if isinstance(value, list) and value and all(isinstance(one, int) for one in value):
        facts = {"token_ids": value}
    elif isinstance(value, list):
        facts = {"messages": value}
    identity = {word: str(facts[word]) for word in IDENTITY if facts.get(word) is not None}
    if isinstance(facts.get("token_ids"), list):
        made = prompt_of_ids(facts["token_ids"], name, tokenizer)
    elif isinstance(facts.get("messages"), list):
        tools = facts.get("tools") or []
        if not isinstance(tools, list):
            raise PromptError(f"{name}: tools must be a list")
        made = _prompt_of_messages(facts["messages"], tools, name, tokenizer)
    elif isinstance(facts.get("prompt"), str):
        made = prompt_of_text(facts["prompt"], name=name, tokenizer=tokenizer)
    else:
        raise PromptError(
            f'{name}: expected {{"messages": [...]}}, {{"prompt": "..."}}, {{"token_ids": [...]}},'
            " a list of messages or a list of token ids"
        )
    when = facts.get("timestamp")
    return msgspec.structs.replace(
        made,
        identity=identity,
        timestamp=float(when) if isinstance(when, (int, float)) else None,
    )


def prompt_of_text(text: str, *, name: str, tokenizer: Tokenizer | None = None) -> Prompt:
    """Where the marks of a chat template are known, its messages are told apart."""
    turns = list(_TURN.finditer(text))
    ends = [turn.start() for turn in turns[1:]] + [len(text)]
    segments, messages = [], []
    if not turns or turns[0].start() > 0:
        segments.append(Segment("text", "text", 0, turns[0].start() if turns else len(text)))
    for number, (turn, end) in enumerate(zip(turns, ends, strict=False)):
        role = (turn.group(1) or turn.group(2) or turn.group(3)).lower()
        messages.append((role, text[turn.end() : end]))
        segments.append(Segment(f"turn {number}", role, turn.start(), end))
    made = Prompt(name=name, text=text, segments=tuple(segments), messages=tuple(messages))
    return _tokenized(made, tokenizer)


def _tokenized(prompt: Prompt, tokenizer: Tokenizer | None) -> Prompt:
    if tokenizer is None:
        return prompt
    encoding = tokenizer.encode(prompt.text)
    ends = tuple(end for _, end in encoding.offsets)
    return msgspec.structs.replace(prompt, ids=tuple(encoding.ids), ends=ends)


def prompt_of_ids(ids: Sequence[Any], name: str, tokenizer: Tokenizer | None) -> Prompt:
    """Text of each id; without a tokenizer the id itself, so that the rest need not know."""
    if not all(isinstance(one, int) and one >= 0 for one in ids):
        raise PromptError(f"{name}: token_ids must be whole numbers, none negative")
    ends, at = [], 0
    words = pieces(ids, tokenizer) if tokenizer else [f"{one} " for one in ids]
    for word in words:
        at += len(word)
        ends.append(at)
    text = "".join(words)
    if tokenizer:
        made = prompt_of_text(text, name=name)
    else:
        made = Prompt(name=name, text=text, segments=(Segment("token_ids", "ids", 0, len(text)),))
    return msgspec.structs.replace(made, ids=tuple(ids), ends=tuple(ends))


def pieces(ids: Sequence[int], tokenizer: Tokenizer) -> list[str]:
    """Text of each id. What an id alone does not say is seen in what it adds to the ids before it:
    a space that decoders strip at a beginning, a character that several ids make together (the
    last of them has it)."""
    found, start, told = [], 0, 0  # ids[start:told] are decoded again: what came before
    for end in range(1, len(ids) + 1):
        before = tokenizer.decode(list(ids[start:told]), skip_special_tokens=False)
        now = tokenizer.decode(list(ids[start:end]), skip_special_tokens=False)
        whole = not now.endswith("\ufffd") or end - told > LONGEST_CHARACTER
        found.append(now[len(before) :] if whole else "")
        if whole:
            start, told = told, end
    return found


def _prompt_of_messages(
    messages: Sequence[Any], tools: Sequence[Any], name: str, tokenizer: Tokenizer | None
) -> Prompt:
    pieces: list[tuple[str, str, str]] = []
    if tools:
        lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
        pieces.append(("tools", "tools", f"{lines}\n"))
    plain = []
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping) or "role" not in message:
            raise PromptError(f'{name}: messages[{number}] is no object with a "role"')
        content = content_text(message)
        plain.append((str(message["role"]), content))
        pieces.append((f"messages[{number}].role", "role", f"[{message['role']}]\n"))
        pieces.append((f"messages[{number}].content", str(message["role"]), f"{content}\n"))
    segments, at = [], 0
    for path, kind, text in pieces:
        segments.append(Segment(path, kind, at, at + len(text)))
        at += len(text)
    made = Prompt(
        name=name,
        text="".join(text for _, _, text in pieces),
        segments=tuple(segments),
        messages=tuple(plain),
        tools=tuple(tools),
    )
    return _tokenized(made, tokenizer)


def content_text(message: Mapping[str, Any]) -> str:
    """Text of a message's content; parts that are no text, and tool calls, as JSON."""
    content = message.get("content")
    if isinstance(content, list):
        parts = [
            part["text"]
            if isinstance(part, Mapping) and isinstance(part.get("text"), str)
            else json.dumps(part, ensure_ascii=False)
            for part in content
        ]
        content = "".join(parts)
    text = "" if content is None else str(content)
    calls = message.get("tool_calls")
    return text + (json.dumps(calls, ensure_ascii=False) if calls else "")
