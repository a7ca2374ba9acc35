"""Command line: prefill one prompt, with a store of prefixes.

    python -m mla_prefill --model DIR --prompt-file FILE --store DIR

Prints what was found, read, computed and saved; `--json` prints all figures as one JSON object.
Exit status 2 and one sentence on standard error when something is wrong with the request.
"""

import argparse
import json
import sys
from pathlib import Path

import torch

from mla_prefill.config import ConfigError
from mla_prefill.demo_model import SIZES, demo_config, make_demo_model
from mla_prefill.model import Model, load_model
from mla_prefill.prefill import BLOCK_TOKENS, PrefillResult, exact_grid, prefill
from mla_prefill.tokens import encode_prompt, read_ids


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    options = _parser().parse_args(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    try:
        return _run(options)
    except ConfigError as error:
        print(f"mla_prefill: {error}", file=sys.stderr)
        return 2


def _run(options: argparse.Namespace) -> int:
    if options.make_demo_model and not (options.model / "config.json").exists():
        make_demo_model(options.model, demo_config(options.make_demo_model))
    if options.exact:
        exact_grid(options.chunk_tokens)
    model = load_model(options.model)
    ids = _prompt_ids(options)
    model.preload()
    result = _prefill(options, model, ids)
    if options.logits_out:
        torch.save(result.logits, options.logits_out)
    if options.json:
        print(json.dumps(result.figures()))
    else:
        print(report(result))
    return 0


def _prompt_ids(options: argparse.Namespace) -> list[int]:
    if options.ids:
        return read_ids(options.ids)
    return encode_prompt(options.prompt_file, options.model)[0]


def _prefill(options: argparse.Namespace, model: Model, ids: list[int]) -> PrefillResult:
    exact, chunk_tokens = options.exact, options.chunk_tokens
    if options.store is None:
        return prefill(model, ids, exact=exact, chunk_tokens=chunk_tokens)
    from mla_prefill.cache import open_cache  # the only use of kvstore; not needed without --store

    with open_cache(
        options.store,
        model,
        exact=exact,
        chunk_tokens=chunk_tokens,
        retain=options.retain,
        write=not options.no_write,
        capacity=options.capacity,
        pool=options.pool,
    ) as cache:
        result = prefill(model, ids, cache, exact=exact, chunk_tokens=chunk_tokens)
        result.finish_writes()
        return result


def report(result: PrefillResult) -> str:
    """The figures a person wants to see, one a line."""
    lines = [
        f"prompt          {result.prompt_tokens} tokens, next token {int(result.logits.argmax())}",
        f"cached          {result.hit_tokens} tokens, {result.used_tokens} used"
        + (f" ({result.reason})" if result.reason else ""),
        f"computed        {max(result.computed_tokens)} tokens per layer, {result.attention}"
        + (f", {result.restarts} restarts" if result.restarts else ""),
        f"first token     {result.ttft_s:.3f} s, {result.store_wait_s:.3f} s waiting for the store",
        f"read            {result.bytes_read / 1e6:.1f} MB from disk, "
        f"{result.ram_bytes / 1e6:.1f} MB from memory",
        f"saved           {result.blocks_put} blocks, {result.bytes_written / 1e6:.1f} MB, "
        f"{result.write_wait_s:.3f} s after the first token",
    ]
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m mla_prefill",
        description="Prefill one prompt with a DeepSeek-V2-type model, reusing stored prefixes.",
    )
    parser.add_argument("--model", type=Path, required=True, metavar="DIR", help="model directory")
    prompt = parser.add_mutually_exclusive_group(required=True)
    prompt.add_argument("--prompt-file", type=Path, metavar="FILE", help="text of the prompt")
    prompt.add_argument("--ids", type=Path, metavar="FILE", help="token ids, JSON or plain text")
    parser.add_argument("--store", type=Path, metavar="DIR", help="store; absent: no cache")
    parser.add_argument("--capacity", default="20GB", help="room for the store (default 20GB)")
    parser.add_argument("--pool", default="1GB", help="memory for the store (default 1GB)")
    parser.add_argument("--retain", choices=("agent", "chat"), default="agent")
    parser.add_argument("--no-write", action="store_true", help="read the store, publish nothing")
    parser.add_argument("--exact", action="store_true", help="bitwise the same, cold and warm")
    parser.add_argument(
        "--chunk-tokens",
        type=int,
        default=BLOCK_TOKENS,
        metavar="N",
        help=f"grid of exact mode, a multiple of {BLOCK_TOKENS}",
    )
    parser.add_argument("--threads", type=int, metavar="N", help="torch threads")
    parser.add_argument("--json", action="store_true", help="print all figures as JSON")
    parser.add_argument("--logits-out", type=Path, metavar="FILE", help="save the logits (torch)")
    parser.add_argument(
        "--make-demo-model", choices=SIZES, metavar="SIZE", help="create --model first when absent"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
