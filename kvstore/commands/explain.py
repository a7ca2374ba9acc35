"""`kvstore explain`: why did this prompt miss."""

import argparse
import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from kvstore.chain import Extra
from kvstore.commands.common import DONE, Parser, declare, need_directory, positive, to_json
from kvstore.errors import LayoutWarning
from kvstore.explain import (
    Explanation,
    Lint,
    Prompt,
    StoreExplanation,
    explain,
    explain_store,
    lint,
    read_prompt,
)
from kvstore.explain.page import lint_page, page, store_page
from kvstore.explain.prompt import Tokenizer
from kvstore.explain.render import render, render_lint, render_store
from kvstore.layout import Layout
from kvstore.prices import Price, price_of

if TYPE_CHECKING:
    from kvstore.commands.common import Commands

_OF_A_STORE = ("layout", "namespace", "model", "salt", "lora", "extra")


def add(commands: "Commands") -> None:
    parser = declare(
        commands,
        "explain",
        run,
        "why a prompt missed, and what that costs",
        "kvstore explain yesterday.json today.json --tokenizer tokenizer.json\n"
        "kvstore explain --store /nvme0/kv --store /nvme1/kv prompt.json\n"
        "kvstore explain --lint recorded/ --price deepseek-v4-flash --html report.html",
    )
    parser.add_argument(
        "prompts",
        nargs="*",
        type=Path,
        metavar="FILE",
        help="two prompts: the one that was stored, the one that missed; with --store the latter."
        " *.json: messages, or token ids; anything else is text",
    )
    parser.add_argument("--lint", type=Path, metavar="DIR", help="rank causes over recorded ones")
    parser.add_argument(
        "--tokenizer", type=Path, metavar="FILE", help="the model's tokenizer.json: exact tokens"
    )
    parser.add_argument(
        "--block-tokens", type=positive, metavar="N", help="64; a store knows its own"
    )
    parser.add_argument("--price", metavar="MODEL", help="money by this model's prices")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a report, too")
    _add_store(parser)


def _add_store(parser: argparse.ArgumentParser) -> None:
    store = parser.add_argument_group(
        "why it missed in a store",
        "Give the prompt as token ids: what an engine's chat template makes of messages is not"
        " known here.",
    )
    store.add_argument(
        "--store",
        type=Path,
        action="append",
        metavar="ROOT",
        help="a directory of it, once for each; it may be open",
    )
    which = store.add_mutually_exclusive_group()
    which.add_argument(
        "--layout",
        type=Path,
        metavar="FILE",
        help="the layout asked for: its layout.json, or with --model the model's config.json",
    )
    store.add_argument("--model", metavar="NAME", help="as the layout of a config.json names it")
    which.add_argument("--namespace", metavar="HEX", help="or its directory's name; else all")
    store.add_argument("--salt", metavar="TEXT", help="that the request had")
    store.add_argument("--lora", metavar="NAME", help="the same as --extra lora:0:NAME")
    store.add_argument(
        "--extra",
        action="append",
        default=[],
        metavar="TAG:OFFSET:VALUE",
        help="that the request's keys had (a LoRA, an image's hash)",
    )


def run(options: argparse.Namespace) -> int:
    tokenizer = _tokenizer(options.tokenizer)
    price = price_of(options.price) if options.price else None
    _check_words(options)
    if options.store:
        told = _store(options, tokenizer, price)
        _print(options, told, render_store(told), store_page(told))
    elif options.lint:
        found = lint(
            need_directory(options.lint),
            tokenizer=tokenizer,
            block_tokens=_block_tokens(options),
            price=price,
        )
        _print(options, found, render_lint(found), lint_page(found))
    else:
        two = _two(options, tokenizer, price)
        _print(options, two, render(two), page(two))
    return DONE


def _check_words(options: argparse.Namespace) -> None:
    """ValueError for words that would be passed over in silence."""
    if options.lint and (options.prompts or options.store):
        raise ValueError("--lint takes a folder, and neither prompts nor --store")
    for word in _OF_A_STORE:
        if getattr(options, word) and not options.store:
            raise ValueError(f"--{word} needs --store ROOT")
    if options.store and options.block_tokens is not None and not options.model:
        raise ValueError("a store knows its own block size: --block-tokens goes with --model")
    if options.model and not options.layout:
        raise ValueError("--model needs --layout config.json")


def _print(
    options: argparse.Namespace, told: StoreExplanation | Lint | Explanation, text: str, html: str
) -> None:
    if options.html:
        options.html.write_text(html, encoding="utf-8")
    print(to_json(told) if options.json else text)


def _block_tokens(options: argparse.Namespace) -> int:
    return 64 if options.block_tokens is None else int(options.block_tokens)


def _two(
    options: argparse.Namespace, tokenizer: Tokenizer | None, price: Price | None
) -> Explanation:
    if len(options.prompts) != 2:
        parser: Parser = options.parser
        parser.error("name two prompts, --store ROOT or --lint DIR")
    stored, missed = (read_prompt(path, tokenizer) for path in options.prompts)
    return explain(stored, missed, block_tokens=_block_tokens(options), price=price)


def _store(
    options: argparse.Namespace, tokenizer: Tokenizer | None, price: Price | None
) -> StoreExplanation:
    if len(options.prompts) != 1:
        raise ValueError("--store takes one prompt: the one that missed")
    prompt = read_prompt(options.prompts[0], tokenizer)
    namespace = options.namespace
    if namespace and (len(namespace) != 32 or set(namespace) - set("0123456789abcdef")):
        raise ValueError(f"--namespace has 32 hex digits, as below a root, not {namespace!r}")
    return explain_store(
        [need_directory(root) for root in options.store],
        prompt,
        layout=_layout(options) if options.layout else None,
        namespace=namespace,
        salt=(options.salt or prompt.identity.get("salt", "")).encode(),
        extras=_extras(options, prompt),
        tokenizer=tokenizer,
        price=price,
    )


def _extras(options: argparse.Namespace, prompt: Prompt) -> list[Extra]:
    found: list[Extra] = []
    lora = options.lora or prompt.identity.get("lora")
    if lora:
        found.append(("lora", 0, lora.encode()))
    for word in options.extra:
        tag, offset, value = [*word.split(":", 2), "", ""][:3]
        if not tag or not offset.isdecimal():
            raise ValueError(f"--extra is TAG:OFFSET:VALUE, like lora:0:adapter-1, not {word!r}")
        found.append((tag, int(offset), value.encode()))
    return found


def _layout(options: argparse.Namespace) -> Layout:
    path, model = options.layout, options.model
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LayoutWarning)
        if model:
            size = _block_tokens(options)
            try:
                return Layout.from_config(path, model=model, block_tokens=size)
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(f"{path} is no config.json known here: {error}") from error
        try:
            return msgspec.convert(json.loads(path.read_bytes()), Layout)
        except (msgspec.ValidationError, ValueError) as error:
            raise ValueError(
                f"{path} is no layout.json: name the one in a namespace's directory, or a model's"
                f" config.json with --model NAME ({error})"
            ) from error


def _tokenizer(path: Path | None) -> Tokenizer | None:
    if path is None:
        return None
    if not path.is_file():
        raise FileNotFoundError(f"{path} is no file; name the model's tokenizer.json")
    try:
        from tokenizers import Tokenizer as Loaded
    except ImportError as error:
        raise OSError("--tokenizer needs the package tokenizers: pip install tokenizers") from error
    try:
        made: Tokenizer = Loaded.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise ValueError(f"{path} is no tokenizer.json: {error}") from error
    return made
