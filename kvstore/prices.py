"""Prices of input tokens by vendor, model and date, in US dollars per million tokens. Pure data.

A table like this ages. Each line says since when it holds and where it was read; `price_of` takes
the line that held on a day. Who needs his own figures makes a `Price`. Contract prices, batch
discounts and long-context surcharges are not in it.
"""

import datetime

import msgspec

_DEEPSEEK = "api-docs.deepseek.com pricing page"
_ANTHROPIC = "platform.claude.com pricing page"
_OPENAI = "developers.openai.com pricing page, as listed in June 2026"
_GEMINI = "ai.google.dev pricing page, prompts up to 200,000 tokens; implicit caching: a tenth"


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """Dollars per million tokens. since: the first day on which it is known to have held.

    output: None when it is not known here. write_5m, write_1h: of stored tokens; None: they cost
    what a miss costs.
    """

    vendor: str
    model: str
    since: str
    hit: float
    miss: float
    output: float | None = None
    write_5m: float | None = None
    write_1h: float | None = None
    source: str = ""

    @property
    def ratio(self) -> float:
        """How many times dearer a miss is than a hit."""
        return self.miss / self.hit


def _deepseek(model: str, since: str, hit: float, miss: float, source: str = _DEEPSEEK) -> Price:
    return Price(vendor="deepseek", model=model, since=since, hit=hit, miss=miss, source=source)


PRICES: tuple[Price, ...] = (
    _deepseek("deepseek-chat", "2024-08-02", 0.014, 0.14, "DeepSeek news of 2024-08-02"),
    _deepseek("deepseek-reasoner", "2025-02-28", 0.14, 0.55),
    _deepseek("deepseek-v4-flash", "2026-08-15", 0.0028, 0.14),
    _deepseek("deepseek-v4-flash", "2026-08-16", 0.003, 0.15),
    _deepseek("deepseek-v4-flash:peak", "2026-08-16", 0.006, 0.30),
    _deepseek("deepseek-v4-pro", "2026-08-15", 0.003625, 0.435),
    _deepseek("deepseek-v4-pro", "2026-08-16", 0.022, 0.66),
    _deepseek("deepseek-v4-pro:peak", "2026-08-16", 0.044, 1.32),
    Price(
        vendor="openai",
        model="gpt-5.5",
        since="2026-06-01",
        hit=0.50,
        miss=5.00,
        output=30.00,
        source=_OPENAI,
    ),
    Price(
        vendor="anthropic",
        model="claude-opus-5",
        since="2026-11-29",
        hit=0.50,
        miss=5.00,
        output=25.00,
        write_5m=6.25,
        write_1h=10.00,
        source=_ANTHROPIC,
    ),
    Price(
        vendor="gemini",
        model="gemini-2.5-pro",
        since="2026-11-29",
        hit=0.125,
        miss=1.25,
        output=10.00,
        source=_GEMINI,
    ),
)


def price_of(model: str, day: datetime.date | None = None) -> Price:
    """The price of `model` on `day` (the newest when None). KeyError that names what there is."""
    lines = [price for price in PRICES if price.model == model]
    if not lines:
        known = ", ".join(sorted({price.model for price in PRICES}))
        raise KeyError(f"no price of {model!r} is known; there are {known}, or make a Price")
    held = [price for price in lines if day is None or price.since <= day.isoformat()]
    if not held:
        raise KeyError(f"the first price of {model!r} known here held on {lines[0].since}")
    return max(held, key=lambda price: price.since)
