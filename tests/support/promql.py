"""What a PromQL expression refers to: metric names, labels it selects by, labels it groups by.

Reads text, knows the grammar only as far as our dashboard and alerts use it.
"""

import re
from dataclasses import dataclass, field

SELECTOR = re.compile(r"\b(kvstore[a-z_:]*)\b(?:\{([^}]*)\})?")
MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')
GROUPING = re.compile(r"\b(?:by|without|on|ignoring)\s*\(([^)]*)\)")
LABEL_VALUES = re.compile(r"label_values\((\w+),\s*(\w+)\)")


@dataclass
class References:
    """metrics: name -> [(label, operator, value)] of all its selectors. groups: labels."""

    metrics: dict[str, list[tuple[str, str, str]]] = field(default_factory=dict)
    groups: set[str] = field(default_factory=set)


def references(expression: str) -> References:
    found = References()
    if asked := LABEL_VALUES.fullmatch(expression):
        found.metrics[asked.group(1)] = []
        found.groups.add(asked.group(2))
        return found
    for name, matchers in SELECTOR.findall(expression):
        found.metrics.setdefault(name, []).extend(MATCHER.findall(matchers))
    for names in GROUPING.findall(expression):
        found.groups |= {name.strip() for name in names.split(",") if name.strip()}
    return found


def words(template: str) -> set[str]:
    """Labels in a legend ({{label}}) or an annotation ({{ $labels.label }})."""
    return set(re.findall(r"\{\{\s*(?:\$labels\.)?(\w+)\s*\}\}", template))
