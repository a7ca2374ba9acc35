"""`python -m kvstore_demo`: checks the place, runs the phases, prints and saves the figures.

Exit code 0 when every promise was kept, 1 when one was broken or a phase failed, 2 when the demo
cannot run here (an extra missing, tmpfs, too little space).
"""

import argparse
import shutil
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import msgspec

from kvstore_demo import place, prompt
from kvstore_demo.figures import Demo

MODEL_BYTES = 1_200_000_000
TOKEN_BYTES = 24 * 1152
# The prompt in exact and in default mode, its next turn, and what is written again after damage.
STORED_PROMPTS = 4
SPARE_BYTES = 1_000_000_000
FIGURES = "demo.json"
TIMELINE = "timeline.png"
NEEDS = {"rich": "cli", "matplotlib": "cli", "torch": "mla", "safetensors": "mla"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; returns the exit code."""
    options = _options(arguments)
    missing = [name for name in NEEDS if find_spec(name) is None]
    if missing:
        extras = ",".join(sorted({NEEDS[name] for name in missing}))
        print(
            f"{', '.join(missing)} missing: pip install 'kvstore-nvme[{extras}]'", file=sys.stderr
        )
        return 2
    try:
        prompt.prompts(options.prompt_tokens)
        here = place.inspect(options.out)
        place.refuse_unless_suitable(here, need_bytes=need_bytes(options, here.path))
    except (ValueError, place.Unsuitable) as error:
        print(error, file=sys.stderr)
        return 2
    return _show(here, options)


def need_bytes(options: argparse.Namespace, out: Path) -> int:
    """Free bytes a run needs: the model when absent, the store, and some to spare."""
    has_model = (out / _model_name(options.model_size) / "config.json").exists()
    stored: int = STORED_PROMPTS * options.prompt_tokens * TOKEN_BYTES
    return stored + SPARE_BYTES + (0 if has_model else MODEL_BYTES)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m kvstore_demo", description=__doc__)
    parser.add_argument(
        "--prompt-tokens",
        type=int,
        default=prompt.DEFAULT_TOKENS,
        metavar="N",
        help=f"tokens of the prompt, {prompt.MIN_TOKENS} to {prompt.longest()} (%(default)s)",
    )
    parser.add_argument(
        "--out", type=Path, default=Path(".demo"), help="model, stores and figures (%(default)s)"
    )
    parser.add_argument(
        "--model-size",
        choices=("demo", "small"),
        default="demo",
        help="small: 4 layers, a trial of seconds (%(default)s)",
    )
    parser.add_argument("--keep", action="store_true", help="keep the stores of this run")
    return parser.parse_args(arguments)


def _model_name(size: str) -> str:
    return "model" if size == "demo" else f"model-{size}"


def _show(here: place.Place, options: argparse.Namespace) -> int:
    # Imported here and not above, so that a missing extra is named instead of raised.
    from rich.console import Console

    from kvstore_demo import checks, children, report, story

    console = Console(soft_wrap=False)
    here.path.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="run-", dir=here.path))
    stage = story.Stage(
        console=console,
        model=here.path / _model_name(options.model_size),
        model_size=options.model_size,
        work=work,
        tokens=options.prompt_tokens,
        file_system=here.file_system,
    )
    try:
        report.print_opening(console, tokens=options.prompt_tokens, place=here)
        demo = story.play(stage)
    except children.PhaseFailed as error:
        console.print(str(error), markup=False, highlight=False, style="red")
        return 1
    finally:
        if not options.keep:
            shutil.rmtree(work, ignore_errors=True)
    results = checks.check(demo)
    report.print_report(console, demo, results)
    _save(here.path, demo)
    console.print(f"Figures: {here.path / FIGURES}\nTimeline: {here.path / TIMELINE}", markup=False)
    return 0 if all(result.kept for result in results) else 1


def _save(out: Path, demo: Demo) -> None:
    from kvstore_demo import timeline

    (out / FIGURES).write_bytes(msgspec.json.format(msgspec.json.encode(demo)))
    timeline.draw(
        demo.warm.timeline,
        out / TIMELINE,
        title=f"Warm prefill: {demo.warm.used_tokens:,} tokens streamed from disk, "
        f"{demo.warm.computed_tokens:,} computed",
    )


if __name__ == "__main__":
    sys.exit(main())
