"""Declares every metric once (name, kind, unit, labels, buckets, meaning) and keeps their values.

The store is plain Python, so that the offline API measures without loading an exposition library. Values are recorded
under Octavo's names; `aliases` are the names under which vLLM's dashboards look for the same reading.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, Protocol

Kind = Literal["counter", "gauge", "histogram"]

# Bucket bounds as vLLM's, so that quantiles on existing dashboards keep their resolution. Seconds.
FIRST_TOKEN_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
TOKEN_BUCKETS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
LATENCY_BUCKETS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0),
    *(60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
# A step on a small model takes milliseconds; the finest bounds resolve it.
STEP_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
COUNT_BUCKETS = tuple(float(digit * 10**power) for power in range(6) for digit in (1, 2, 5))
CHOICES_BUCKETS = (1.0, 2.0, 5.0, 10.0, 20.0)


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric's declaration. `labels` come on top of the constant ones (model_name, engine)."""

    name: str
    kind: Kind
    unit: str
    meaning: str
    aliases: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


REQUESTS_RUNNING = Metric(
    "octavo_requests_running",
    "gauge",
    "requests",
    "Sequences that hold a row of the batch.",
    ("vllm:num_requests_running",),
)
REQUESTS_WAITING = Metric(
    "octavo_requests_waiting",
    "gauge",
    "requests",
    "Sequences waiting to be scheduled.",
    ("vllm:num_requests_waiting",),
)
CACHE_USAGE = Metric(
    "octavo_cache_usage_ratio",
    "gauge",
    "ratio",
    "Share of KV cache blocks that sequences hold; 1 is full.",
    ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
)
CACHE_BLOCKS = Metric("octavo_cache_blocks", "gauge", "blocks", "KV cache blocks in the pool.")
CACHE_CACHED = Metric("octavo_cache_cached_blocks", "gauge", "blocks", "Blocks that no sequence holds, contents kept.")
CACHE_PINNED = Metric(
    "octavo_cache_pinned_blocks", "gauge", "blocks", "Blocks kept for a time that requests asked for."
)
CACHE_EVICTIONS = Metric("octavo_cache_evictions", "counter", "blocks", "Cached blocks forgotten to make room.")
PINS_REFUSED = Metric("octavo_cache_pins_refused", "counter", "blocks", "Blocks not pinned: the budget was used up.")
PINS_BROKEN = Metric(
    "octavo_cache_pins_broken", "counter", "blocks", "Pinned blocks that the last sequence could not do without."
)
TIER_BLOCKS = Metric(
    "octavo_cache_tier_blocks", "gauge", "blocks", "Cached blocks that a tier holds.", labels=("tier",)
)
TIER_CAPACITY = Metric("octavo_cache_tier_capacity", "gauge", "blocks", "Most that a tier may hold.", labels=("tier",))
TIER_ACTIVE = Metric(
    "octavo_cache_tier_active", "gauge", "bool", "0 while a tier is left alone after failures.", labels=("tier",)
)
TIER_BLOCK_SECONDS = Metric(
    "octavo_cache_tier_block_seconds",
    "gauge",
    "seconds",
    "Time that reading one block takes, measured; 0 is not known yet.",
    labels=("tier",),
)
TIER_HITS = Metric("octavo_cache_tier_hits", "counter", "blocks", "Blocks that came back.", labels=("tier",))
TIER_MISSES = Metric(
    "octavo_cache_tier_misses",
    "counter",
    "blocks",
    "Blocks that did not come back: absent (counted once a prompt), late, missing, torn, corrupt, foreign, stale, "
    "room or error.",
    labels=("tier", "cause"),
)
TIER_REFUSALS = Metric(
    "octavo_cache_tier_refusals",
    "counter",
    "blocks",
    "Blocks that a tier did not take: room, full, error, missing, or resting after failures.",
    labels=("tier", "cause"),
)
TIER_BYPASSED = Metric(
    "octavo_cache_tier_bypassed",
    "counter",
    "blocks",
    "Blocks that a tier was not asked for or given, because computing them is quicker.",
    labels=("tier",),
)
TIER_EVICTIONS = Metric(
    "octavo_cache_tier_evictions", "counter", "blocks", "Blocks that had to make room in a tier.", labels=("tier",)
)
TIER_READ_BYTES = Metric("octavo_cache_tier_read_bytes", "counter", "bytes", "Read from a tier.", labels=("tier",))
TIER_WRITTEN_BYTES = Metric(
    "octavo_cache_tier_written_bytes", "counter", "bytes", "Written to a tier.", labels=("tier",)
)
PREFIX_QUERIES = Metric(
    "octavo_prefix_cache_queries",
    "counter",
    "tokens",
    "Prompt tokens looked up in the prefix cache.",
    ("vllm:prefix_cache_queries",),
)
PREFIX_HITS = Metric(
    "octavo_prefix_cache_hits",
    "counter",
    "tokens",
    "Prompt tokens found in the prefix cache.",
    ("vllm:prefix_cache_hits",),
)
PREFIX_MISSES = Metric(
    "octavo_prefix_cache_misses",
    "counter",
    "tokens",
    "Prompt tokens, in whole blocks, that were not found in the prefix cache, by cause.",
    labels=("cause",),
)
PREEMPTIONS = Metric(
    "octavo_preemptions",
    "counter",
    "preemptions",
    "Sequences sent back to the queue for want of cache blocks.",
    ("vllm:num_preemptions",),
)
OVERTAKEN = Metric(
    "octavo_preemptions_for_priority",
    "counter",
    "preemptions",
    "Of the preemptions, those that let a more urgent request start.",
)
EXPIRED = Metric("octavo_expired_streams", "counter", "streams", "Sample streams that a deadline ended.")
NOT_FINITE = Metric(
    "octavo_not_finite_streams", "counter", "streams", "Sample streams that ended at NaN or infinity in their logits."
)
WAITING_TOKENS = Metric(
    "octavo_waiting_tokens", "gauge", "tokens", "Prompt tokens of requests of which nothing has run yet."
)
TENANTS_WAITING = Metric(
    "octavo_tenants_waiting", "gauge", "tenants", "Tenants that have something waiting, under the policy 'fair'."
)
PROMPT_ROOM = Metric(
    "octavo_prompt_room_tokens",
    "gauge",
    "tokens",
    "Prompt tokens that fit beside decoding into the target of --target-itl-ms; 0 without a target.",
)
SLEEP_LEVEL = Metric("octavo_sleep_level", "gauge", "level", "0 awake; 1 without KV cache; 2 without weights too.")
PAUSED = Metric("octavo_paused", "gauge", "flag", "1 while no new requests are started.")
PREEMPTIONS_SPILLED = Metric(
    "octavo_preemptions_spilled",
    "counter",
    "preemptions",
    "Of these, those whose blocks come back from a tier, since that is quicker than computing them.",
)
PROMPT_TOKENS = Metric(
    "octavo_prompt_tokens",
    "counter",
    "tokens",
    "Prompt tokens computed (not those found in the prefix cache).",
    ("vllm:prompt_tokens",),
)
GENERATION_TOKENS = Metric(
    "octavo_generation_tokens", "counter", "tokens", "Tokens generated.", ("vllm:generation_tokens",)
)
STEPS = Metric("octavo_steps", "counter", "steps", "Engine steps run.")
STEP_SECONDS = Metric(
    "octavo_step_seconds",
    "histogram",
    "seconds",
    "Time of an engine step's forward and sampling.",
    buckets=STEP_BUCKETS,
)
REQUESTS_FINISHED = Metric(
    "octavo_requests_finished",
    "counter",
    "requests",
    "Sample streams that ended, by reason.",
    ("vllm:request_success",),
    labels=("finished_reason",),
)
REQUESTS_REJECTED = Metric(
    "octavo_requests_rejected",
    "counter",
    "requests",
    "Requests refused before they reached the engine, by HTTP status.",
    ("vllm:admission_rejections",),
    labels=("reason",),
)
FIRST_TOKEN_SECONDS = Metric(
    "octavo_time_to_first_token_seconds",
    "histogram",
    "seconds",
    "From a request's arrival to its first token.",
    ("vllm:time_to_first_token_seconds",),
    buckets=FIRST_TOKEN_BUCKETS,
)
INTER_TOKEN_SECONDS = Metric(
    "octavo_inter_token_seconds",
    "histogram",
    "seconds",
    "Between two tokens of one stream, as they leave the engine.",
    ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
    buckets=TOKEN_BUCKETS,
)
TOKEN_SECONDS = Metric(
    "octavo_request_time_per_output_token_seconds",
    "histogram",
    "seconds",
    "A stream's mean time per token after the first.",
    ("vllm:request_time_per_output_token_seconds",),
    buckets=TOKEN_BUCKETS,
)
END_TO_END_SECONDS = Metric(
    "octavo_end_to_end_seconds",
    "histogram",
    "seconds",
    "From a request's arrival to its last token.",
    ("vllm:e2e_request_latency_seconds",),
    buckets=LATENCY_BUCKETS,
)
QUEUE_SECONDS = Metric(
    "octavo_queue_seconds",
    "histogram",
    "seconds",
    "From arrival to first being scheduled.",
    ("vllm:request_queue_time_seconds",),
    buckets=LATENCY_BUCKETS,
)
PREFILL_SECONDS = Metric(
    "octavo_prefill_seconds",
    "histogram",
    "seconds",
    "From first being scheduled to the first token.",
    ("vllm:request_prefill_time_seconds",),
    buckets=LATENCY_BUCKETS,
)
DECODE_SECONDS = Metric(
    "octavo_decode_seconds",
    "histogram",
    "seconds",
    "From the first to the last token.",
    ("vllm:request_decode_time_seconds",),
    buckets=LATENCY_BUCKETS,
)
INFERENCE_SECONDS = Metric(
    "octavo_inference_seconds",
    "histogram",
    "seconds",
    "From first being scheduled to the last token.",
    ("vllm:request_inference_time_seconds",),
    buckets=LATENCY_BUCKETS,
)
REQUEST_PROMPT_TOKENS = Metric(
    "octavo_request_prompt_tokens",
    "histogram",
    "tokens",
    "Prompt length of a request.",
    ("vllm:request_prompt_tokens",),
    buckets=COUNT_BUCKETS,
)
REQUEST_GENERATION_TOKENS = Metric(
    "octavo_request_generation_tokens",
    "histogram",
    "tokens",
    "Tokens a stream generated.",
    ("vllm:request_generation_tokens",),
    buckets=COUNT_BUCKETS,
)
REQUEST_MAX_TOKENS = Metric(
    "octavo_request_max_tokens",
    "histogram",
    "tokens",
    "max_tokens of a request, defaults filled in.",
    ("vllm:request_params_max_tokens",),
    buckets=COUNT_BUCKETS,
)
REQUEST_CHOICES = Metric(
    "octavo_request_choices",
    "histogram",
    "streams",
    "n of a request.",
    ("vllm:request_params_n",),
    buckets=CHOICES_BUCKETS,
)
ENGINE_DEATHS = Metric("octavo_engine_deaths", "counter", "deaths", "Times the engine ended without being told to.")
ENGINE_HANGS = Metric(
    "octavo_engine_hangs",
    "counter",
    "hangs",
    "Deaths of engines that hung, and were ended for it.",
)
HTTP_REQUESTS = Metric(
    "octavo_http_requests",
    "counter",
    "requests",
    "HTTP requests answered, by route and status.",
    labels=("route", "status"),
)

