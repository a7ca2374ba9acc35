"""Who is billed for what: tokens of a request as hit and miss, in the words of four vendors.

Rules. hit + miss = prompt. Hits are rounded down to whole blocks, and at least one token of a
prompt is always computed. What each vendor calls these numbers is in the methods of `Usage`; the
rules come from their public API references (see docs/USAGE.md). Prices: `kvstore/prices.py`.
Pure but for `Ledger.save` and `Ledger.read`.
"""

import datetime
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from kvstore.prices import Price

if TYPE_CHECKING:
    from kvstore.load import Load

TIERS = ("ram", "disk", "remote")


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of one request. hit_tokens is the sum over the tiers that served them; stored_tokens
    are those whose blocks this request put (a vendor may bill them as cache writes)."""

    prompt_tokens: int
    hit_tokens: int
    output_tokens: int = 0
    ram_tokens: int = 0
    disk_tokens: int = 0
    remote_tokens: int = 0
    stored_tokens: int = 0

    def __post_init__(self) -> None:
        if min(msgspec.structs.astuple(self)) < 0:
            raise ValueError(f"tokens are not negative: {self}")
        if self.hit_tokens >= max(1, self.prompt_tokens):
            raise ValueError(f"one token at least is computed, but the hit covers all: {self}")
        if self.hit_tokens != self.ram_tokens + self.disk_tokens + self.remote_tokens:
            raise ValueError(f"hit_tokens is not the sum of its tiers: {self}")
        if self.stored_tokens > self.prompt_tokens - self.hit_tokens:
            raise ValueError(f"only tokens that missed can be stored: {self}")

    @property
    def miss_tokens(self) -> int:
        return self.prompt_tokens - self.hit_tokens

    def deepseek(self) -> dict[str, object]:
        """hit + miss = prompt, in fields of their own."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "prompt_cache_hit_tokens": self.hit_tokens,
            "prompt_cache_miss_tokens": self.miss_tokens,
            "prompt_tokens_details": {"cached_tokens": self.hit_tokens},
            "completion_tokens": self.output_tokens,
            "total_tokens": self.prompt_tokens + self.output_tokens,
        }

    def openai(self) -> dict[str, object]:
        """Chat Completions: cached tokens are inside prompt_tokens, and always named."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.output_tokens,
            "total_tokens": self.prompt_tokens + self.output_tokens,
            "prompt_tokens_details": {"cached_tokens": self.hit_tokens},
        }

    def openai_responses(self) -> dict[str, object]:
        """The Responses API's names for the same."""
        return {
            "input_tokens": self.prompt_tokens,
            "input_tokens_details": {"cached_tokens": self.hit_tokens},
            "output_tokens": self.output_tokens,
            "total_tokens": self.prompt_tokens + self.output_tokens,
        }

    def anthropic(self, *, ttl: str = "5m") -> dict[str, object]:
        """Disjoint: read + created + input = prompt. ttl: of what was stored, "5m" or "1h"."""
        if ttl not in ("5m", "1h"):
            raise ValueError(f'ttl must be "5m" or "1h", not {ttl!r}')
        created = {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0}
        created[f"ephemeral_{ttl}_input_tokens"] = self.stored_tokens
        return {
            "input_tokens": self.miss_tokens - self.stored_tokens,
            "cache_read_input_tokens": self.hit_tokens,
            "cache_creation_input_tokens": self.stored_tokens,
            "cache_creation": created,
            "output_tokens": self.output_tokens,
        }

    def gemini(self) -> dict[str, object]:
        """usageMetadata: cached tokens are inside promptTokenCount."""
        return {
            "promptTokenCount": self.prompt_tokens,
            "cachedContentTokenCount": self.hit_tokens,
            "candidatesTokenCount": self.output_tokens,
            "totalTokenCount": self.prompt_tokens + self.output_tokens,
        }


