"""The demo's report, checks, timeline, place and projection, on figures made up for the test."""

import os
import signal
from pathlib import Path
from typing import Any

import msgspec
import pytest

pytest.importorskip("rich", reason="the demo's report needs the cli extra")
pytest.importorskip("matplotlib", reason="the demo's timeline needs the cli extra")

from rich.console import Console

from kvstore_demo import __main__ as command
from kvstore_demo import checks, place, projection, report, timeline
from kvstore_demo.figures import Demo, LayerSpan

BLOCK = 64
TOKEN_BYTES = 24 * 1152
OTHER_LOGITS = {"bitwise": False, "max_abs": 0.5, "same_argmax": True}
PROMPT = 6016


def spans(load_s: float) -> list[dict[str, float]]:
    return [
        {
            "layer": i,
            "load_start": i * load_s,
            "load_end": (i + 1) * load_s,
            "compute_start": 0.1 + i * 0.1,
            "compute_end": 0.2 + i * 0.1,
        }
        for i in range(24)
    ]


def prefill(*, hit: int, used: int, prompt: int = PROMPT, **changes: Any) -> dict[str, Any]:
    record = {
        "exact": True,
        "prompt_tokens": prompt,
        "hit_tokens": hit,
        "used_tokens": used,
        "computed_by_layer": [prompt - used] * 24,
        "restarts": 0,
        "ttft_s": 1.25,
        "store_wait_s": 0.01,
        "acknowledged_s": 1.5,
        "bytes_read": used * TOKEN_BYTES,
        "blocks_put": 0,
        "bytes_written": 0,
        "quarantined": 0,
        "direct": True,
        "logits_sha256": "ab" * 32,
        "against_cold": {"bitwise": True, "max_abs": 0.0, "same_argmax": True},
        "timeline": spans(0.02),
    }
    return record | changes


def a_kept_demo() -> dict[str, Any]:
    cold = prefill(hit=0, used=0, blocks_put=94, bytes_written=167_000_000, against_cold=None)
    loaded = {
        "ceiling_gbps": 3.2,
        "ceiling_depth": 32,
        "ceiling_engine": "io_uring",
        "blocks": 94,
        "ram_bytes": 0,
    }
    return {
        "session": "a session",
        "file_system": "ext4",
        "cpus": 2,
        "model": {
            "compute_threads": 1,
            "layers": 24,
            "token_bytes": TOKEN_BYTES,
            "block_tokens": BLOCK,
        },
        "cold": cold,
        "cold_exit_code": -signal.SIGKILL,
        "warm": prefill(hit=6016, used=5952),
        "cold_default": cold | {"exact": False},
        "warm_default": prefill(
            hit=6016,
            used=6015,
            exact=False,
            against_cold={"bitwise": False, "max_abs": 0.015, "same_argmax": True},
        ),
        "load": {
            "bytes": 94 * BLOCK * TOKEN_BYTES,
            "io_bytes": 1 << 20,
            "page_cache_bytes": 0,
            "store": {"engine": "io_uring"},
            "rounds": [loaded | {"gbps": 2.7 + i / 10} for i in range(7)],
        },
        "changed_at_start": {"blocks": 0, "reason": "absent"},
        "changed_in_middle": {"blocks": 47, "reason": "absent"},
        "changed_token_block": 47,
        "next_turn": prefill(hit=6016, used=6016, prompt=6850, against_cold=None),
        "damage": {
            "file": "abc.kv", "offset": 123456, "bit": 3,
            "layer": 12, "block": 47, "extent_block": 32,
        },
        "after_damage": prefill(
            hit=6016,
            used=47 * BLOCK,
            quarantined=1,
            restarts=1,
            computed_by_layer=[64 + 3008] * 13 + [3008] * 11,
        ),
        "total_s": 100.0,
    }  # fmt: skip


def as_demo(record: dict[str, Any]) -> Demo:
    return msgspec.convert(record, Demo)


def test_a_run_without_fault_keeps_every_promise() -> None:
    broken = [c for c in checks.check(as_demo(a_kept_demo())) if not c.kept]
    assert broken == []


@pytest.mark.parametrize(
    ("part", "changes", "promise"),
    [
        ("warm", {"against_cold": OTHER_LOGITS}, "bitwise"),
        ("warm", {"against_cold": None}, "bitwise"),
        ("warm", {"hit_tokens": 5952}, "whole prefix"),
        ("warm", {"computed_by_layer": [64] * 23 + [65]}, "could not give"),
        ("warm", {"computed_by_layer": [65] + [64] * 23}, "could not give"),
        ("warm", {"direct": False}, "O_DIRECT"),
        ("warm", {"bytes_read": 1}, "O_DIRECT"),
        ("cold", {"blocks_put": 93}, "every whole block"),
        ("cold", {"hit_tokens": 64}, "computes every token"),
        ("changed_at_start", {"blocks": 1}, "at the start"),
        ("changed_in_middle", {"blocks": 46}, "in the middle"),
        ("changed_in_middle", {"blocks": 48}, "in the middle"),
        ("next_turn", {"hit_tokens": 0}, "old end"),
        ("after_damage", {"quarantined": 0}, "quarantined"),
        ("after_damage", {"used_tokens": 48 * BLOCK}, "damaged block is not"),
        ("load", {"page_cache_bytes": 4096}, "page cache"),
        ("load", {"rounds": []}, "cold and whole"),
    ],
)  # fmt: skip
def test_a_broken_promise_is_found(part: str, changes: dict[str, Any], promise: str) -> None:
    record = a_kept_demo()
    record[part] = record[part] | changes
    broken = [c.promise for c in checks.check(as_demo(record)) if not c.kept]
    assert any(promise in text for text in broken), broken


