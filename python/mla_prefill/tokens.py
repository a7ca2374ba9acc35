"""Prompts to token ids.

What it does: reads ids from a file, or encodes text with the model directory's own tokenizer.json,
or byte by byte where there is none.
What it does not: chat templates.
Invariant: the same file and model directory give the same ids; the cache hashes ids, never text.
"""

import json
from pathlib import Path
from typing import Any

from mla_prefill.config import ConfigError

BYTE_OFFSET = 3


def read_ids(path: Path) -> list[int]:
    """Ids from `path`: a JSON array, or integers separated by white space or commas."""
    text = _read(path).decode("utf-8", errors="replace")
    try:
        ids = json.loads(text) if path.suffix == ".json" else text.replace(",", " ").split()
        return [int(token) for token in ids]
    except (ValueError, TypeError) as error:
        raise ConfigError(
            f"{path} is not a list of token ids ({error}): write a JSON array into a .json file, "
            "or integers separated by spaces"
        ) from None


def encode_prompt(path: Path, model_dir: Path) -> tuple[list[int], str]:
    """Ids of the text in `path`, and which encoder made them ("tokenizer.json" or "bytes")."""
    data = _read(path)
    if not (model_dir / "tokenizer.json").exists():
        return [byte + BYTE_OFFSET for byte in data], "bytes"
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise ConfigError(
            f"{model_dir} has a tokenizer.json but the package tokenizers is missing: "
            "pip install tokenizers, or give --ids"
        ) from None
    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    ids: list[int] = tokenizer.encode(data.decode("utf-8", errors="replace")).ids
    return _leading_bos(tokenizer, model_dir) + ids, "tokenizer.json"


def _leading_bos(tokenizer: Any, model_dir: Path) -> list[int]:
    """The begin token where tokenizer_config.json asks for it and the tokenizer adds none."""
    path = model_dir / "tokenizer_config.json"
    settings = json.loads(path.read_text()) if path.exists() else {}
    token = settings.get("bos_token")
    word = token.get("content") if isinstance(token, dict) else token
    bos = tokenizer.token_to_id(word) if settings.get("add_bos_token") and word else None
    return [] if bos is None or bos in tokenizer.encode("").ids else [bos]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
