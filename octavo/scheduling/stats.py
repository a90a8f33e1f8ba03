"""What the scheduler tells of itself."""

from dataclasses import dataclass

from octavo.cache.options import CacheStats
from octavo.cache.tier import TierReading


@dataclass(slots=True)
class SchedulerCounters:
    """Counters since the start; they only grow. `prompt_tokens` counts what was computed, again after a preemption."""

    prefix_queries: int = 0
    prefix_hits: int = 0
    preemptions: int = 0
    overtaken: int = 0  # of these, to let a more urgent sequence start
    spilled: int = 0  # of these, whose blocks a tier brings back quicker than they are computed
    expired: int = 0  # streams that were ended by a deadline
    not_finite: int = 0  # streams that ended because their logits were not finite
    prompt_tokens: int = 0
    generation_tokens: int = 0
    steps: int = 0
    step_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """A reading; `running` and `waiting` count sequences.

    `under_way`: requests of which something has run. `paused`: none are started. `prompt_room`: the prompt tokens that
    the last step had room for within its target time; 0 without a target. `retry_after`: seconds until there is room
    for new requests, at the present rate.
    """

    running: int
    waiting: int
    cache: CacheStats
    counters: SchedulerCounters
    waiting_tokens: int = 0
    under_way: int = 0
    tenants: int = 0
    paused: bool = False
    prompt_room: int = 0
    retry_after: float = 0.0
    tiers: tuple[TierReading, ...] = ()
