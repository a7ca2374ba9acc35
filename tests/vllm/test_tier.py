"""kvstore as a secondary tier of vLLM: the adapter alone, and engines that restart."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("vllm.v1", reason="vLLM is not installed")

from engines import prompt, running
from vllm.v1.kv_offload.base import LookupResult, Medium, ReqContext, make_offload_key
from vllm.v1.kv_offload.tiering.base import TransferJob
from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from kvstore_vllm.tier import KVStoreTier, layout_of, options_of

ROWS, ROW_BYTES = 8, 64 * 4096
PROMPTS = [prompt(700, 1), prompt(353, 2)]


# ---- the adapter alone --------------------------------------------------------------------------


@dataclass
class Words:
    """What the tier reads of vLLM's OffloadingConfig."""

    name: str = "some/model"
    dtype: str = "float32"
    kv_cache_layout: str | None = "LBHNC"
    tokens_per_hash: int = 128
    tp_size: int = 1
    pp_size: int = 1
    pcp_size: int = 1
    dcp_size: int = 1
    rank: int = 0
    is_parallelism_agnostic: bool = True
    canonical_layout: bool = False
    replicated_layout: bool = False
    layer_names: tuple[str, ...] = ("layers.0", "layers.1")
    tokens_per_block: int = 128
    groups: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.model = self.cache = self.parallel = self
        self.groups = [self]


@dataclass
class Spec:
    config: Words = field(default_factory=Words)
    blocks_per_chunk: int = 1
    tokens_per_block: tuple[int, ...] = (128,)


def tier_on(root: Path, rows: np.ndarray, spec: Spec | None = None, **words: Any) -> KVStoreTier:
    """As vLLM makes it, from a configuration."""
    config = {
        "type": "KVStoreTier", "module_path": "kvstore_vllm.tier", "paths": [str(root)],
        "pool": "64MB", "capacity": "1GB",
    }  # fmt: skip
    return SecondaryTierFactory.create_secondary_tier(
        config | words, memoryview(rows.view(np.int8)), spec or Spec()
    )


def memory() -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, (ROWS, ROW_BYTES), dtype=np.uint8)


def job(number: int, keys: list[bytes], rows: list[int], context: ReqContext) -> TransferJob:
    return TransferJob(number, keys, np.array(rows, np.int32), False, context)


def test_jobs_are_stored_looked_up_and_loaded_after_a_restart(tmp_path: Path) -> None:
    keys = [make_offload_key(bytes([number]) * 32, 0) for number in range(4)]
    context, rows = ReqContext("request"), memory()
    before = rows.copy()
    tier = tier_on(tmp_path, rows)
    assert (tier.medium, tier.cache_hit_source) == (Medium.STORAGE, CacheHitSource.DISK)
    tier.on_new_request(context)
    assert tier.lookup(keys[0], context) is LookupResult.MISS
    tier.submit_store(job(7, keys[:3], [5, 2, 0], context))
    tier.drain_jobs()
    (done,) = tier.get_finished_jobs()
    assert (done.job_id, done.success, done.transfer_bytes) == (7, True, 3 * ROW_BYTES)
    tier.touch(keys, context)
    tier.on_request_finished(context)
    tier.shutdown()

    tier = tier_on(tmp_path, rows)
    found = [LookupResult.RETRY]
    while LookupResult.RETRY in found:
        found = [tier.lookup(key, context) for key in keys]
    assert found == [LookupResult.HIT] * 3 + [LookupResult.MISS]
    tier.submit_load(job(8, keys, [7, 6, 4, 3], context))
    tier.drain_jobs()
    (done,) = tier.get_finished_jobs()
    assert (done.job_id, done.success) == (8, False)
    assert done.successful_keys == tuple(keys[:3])
    assert np.array_equal(rows[[7, 6, 4]], before[[5, 2, 0]])
    assert np.array_equal(rows[[0, 1, 2, 3, 5]], before[[0, 1, 2, 3, 5]])
    assert list(tier.get_finished_jobs()) == []
    tier.shutdown()


def test_chunks_are_stored_in_the_order_of_the_prompt(tmp_path: Path) -> None:
    """vLLM names them in any order; what fits of them must be the beginning of the prompt."""
    keys = [make_offload_key(bytes([number]) * 32, 0) for number in range(4)]
    context = ReqContext("request")
    for number, key in enumerate(keys):
        context.set_offload_key_position(key, 128 * (number + 1))
    tier = tier_on(tmp_path, memory())
    seen: list[tuple[list[bytes], list[int]]] = []
    tier._chunks.store = lambda number, keys, rows: seen.append((keys, rows))
    tier.submit_store(job(1, [keys[2], keys[0], keys[3], keys[1]], [7, 5, 0, 3], context))
    assert seen == [(keys, [5, 3, 7, 0])]
    tier.shutdown()


