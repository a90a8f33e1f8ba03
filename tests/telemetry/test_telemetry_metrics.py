"""Metrics: declared once, kept, read in vLLM's way; and the log lines."""

import io
import logging
from collections.abc import Iterator

import pytest

from octavo.cache.tier import TierReading
from octavo.engine.client import EngineStats
from octavo.engine.meter import EngineMeter
from octavo.telemetry import log, metrics
from octavo.telemetry.metrics import METRICS, Counter, Gauge, Histogram, MetricsStore
from octavo.telemetry.prometheus import PrometheusExporter


def reading(store: MetricsStore, name: str) -> metrics.Reading:
    return next(r for r in store.readings() if r.name == name)


def test_names_are_unique_and_explained() -> None:
    names = [name for metric in METRICS for name in (metric.name, *metric.aliases)]
    assert len(names) == len(set(names))
    for metric in METRICS:
        assert metric.meaning.endswith(".")
        assert bool(metric.buckets) == (metric.kind == "histogram")
        assert list(metric.buckets) == sorted(metric.buckets)


def test_every_declared_metric_is_in_the_list() -> None:
    declared = {value for value in vars(metrics).values() if isinstance(value, metrics.Metric)}
    assert declared == set(METRICS)


def test_readings_under_both_names() -> None:
    store = MetricsStore("m")
    store.add(metrics.PROMPT_TOKENS, 5)
    store.set(metrics.CACHE_USAGE, 0.25)
    store.observe(metrics.FIRST_TOKEN_SECONDS, 0.005)
    store.observe(metrics.FIRST_TOKEN_SECONDS, 0.3, count=2)
    labels = {"model_name": "m", "engine": "0"}
    assert reading(store, "vllm:prompt_tokens") == Counter("vllm:prompt_tokens", 5, labels)
    assert reading(store, "octavo_cache_usage_ratio") == Gauge("octavo_cache_usage_ratio", 0.25, labels)
    histogram = reading(store, "vllm:time_to_first_token_seconds")
    assert isinstance(histogram, Histogram)
    assert (histogram.count, histogram.sum) == (3, pytest.approx(0.605))
    assert histogram.buckets["0.001"] == 0
    assert histogram.buckets["0.005"] == 1  # a bound belongs to its bucket
    assert histogram.buckets["0.25"] == 1
    assert histogram.buckets["+Inf"] == 3
    assert histogram.value == pytest.approx(0.605 / 3)


def test_labelled_counter() -> None:
    store = MetricsStore("m")
    store.add(metrics.REQUESTS_FINISHED, labels=("stop",))
    store.add(metrics.REQUESTS_FINISHED, 2, labels=("length",))
    found = {r.labels["finished_reason"]: r.value for r in store.readings() if r.name == "vllm:request_success"}
    assert found == {"stop": 1, "length": 2}
    text = PrometheusExporter(store).render().decode()
    assert 'vllm:request_success_total{engine="0",finished_reason="length",model_name="m"} 2.0' in text


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    root = logging.getLogger("octavo")
    before = (root.handlers, root.level, root.propagate)
    stream = io.StringIO()
    log.configure("info", stream)
    yield stream
    root.handlers, root.level, root.propagate = before


def test_a_log_line_is_one_line(lines: io.StringIO) -> None:
    log.logger("access").info("GET %s", "/a\nINFO forged", extra={"fields": {"id": "x y", "n": 1}})
    log.logger("access").debug("not shown")
    text = lines.getvalue()
    assert text.startswith("INFO ")
    assert text.endswith('access: GET /a\\nINFO forged id="x y" n=1\n')
    assert text.count("\n") == 1


def test_throughput_line_is_vllms_and_stops_when_idle(lines: io.StringIO) -> None:
    store, now = MetricsStore(), 0.0
    throughput = log.ThroughputLog(store, lambda: now)
    now = 10.0
    assert throughput.tick() is None
    store.add(metrics.PROMPT_TOKENS, 100)
    store.add(metrics.GENERATION_TOKENS, 50)
    store.add(metrics.PREFIX_QUERIES, 200)
    store.add(metrics.PREFIX_HITS, 50)
    store.set(metrics.REQUESTS_RUNNING, 2)
    store.set(metrics.CACHE_USAGE, 0.125)
    now = 20.0
    assert throughput.tick() == (
        "Avg prompt throughput: 10.0 tokens/s, Avg generation throughput: 5.0 tokens/s, "
        "Running: 2 reqs, Waiting: 0 reqs, GPU KV cache usage: 12.5%, Prefix cache hit rate: 25.0%"
    )
    store.set(metrics.REQUESTS_RUNNING, 0)
    assert throughput.tick() is not None
    assert throughput.tick() is None
    assert lines.getvalue().count("\n") == 2


def test_nothing_runs_or_is_cached_in_an_engine_that_has_ended():
    store = MetricsStore()
    meter = EngineMeter(store)
    disk = TierReading("disk", blocks=3, capacity=8, hits=4)
    meter.stepped([], EngineStats(running=2, waiting=5, used_blocks=3, num_blocks=4, evictions=7, tiers=(disk,)))
    meter.lost()
    gauges = (metrics.REQUESTS_RUNNING, metrics.REQUESTS_WAITING, metrics.CACHE_USAGE, metrics.CACHE_BLOCKS)
    assert [store.value(gauge) for gauge in gauges] == [0, 0, 0, 0]
    assert [store.value(metric, ("disk",)) for metric in (metrics.TIER_BLOCKS, metrics.TIER_ACTIVE)] == [0, 0]
    meter.stepped([], EngineStats(evictions=1, num_blocks=4, tiers=(TierReading("disk", hits=1),)))
    assert (store.value(metrics.CACHE_EVICTIONS), store.value(metrics.TIER_HITS, ("disk",))) == (8, 5)
