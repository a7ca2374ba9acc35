"""What scheduler and workers tell each other. Plain data that can be pickled.

A worker keeps, per request, the keys and the block table that it was told; a message carries only
what is new (`keys_from`, `table_from`), so a long prompt is not sent again with every step.
"""

from dataclasses import dataclass, field

from kvstore import Hit


@dataclass(frozen=True)
class LoadOrder:
    """Blocks of `hit` go into the engine's pages `block_ids`, one each.

    waits: the step that carries it computes with them; else the request is parked meanwhile.
    """

    request_id: str
    hit: Hit
    block_ids: list[int]
    waits: bool


@dataclass(frozen=True)
class SaveOrder:
    """Blocks [first, end) of the request are whole after this step.

    keys_from, keys: the chain's keys from that block on. table_from, table: the request's pages
    from that block on, also the last one that is not whole. step_from: first block that this step
    computes from its first token. prompt_blocks: whole blocks of the prompt.
    """

    request_id: str
    first: int
    end: int
    step_from: int
    prompt_blocks: int
    keys_from: int
    keys: bytes
    table_from: int
    table: list[int]


@dataclass(frozen=True)
class StepOrders:
    """What the scheduler asks of the workers in one step. ended: requests that are finished or
    aborted. number: of the step; the workers' news repeat it.

    sure: all workers told how the steps up to this one went, and spoiled are the requests of which
    one of them lost pages: what was computed from those is wrong on every rank.
    """

    number: int = 0
    sure: int = 0
    spoiled: frozenset[str] = frozenset()
    loads: list[LoadOrder] = field(default_factory=list)
    saves: list[SaveOrder] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class WorkerNews:
    """What a worker tells the scheduler after each step, by its number.

    spoiled: requests whose blocks of this step must not be taken for saved. loaded_bytes, load_s:
    of loads that ended; load_s 0: none did.
    """

    number: int
    spoiled: frozenset[str] = frozenset()
    loaded_bytes: int = 0
    load_s: float = 0.0

    def merged(self, other: "WorkerNews") -> "WorkerNews":
        """Of two ranks: they read at the same time."""
        return WorkerNews(
            number=self.number,
            spoiled=self.spoiled | other.spoiled,
            loaded_bytes=self.loaded_bytes + other.loaded_bytes,
            load_s=max(self.load_s, other.load_s),
        )
