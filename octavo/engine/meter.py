"""Turns what an engine hands out into metrics: the one place that knows which reading goes where."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from octavo.cache.tier import TierReading
from octavo.engine.client import EngineStats
from octavo.flow.delta import TextDelta
from octavo.flow.request import GenerationRequest
from octavo.flow.result import SequenceOutput
from octavo.telemetry import metrics
from octavo.telemetry.metrics import MetricsSink


@dataclass(slots=True)
class _Live:
    """A sample stream under way. Times are of the meter's clock, in seconds; 0 is "not yet"."""

    arrival: float
    first_token: float = 0.0
    last_token: float = 0.0
    tokens: int = 0


class EngineMeter:
    """Measures requests and steps on the frontend's side. Owner: whoever receives the engine's outputs.

    Args:
        sink: where readings go.
        clock: monotonic seconds, the clock of `GenerationRequest.arrival`.
    """

    def __init__(self, sink: MetricsSink, clock: Callable[[], float] = time.monotonic) -> None:
        self._sink = sink
        self._clock = clock
        self._live: dict[str, dict[int, _Live]] = {}
        self._last = EngineStats()

    def admitted(self, request: GenerationRequest) -> None:
        """A request went to the engine."""
        sink = self._sink
        prompt_len = len(request.prompt_token_ids)
        arrival = request.arrival or self._clock()
        sink.observe(metrics.REQUEST_PROMPT_TOKENS, prompt_len)
        sink.observe(metrics.REQUEST_MAX_TOKENS, request.stopping.max_tokens)
        sink.observe(metrics.REQUEST_CHOICES, request.n)
        self._live[request.id] = {index: _Live(arrival) for index in range(request.n)}

    def rejected(self, reason: str) -> None:
        """A request was refused; `reason` is the HTTP status or a word for it."""
        self._sink.add(metrics.REQUESTS_REJECTED, labels=(reason,))

    def stepped(self, outputs: Iterable[SequenceOutput], stats: EngineStats) -> None:
        """The engine delivered one or more steps."""
        now = self._clock()
        observe = self._sink.observe
        for output in outputs:
            streams = self._live.get(output.request_id)
            live = streams.get(output.index) if streams else None
            if live is None:
                continue
            if output.token_ids:
                if live.tokens:
                    observe(metrics.INTER_TOKEN_SECONDS, now - live.last_token)
                else:
                    live.first_token = now
                    observe(metrics.FIRST_TOKEN_SECONDS, now - live.arrival)
                live.last_token = now
                live.tokens += len(output.token_ids)
            if output.times is not None and output.times.first_token:
                times = output.times
                observe(metrics.QUEUE_SECONDS, max(0.0, times.scheduled - times.arrival))
                observe(metrics.PREFILL_SECONDS, max(0.0, times.first_token - times.scheduled))
                observe(metrics.DECODE_SECONDS, max(0.0, times.last_token - times.first_token))
                observe(metrics.INFERENCE_SECONDS, max(0.0, times.last_token - times.scheduled))
        self._read(stats)

    def delivered(self, delta: TextDelta) -> None:
        """A stream's last delta went out; `finish_reason` is what its consumer sees."""
        streams = self._live.get(delta.request_id)
        if streams is None or delta.finish_reason is None:
            return
        live = streams.pop(delta.index)
        if not streams:
            del self._live[delta.request_id]
        sink = self._sink
        sink.add(metrics.REQUESTS_FINISHED, labels=(delta.finish_reason.value,))
        sink.observe(metrics.REQUEST_GENERATION_TOKENS, live.tokens)
        sink.observe(metrics.END_TO_END_SECONDS, self._clock() - live.arrival)
        if live.tokens > 1:
            sink.observe(metrics.TOKEN_SECONDS, (live.last_token - live.first_token) / (live.tokens - 1))

    def dropped(self, request_id: str) -> None:
        """A request's unfinished streams ended early: its consumer went away, or the engine did."""
        for _ in self._live.pop(request_id, {}):
            self._sink.add(metrics.REQUESTS_FINISHED, labels=("abort",))

    def lost(self, hung: bool = False) -> None:
        """The engine ended: nothing runs, waits or is cached any more. The next one counts from zero."""
        self._sink.add(metrics.ENGINE_DEATHS)
        self._sink.add(metrics.ENGINE_HANGS, int(hung))
        tiers = self._last.tiers
        self._last = EngineStats()
        self._read(self._last)
        for tier in tiers:
            self._read_tier(TierReading(tier.name, active=False), TierReading(tier.name))

    def _read(self, stats: EngineStats) -> None:
        sink, last = self._sink, self._last
        self._last = stats
        sink.set(metrics.REQUESTS_RUNNING, stats.running)
        sink.set(metrics.REQUESTS_WAITING, stats.waiting)
        sink.set(metrics.CACHE_BLOCKS, stats.num_blocks)
        sink.set(metrics.CACHE_USAGE, stats.used_blocks / stats.num_blocks if stats.num_blocks else 0.0)
        sink.add(metrics.PREFIX_QUERIES, stats.prefix_queries - last.prefix_queries)
        sink.add(metrics.PREFIX_HITS, stats.prefix_hits - last.prefix_hits)
        known = dict(last.prefix_misses)
        for cause, tokens in stats.prefix_misses:
            sink.add(metrics.PREFIX_MISSES, tokens - known.get(cause, 0), (cause,))
        sink.set(metrics.CACHE_CACHED, stats.cached_blocks)
        sink.set(metrics.CACHE_PINNED, stats.pinned_blocks)
        sink.add(metrics.CACHE_EVICTIONS, stats.evictions - last.evictions)
        sink.add(metrics.PINS_REFUSED, stats.pins_refused - last.pins_refused)
        sink.add(metrics.PINS_BROKEN, stats.pins_broken - last.pins_broken)
        sink.add(metrics.PREEMPTIONS, stats.preemptions - last.preemptions)
        sink.add(metrics.OVERTAKEN, stats.overtaken - last.overtaken)
        sink.add(metrics.EXPIRED, stats.expired - last.expired)
        sink.add(metrics.NOT_FINITE, stats.not_finite - last.not_finite)
        sink.set(metrics.WAITING_TOKENS, stats.waiting_tokens)
        sink.set(metrics.TENANTS_WAITING, stats.tenants)
        sink.set(metrics.PROMPT_ROOM, stats.prompt_room)
        sink.set(metrics.PAUSED, stats.paused)
        sink.add(metrics.PROMPT_TOKENS, stats.prompt_tokens - last.prompt_tokens)
        sink.add(metrics.GENERATION_TOKENS, stats.generation_tokens - last.generation_tokens)
        steps = stats.steps - last.steps
        if steps > 0:
            sink.add(metrics.STEPS, steps)
            sink.observe(metrics.STEP_SECONDS, (stats.step_seconds - last.step_seconds) / steps, steps)
        sink.set(metrics.SLEEP_LEVEL, stats.asleep)
        sink.add(metrics.PREEMPTIONS_SPILLED, stats.spilled - last.spilled)
        before = {tier.name: tier for tier in last.tiers}
        for tier in stats.tiers:
            self._read_tier(tier, before.get(tier.name, TierReading(tier.name)))

    def _read_tier(self, tier: TierReading, last: TierReading) -> None:
        sink, name = self._sink, (tier.name,)
        sink.set(metrics.TIER_BLOCKS, tier.blocks, name)
        sink.set(metrics.TIER_CAPACITY, tier.capacity, name)
        sink.set(metrics.TIER_ACTIVE, tier.active, name)
        sink.set(metrics.TIER_BLOCK_SECONDS, tier.page_seconds, name)
        sink.add(metrics.TIER_HITS, tier.hits - last.hits, name)
        sink.add(metrics.TIER_BYPASSED, tier.bypassed - last.bypassed, name)
        sink.add(metrics.TIER_EVICTIONS, tier.evictions - last.evictions, name)
        sink.add(metrics.TIER_READ_BYTES, tier.read_bytes - last.read_bytes, name)
        sink.add(metrics.TIER_WRITTEN_BYTES, tier.written_bytes - last.written_bytes, name)
        for metric, causes, known in (
            (metrics.TIER_MISSES, tier.misses, dict(last.misses)),
            (metrics.TIER_REFUSALS, tier.refusals, dict(last.refusals)),
        ):
            for cause, count in causes:
                sink.add(metric, count - known.get(cause, 0), (tier.name, cause))
