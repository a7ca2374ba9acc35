"""What is compared: the engine alone, with kvstore, with LMCache. How each is started and stopped.

A variant is an engine server, LMCache also a cache server beside it. All get the same model, the
same settings and a directory on the same disk; what differs is printed.
"""

import json
import os
import shlex
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kvstore
from ttft.models import SERVED_NAME, Model
from ttft.server import Server, free_port

RECOMPUTE = "recompute"
KVSTORE = "kvstore"
SLOW = "kvstore, slow disk"
UNGATED = "kvstore, slow, no gate"
LMCACHE = "lmcache"
VARIANTS = (RECOMPUTE, KVSTORE, LMCACHE, SLOW, UNGATED)
SLOW_BYTES = 500_000  # a second that a slow disk reads
LMCACHE_CHUNK = 128  # tokens; 256 unless said, which would halve the hits of short prompts
# The package that this bench itself runs with, and the connector of this checkout.
KVSTORE_PATH = (Path(kvstore.__file__).parents[1], Path(__file__).parents[2] / "python")
SEGMENT = "vllm-ttft-%d"
Words = dict[str, Any]


@dataclass(frozen=True)
class Setting:
    """What all variants of a run have in common."""

    model: Model
    model_folder: Path
    max_tokens: int  # of the longest prompt, its answer not counted
    dtype: str
    kv_gib: int
    folder: Path  # stores and logs go below it
    lmcache_folder: Path | None  # where LMCache is installed

    def engine_command(self, port: int, connector: Words | None) -> list[str]:
        longest = self.max_tokens + 64
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
        command += ["--model", str(self.model_folder), "--served-model-name", SERVED_NAME]
        command += ["--host", "127.0.0.1", "--port", str(port)]
        command += ["--load-format", "dummy", "--dtype", self.dtype, "--enforce-eager"]
        command += ["--max-model-len", str(longest), "--max-num-seqs", "4"]
        command += ["--enable-prompt-tokens-details"]
        if self.model.whole_prefill:
            command += ["--max-num-batched-tokens", str(longest)]
        if connector:
            command += ["--kv-transfer-config", json.dumps(connector)]
        return command

    @property
    def engine_env(self) -> dict[str, str]:
        return {
            "VLLM_CPU_KVCACHE_SPACE": str(self.kv_gib),
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
            "PYTHONHASHSEED": "0",
        }


class Variant:
    """One way to serve, with a store of its own that outlives its processes."""

    def __init__(self, name: str, setting: Setting) -> None:
        self.name = name
        self.setting = setting
        self.store = setting.folder / name.replace(", ", "-").replace(" ", "-")
        self.store.mkdir(parents=True, exist_ok=True)

    @property
    def keeps(self) -> bool:
        """Whether it has anything to fill before it is measured."""
        return self.name != RECOMPUTE

    @property
    def slow(self) -> bool:
        return self.name in (SLOW, UNGATED)

    @property
    def unit(self) -> int:
        """A hit is a multiple of this, in tokens."""
        block = self.setting.model.block_tokens
        return max(block, LMCACHE_CHUNK) if self.name == LMCACHE else block

    def connector(self, cache_port: int) -> Words | None:
        """--kv-transfer-config."""
        if self.name == RECOMPUTE:
            return None
        if self.name == LMCACHE:
            where = {"lmcache.mp.host": "tcp://127.0.0.1", "lmcache.mp.port": cache_port}
            return {
                "kv_connector": "LMCacheMPConnector",
                "kv_role": "kv_both",
                "kv_connector_extra_config": where,
            }
        extra: Words = {"paths": [str(self.store)], "capacity": "20GB", "pool": "1GB"}
        if self.name == UNGATED:
            extra["gate"] = False
        return {
            "kv_connector": "KVStoreConnector",
            "kv_connector_module_path": "kvstore_vllm.connector",
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": extra,
        }

    def cache_server(self, port: int, metrics_port: int) -> list[str] | None:
        """LMCache's own process."""
        if self.name != LMCACHE:
            return None
        adapter = {"type": "fs_native", "base_path": str(self.store), "use_odirect": True}
        command = [sys.executable, "-m", "lmcache.v1.multiprocess.server"]
        command += ["--host", "127.0.0.1", "--port", str(port)]
        command += ["--chunk-size", str(LMCACHE_CHUNK), "--l1-size-gb", "1"]
        command += ["--eviction-policy", "LRU", "--supported-transfer-mode", "engine_driven"]
        # Shared memory; left alone, it pickles the blocks through a socket.
        command += ["--shm-name", SEGMENT % port, "--no-l1-use-lazy"]
        command += ["--l2-adapter", json.dumps(adapter), "--prometheus-port", str(metrics_port)]
        return command

    def describe(self) -> str:
        """Its commands, without ports and places."""
        engine = self.setting.engine_command(0, self.connector(0))
        commands = [command for command in (self.cache_server(0, 0), engine) if command]
        env = " ".join(f"{k}={v}" for k, v in self.env.items() if k != "PYTHONPATH")
        said = "; ".join(shlex.join(["python", *command[1:]]) for command in commands)
        return f"{env} {said}".replace(str(self.setting.folder), "DIR")

    @property
    def env(self) -> dict[str, str]:
        env = self.setting.engine_env
        path = [str(folder) for folder in KVSTORE_PATH]
        if self.name == LMCACHE:
            path = [str(self.setting.lmcache_folder)]
            env["LMCACHE_TRACK_USAGE"] = "false"
            # Huge pages for what it allocates; its shared memory pool is not among that.
            env["GLIBC_TUNABLES"] = "glibc.malloc.hugetlb=1"
        env["PYTHONPATH"] = os.pathsep.join(path)
        return env

    def launch(self, stack: ExitStack) -> tuple[Server, int]:
        """Starts its processes, waits for none of them. The engine, and its port."""
        port, cache_port, metrics_port = free_port(), free_port(), free_port()
        cache = self.cache_server(cache_port, metrics_port)
        if cache:
            left = Path("/dev/shm", f"lmcache_l1_pool_{SEGMENT % cache_port}")
            stack.callback(left.unlink, missing_ok=True)  # it does not remove its own
            beside = Server(cache, self.env, self.store.with_suffix(".server.log"))
            stack.callback(beside.stop)
        engine = Server(
            self.setting.engine_command(port, self.connector(cache_port)),
            self.env,
            self.store.with_suffix(".log"),
        )
        stack.callback(engine.stop)
        return engine, port


def drop_page_cache(folder: Path) -> None:
    """Writes back and forgets what the kernel keeps of the files below, so that a read is one."""
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY | os.O_NOATIME)
            try:
                os.fsync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)
