"""How fast published systems prefill, for pacing the compute of benches/pipeline.py. Pure data.

A rate is tokens a second of one prompt without any cache; a layer's time for n tokens is
n / rate / layers. That spreads attention over a long prefix evenly over all tokens, so the time of
the last tokens of a long prompt is rather too short: the bound that loads must meet is stricter.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Rate:
    """tokens prefilled in `seconds`, as the source says."""

    tokens: int
    seconds: float
    source: str

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds


_V2 = "DeepSeek API news, 2024-08-02: a 128K prompt without a cache, first token after 13 s"
_V3 = "UCM docs, nfs_store.md: DeepSeek-V3 on 16 x H20, 32K prompt without a cache"
_R1 = "UCM docs, pipeline_store.md: DeepSeek-R1-AWQ on 8 x H100, 32K prompt without a cache"
_LITE = _V2 + "; times 21/2.4, the ratio of active parameters of V2 and V2-Lite (model cards)"

RATES = {
    "DeepSeek-V2": Rate(131_072, 13.0, _V2),
    "DeepSeek-V3": Rate(32_768, 14.16, _V3),
    "DeepSeek-V3 fp8": Rate(32_768, 3.087, _R1),
    "DeepSeek-V2-Lite": Rate(131_072, 13.0 * 2.4 / 21, _LITE),
    "Llama-3.1-8B": Rate(
        16_384, 1.470, "KVStash docs/BENCHMARKS.md: Llama-3.1-8B on one A100, 16K prompt, no cache"
    ),
    "Llama-3.1-70B": Rate(
        131_072, 70.8, "LightInferra, vendor's blog: R1-distill-70B on 4 x L40S, 131K, no cache"
    ),
}
