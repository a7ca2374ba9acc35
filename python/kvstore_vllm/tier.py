"""vLLM's second seat: kvstore as a secondary tier below the engine's own CPU tier.

    --kv-transfer-config '{"kv_connector": "OffloadingConnector", "kv_role": "kv_both",
        "kv_connector_extra_config": {"spec_name": "TieringOffloadingSpec",
            "cpu_bytes_to_use": 100000000000, "secondary_tiers": [{"type": "KVStoreTier",
                "module_path": "kvstore_vllm.tier", "paths": ["/nvme0/kv"]}]}}'

Translates vLLM's words into those of `chunks`; lives in the scheduler's process. The seat that
streams layer by layer is `kvstore_vllm.connector`.
"""

import json
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import msgspec
import numpy as np
import vllm
from vllm.v1.kv_offload.base import (
    Locality,
    LookupResult,
    Medium,
    OffloadKey,
    ReqContext,
    RequestOffloadingContext,
)
from vllm.v1.kv_offload.file_mapper import FileMapper
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager, TransferJob

from kvstore import Layout
from kvstore_vllm import shared
from kvstore_vllm.chunks import Chunks, Finished, parts_of_row
from kvstore_vllm.identity import device_words, weights_of
from kvstore_vllm.options import StoreOptions

if TYPE_CHECKING:
    from vllm.v1.kv_offload.base import OffloadingSpec
    from vllm.v1.kv_offload.tiering.backpressure import BackpressureDetector

_LOOKED_UP = {True: LookupResult.HIT, False: LookupResult.MISS, None: LookupResult.RETRY}


class TierOptions(StoreOptions, frozen=True, kw_only=True):
    """What a tier's configuration may say besides type and module_path.

    locality: "LOCAL" or "REMOTE", for vLLM's filters of tiers. variant: tells apart what vLLM does
      not tell a tier of: a model's revision, quantization, overrides of its configuration.
    """

    locality: Literal["LOCAL", "REMOTE"] | None = None
    variant: str = ""


class KVStoreTier(SecondaryTierManager):
    """Keeps chunks of the CPU tier on SSD. Raises OpenError, ValueError for wrong settings."""

    medium: ClassVar[Medium] = Medium.STORAGE

    def __init__(
        self,
        offloading_spec: "OffloadingSpec",
        primary_kv_view: memoryview,
        tier_type: str,
        backpressure_detector: "BackpressureDetector | None" = None,
        **settings: Any,
    ) -> None:
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        options = options_of(settings)
        self.locality = None if options.locality is None else Locality(options.locality)
        rows = np.asarray(primary_kv_view).view(np.uint8)
        layout = layout_of(offloading_spec, rows.shape[1], options.variant)
        self._store = shared.acquire(options, role=options.role, pool=options.pool)
        self._chunks = Chunks(
            self._store.cache(layout),
            rows,
            deadline=options.deadline_s,
            lookup_timeout=options.lookup_timeout_s,
            retain=options.retain,
        )

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        return RequestOffloadingContext()

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        return _LOOKED_UP[self._chunks.look_up(key, req_context.req_id)]

    def touch(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        self._chunks.touch(keys)

    def submit_store(self, job_metadata: TransferJob) -> None:
        job, position_of = job_metadata, job_metadata.req_context.get_offload_key_position
        chunks = list(zip(job.keys, job.chunk_ids.tolist(), strict=True))
        # They come in any order; should there be no room for all, the first ones are of use.
        chunks.sort(key=lambda chunk: position_of(chunk[0]) or 0)
        self._chunks.store(job.job_id, [key for key, _ in chunks], [row for _, row in chunks])

    def submit_load(self, job_metadata: TransferJob) -> None:
        job = job_metadata
        request = job.req_context.req_id
        self._chunks.load(job.job_id, list(job.keys), job.chunk_ids.tolist(), request)

    def get_finished_jobs(self) -> Iterable[JobResult]:
        return [_result(job) for job in self._chunks.finished()]

    def on_request_finished(self, req_context: ReqContext) -> None:
        self._chunks.forget(req_context.req_id)

    def drain_jobs(self) -> None:
        self._chunks.drain()

    def shutdown(self) -> None:
        """Bounded as `Store.close` is; then nothing here refers to the primary tier's memory. A
        store that others of this process use stays open, without loads of this tier."""
        self._chunks.cancel()
        shared.release(self._store)
        self._chunks.close()


def options_of(settings: Mapping[str, Any]) -> TierOptions:
    """ValueError that says what is wrong with which word."""
    try:
        return msgspec.convert(dict(settings), TierOptions)
    except msgspec.ValidationError as error:
        raise ValueError(f"secondary tier KVStoreTier: {error}") from None


def layout_of(spec: "OffloadingSpec", row_bytes: int, variant: str = "") -> Layout:
    """Rows of this engine and of no other: by what vLLM's own tier of files is told apart, and by
    what that leaves to the user (new weights under an old name, another device or version)."""
    files = FileMapper.from_offloading_spec(
        "", spec, blocks_per_file=spec.blocks_per_chunk, parallel_agnostic=True
    )
    tokens = spec.tokens_per_block[0] * spec.blocks_per_chunk
    words = {
        "engine": f"vllm {vllm.__version__}",
        "chunk": json.dumps(files.get_run_config(), sort_keys=True),
        "page": str(spec.config.kv_cache_layout),
        "weights": weights_of(spec.config.model.name),
        "device": device_words(),
        "variant": variant,
    }
    return Layout(
        parts_by_layer=parts_of_row(row_bytes),
        model=spec.config.model.name,
        dtype=spec.config.model.dtype,
        block_tokens=tokens if row_bytes % tokens == 0 else 1,
        words=tuple(words.items()),
        extent_blocks=1,
    )


def _result(job: Finished) -> JobResult:
    whole = job.good == len(job.keys)
    some = tuple(OffloadKey(key) for key in job.keys[: job.good])
    return JobResult(
        job_id=job.job_id,
        success=whole,
        successful_keys=some if job.is_load and some and not whole else None,
        transfer_time=job.seconds,
        transfer_bytes=job.nbytes,
    )