def test_what_differs_is_another_namespace(tmp_path: Path) -> None:
    """Weights of a folder count by their files: vLLM's own tier of files goes by the name alone."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"first")
    seen = [layout_of(Spec(Words(str(folder))), ROW_BYTES).namespace]
    (folder / "model.safetensors").write_bytes(b"second")
    variants = [
        Spec(Words(str(folder))),
        Spec(Words(str(folder), dtype="bfloat16")),
        Spec(Words(str(folder), kv_cache_layout="LBNHC")),
        Spec(Words(str(folder), tp_size=2, is_parallelism_agnostic=False)),
        Spec(Words(str(folder), layer_names=("layers.0",))),
        Spec(Words(str(folder)), blocks_per_chunk=2),
    ]
    seen += [layout_of(spec, ROW_BYTES).namespace for spec in variants]
    seen.append(layout_of(variants[0], 2 * ROW_BYTES).namespace)
    assert len(set(seen)) == len(seen)
    assert layout_of(variants[0], ROW_BYTES).namespace == seen[1]
    assert layout_of(variants[0], ROW_BYTES, "revision 2").namespace not in seen


def test_tiers_of_one_process_share_its_store(tmp_path: Path) -> None:
    """A directory has one owner: a second store would be its peer, in its owner's process."""
    keys, context = [make_offload_key(b"k" * 32, 0)], ReqContext("request")
    first, second = tier_on(tmp_path, memory()), tier_on(tmp_path, memory())
    first.submit_store(job(1, keys, [0], context))
    first.drain_jobs()
    assert [done.success for done in first.get_finished_jobs()] == [True]
    assert second.lookup(keys[0], context) is LookupResult.HIT
    first.shutdown()
    second.submit_load(job(2, keys, [3], context))
    second.drain_jobs()
    assert [done.success for done in second.get_finished_jobs()] == [True]
    second.shutdown()


def test_wrong_settings_say_which() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({}, "paths"),
        ({"paths": []}, "at least one"),
        ({"paths": ["x"], "capasity": 1}, "capasity"),
        ({"paths": ["x"], "deadline": "soon"}, "deadline"),
        ({"paths": ["x"], "retain": "other"}, "retain 'other'"),
    ]
    for words, what in wrong:
        with pytest.raises(ValueError, match=f"KVStoreTier: .*{what}"):
            options_of(words)


# ---- an engine ----------------------------------------------------------------------------------


def tiering(root: Path) -> dict[str, Any]:
    return {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {
            "spec_name": "CpuTieringSpec",
            "spec_module_path": "cpu_tier",
            "cpu_bytes_to_use": 64 << 20,
            "secondary_tiers": [
                {
                    "type": "KVStoreTier", "module_path": "kvstore_vllm.tier",
                    "paths": [str(root)], "pool": "64MB", "capacity": "1GB",
                }
            ],
        },
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["llama", "deepseek_v3"])
def test_after_a_restart_prompts_hit_on_disk_and_tokens_are_the_same(
    model_of: Any, tmp_path: Path, kind: str
) -> None:
    model = model_of(kind)
    with running(model) as plain:
        expected = plain.tokens(PROMPTS)
    with running(model, tiering(tmp_path)) as engine:
        assert engine.tokens(PROMPTS) == expected
    whole = check_warm(model, tmp_path, expected)
    assert whole[0] >= 640 and whole[1] >= 256
    extents = sorted(tmp_path.glob("*/*/*.kv"))
    for path in extents[:: len(extents) // 2]:
        harm(path)
    assert sum(check_warm(model, tmp_path, expected)) < sum(whole)
    assert check_warm(model, tmp_path, expected) == whole, "computed and stored anew"


def harm(extent: Path) -> None:
    """In its only region. Its times stay: they say until when it is valid."""
    times = extent.stat()
    with extent.open("r+b") as file:
        file.seek(times.st_size // 2)
        file.write(b"not what was written")
    os.utime(extent, ns=(times.st_atime_ns, times.st_mtime_ns))


def check_warm(model: Path, root: Path, expected: list[list[int]]) -> list[int]:
    """Tokens of each prompt that a new engine found on disk. Its answers are the expected ones."""
    with running(model, tiering(root)) as engine:
        found = engine.run(PROMPTS)
        assert [list(out.outputs[0].token_ids) for out in found] == expected
        cached = [out.num_cached_tokens for out in found]
        disk = engine.metric("vllm:prompt_tokens_cached_by_source", source="disk")
        assert disk == sum(cached)
        return cached