def usage(
    *,
    prompt_tokens: int,
    hit_tokens: int,
    block_tokens: int = 64,
    output_tokens: int = 0,
    ram_share: float = 0.0,
    remote_tokens: int = 0,
    stored_tokens: int = 0,
) -> Usage:
    """The usage of a request that found `hit_tokens` of its prompt.

    They are rounded down to whole blocks, and to one token less than the prompt. ram_share: of the
    hit that was local, the share that came from memory (`ram_share_of(load)`), rounded to blocks.
    remote_tokens: of the hit, what another machine served. ValueError for impossible numbers.
    """
    if min(prompt_tokens, hit_tokens, output_tokens, remote_tokens, stored_tokens) < 0:
        raise ValueError("tokens are not negative")
    if block_tokens < 1 or not 0 <= ram_share <= 1 or remote_tokens > hit_tokens:
        raise ValueError(
            f"block_tokens >= 1, ram_share 0 to 1, remote_tokens <= hit_tokens: not {block_tokens},"
            f" {ram_share}, {remote_tokens} of {hit_tokens}"
        )
    usable = min(hit_tokens, max(0, prompt_tokens - 1))
    hit = usable // block_tokens * block_tokens
    remote = min(remote_tokens // block_tokens * block_tokens, hit)
    ram = round(ram_share * ((hit - remote) // block_tokens)) * block_tokens
    return Usage(
        prompt_tokens=prompt_tokens,
        hit_tokens=hit,
        output_tokens=output_tokens,
        ram_tokens=ram,
        disk_tokens=hit - remote - ram,
        remote_tokens=remote,
        stored_tokens=min(stored_tokens, prompt_tokens - hit),
    )


def ram_share_of(load: "Load") -> float:
    """The share of a finished load's cells that was found in the pool; 0 for an empty load."""
    stats = load.stats()
    total = stats.ram_bytes + stats.disk_bytes
    return stats.ram_bytes / total if total else 0.0


class Account(msgspec.Struct, kw_only=True):
    """Sums of one tenant, retention class and day. Mutable: a ledger adds to it."""

    requests: int = 0
    prompt_tokens: int = 0
    hit_tokens: int = 0
    output_tokens: int = 0
    ram_tokens: int = 0
    disk_tokens: int = 0
    remote_tokens: int = 0
    stored_tokens: int = 0

    @property
    def miss_tokens(self) -> int:
        return self.prompt_tokens - self.hit_tokens

    @property
    def hit_rate(self) -> float:
        """Of prompt tokens; 0 when there were none."""
        return self.hit_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    def add(self, other: "Usage | Account") -> None:
        self.requests += other.requests if isinstance(other, Account) else 1
        for field in Usage.__struct_fields__:
            setattr(self, field, getattr(self, field) + getattr(other, field))


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a ledger. day: "2026-11-29", UTC unless the caller gave another."""

    tenant: str
    retention: str
    day: str
    account: Account


class Ledger:
    """Usage summed per tenant, retention class and day. Not for several threads at once."""

    def __init__(self) -> None:
        self._accounts: dict[tuple[str, str, str], Account] = {}

    def add(
        self,
        used: Usage,
        *,
        tenant: str = "",
        retention: str = "",
        day: datetime.date | None = None,
    ) -> None:
        """day: today in UTC when None."""
        when = day or datetime.datetime.now(datetime.timezone.utc).date()
        key = (tenant, retention, _day(when))
        self._accounts.setdefault(key, Account()).add(used)

    def __iter__(self) -> Iterator[Row]:
        """By tenant, class and day."""
        for (tenant, retention, day), account in sorted(self._accounts.items()):
            yield Row(tenant=tenant, retention=retention, day=day, account=account)

    def total(
        self,
        *,
        tenant: str | None = None,
        retention: str | None = None,
        day: datetime.date | str | None = None,
    ) -> Account:
        """The sum over all lines that agree with what is given. day: also as "2026-11-29"."""
        if isinstance(day, datetime.date):
            day = _day(day)
        sum_of = Account()
        for row in self:
            wanted = ((tenant, row.tenant), (retention, row.retention), (day, row.day))
            if all(want is None or want == have for want, have in wanted):
                sum_of.add(row.account)
        return sum_of

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes all lines as JSON, whole or not at all. OSError."""
        target = Path(path)
        beside = target.with_name(target.name + ".part")
        beside.write_bytes(msgspec.json.encode(list(self)))
        beside.replace(target)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> "Ledger":
        """What `save` wrote. OSError; ValueError when it is something else."""
        ledger = cls()
        try:
            rows = msgspec.json.decode(Path(path).read_bytes(), type=list[Row])
        except msgspec.DecodeError as error:
            raise ValueError(f"{os.fspath(path)} is not a ledger: {error}") from error
        for row in rows:
            ledger._accounts.setdefault((row.tenant, row.retention, row.day), Account()).add(
                row.account
            )
        return ledger


def _day(date: datetime.date) -> str:
    """Without the time of day that a datetime has."""
    return f"{date:%Y-%m-%d}"


class Money(msgspec.Struct, frozen=True, kw_only=True):
    """What a price makes of tokens, in its currency. saved: against every token being a miss."""

    hit: float
    miss: float
    stored: float
    output: float
    saved: float

    @property
    def total(self) -> float:
        return self.hit + self.miss + self.stored + self.output


def money(used: "Usage | Account", price: Price, *, ttl: str = "5m") -> Money:
    """Costs of the tokens at `price`. ttl chooses the price of stored tokens where they have one;
    elsewhere stored tokens cost what a miss costs. Output tokens of a price that does not know them
    are 0. `saved` may be negative: writes can cost more than their hits save."""
    million = 1e6
    write = {"5m": price.write_5m, "1h": price.write_1h}.get(ttl) or price.miss
    plain = used.miss_tokens - used.stored_tokens
    without = used.prompt_tokens * price.miss / million
    hit = used.hit_tokens * price.hit / million
    miss = plain * price.miss / million
    stored = used.stored_tokens * write / million
    return Money(
        hit=hit,
        miss=miss,
        stored=stored,
        output=used.output_tokens * (price.output or 0.0) / million,
        saved=without - hit - miss - stored,
    )
