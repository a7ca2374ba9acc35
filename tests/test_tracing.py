"""Spans: what match, find, load, get, prefetch, put and commit say of themselves, whose children
they are, and that nothing is there, or changes, without a tracer provider.

Stores here get the tracer of a provider of the test; that a program's own provider is found is
tested in a process of its own, since a process sets one only once.
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from kvstore import Cache, Miss
from tests.support.stores import (
    LAYERS,
    PART_BYTES,
    cells_of,
    check_load,
    layout,
    opened,
    prompt,
    run,
    until,
    write,
)

BLOCKS = 20
CELLS = cells_of(layout(), BLOCKS)


class Traced:
    """A cache of a store whose calls are traced."""

    def __init__(self, kv: Cache, provider: TracerProvider, exporter: InMemorySpanExporter) -> None:
        self.kv = kv
        self.chain = kv.keys(prompt(BLOCKS))
        self.tracer = provider.get_tracer("test")
        self._exporter = exporter

    def spans(self, name: str) -> list[ReadableSpan]:
        return [
            span for span in self._exporter.get_finished_spans() if span.name == f"kvstore.{name}"
        ]

    def span(self, name: str) -> dict[str, object]:
        """The attributes of the one span of that name."""
        (span,) = self.spans(name)
        assert span.start_time is not None and span.end_time is not None
        assert span.start_time <= span.end_time
        return dict(span.attributes or {})

    def fill(self) -> None:
        assert write(self.kv, self.chain, CELLS) == BLOCKS


@pytest.fixture
def traced(tmp_path: Path) -> Iterator[Traced]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with opened(tmp_path) as store:
        until(lambda: not store.info().roots[0].warming)
        store.tracer = provider.get_tracer("kvstore")
        yield Traced(store.cache(layout()), provider, exporter)
    provider.shutdown()


def test_lookups_say_what_they_found_and_why_not_more(traced: Traced) -> None:
    traced.fill()
    longer = traced.kv.keys(prompt(BLOCKS + 3))
    assert traced.kv.match(longer).blocks == BLOCKS
    assert traced.kv.find_blocking(traced.chain).blocks == BLOCKS
    assert traced.span("match") == {
        "kvstore.namespace": traced.kv.namespace,
        "kvstore.asked_blocks": BLOCKS + 3,
        "kvstore.blocks": BLOCKS,
        "kvstore.tokens": BLOCKS * 16,
        "kvstore.reason": "absent",
    }
    assert "kvstore.reason" not in traced.span("find")
    run(_find(traced))
    assert len(traced.spans("find")) == 2


async def _find(traced: Traced) -> None:
    assert (await traced.kv.find(traced.chain)).blocks == BLOCKS


def test_a_load_says_what_came_from_where(traced: Traced) -> None:
    traced.fill()
    traced.kv.store.drop_ram()
    with traced.kv.load(traced.kv.match(traced.chain)) as load:
        check_load(load, CELLS, BLOCKS)
        assert not traced.spans("load")  # it is made when the load is closed
        stats = load.stats()
    load.close()
    assert traced.span("load") == {
        "kvstore.namespace": traced.kv.namespace,
        "kvstore.asked_blocks": BLOCKS,
        "kvstore.blocks": BLOCKS,
        "kvstore.disk_bytes": BLOCKS * LAYERS * PART_BYTES,
        "kvstore.ram_bytes": 0,
        "kvstore.reads": stats.reads,
    }
    (span,) = traced.spans("load")
    assert span.end_time - span.start_time == stats.finished_ns - stats.opened_ns
    assert [event.name for event in span.events] == ["first layer", "all layers"]
    first, last = (event.timestamp for event in span.events)
    assert span.start_time <= first <= last <= span.end_time


def test_a_load_that_is_closed_early_says_cancelled(traced: Traced) -> None:
    traced.fill()
    hit = traced.kv.match(traced.chain)
    load = traced.kv.load(hit)
    load.cancel()
    load.close()
    assert traced.span("load").get("kvstore.reason") == "cancelled" or load.failed_blocks == range(
        0
    )


def test_the_parent_is_the_span_that_was_current_at_the_start(traced: Traced) -> None:
    traced.fill()
    hit = traced.kv.match(traced.chain)
    with traced.tracer.start_as_current_span("request") as parent:
        load = traced.kv.load(hit)
    with load:
        load.wait(LAYERS - 1)
    with traced.tracer.start_as_current_span("request") as other:
        traced.kv.match(traced.chain)
    (span,) = traced.spans("load")
    assert span.parent is not None and span.parent.span_id == parent.get_span_context().span_id
    matched = traced.spans("match")[-1]
    assert matched.parent is not None
    assert matched.parent.span_id == other.get_span_context().span_id


def test_commit_says_what_is_resident_now(traced: Traced) -> None:
    traced.fill()
    assert traced.span("commit") == {
        "kvstore.namespace": traced.kv.namespace,
        "kvstore.asked_blocks": BLOCKS,
        "kvstore.blocks": BLOCKS,
        "kvstore.blocks_skipped": 0,
        "kvstore.blocks_dropped": 0,
        "kvstore.blocks_refused": 0,
        "kvstore.written_bytes": BLOCKS * LAYERS * PART_BYTES,
    }
    run(_commit(traced))
    assert (traced.spans("commit")[-1].attributes or {})["kvstore.blocks_skipped"] == BLOCKS


async def _commit(traced: Traced) -> None:
    async with traced.kv.writer(traced.chain) as writer:
        assert await writer.commit() == BLOCKS


def test_single_blocks_and_prefetch(traced: Traced) -> None:
    key, other = traced.chain[0], traced.chain[1]
    block = b"".join(layer["latent"][0].tobytes() for layer in CELLS)
    assert traced.kv.put_blocking(key, block)
    assert run(traced.kv.put(key, block))
    with traced.kv.get_blocking(key) as got:
        assert bytes(got) == block
    assert isinstance(traced.kv.get_blocking(other), Miss)
    assert traced.kv.prefetch_blocking(traced.kv.match(traced.chain)) == 1
    assert [dict(span.attributes or {})["kvstore.blocks"] for span in traced.spans("put")] == [1, 1]
    gets = [dict(span.attributes or {}) for span in traced.spans("get")]
    assert [get["kvstore.blocks"] for get in gets] == [1, 0]
    assert gets[1]["kvstore.reason"] == "absent"
    assert traced.span("prefetch")["kvstore.blocks"] == 1


def test_misuse_is_the_same_with_a_tracer_and_is_in_the_span(traced: Traced) -> None:
    with pytest.raises(TypeError, match="takes a Chain"):
        traced.kv.find_blocking([1, 2])  # type: ignore[arg-type]
    (span,) = traced.spans("find")
    assert not span.status.is_ok
    assert [event.name for event in span.events] == ["exception"]


def test_without_a_provider_there_is_no_tracer(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        assert store.tracer is None
        kv = store.cache(layout())
        assert write(kv, kv.keys(prompt(BLOCKS)), CELLS) == BLOCKS
        with kv.load(kv.match(kv.keys(prompt(BLOCKS)))) as load:
            check_load(load, CELLS, BLOCKS)


PROGRAM = """
import sys
import kvstore
assert not any(name.startswith("opentelemetry") for name in sys.modules)
if {set_provider}:
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    trace.set_tracer_provider(TracerProvider())
elif {use_api}:
    from opentelemetry import trace
    trace.get_tracer("program").start_span("of the program").end()
with kvstore.open_blocking({root!r}, pool="64MiB") as store:
    print(store.tracer is not None)
"""


@pytest.mark.parametrize(("set_provider", "use_api"), [(True, True), (False, True), (False, False)])
def test_the_provider_of_the_program_is_found(
    tmp_path: Path, set_provider: bool, use_api: bool
) -> None:
    program = PROGRAM.format(set_provider=set_provider, use_api=use_api, root=str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str(set_provider)
