"""What the API does with torch tensors: token ids, load targets, put sources. Needs no GPU."""

import pytest
import torch

from kvstore.chain import chain_of_tokens
from kvstore.memory import register_with_cuda, rows_of

IDS = list(range(100))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_tensors_are_token_ids(dtype: torch.dtype) -> None:
    chain = chain_of_tokens(torch.tensor(IDS, dtype=dtype), block_tokens=16)
    assert chain == chain_of_tokens(IDS, block_tokens=16)


def test_tensors_are_read_where_they_lie() -> None:
    tensor = torch.zeros((4, 2, 8, 3), dtype=torch.bfloat16)[:, 1]
    rows = rows_of(tensor, 48, writable=True, what="t")
    assert (rows.address, rows.stride, rows.count) == (tensor.data_ptr(), 96, 4)
    assert rows.owner is tensor


def test_expanded_and_transposed_tensors_are_refused() -> None:
    for tensor in (torch.zeros(1, 8).expand(4, 8), torch.zeros(8, 4).T):
        with pytest.raises(ValueError, match="not rows"):
            rows_of(tensor, 32, writable=True, what="t")


def test_a_tensor_outside_of_cpu_memory_is_refused() -> None:
    with pytest.raises(ValueError, match="must be in CPU memory"):
        rows_of(torch.zeros(4, device="meta"), 4, writable=True, what="t")


def test_without_a_gpu_the_pool_is_not_registered_and_says_why() -> None:
    if torch.cuda.is_available():
        pytest.skip("needs a machine without a CUDA device")
    assert register_with_cuda(0, 0) == "torch sees no CUDA device"
