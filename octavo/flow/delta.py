"""What the outputs stage hands to the serving side: text, token ids, and the end."""

from dataclasses import dataclass

from octavo.flow.cache_report import CacheReport
from octavo.flow.pooling import Pooled
from octavo.flow.result import FinishReason, SequenceTimes, TokenLogprobs


@dataclass(frozen=True, slots=True)
class TextDelta:
    """New text of one sample stream. Concatenated `text`s are the whole answer; likewise `token_ids`."""

    request_id: str
    index: int
    text: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None  # matched stop string or stop token id; None for eos
    num_cached_tokens: int = 0
    times: SequenceTimes | None = None
    error: str | None = None
    cache_report: CacheReport | None = None
    refused: bool = False  # with an error: the request is to blame for it
    pooled: Pooled | None = None