METRICS: tuple[Metric, ...] = (
    *(REQUESTS_RUNNING, REQUESTS_WAITING, CACHE_USAGE, CACHE_BLOCKS, PREFIX_QUERIES, PREFIX_HITS, PREEMPTIONS),
    *(PREFIX_MISSES, CACHE_CACHED, CACHE_PINNED, CACHE_EVICTIONS, PINS_REFUSED, PINS_BROKEN),
    *(OVERTAKEN, EXPIRED, NOT_FINITE, WAITING_TOKENS, TENANTS_WAITING, PROMPT_ROOM, PAUSED),
    *(PROMPT_TOKENS, GENERATION_TOKENS, STEPS, STEP_SECONDS, REQUESTS_FINISHED, REQUESTS_REJECTED),
    *(FIRST_TOKEN_SECONDS, INTER_TOKEN_SECONDS, TOKEN_SECONDS, END_TO_END_SECONDS),
    *(QUEUE_SECONDS, PREFILL_SECONDS, DECODE_SECONDS, INFERENCE_SECONDS),
    *(REQUEST_PROMPT_TOKENS, REQUEST_GENERATION_TOKENS, REQUEST_MAX_TOKENS, REQUEST_CHOICES),
    *(ENGINE_DEATHS, ENGINE_HANGS, HTTP_REQUESTS),
    *(TIER_BLOCKS, TIER_CAPACITY, TIER_ACTIVE, TIER_BLOCK_SECONDS, TIER_HITS, TIER_MISSES, TIER_REFUSALS),
    *(TIER_BYPASSED, TIER_EVICTIONS, TIER_READ_BYTES, TIER_WRITTEN_BYTES, PREEMPTIONS_SPILLED, SLEEP_LEVEL),
)


