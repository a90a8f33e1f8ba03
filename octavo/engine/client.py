"""What the frontend knows of an engine, in this process or another."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from octavo.flow.request import GenerationRequest
from octavo.flow.result import SequenceOutput


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


class EngineClient(Protocol):
    """Submit, cancel, receive. Not thread-safe: one owner.

    `receive` returns the outputs of one or more steps, [] when `timeout` seconds passed without any. After a request's
    n streams have each delivered a finish_reason nothing more comes for it. `cancel` of an unknown or finished id does
    nothing; of a live one, each unfinished stream ends with FinishReason.ABORT.

    Raises:
        EngineDeadError: the engine is gone.
    """

    info: EngineInfo

    def submit(self, request: GenerationRequest) -> None: ...

    def cancel(self, request_ids: Sequence[str]) -> None: ...

    def receive(self, timeout: float | None = None) -> list[SequenceOutput]: ...

    def stats(self) -> EngineStats: ...

    def reset_prefix_cache(self) -> bool: ...

    def close(self) -> None: ...
