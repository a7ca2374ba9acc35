"""The vLLM bench without vLLM: its prompts share what they say, its report is what was measured.

What needs an engine is not here; `benches/vllm_ttft.py --small` runs all of it.
"""

import json
import os
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import msgspec
import psutil
import pytest

from kvstore import Layout
from kvstore_vllm.options import options_of
from ttft import models, prompts, slow_disk, variants
from ttft.prompts import Case
from ttft.report import BASELINE, Report, Run, Sample, render, rows, same_answers
from ttft.server import Server, ServerError, free_port

CASES = [Case(tokens, hit) for tokens in (512, 1024, 8192) for hit in (0, 50, 95)]


def common_prefix(one: list[int], other: list[int]) -> int:
    return next(
        (at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
        min(len(one), len(other)),
    )


# ---- prompts -------------------------------------------------------------------------------------


def test_a_prompt_has_its_length_and_the_share_that_was_stored() -> None:
    for prompt in prompts.plan(CASES, 3):
        assert len(prompt.ids) == prompt.case.tokens
        assert len(prompt.stored) == prompt.case.tokens * prompt.case.hit // 100
        assert common_prefix(prompt.stored, prompt.ids) == len(prompt.stored)


def test_no_two_prompts_share_a_block() -> None:
    every = prompts.plan(CASES, 5)
    for one, other in combinations(every, 2):
        assert common_prefix(one.ids, other.ids) < prompts.HEADER


def test_what_is_new_in_a_prompt_is_in_no_store() -> None:
    stored = [prompt.stored for prompt in prompts.plan(CASES, 2) if prompt.stored]
    for prompt in prompts.plan(CASES, 2):
        new = prompt.ids[prompt.case.shared :]
        assert all(common_prefix(new, old) < prompts.HEADER for old in stored)


def test_every_round_asks_every_case_and_begins_with_another() -> None:
    counted = [prompt for prompt in prompts.plan(CASES, 3) if prompt.round >= 0]
    by_round = [[p.case for p in counted if p.round == turn] for turn in range(3)]
    assert [sorted(cases) for cases in by_round] == [sorted(CASES)] * 3
    assert len({cases[0] for cases in by_round}) == 3


def test_a_hit_of_everything_leaves_a_token_to_compute() -> None:
    assert Case(1024, 100).shared == 1023


def test_documents_are_the_real_session_and_repeatable() -> None:
    session = prompts.document(0, 40_000)
    assert session[prompts.HEADER : 5000] == prompts.document(0, 5000)[prompts.HEADER :]
    assert len(set(session)) == prompts.vocabulary()
    with pytest.raises(ValueError, match="document -1"):
        prompts.document(-1, 64)


# ---- models and variants -------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:a block of:kvstore.LayoutWarning")
@pytest.mark.parametrize("model", models.MODELS.values(), ids=list(models.MODELS))
def test_kv_bytes_of_a_model_are_those_of_its_config(model: models.Model, tmp_path: Path) -> None:
    config = models.write(model, tmp_path) / "config.json"
    layout = Layout.from_config(config, model="bench", block_tokens=64, dtype="bfloat16")
    assert layout.block_bytes == model.kv_values * 2 * 64


def setting(folder: Path, name: str) -> variants.Setting:
    return variants.Setting(
        model=models.MODELS[name],
        model_folder=folder / "model",
        max_tokens=8192,
        dtype="float32",
        kv_gib=1,
        folder=folder,
        lmcache_folder=folder / "lmcache",
    )


def test_kvstores_settings_are_words_that_the_connector_knows(tmp_path: Path) -> None:
    gates = {}
    for name in (variants.KVSTORE, variants.SLOW, variants.UNGATED):
        connector = variants.Variant(name, setting(tmp_path, "gqa")).connector(0)
        assert connector is not None
        gates[name] = options_of(connector["kv_connector_extra_config"]).gate
    assert gates == {variants.KVSTORE: True, variants.SLOW: True, variants.UNGATED: False}


def test_a_chunk_of_lmcache_is_whole_blocks_of_every_model(tmp_path: Path) -> None:
    for name, model in models.MODELS.items():
        unit = variants.Variant(variants.LMCACHE, setting(tmp_path, name)).unit
        assert unit % model.block_tokens == 0 and unit == variants.LMCACHE_CHUNK


def test_variants_differ_in_nothing_but_their_cache(tmp_path: Path) -> None:
    commands = []
    for name in variants.VARIANTS:
        variant = variants.Variant(name, setting(tmp_path, "mla"))
        command = variant.setting.engine_command(1, variant.connector(2))
        if "--kv-transfer-config" in command:
            at = command.index("--kv-transfer-config")
            json.loads(command[at + 1])
            del command[at : at + 2]
        commands.append(command)
    assert all(command == commands[0] for command in commands)


# ---- report --------------------------------------------------------------------------------------


def sample(variant: str, hit: int, turn: int, ttft_s: float, cached: int = 0) -> Sample:
    return Sample(
        variant=variant,
        tokens=1024,
        hit=hit,
        round=turn,
        ttft_s=ttft_s,
        cached_tokens=cached,
        expected_tokens=512 if hit else 0,
        answer="w1 w2",
    )


def report(samples: list[Sample], **more: object) -> Report:
    run = Run(
        model="tiny",
        what="a model",
        dtype="float32",
        kv_bytes_per_token=1024,
        block_tokens=128,
        commands={BASELINE: "serve", "kvstore": "serve with it"},
        samples=samples,
    )
    run = msgspec.structs.replace(run, **more)
    return Report(command="bench", machine={"CPU": "x"}, versions={"vllm": "0"}, runs=[run])


def test_a_ratio_is_of_the_same_round() -> None:
    # The second round's machine is ten times slower; the ratio is the same.
    seconds = [(0, 1.0, 0.5), (1, 10.0, 5.0), (2, 2.0, 1.0)]
    samples = [
        taken
        for turn, base, cached in seconds
        for taken in (
            sample(BASELINE, 0, turn, base),
            sample("kvstore", 50, turn, cached, cached=512),
        )
    ]
    base, hit = rows(report(samples).runs[0])
    assert (base.variant, hit.variant) == (BASELINE, "kvstore")
    assert hit.of_recompute.values == [0.5, 0.5, 0.5]
    assert hit.ttft_ms.median == 1000 and not hit.slower


def test_a_hit_that_is_slower_than_computing_is_marked() -> None:
    samples = [sample(BASELINE, 0, 0, 1.0), sample("kvstore", 50, 0, 1.5, cached=512)]
    assert [row.slower for row in rows(report(samples).runs[0])] == [False, True]
    marked = [line for line in render(report(samples)).splitlines() if line.endswith("SLOWER")]
    assert len(marked) == 1 and "kvstore" in marked[0] and "1.50" in marked[0]


def test_a_miss_that_was_slower_is_not_called_a_slow_hit() -> None:
    samples = [sample(BASELINE, 0, 0, 1.0), sample("kvstore", 0, 0, 1.5)]
    assert not any(row.slower for row in rows(report(samples).runs[0]))


def test_fewer_cached_tokens_than_expected_are_seen() -> None:
    samples = [sample("kvstore", 50, 0, 1.0, cached=512), sample("kvstore", 50, 1, 1.0, cached=0)]
    assert "0 to 512 of 512" in render(report(samples))


def test_the_baselines_answers_to_hits_are_compared_and_not_in_the_table() -> None:
    samples = [sample(BASELINE, 0, 0, 1.0), sample(BASELINE, 50, 0, 1.0)]
    samples += [sample("kvstore", 50, 0, 1.0), sample("kvstore", 50, 1, 1.0)]
    wrong = msgspec.structs.replace(sample("kvstore", 0, 0, 1.0), answer="w3")
    run = report([*samples, wrong]).runs[0]
    assert same_answers(run) == {"kvstore": (1, 2)}
    assert [(row.variant, row.case.hit) for row in rows(run) if row.variant == BASELINE] == [
        (BASELINE, 0)
    ]


def test_what_could_not_run_is_listed_with_what_it_said() -> None:
    text = render(report([], errors={"lmcache": "ended with 1:\nImportError: no"}))
    assert "lmcache COULD NOT RUN: ended with 1:\nImportError: no" in text


def test_a_refused_load_is_in_the_printed_report_with_its_reason() -> None:
    counters = {"kvstore": {"vllm:kvstore_skips_total{reason=gate}": 3.0, "vllm:other_total": 1.0}}
    lines = render(report([], counters=counters)).splitlines()
    assert "kvstore: kvstore_skips{reason=gate} 3" in lines


def test_the_commands_of_all_variants_are_printed() -> None:
    lines = render(report([])).splitlines()
    assert [line for line in lines if ": $ " in line] == [
        f"{BASELINE}: $ serve",
        "kvstore: $ serve with it",
    ]


def test_the_raw_samples_come_back_from_json_and_foreign_words_do_not() -> None:
    whole = report(
        [sample(BASELINE, 0, 0, 1.0)], errors={"a": "b"}, counters={"kvstore": {"loads": 3.0}}
    )
    packed = msgspec.json.encode(whole)
    assert msgspec.json.decode(packed, type=Report) == whole
    with pytest.raises(msgspec.ValidationError, match="unknown field"):
        msgspec.json.decode(packed.replace(b'"answer"', b'"reply"'), type=Report)


# ---- servers -------------------------------------------------------------------------------------


def test_a_server_that_ends_at_once_says_what_it_printed(tmp_path: Path) -> None:
    server = Server([sys.executable, "-c", "exit('no such model')"], {}, tmp_path / "log")
    with pytest.raises(ServerError, match=r"ended with 1:\nno such model"):
        server.wait_for(f"http://127.0.0.1:{free_port()}")
    server.stop()


def test_a_server_is_stopped_with_its_children_even_if_it_will_not_go(tmp_path: Path) -> None:
    port = free_port()
    program = f"""
import http.server, signal, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
print(child.pid, flush=True)
signal.signal(signal.SIGINT, signal.SIG_IGN)
http.server.HTTPServer(("127.0.0.1", {port}), http.server.SimpleHTTPRequestHandler).serve_forever()
"""
    server = Server([sys.executable, "-c", program], {}, tmp_path / "log", stop_s=0.5)
    server.wait_for(f"http://127.0.0.1:{port}")
    child = int((tmp_path / "log").read_text().split()[0])
    left = psutil.Process(child)
    server.stop()
    left.wait(30)


def test_a_slow_disk_is_around_the_whole_process_group_and_is_taken_away_again(
    tmp_path: Path,
) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: makes a control group")
    if not (slow_disk.CONTROLLER / "cgroup.procs").exists():
        pytest.skip("needs cgroup v1's blkio controller")
    program = "import os, sys; os.fork(); print(flush=True); sys.stdin.read()"
    parent = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert parent.stdout is not None
    both = [parent.stdout.readline(), parent.stdout.readline()]
    assert both == [b"\n", b"\n"]
    group = slow_disk.CONTROLLER / f"kvstore-bench-{parent.pid}"
    try:
        with slow_disk.slow_reads(parent.pid, tmp_path, 500_000):
            inside = (group / "cgroup.procs").read_text().split()
            assert sorted(map(int, inside)) == sorted(slow_disk.processes_of(parent.pid))
            assert len(inside) == 2
            assert (group / "blkio.throttle.read_bps_device").read_text().endswith(" 500000\n")
        assert not group.exists() and parent.poll() is None
    finally:
        parent.communicate(timeout=30)


def test_a_slow_disk_that_cannot_be_had_says_why_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slow_disk, "CONTROLLER", tmp_path / "not mounted")
    with pytest.raises(OSError, match="not mounted"), slow_disk.slow_reads(1, tmp_path, 1):
        pass