class MetricsSink(Protocol):
    """Where a stage reports what it measured. `labels` are the values of the metric's own labels, in their order."""

    def add(self, metric: Metric, amount: float = 1, labels: tuple[str, ...] = ()) -> None: ...

    def set(self, metric: Metric, value: float, labels: tuple[str, ...] = ()) -> None: ...

    def observe(self, metric: Metric, value: float, count: int = 1) -> None: ...


class NoMetrics:
    """A sink that forgets everything: metrics are switched off."""

    def add(self, metric: Metric, amount: float = 1, labels: tuple[str, ...] = ()) -> None:
        """Ignore."""

    def set(self, metric: Metric, value: float, labels: tuple[str, ...] = ()) -> None:
        """Ignore."""

    def observe(self, metric: Metric, value: float, count: int = 1) -> None:
        """Ignore."""


@dataclass(frozen=True, slots=True)
class Counter:
    """A reading that only grows."""

    name: str
    value: int
    labels: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Gauge:
    """A reading of now."""

    name: str
    value: float
    labels: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Histogram:
    """A distribution. `buckets` maps each upper bound ("+Inf" last) to how many readings were at most it."""

    name: str
    count: int
    sum: float
    buckets: dict[str, int]
    labels: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def value(self) -> float:
        """The mean; 0 without a reading."""
        return self.sum / self.count if self.count else 0.0


