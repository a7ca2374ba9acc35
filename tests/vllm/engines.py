"""Engines for the tests of the connector: in the test's own process, one at a time.

Tiny models with random weights, in float32: there the tokens of a warm prompt equal those of a cold
one exactly. What needs another process starts `engine_process.py`.
"""

import gc
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ |= {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "HF_HUB_OFFLINE": "1",
}


def prompt(tokens: int, seed: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(3, 250) for _ in range(tokens)]


def transfer(root: Path, policy: str = "recompute", **words: Any) -> dict[str, Any]:
    """A --kv-transfer-config for the connector, over the directory `root`."""
    extra = {"paths": [str(root)], "pool": "64MB", "capacity": "1GB", "gate": False}
    return {
        "kv_connector": "KVStoreConnector",
        "kv_connector_module_path": "kvstore_vllm.connector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": policy,
        "kv_connector_extra_config": extra | words,
    }


class Engine:
    """A vLLM engine in this process."""

    def __init__(self, model: Path, kv: dict[str, Any] | None, **words: Any) -> None:
        from vllm import LLM
        from vllm.config import KVTransferConfig
        from vllm.distributed.kv_transfer import has_kv_transfer_group

        assert not has_kv_transfer_group(), "one engine at a time: vLLM keeps it in globals"
        settings = {"dtype": "float32", "enforce_eager": True, "max_model_len": 2048}
        self.llm = LLM(
            str(model),
            kv_transfer_config=KVTransferConfig(**kv) if kv else None,
            disable_log_stats=False,
            **settings | words,
        )
        self.core = self.llm.llm_engine.engine_core.engine_core
        self.scheduler = self.core.scheduler

    @property
    def connector(self) -> Any:
        """The scheduler's."""
        return self.scheduler.connector

    @property
    def worker(self) -> Any:
        """The connector's worker side."""
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        return get_kv_transfer_group().worker

    @property
    def store(self) -> Any:
        return self.worker.store

    def run(self, prompts: list[list[int]], max_tokens: int = 8) -> list[Any]:
        """Greedy outputs of all prompts at once: RequestOutputs."""
        from vllm import SamplingParams

        sampling = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        wanted = [{"prompt_token_ids": tokens} for tokens in prompts]
        return self.llm.generate(wanted, sampling, use_tqdm=False)

    def tokens(self, prompts: list[list[int]], max_tokens: int = 8) -> list[list[int]]:
        return [list(out.outputs[0].token_ids) for out in self.run(prompts, max_tokens)]

    def forget(self) -> None:
        """Empties vLLM's own prefix cache and the store's memory; commits are waited for."""
        self.settle()
        assert self.llm.reset_prefix_cache()
        self.store.drop_ram()

    def settle(self) -> None:
        """Until what was saved so far can be hit."""
        self.llm.llm_engine.step()  # what ended with the last step is told with the next
        self.worker.wait_saved()

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a counter of vLLM's /metrics over what `labels` leave open."""
        return sum(
            found.value
            for found in self.llm.get_metrics()
            if found.name == name and labels.items() <= found.labels.items()
        )

    def close(self) -> None:
        from vllm.distributed import cleanup_dist_env_and_memory
        from vllm.distributed.kv_transfer import ensure_kv_transfer_shutdown

        self.llm.llm_engine.engine_core.shutdown()
        ensure_kv_transfer_shutdown()
        del self.llm, self.core, self.scheduler
        gc.collect()
        cleanup_dist_env_and_memory()


@contextmanager
def running(model: Path, kv: dict[str, Any] | None = None, **words: Any) -> Iterator[Engine]:
    engine = Engine(model, kv, **words)
    try:
        yield engine
    finally:
        engine.close()
