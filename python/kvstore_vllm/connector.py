"""`KVStoreConnector`: vLLM's calls, translated. Holds no logic of its own.

Tried with vLLM 0.32. One KV cache group of full attention (multi-head, grouped-query or latent).
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
    KVConnectorWorkerMetadata,
)
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from kvstore import Layout
from kvstore_vllm.identity import layout_of
from kvstore_vllm.messages import StepOrders, WorkerNews
from kvstore_vllm.options import options_of
from kvstore_vllm.pages import EnginePages
from kvstore_vllm.scheduler import Scheduler
from kvstore_vllm.stats import KVStorePromMetrics, KVStoreStats, stats_of
from kvstore_vllm.worker import Worker

CRYPTOGRAPHIC_HASHES = ("sha256", "sha256_cbor")


@dataclass
class Orders(KVConnectorMetadata):
    step: StepOrders


@dataclass
class News(KVConnectorWorkerMetadata):
    worker: WorkerNews

    def aggregate(self, other: KVConnectorWorkerMetadata) -> "News":
        assert isinstance(other, News)
        return replace(self, worker=self.worker.merged(other.worker))


@dataclass
class RankLayout(KVConnectorHandshakeMetadata):
    """The layout that a worker made of its real tensors, for the scheduler's lookups."""

    layout: Layout


class KVStoreConnector(KVConnectorBase_V1):
    """See `kvstore_vllm` for how to load it, `kvstore_vllm.options` for what it takes.

    Raises ValueError for what it cannot serve, OpenError when the directories cannot be opened.
    """

    _cache_hit_source = CacheHitSource.DISK

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        _check(vllm_config, kv_cache_config)
        transfer = vllm_config.kv_transfer_config
        self.options = options_of(transfer.kv_connector_extra_config)
        algorithm = str(vllm_config.cache_config.prefix_caching_hash_algo)
        self._own_keys = self.options.keys == "own" or algorithm not in CRYPTOGRAPHIC_HASHES
        self._keys_word = "kvstore" if self._own_keys else f"vllm {algorithm}"
        if role == KVConnectorRole.SCHEDULER:
            self.scheduler = Scheduler(
                self.options, loads=transfer.is_kv_consumer, saves=transfer.is_kv_producer
            )
        else:
            self._ranks = _Ranks(vllm_config, kv_cache_config)
            self.worker = Worker(
                self.options,
                saves=transfer.is_kv_producer and self._ranks.writes,
                owner=self._ranks.first,
            )

    @property
    def requires_kv_delivery(self) -> bool:
        """A lost save is a miss later, nothing else."""
        return False

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        """Layers are waited for and saved one by one, in Python."""
        return True

    # -------------------------------------------------------------------------------- worker

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        pages = EnginePages(kv_caches, self._kv_cache_config.num_blocks)
        layout = layout_of(
            self._vllm_config,
            self._kv_cache_config,
            pages,
            rank=self._ranks.rank,
            stage=self._ranks.stage,
            keys=self._keys_word,
            extent_blocks=self.options.extent_blocks,
        )
        self.worker.attach(pages, layout)

    def get_handshake_metadata(self) -> RankLayout | None:
        return RankLayout(self.worker.layout) if self.worker.layout is not None else None

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        super().bind_connector_metadata(connector_metadata)
        assert isinstance(connector_metadata, Orders)
        self.worker.begin_step(connector_metadata.step)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        self.worker.start_loads()

    def wait_for_layer_load(self, layer_name: str) -> None:
        self.worker.wait_layer(layer_name)

    def save_kv_layer(
        self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any
    ) -> None:
        self.worker.save_layer(layer_name)

    def wait_for_save(self) -> None:
        self.worker.end_step()

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        return KVConnectorTransferResults(finished_recving=self.worker.parked_over())

    def get_block_ids_with_load_errors(self) -> set[int]:
        return self.worker.bad_pages()

    def build_connector_worker_meta(self) -> News:
        return News(self.worker.news())

    # ----------------------------------------------------------------------------- scheduler

    def set_xfer_handshake_metadata_pp_aware(
        self, metadata: dict[tuple[int, int], KVConnectorHandshakeMetadata]
    ) -> None:
        layouts = []
        for key in sorted(metadata):
            told = metadata[key]
            assert isinstance(told, RankLayout)
            layouts.append(told.layout)
        self.scheduler.attach(layouts, own_keys=self._own_keys)

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        tokens = self.scheduler.matched_tokens(request, num_computed_tokens)
        return tokens, bool(tokens) and self.options.mode == "async"

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        self.scheduler.allocated(request, blocks.get_block_ids()[0], num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> Orders:
        return Orders(self.scheduler.orders(scheduler_output))

    def update_connector_output(self, connector_output: Any) -> None:
        told = connector_output.kv_connector_worker_meta
        if isinstance(told, News):
            self.scheduler.stepped(told.worker)
        for request_id in connector_output.finished_recving or ():
            self.scheduler.loaded(request_id)

    def request_finished(
        self, request: Any, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        self.scheduler.finished(request.request_id)
        return False, None

    def reset_cache(self) -> bool:
        self.scheduler.reset()
        return True

    # --------------------------------------------------------------------------------- both

    def get_kv_connector_stats(self) -> KVStoreStats | None:
        if self.role == KVConnectorRole.WORKER:
            return stats_of(self.worker.counts())
        return stats_of(self.scheduler.take_counts())

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> KVStoreStats:
        return KVStoreStats(data=data or {})

    @classmethod
    def build_prom_metrics(
        cls, vllm_config: Any, metric_types: Any, labelnames: Any, per_engine_labelvalues: Any
    ) -> KVStorePromMetrics:
        return KVStorePromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def shutdown(self) -> None:
        if self.role == KVConnectorRole.WORKER:
            self.worker.close()
        else:
            self.scheduler.close()


class _Ranks:
    """Who this worker is among the others. Workers whose pages are equal share a layout, and the
    first of them writes: one copy of a latent cache, whatever the tensor-parallel size."""

    def __init__(self, vllm_config: Any, kv_cache_config: Any) -> None:
        from vllm.distributed.parallel_state import get_pp_group, get_tp_group

        tp, pp = get_tp_group(), get_pp_group()
        same = max(1, kv_cache_config.kv_tp_replicas)
        self.rank = (tp.rank_in_group // same, tp.world_size // same)
        self.stage = (pp.rank_in_group, pp.world_size)
        self.writes = tp.rank_in_group % same == 0
        self.first = tp.rank_in_group == 0 and pp.rank_in_group == 0


def _check(vllm_config: Any, kv_cache_config: Any) -> None:
    """What cannot be served is refused at start, in words."""
    groups = kv_cache_config.kv_cache_groups
    if len(groups) != 1:
        raise ValueError(
            f"KVStoreConnector serves models with one KV cache group; this one has {len(groups)}"
            " (sliding windows or linear states beside full attention)"
        )
    spec = groups[0].kv_cache_spec
    layers = list(spec.kv_cache_specs.values()) if hasattr(spec, "kv_cache_specs") else [spec]
    if not all(isinstance(layer, FullAttentionSpec) for layer in layers):
        raise ValueError(
            "KVStoreConnector serves full attention, whose blocks stay for the whole request; this"
            f" model has {type(layers[0]).__name__}"
        )
    parallel = vllm_config.parallel_config
    if parallel.decode_context_parallel_size > 1 or parallel.prefill_context_parallel_size > 1:
        raise ValueError("KVStoreConnector does not serve context parallelism")
