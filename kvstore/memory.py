"""Memory of others: finding address and strides of tensors, huge-page arrays, CUDA registration.

Torch is never imported here: its tensors are read through the methods they have, and CUDA is asked
only when the program has imported torch itself.
"""

import contextlib
import ctypes
import re
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kvstore import _core

_CUDA_PORTABLE = 1  # registered for every context
_CUDA_REGISTERED_ALREADY = 712


@dataclass(frozen=True)
class Rows:
    """`count` rows of equal size: the first at `address`, the next `stride` bytes further."""

    address: int
    stride: int
    count: int
    owner: object  # keeps the memory


@dataclass(frozen=True)
class Pointer:
    """Raw memory for `Pages`: `count` pages, the first at `address`. `owner` is kept alive."""

    address: int
    page_stride: int
    count: int
    owner: object = None


def alloc(nbytes: int) -> npt.NDArray[np.uint8]:
    """A zeroed uint8 array on huge pages, freed with its last view.

    Direct reads into it run at the disk's speed; into 4 KiB pages they take a third of that.
    Memory is used in multiples of 2 MiB. MemoryError when it cannot be had.
    """
    if nbytes < 1:
        raise ValueError(f"alloc needs at least one byte, not {nbytes}")
    return np.frombuffer(memoryview(_core.HugeMemory(nbytes)), dtype=np.uint8)


def rows_of(memory: Any, row_bytes: int, *, writable: bool, what: str) -> Rows:
    """`memory` as rows of row_bytes: its first dimension when each item is one contiguous row,
    else (all of it contiguous) as many items of it as make a row: tokens of a block, or bytes.

    memory: numpy array, torch CPU tensor, or a buffer. ValueError when it does not fit. Bytes
    left over at the end are allowed where we write (tokens past the last block), not where we read.
    """
    address, shape, strides, itemsize, owner = _describe(memory, writable, what)
    inner = _dense_bytes(shape[1:], strides[1:], itemsize)
    if shape and inner == row_bytes and (shape[0] < 2 or strides[0] >= row_bytes):
        return Rows(address, strides[0] if shape[0] > 1 else row_bytes, shape[0], owner)
    whole = _dense_bytes(shape, strides, itemsize)
    if whole and inner and row_bytes % inner == 0 and (writable or whole % row_bytes == 0):
        return Rows(address, row_bytes, whole // row_bytes, owner)
    raise ValueError(
        f"{what}: shape {shape} with strides {strides} (bytes) is not rows of {row_bytes} bytes;"
        " each row must be contiguous, and rows must not overlap"
    )


def register_with_cuda(base: int, nbytes: int) -> str:
    """Pins the pool for CUDA copies when the program uses torch with a GPU. Returns why not, or "".

    A refusal stays latched as CUDA's last error and would surface at the next kernel launch, so it
    is cleared here.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return "torch is not imported"
    if not torch.cuda.is_available():
        return "torch sees no CUDA device"
    try:
        code = int(torch.cuda.cudart().cudaHostRegister(base, nbytes, _CUDA_PORTABLE))
    except (RuntimeError, AssertionError, AttributeError) as error:
        return f"cudaHostRegister cannot be called: {error}"
    if code in (0, _CUDA_REGISTERED_ALREADY):
        return ""
    _clear_cuda_error()
    return f"cudaHostRegister answered error {code}"


def unregister_from_cuda(base: int) -> None:
    """Undoes `register_with_cuda`; before the pool is unmapped."""
    torch = sys.modules.get("torch")
    if torch is not None and int(torch.cuda.cudart().cudaHostUnregister(base)) != 0:
        _clear_cuda_error()


def _clear_cuda_error() -> None:
    """cudaGetLastError of the runtime that torch loaded (its file name may carry a hash)."""
    with contextlib.suppress(OSError, AttributeError):
        with open("/proc/self/maps", encoding="utf-8") as maps:
            found = re.search(r"\S*/libcudart[^/\s]*", maps.read())
        if found:
            ctypes.CDLL(found[0]).cudaGetLastError()


def _describe(
    memory: Any, writable: bool, what: str
) -> tuple[int, tuple[int, ...], tuple[int, ...], int, object]:
    """(address, shape, strides in bytes, item size, what keeps the memory)."""
    if hasattr(memory, "data_ptr") and hasattr(memory, "stride"):
        if memory.device.type != "cpu":
            raise ValueError(f"{what}: the tensor is on {memory.device}, it must be in CPU memory")
        size = int(memory.element_size())
        strides = tuple(int(stride) * size for stride in memory.stride())
        return int(memory.data_ptr()), tuple(map(int, memory.shape)), strides, size, memory
    array = memory if isinstance(memory, np.ndarray) else np.asarray(memoryview(memory))
    if writable and not array.flags.writeable:
        raise ValueError(f"{what}: the memory is read-only")
    if array.dtype.hasobject:
        raise TypeError(f"{what}: an array of Python objects has no bytes to store")
    return array.ctypes.data, array.shape, array.strides, array.itemsize, array


def _dense_bytes(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> int | None:
    """Bytes of a C-contiguous block of this shape; None when it is not contiguous."""
    expected = itemsize
    for length, stride in zip(reversed(shape), reversed(strides), strict=True):
        if length > 1 and stride != expected:
            return None
        expected *= length
    return expected
