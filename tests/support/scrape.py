"""One scrape of stores, to ask for single samples."""

from prometheus_client import CollectorRegistry

from kvstore import Store, metrics


class Scrape:
    """One scrape, by name and labels other than `store`."""

    def __init__(self, *stores: Store, labels: list[dict[str, str]] | None = None) -> None:
        self.registry = CollectorRegistry()
        for number, store in enumerate(stores):
            metrics.register(
                store, registry=self.registry, labels=labels[number] if labels else None
            )
        self.families = {family.name: family for family in self.registry.collect()}
        self.samples = [sample for family in self.families.values() for sample in family.samples]

    def __call__(self, name: str, **labels: str) -> float:
        found = [
            sample.value
            for sample in self.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]
        assert len(found) == 1, f"{name} {labels}: {len(found)} samples"
        return found[0]

    def by(self, name: str, label: str) -> dict[str, float]:
        return {
            sample.labels[label]: sample.value for sample in self.samples if sample.name == name
        }

    def labels(self) -> dict[str, set[str]]:
        """Sample name -> its label names."""
        return {sample.name: set(sample.labels) for sample in self.samples}
