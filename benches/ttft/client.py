"""One request, as a client sees it: the time to the first streamed token and what was cached.

Talks to the engine through the official `openai` client. Checks nothing and compares nothing.
"""

import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass

from openai import OpenAI
from prometheus_client.parser import text_string_to_metric_families

from ttft.models import SERVED_NAME
from ttft.server import ServerError

ANSWER_TOKENS = 4
TIMEOUT_S = 600.0
IDENTITY = ("model_name", "engine")  # labels that say which engine, and nothing else


@dataclass(frozen=True)
class Answer:
    ttft_s: float
    prompt_tokens: int
    cached_tokens: int
    text: str


class Client:
    """Requests to one server, one at a time over one connection."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"
        self._openai = OpenAI(
            base_url=f"{self._url}/v1", api_key="none", timeout=TIMEOUT_S, max_retries=0
        )

    def ask(self, ids: Sequence[int]) -> Answer:
        """Greedy. Raises ServerError when no token came, or no usage."""
        began = time.perf_counter()
        first = None
        usage = None
        words = []
        stream = self._openai.completions.create(
            model=SERVED_NAME,
            prompt=list(ids),
            max_tokens=ANSWER_TOKENS,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
        for chunk in stream:
            usage = chunk.usage or usage
            if chunk.choices:
                first = first or time.perf_counter()
                words.append(chunk.choices[0].text)
        if first is None or usage is None:
            raise ServerError(f"an answer without {'usage' if first else 'a token'}")
        details = usage.prompt_tokens_details
        cached = (details.cached_tokens if details else None) or 0
        return Answer(first - began, usage.prompt_tokens, cached, "".join(words))

    def counters(self) -> dict[str, float]:
        """Of /metrics what tells about caches: name{label=value} to value, zeros left out."""
        with urllib.request.urlopen(f"{self._url}/metrics", timeout=30) as answer:
            text = answer.read().decode()
        found = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                name, value = sample.name, sample.value
                if value and ("cache" in name or "kvstore" in name) and "config" not in name:
                    labels = {k: v for k, v in sample.labels.items() if k not in IDENTITY}
                    words = ",".join(f"{k}={v}" for k, v in sorted(labels.items()))
                    found[f"{name}{{{words}}}" if words else name] = value
        return {k: v for k, v in found.items() if "_bucket" not in k and "_created" not in k}
