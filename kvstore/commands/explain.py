"""`kvstore explain`: why did this prompt miss."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from kvstore.commands.common import DONE, Parser, declare, need_directory, positive, to_json
from kvstore.explain import Explanation, Lint, explain, lint, read_prompt
from kvstore.explain.page import lint_page, page
from kvstore.explain.prompt import Tokenizer
from kvstore.explain.render import render, render_lint
from kvstore.prices import Price, price_of

if TYPE_CHECKING:
    from kvstore.commands.common import Commands


def add(commands: "Commands") -> None:
    parser = declare(
        commands,
        "explain",
        run,
        "why a prompt missed, and what that costs",
        "kvstore explain yesterday.json today.json --tokenizer tokenizer.json\n"
        "kvstore explain --lint recorded/ --price deepseek-v4-flash --html report.html",
    )
    parser.add_argument(
        "prompts",
        nargs="*",
        type=Path,
        metavar="FILE",
        help="two prompts: the one that was stored, the one that missed. *.json: messages, or token"
        " ids; anything else is text",
    )
    parser.add_argument("--lint", type=Path, metavar="DIR", help="rank causes over recorded ones")
    parser.add_argument(
        "--tokenizer", type=Path, metavar="FILE", help="the model's tokenizer.json: exact tokens"
    )
    parser.add_argument("--block-tokens", type=positive, default=64, metavar="N", help="64")
    parser.add_argument("--price", metavar="MODEL", help="money by this model's prices")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a report, too")


def run(options: argparse.Namespace) -> int:
    tokenizer = _tokenizer(options.tokenizer)
    price = price_of(options.price) if options.price else None
    told: Explanation | Lint
    if options.lint:
        if options.prompts:
            parser: Parser = options.parser
            parser.error("--lint takes a folder and no further prompts")
        told = lint(
            need_directory(options.lint),
            tokenizer=tokenizer,
            block_tokens=options.block_tokens,
            price=price,
        )
    else:
        told = _two(options, tokenizer, price)
    if options.html:
        options.html.write_text(lint_page(told) if isinstance(told, Lint) else page(told))
    if options.json:
        print(to_json(told))
    else:
        print(render_lint(told) if isinstance(told, Lint) else render(told))
    return DONE


def _two(
    options: argparse.Namespace, tokenizer: Tokenizer | None, price: Price | None
) -> Explanation:
    if len(options.prompts) != 2:
        parser: Parser = options.parser
        parser.error("name two prompts, or --lint DIR")
    stored, missed = (read_prompt(path, tokenizer) for path in options.prompts)
    return explain(stored, missed, block_tokens=options.block_tokens, price=price)


def _tokenizer(path: Path | None) -> Tokenizer | None:
    if path is None:
        return None
    if not path.is_file():
        raise FileNotFoundError(f"{path} is no file; name the model's tokenizer.json")
    try:
        from tokenizers import Tokenizer as Loaded
    except ImportError as error:
        raise OSError("--tokenizer needs the package tokenizers: pip install tokenizers") from error
    made: Tokenizer = Loaded.from_file(str(path))
    return made
