"""Exposes a metrics store in Prometheus' text format, under Octavo's and vLLM's names, from a registry of its own."""

from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from octavo.telemetry.metrics import Counter, Gauge, Histogram, Metric, MetricsStore, Reading

CONTENT_TYPE = CONTENT_TYPE_LATEST


class PrometheusExporter:
    """Renders a store. Nothing is registered globally, so several engines of one process don't meet."""

    def __init__(self, store: MetricsStore) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_StoreCollector(store))

    def render(self) -> bytes:
        """The whole exposition, `CONTENT_TYPE`."""
        return generate_latest(self._registry)


class _StoreCollector(Collector):
    """Turns readings into metric families at scrape time."""

    def __init__(self, store: MetricsStore) -> None:
        self._store = store

    def collect(self) -> Iterator[Family]:
        for metric, readings in self._store.collect():
            for name in (metric.name, *metric.aliases):
                yield _family(metric, name, readings, tuple(self._store.constant_labels))


def _family(metric: Metric, name: str, readings: Sequence[Reading], constant: tuple[str, ...]) -> Family:
    labels = [*constant, *metric.labels]
    family = _FAMILIES[metric.kind](name, metric.meaning, labels=labels)
    for reading in readings:
        values = [reading.labels[label] for label in labels]
        if isinstance(reading, Histogram):
            assert isinstance(family, HistogramMetricFamily)
            family.add_metric(values, list(reading.buckets.items()), reading.sum)
        else:
            assert isinstance(reading, Counter | Gauge)
            assert isinstance(family, CounterMetricFamily | GaugeMetricFamily)
            family.add_metric(values, reading.value)
    return family


_FAMILIES = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily, "histogram": HistogramMetricFamily}
