"""One phase of the demo in a process of its own: `python -m kvstore_demo.phases NAME ...`.

Says on stdout only Progress and Result lines (children.py reads them); whatever a library prints
goes to stderr. What the phases do with the store and the model is in engine.py.
"""

import argparse
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import msgspec

from kvstore_demo import engine
from kvstore_demo.checks import ROUNDS
from kvstore_demo.children import Progress, Result
from kvstore_demo.engine import Step
from kvstore_demo.prompt import BLOCK_TOKENS, variant


def main() -> None:
    """Run the phase named on the command line."""
    options = _options()
    speech = _keep_stdout_for_speech()

    def step(done: int, total: int) -> None:
        _say(speech, Progress(done, total))

    engine.leave_a_core_to_the_store()
    figures = PHASES[options.phase](options, step)
    _say(speech, Result(msgspec.Raw(msgspec.json.encode(figures))))
    if options.linger:
        signal.pause()


def _model(options: argparse.Namespace, step: Step) -> msgspec.Struct:
    return engine.make_model(options.model, options.model_size)


def _prefill(options: argparse.Namespace, step: Step) -> msgspec.Struct:
    return engine.prefill(
        options.model,
        options.store,
        variant(options.prompt, options.prompt_tokens),
        exact=options.exact,
        save=options.save,
        against=options.against,
        step=step,
    )


def _load(options: argparse.Namespace, step: Step) -> msgspec.Struct:
    ids = variant(options.prompt, options.prompt_tokens)
    return engine.load(options.model, options.store, ids, rounds=ROUNDS, step=step)


def _lookup(options: argparse.Namespace, step: Step) -> msgspec.Struct:
    ids = variant(options.prompt, options.prompt_tokens)
    return engine.lookup(options.model, options.store, ids)


def _damage(options: argparse.Namespace, step: Step) -> msgspec.Struct:
    ids = variant(options.prompt, options.prompt_tokens)
    block = len(ids) // BLOCK_TOKENS * 2 // 3  # far enough in that whole extents lie before it
    return engine.flip_one_bit(options.model, options.store, ids, block=block)


PHASES: dict[str, Callable[[argparse.Namespace, Step], msgspec.Struct]] = {
    "model": _model,
    "prefill": _prefill,
    "load": _load,
    "lookup": _lookup,
    "damage": _damage,
}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m kvstore_demo.phases", description=__doc__)
    parser.add_argument("phase", choices=PHASES)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--prompt-tokens", type=int, required=True)
    parser.add_argument("--model-size", default="demo")
    parser.add_argument("--store", type=Path)
    parser.add_argument("--prompt", default="first")
    parser.add_argument("--exact", action="store_true")
    parser.add_argument("--save", type=Path, help="file for the logits")
    parser.add_argument("--against", type=Path, help="file of saved logits to compare with")
    parser.add_argument("--linger", action="store_true", help="wait to be killed at the end")
    return parser.parse_args()


def _keep_stdout_for_speech() -> BinaryIO:
    """Returns the real stdout; from here on everything else that is printed goes to stderr."""
    speech = os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return speech


def _say(speech: BinaryIO, what: Progress | Result) -> None:
    speech.write(msgspec.json.encode(what) + b"\n")


if __name__ == "__main__":
    main()
