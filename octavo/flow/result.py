"""What a step produced: the only message from the executor back."""

from dataclasses import dataclass
from enum import Enum

import msgspec

from octavo.flow.cache_report import CacheReport
from octavo.flow.pooling import Pooled


class FinishReason(str, Enum):
    """Why a sequence ended, in the API's words."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    TIMEOUT = "timeout"  # a deadline of the request or the server has passed
    ERROR = "error"
    REPETITION = "repetition"  # it went in circles; see SamplingParams.repetition_detection


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural-log probabilities of one position, of the raw logits (before temperature, penalties and filters).

    `token_ids[0]`, `logprobs[0]` are the sampled token's; the likeliest tokens follow, best first (the sampled one may
    appear again among them). `rank` is the sampled token's, 1 = likeliest.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    rank: int


# A msgspec struct, because there may be one for every block that a step moves.
class TierEvent(msgspec.Struct, frozen=True, gc=False):
    """How a spill, fetch or tier order went. `seconds` is the time of the transfer itself, without waiting.

    `cause` names what failed: "missing", "torn", "corrupt", "foreign", "stale", "full", "room" or "error".
    """

    ticket: int
    cause: str = ""  # empty: it went well
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """It went well."""
        return not self.cause


@dataclass(frozen=True, slots=True)
class StepResult:
    """Of the plan's rows with `samples`, in the plan's order. `seconds`: wall time of the forward and sampling.

    `invalid[i]` tells that row i's logits were not finite: that sequence ends with an error, the others go on.
    `faults`: drawn rows that end for a reason of the request's own, with that. `invalid_prompts`: rows of the plan of
    which a prompt token's log-probability comes of logits that were not finite; they end as well.
    """

    step: int
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs | None, ...] = ()
    invalid: tuple[bool, ...] = ()
    # (row index in the plan, one entry per computed position that predicts a prompt token)
    prompt_logprobs: tuple[tuple[int, tuple[TokenLogprobs, ...]], ...] = ()
    seconds: float = 0.0
    faults: tuple[tuple[int, str], ...] = ()
    invalid_prompts: tuple[int, ...] = ()
    pooled: tuple[tuple[int, Pooled], ...] = ()  # by row index in the plan: answers that are complete
    tier_events: tuple[TierEvent, ...] = ()  # since the last result, of any plan
    mirostat: tuple[tuple[int, float], ...] = ()  # (drawn row, mu of its sequence's next draw)


# A msgspec struct, because one is made per row and step: a frozen dataclass takes ten times as long to construct.
class SequenceOutput(msgspec.Struct, frozen=True, gc=False):
    """What one step added to one sample stream of a request; the engine's message to the outputs stage."""

    request_id: str
    index: int  # sample stream, 0..n-1
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None  # the matched stop_token_ids entry; None for eos
    num_cached_tokens: int = 0  # prompt tokens that came from the prefix cache
    times: "SequenceTimes | None" = None  # with the finish
    error: str | None = None
    cache_report: CacheReport | None = None  # with the first token, if asked for
    refused: bool = False  # with an error: the request is to blame for it
    pooled: Pooled | None = None  # with the finish of a pooled request


@dataclass(frozen=True, slots=True)
class SequenceTimes:
    """Monotonic clock readings in seconds; `preemptions` counts how often the sequence had to start again."""

    arrival: float
    scheduled: float
    first_token: float
    last_token: float
    preemptions: int = 0
