"""What the measured disk would mean for DeepSeek-V3: arithmetic only, nothing here is measured.

V3 keeps 61 layers x 1152 bytes (512 latent + 64 rope values in bf16) per token.
"""

from dataclasses import dataclass

V3_TOKEN_BYTES = 61 * 1152
V3_PROMPT_TOKENS = 131_072
TARGET_S = 0.5


@dataclass(frozen=True, kw_only=True)
class Projection:
    """Seconds to load DeepSeek-V3's 128K prompt, and the GB/s that half a second needs."""

    prompt_bytes: int
    seconds: float
    needed_gbps: float


def deepseek_v3(gbps: float) -> Projection:
    """The projection for a disk that delivers `gbps` (10^9 bytes per second, more than 0)."""
    total = V3_TOKEN_BYTES * V3_PROMPT_TOKENS
    return Projection(
        prompt_bytes=total, seconds=total / (gbps * 1e9), needed_gbps=total / TARGET_S / 1e9
    )