Reading = Counter | Gauge | Histogram


class _Distribution:
    """One histogram's counts per bucket (not cumulative; the last is above every bound)."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, count: int) -> None:
        self.counts[bisect_left(self.bounds, value)] += count
        self.total += value * count

    def cumulative(self) -> dict[str, int]:
        result: dict[str, int] = {}
        running = 0
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            running += count
            result["+Inf" if bound == float("inf") else repr(bound)] = running
        return result


class MetricsStore:
    """The values of one engine's metrics. Owner: the thread that runs the frontend or the offline loop.

    Reading from another thread is safe: single dictionary and list operations only.

    Args:
        model_name: value of the constant label `model_name`.
        engine: value of the constant label `engine`.
    """

    def __init__(self, model_name: str = "", engine: str = "0") -> None:
        self.constant_labels = {"model_name": model_name, "engine": engine}
        self._values: dict[tuple[str, tuple[str, ...]], float] = {
            (metric.name, ()): 0.0 for metric in METRICS if metric.kind != "histogram" and not metric.labels
        }
        self._distributions = {
            metric.name: _Distribution(metric.buckets) for metric in METRICS if metric.kind == "histogram"
        }

    def add(self, metric: Metric, amount: float = 1, labels: tuple[str, ...] = ()) -> None:
        """Let a counter grow by `amount`."""
        key = (metric.name, labels)
        self._values[key] = self._values.get(key, 0.0) + amount

    def set(self, metric: Metric, value: float, labels: tuple[str, ...] = ()) -> None:
        """Replace a gauge's value."""
        self._values[metric.name, labels] = value

    def observe(self, metric: Metric, value: float, count: int = 1) -> None:
        """Enter `value` into a histogram, `count` times."""
        self._distributions[metric.name].observe(value, count)

    def value(self, metric: Metric, labels: tuple[str, ...] = ()) -> float:
        """A counter's or gauge's present value."""
        return self._values.get((metric.name, labels), 0.0)

    def collect(self) -> Iterator[tuple[Metric, list[Reading]]]:
        """Every metric with its readings under its own name, one per combination of labels seen so far."""
        values = list(self._values.items())
        for metric in METRICS:
            if metric.kind == "histogram":
                distribution = self._distributions[metric.name]
                cumulative = distribution.cumulative()
                labels = dict(self.constant_labels)
                yield metric, [Histogram(metric.name, cumulative["+Inf"], distribution.total, cumulative, labels)]
            else:
                yield (
                    metric,
                    [self._reading(metric, labels, value) for (name, labels), value in values if name == metric.name],
                )

    def readings(self) -> list[Reading]:
        """Every reading under Octavo's name, then under vLLM's; what `LLM.get_metrics()` returns."""
        own: list[Reading] = []
        aliased: list[Reading] = []
        for metric, readings in self.collect():
            own += readings
            aliased += [_renamed(reading, alias) for alias in metric.aliases for reading in readings]
        return own + aliased

    def _reading(self, metric: Metric, labels: tuple[str, ...], value: float) -> Reading:
        named = self.constant_labels | dict(zip(metric.labels, labels, strict=True))
        if metric.kind == "counter":
            return Counter(metric.name, int(value), named)
        return Gauge(metric.name, value, named)


def _renamed(reading: Reading, name: str) -> Reading:
    if isinstance(reading, Counter):
        return Counter(name, reading.value, reading.labels)
    if isinstance(reading, Gauge):
        return Gauge(name, reading.value, reading.labels)
    return Histogram(name, reading.count, reading.sum, reading.buckets, reading.labels)