def test_a_process_that_ended_by_itself_breaks_the_promise_of_the_kill() -> None:
    broken = [c for c in checks.check(as_demo(a_kept_demo() | {"cold_exit_code": 0})) if not c.kept]
    assert ["SIGKILL" in c.promise for c in broken] == [True]


def test_the_report_names_the_figures_and_what_they_do_not_prove() -> None:
    demo = as_demo(a_kept_demo())
    console = Console(width=200, record=True, quiet=False, file=open(os.devnull, "w"))
    report.print_report(console, demo, checks.check(demo))
    text = console.export_text()
    for fact in (
        "bitwise",
        "max 0.015",
        "6,016",
        "(2.70..3.30)",
        "not a GPU speed-up",
    ):
        assert fact in text
    assert "BROKEN" not in text


def test_the_figures_survive_their_json() -> None:
    demo = as_demo(a_kept_demo())
    assert msgspec.json.decode(msgspec.json.encode(demo), type=Demo) == demo


def test_the_timeline_is_a_png_with_and_without_loads(tmp_path: Path) -> None:
    for name, load_s in (("warm", 0.02), ("cold", 0.0)):
        path = tmp_path / f"{name}.png"
        timeline.draw(msgspec.convert(spans(load_s), list[LayerSpan]), path, title=name)
        assert path.read_bytes().startswith(b"\x89PNG")


def test_overlap_is_the_time_between_first_compute_and_last_arrival() -> None:
    assert timeline.overlap_s(msgspec.convert(spans(0.02), list[LayerSpan])) == pytest.approx(0.38)
    assert timeline.overlap_s(msgspec.convert(spans(0.0), list[LayerSpan])) == 0.0


def test_deepseek_v3_needs_18_4_gbps_for_half_a_second() -> None:
    v3 = projection.deepseek_v3(3.07)
    assert projection.V3_TOKEN_BYTES == 70_272
    assert v3.prompt_bytes == 9_210_691_584
    assert v3.needed_gbps == pytest.approx(18.4, abs=0.05)
    assert v3.seconds == pytest.approx(3.0, abs=0.01)


MOUNTS = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:26 / /dev/shm rw - tmpfs shm rw
31 22 0:27 / /mnt/with\\040space rw - xfs /dev/vdb rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/a", "ext4"),
        ("/dev/shm/x", "tmpfs"),
        ("/dev/shmoo", "ext4"),
        ("/mnt/with space/a", "xfs"),
    ],
)  # fmt: skip
def test_the_longest_mount_point_decides_the_file_system(path: str, kind: str) -> None:
    assert place.file_system_of(Path(path), MOUNTS) == kind


def a_place(file_system: str, free_bytes: int) -> place.Place:
    return place.Place(path=Path("/somewhere"), file_system=file_system, free_bytes=free_bytes)


def test_tmpfs_and_too_little_space_are_refused_with_advice() -> None:
    with pytest.raises(place.Unsuitable, match="--out DIR"):
        place.refuse_unless_suitable(a_place("tmpfs", 10**12), need_bytes=1)
    with pytest.raises(place.Unsuitable, match="--prompt-tokens"):
        place.refuse_unless_suitable(a_place("ext4", 10**9), need_bytes=2 * 10**9)
    place.refuse_unless_suitable(a_place("xfs", 2 * 10**9), need_bytes=2 * 10**9)


def test_looking_at_a_place_leaves_nothing_behind(tmp_path: Path) -> None:
    here = place.inspect(tmp_path / "not" / "there")
    assert here.path == tmp_path.resolve() / "not" / "there"
    assert here.free_bytes > 0
    assert list(tmp_path.iterdir()) == []


def test_pages_in_the_page_cache_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "cached"
    path.write_bytes(b"x" * 10_000)
    path.read_bytes()
    assert place.bytes_in_page_cache([path]) == 3 * 4096


def test_a_missing_extra_is_named_with_its_remedy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: None if name == "rich" else object())
    assert command.main(["--out", str(tmp_path)]) == 2
    assert "pip install 'kvstore-nvme[cli]'" in capsys.readouterr().err


def test_a_prompt_out_of_range_is_refused_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: object())
    assert command.main(["--out", str(tmp_path / "out"), "--prompt-tokens", "1000000"]) == 2
    assert "1,000,000 tokens" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
