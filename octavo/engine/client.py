"""What the frontend knows of an engine, in this process or another."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from octavo.cache.tier import TierReading
from octavo.execution.sleep import Part
from octavo.flow.request import GenerationRequest
from octavo.flow.result import SequenceOutput

# What becomes of requests when an engine pauses: "abort" ends all; "wait" lets those end of which something has run;
# "keep" stops where they are. New ones are taken on and wait.
Pause = Literal["abort", "wait", "keep"]


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What an engine tells once, when it is ready."""

    max_model_len: int
    num_blocks: int
    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    vocab: int
    start_seconds: float
    pin_tokens: int = 0  # of one prompt that may be pinned in the cache
    fingerprint: tuple[tuple[str, str], ...] = ()  # names and values of what decides the bits of answers


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A reading of an engine; counters only grow."""

    running: int = 0
    waiting: int = 0
    used_blocks: int = 0  # referenced by sequences
    num_blocks: int = 0
    prefix_queries: int = 0  # prompt tokens looked up
    prefix_hits: int = 0  # of these, found
    preemptions: int = 0
    prompt_tokens: int = 0  # computed
    generation_tokens: int = 0
    steps: int = 0
    step_seconds: float = 0.0  # total in the forward and sampling
    overtaken: int = 0  # preemptions that let a more urgent request start
    expired: int = 0  # streams that a deadline ended
    not_finite: int = 0  # streams that ended because their logits were not finite
    waiting_tokens: int = 0  # of prompts of which nothing has run yet
    under_way: int = 0  # requests of which something has run
    tenants: int = 0  # that have something waiting, under fair scheduling
    paused: bool = False  # no new requests are started
    prompt_room: int = 0  # prompt tokens that fitted beside decoding into the target time; 0 without a target
    cached_blocks: int = 0  # not referenced, contents kept
    pinned_blocks: int = 0  # kept for a time that a request asked for
    pins_refused: int = 0  # blocks there was no budget for
    pins_broken: int = 0  # blocks that a sequence could not do without
    evictions: int = 0  # blocks
    prefix_misses: tuple[tuple[str, int], ...] = ()  # prompt tokens not found, by cause; see flow/cache_report.py
    retry_after: float = 0.0  # seconds until there is room for new requests, at the present rate
    spilled: int = 0  # preemptions of which a tier keeps the blocks
    asleep: int = 0  # level of sleep; 0: awake
    tiers: tuple[TierReading, ...] = ()  # below the cache, host memory first


class EngineClient(Protocol):
    """Submit, cancel, receive. Not thread-safe: one owner.

    `receive` returns the outputs of one or more steps, [] when `timeout` seconds passed without any. After a request's
    n streams have each delivered a finish_reason nothing more comes for it. `cancel` of an unknown or finished id does
    nothing; of a live one, each unfinished stream ends with FinishReason.ABORT.
    `cancel_streams` ends single ones. `pause` returns at once: in mode "wait"
    the engine has drained when `stats().under_way` is 0.

    Raises:
        EngineDeadError: the engine is gone.
    """

    info: EngineInfo

    def submit(self, request: GenerationRequest) -> None: ...

    def cancel(self, request_ids: Sequence[str]) -> None: ...

    def cancel_streams(self, streams: Sequence[tuple[str, int]]) -> None: ...

    def receive(self, timeout: float | None = None) -> list[SequenceOutput]: ...

    def stats(self) -> EngineStats: ...

    def pause(self, how: Pause = "wait") -> None: ...

    def resume(self) -> None: ...

    def sleep(self, level: int = 1) -> None: ...

    def wake(self, parts: Sequence[Part] | None = None) -> None: ...

    def reset_prefix_cache(self) -> bool: ...

    def close(self) -> None: ...
