"""Docs, dashboard and alerts name only what a live store exports: names, labels, values of labels.

Expressions are read by tests/support/promql.py; no Prometheus runs here.
"""

import json
import re
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvstore import Store
from kvstore.metric_table import LATENCY, METRICS
from tests.support.promql import References, references, words
from tests.support.scrape import Scrape
from tests.support.stores import opened

DOCS = Path(__file__).parents[1] / "docs" / "METRICS.md"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with opened(tmp_path) as store:
        yield store


def documented() -> str:
    rows = [
        f"| `{metric.name}` | {metric.kind} | {', '.join(metric.labels)} | {metric.meaning} |"
        for metric in METRICS
    ]
    rows.append(f"| `{LATENCY.name}` | histogram | {LATENCY.label} | {LATENCY.meaning} |")
    return "\n".join(row.replace("|  |", "| |") for row in rows)


def test_docs_have_every_metric_as_it_is() -> None:
    assert documented() in DOCS.read_text(), f"docs/METRICS.md should have:\n{documented()}"


def test_docs_name_every_stage(store: Store) -> None:
    rows = re.findall(r"^\| `(\w+)` \| from", DOCS.read_text(), re.MULTILINE)
    assert rows == list(store.latency())


def test_names_follow_the_conventions() -> None:
    assert len({metric.name for metric in METRICS}) == len(METRICS)
    for metric in METRICS:
        assert re.fullmatch(r"kvstore_[a-z_]+", metric.name)
        assert (metric.kind == "counter") == metric.name.endswith("_total"), metric.name


def data(name: str) -> str:
    return (resources.files("kvstore") / "data" / name).read_text()


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(data("grafana-dashboard.json"))["panels"]
    return found


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(data("prometheus-alerts.yml"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def check(
    expression: str, exported: Scrape, recorded: set[str], templates: list[str]
) -> References:
    """The expression's names and labels, and those of the texts made from its result, are there."""
    labels, found = exported.labels(), references(expression)
    asked = {name: matchers for name, matchers in found.metrics.items() if name not in recorded}
    assert set(asked) <= set(labels), f"{expression}: no {set(asked) - set(labels)}"
    known = set[str]().union(*(labels[name] for name in asked))
    assert found.groups - {"le"} <= known, f"{expression}: no {found.groups - known}"
    for name, matchers in asked.items():
        for label, operator, value in matchers:
            assert label in labels[name], f"{expression}: {name} has no {label}"
            if operator in ("=", "!="):
                values = exported.by(name, label)
                assert value in values, f"{expression}: {name}: no {label} {value}"
    for template in templates:
        kept = found.groups or known
        assert words(template) <= kept | {"value"}, f"{template}: {expression} keeps {kept}"
    return found


def test_the_dashboard_asks_for_what_is_exported(store: Store) -> None:
    exported = Scrape(store)
    asked = set[str]()
    for panel in panels():
        assert panel["type"] == "row" or panel["targets"], panel["title"]
        for target in panel.get("targets", ()):
            found = check(target["expr"], exported, set(), [target["legendFormat"]])
            asked |= set(found.metrics)
    for variable in json.loads(data("grafana-dashboard.json"))["templating"]["list"]:
        if variable["type"] == "query":
            check(variable["definition"], exported, set(), [])
    assert len(asked) > 20


def test_panels_have_ids_and_places_of_their_own() -> None:
    numbers = [panel["id"] for panel in panels()]
    assert len(set(numbers)) == len(numbers)
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels())
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24
    rows = [panel["title"] for panel in panels() if panel["type"] == "row"]
    assert rows == ["Hits", "Latency", "Device", "Eviction and retention", "Health"]


def test_alerts_ask_for_what_is_exported(store: Store) -> None:
    exported = Scrape(store)
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    alerts = [rule for rule in rules() if "alert" in rule]
    assert len({rule["alert"] for rule in alerts}) == len(alerts)
    for rule in rules():
        check(rule["expr"], exported, recorded, list(rule.get("annotations", {}).values()))
    for rule in alerts:
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
        assert set(rule["annotations"]) == {"summary", "description"}


def test_a_wrong_name_or_label_is_found(store: Store) -> None:
    exported = Scrape(store)
    for expression in (
        "rate(kvstore_hits_total[1m])",
        'kvstore_loads_total{why="pool"}',
        'kvstore_loads_total{reason="poool"}',
        "sum by (root) (kvstore_blocks)",
    ):
        with pytest.raises(AssertionError):
            check(expression, exported, set(), [])
    with pytest.raises(AssertionError):
        check("kvstore_blocks", exported, set(), ["{{root}}"])
