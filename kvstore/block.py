"""What `get` answers: one whole block in pool memory, or why there is none."""

from dataclasses import dataclass

from kvstore.load import Load


@dataclass(frozen=True)
class Miss:
    """`get` found nothing to give, and why: "absent", "expired", "damaged", "deadline", ..."""

    reason: str

    def __bool__(self) -> bool:
        return False


class Block:
    """One whole block in pool memory, all cells in layer order. Valid until `release`."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._view: memoryview | None = memoryview(load.core.block())

    @property
    def data(self) -> memoryview:
        """Read-only bytes, without a copy. ValueError after release."""
        if self._view is None:
            raise ValueError("the block was released: its memory is reused")
        return self._view

    def __len__(self) -> int:
        return len(self.data)

    def __bytes__(self) -> bytes:
        return bytes(self.data)

    def release(self) -> None:
        """Gives the memory back to the pool. Idempotent."""
        self._view = None
        self._load.close()

    def __enter__(self) -> "Block":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
