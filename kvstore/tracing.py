"""OpenTelemetry spans of match, find, load, get, prefetch, put and commit, for programs that trace.

A program that has set a tracer provider before it opens a store gets them; for every other one
`Store.tracer` is None, and that is all that its calls look at. Never imports opentelemetry itself:
who has a provider has imported it. Sets no provider and exports nothing.

Invariants
  1. A span changes nothing of what a call answers or raises, and is never waited for.
  2. A load's span is made when the load is closed, from the times that the core kept anyway: there
     is nothing to do per layer. A load that is never closed leaves none.

Attributes: docs/METRICS.md.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from kvstore.chain import Chain
from kvstore.errors import StoreForked
from kvstore.hit import Hit
from kvstore.version import VERSION

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

    from kvstore.load import Load

Note = Callable[..., None]
OFF: AbstractContextManager[Note] = nullcontext(lambda **more: None)


def tracer_of_program() -> "Tracer | None":
    """Of the provider that this program has set; None when there is none. Cheap."""
    api: Any = sys.modules.get("opentelemetry.trace")
    if api is None:
        return None
    provider = api.get_tracer_provider()
    if isinstance(provider, (api.ProxyTracerProvider, api.NoOpTracerProvider)):
        return None
    tracer: Tracer = provider.get_tracer("kvstore", VERSION)
    return tracer


class Spans:
    """Those of one cache. `on`: there is a tracer."""

    def __init__(self, tracer: "Tracer | None", namespace: str) -> None:
        self._tracer = tracer
        self.namespace = namespace
        self.on = tracer is not None

    def call(self, what: str) -> AbstractContextManager[Note]:
        """Around a call; what it gives adds attributes (those that are not None)."""
        return OFF if self._tracer is None else _call(self._tracer, what, self.namespace)

    def load(self, what: str) -> "LoadSpan | None":
        """Of a load that starts now."""
        return None if self._tracer is None else LoadSpan(self._tracer, f"kvstore.{what}")


@contextmanager
def _call(tracer: "Tracer", what: str, namespace: str) -> Iterator[Note]:
    first = _named({"namespace": namespace})
    with tracer.start_as_current_span(f"kvstore.{what}", attributes=first) as current:
        yield lambda **more: current.set_attributes(_named(more))


def note_hit(note: Note, chain: Chain, hit: Hit) -> Hit:
    """What a lookup found, into its span."""
    note(asked_blocks=len(chain), blocks=hit.blocks, tokens=hit.tokens, reason=hit.reason)
    return hit


class LoadSpan:
    """What is known when a load starts: its parent and the wall clock."""

    def __init__(self, tracer: "Tracer", name: str) -> None:
        from opentelemetry import context

        self._tracer = tracer
        self._name = name
        self._parent = context.get_current()
        self._began_ns = time.time_ns()

    def end(self, load: "Load") -> None:
        """Before the load is closed; cancelled when it has not finished."""
        try:
            stats = load.stats()
        except StoreForked:  # the parent's load: its span is the parent's, too
            return
        finished = stats.finished_ns > 0
        last = load.core.layer(load.layout.layers - 1)
        blocks, reason = (0, "cancelled") if last is None else last[:2]
        made = self._tracer.start_span(
            self._name,
            context=self._parent,
            start_time=self._began_ns,
            attributes=_named(
                {
                    "namespace": load.lease.hit.namespace,
                    "asked_blocks": load.blocks,
                    "blocks": blocks,
                    "reason": reason,
                    "disk_bytes": stats.disk_bytes,
                    "ram_bytes": stats.ram_bytes,
                    "reads": stats.reads,
                }
            ),
        )

        def at(boot_ns: int) -> int:
            return self._began_ns + boot_ns - stats.opened_ns

        for event, layer in (("first layer", 0), ("all layers", load.layout.layers - 1)):
            ready = load.core.layer(layer)
            if ready is not None:
                made.add_event(event, _named({"blocks": ready[0]}), timestamp=at(ready[3]))
        made.end(end_time=at(stats.finished_ns) if finished else time.time_ns())


def _named(attributes: dict[str, Any]) -> dict[str, Any]:
    return {f"kvstore.{name}": value for name, value in attributes.items() if value is not None}
