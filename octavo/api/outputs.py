"""The results of the offline API, with vLLM's names and fields, and how they grow from text deltas."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from octavo.flow.cache_report import CacheReport
from octavo.flow.delta import TextDelta
from octavo.flow.receipt import Receipt
from octavo.flow.request import GenerationRequest
from octavo.flow.result import SequenceTimes, TokenLogprobs

Decode = Callable[[int], str]


@dataclass(slots=True)
class Logprob:
    """One token at one position. `rank`: 1 is the likeliest."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


@dataclass(slots=True)
class RequestMetrics:
    """When things happened to a request, in seconds of a monotonic clock; None where they have not."""

    arrival_time: float
    first_scheduled_time: float | None = None
    first_token_time: float | None = None
    last_token_time: float | None = None
    num_generation_tokens: int = 0
    preemptions: int = 0

    @property
    def time_in_queue(self) -> float | None:
        """Seconds from arrival to first being scheduled."""
        return None if self.first_scheduled_time is None else self.first_scheduled_time - self.arrival_time

    @property
    def first_token_latency(self) -> float | None:
        """Seconds from arrival to the first token."""
        return None if self.first_token_time is None else self.first_token_time - self.arrival_time

    @property
    def finished_time(self) -> float | None:
        """When the last token came."""
        return self.last_token_time


@dataclass(slots=True)
class CompletionOutput:
    """One answer to a prompt; there are `n` of them.

    `logprobs` has one {token id: Logprob} a generated token when the request asked for log-probabilities.
    `stop_reason` is the stop string or stop token id that ended the answer, None for the end-of-sequence token.
    `error` says why it ended when `finish_reason` is "error"; the other answers are not touched by it.
    """

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list[int])
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    lora_request: None = None
    error: str | None = None

    def finished(self) -> bool:
        """Nothing more will come."""
        return self.finish_reason is not None


@dataclass(slots=True)
class RequestOutput:
    """The answers to one prompt. `prompt_logprobs[0]` is None: nothing predicts the first token.

    `cache_report` tells what the prefix cache did for the prompt when that asks for it (`explain_cache`). `receipt`, of
    a finished answer to SamplingParams(deterministic=True), is what `LLM.replay` and `octavo replay` take.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    prompt_logprobs: list[dict[int, Logprob] | None] | None
    outputs: list[CompletionOutput]
    finished: bool
    metrics: RequestMetrics | None = None
    num_cached_tokens: int | None = None
    lora_request: None = None
    encoder_prompt: str | None = None
    encoder_prompt_token_ids: list[int] | None = None
    kv_transfer_params: dict[str, Any] | None = None
    cache_report: CacheReport | None = None
    receipt: dict[str, Any] | None = None


@dataclass(slots=True)
class BeamSearchSequence:
    """One answer of a beam search. As in vLLM, `tokens` and `text` begin with the prompt.

    `logprobs` has one {token id: Logprob} a generated token: the token's, then the likeliest ones.
    """

    tokens: list[int]
    logprobs: list[dict[int, Logprob]]
    lora_request: None = None
    cum_logprob: float = 0.0
    text: str | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


@dataclass(slots=True)
class BeamSearchOutput:
    """The answers to one prompt, best first."""

    sequences: list[BeamSearchSequence]


def beam_search_output(found: RequestOutput, prompt: str) -> BeamSearchOutput:
    """A finished request with beams, in vLLM's form; `prompt` is its prompt's text."""
    return BeamSearchOutput(
        [
            BeamSearchSequence(
                tokens=[*found.prompt_token_ids, *answer.token_ids],
                logprobs=answer.logprobs or [],
                cum_logprob=answer.cumulative_logprob or 0.0,
                text=prompt + answer.text,
                finish_reason=answer.finish_reason,
                stop_reason=answer.stop_reason,
            )
            for answer in found.outputs
        ]
    )


class RequestCollector:
    """Grows one RequestOutput from the deltas of its streams. Owner: whoever receives the deltas.

    Args:
        request: what was submitted.
        prompt: its text, if it was given as text.
        decode: the text of one token, for log-probabilities.
        receipt: if one is wanted.
    """

    def __init__(
        self, request: GenerationRequest, prompt: str | None, decode: Decode, receipt: Receipt | None = None
    ) -> None:
        self._receipt = receipt
        self._decode = decode
        self._wants_logprobs = request.sampling.logprobs is not None
        self._pieces: list[list[str]] = [[] for _ in range(request.n)]
        self.output = RequestOutput(
            request_id=request.id,
            prompt=prompt,
            prompt_token_ids=list(request.prompt_token_ids),
            prompt_logprobs=[None] if request.sampling.prompt_logprobs is not None else None,
            outputs=[self._empty(index) for index in range(request.n)],
            finished=False,
            metrics=RequestMetrics(request.arrival),
        )

    @property
    def num_generated(self) -> int:
        """Tokens of all answers so far."""
        return sum(len(answer.token_ids) for answer in self.output.outputs)

    def push(self, delta: TextDelta) -> None:
        """Take what one step added. `output.finished` turns true with the last stream's end."""
        answer = self.output.outputs[delta.index]
        self._pieces[delta.index].append(delta.text)
        answer.token_ids += delta.token_ids
        if answer.logprobs is not None and answer.cumulative_logprob is not None:
            for entry in delta.logprobs:
                answer.logprobs.append(named_logprobs(entry, self._decode))
                answer.cumulative_logprob += entry.logprobs[0]
        if delta.prompt_logprobs and self.output.prompt_logprobs is not None and delta.index == 0:
            self.output.prompt_logprobs += [named_logprobs(entry, self._decode) for entry in delta.prompt_logprobs]
        if not delta.index:  # the other streams take the prompt over from the first
            self.output.num_cached_tokens = max(delta.num_cached_tokens, self.output.num_cached_tokens or 0)
            self.output.cache_report = delta.cache_report or self.output.cache_report
        if delta.times is not None:
            self._note_times(delta.times)
        if delta.finish_reason is not None:
            answer.finish_reason = delta.finish_reason.value
            answer.stop_reason = delta.stop_reason
            answer.error = delta.error
            self.output.finished = all(other.finished() for other in self.output.outputs)
            if self.output.finished and self._receipt is not None:
                written = self._receipt.written([other.token_ids for other in self.output.outputs])
                self.output.receipt = msgspec.to_builtins(written)

    def snapshot(self) -> RequestOutput:
        """The output with its texts joined; the same object every time."""
        for answer, pieces in zip(self.output.outputs, self._pieces, strict=True):
            answer.text = "".join(pieces)
            pieces[:] = [answer.text]
        if self.output.metrics is not None:
            self.output.metrics.num_generation_tokens = self.num_generated
        return self.output

    def _empty(self, index: int) -> CompletionOutput:
        if self._wants_logprobs:
            return CompletionOutput(index, cumulative_logprob=0.0, logprobs=[])
        return CompletionOutput(index)

    def _note_times(self, times: SequenceTimes) -> None:
        metrics = self.output.metrics
        if metrics is None:
            return
        metrics.first_scheduled_time = _earlier(metrics.first_scheduled_time, times.scheduled)
        metrics.first_token_time = _earlier(metrics.first_token_time, times.first_token)
        metrics.last_token_time = max(metrics.last_token_time or 0.0, times.last_token)
        metrics.preemptions += times.preemptions


def _earlier(known: float | None, new: float) -> float | None:
    if not new:
        return known
    return new if known is None else min(known, new)


def named_logprobs(entry: TokenLogprobs, decode: Decode) -> dict[int, Logprob]:
    """{token id: Logprob} of one position: the drawn token first, then the likeliest, best first."""
    tokens: Sequence[int] = entry.token_ids
    named = {tokens[0]: Logprob(entry.logprobs[0], entry.rank, decode(tokens[0]))}
    for rank, (token, logprob) in enumerate(zip(tokens[1:], entry.logprobs[1:], strict=True), 1):
        if token not in named:
            named[token] = Logprob(logprob, rank, decode(token))
    return named


def delta_output(collector: RequestCollector, delta: TextDelta) -> RequestOutput:
    """What one delta brought, as an output of its own (RequestOutputKind.DELTA); `collector` has taken it in."""
    whole = collector.output
    answer = whole.outputs[delta.index]
    count = len(delta.token_ids)
    new = CompletionOutput(
        index=delta.index,
        text=delta.text,
        token_ids=list(delta.token_ids),
        cumulative_logprob=answer.cumulative_logprob,
        logprobs=answer.logprobs[len(answer.logprobs) - count :] if answer.logprobs is not None else None,
        finish_reason=answer.finish_reason,
        stop_reason=answer.stop_reason,
        error=answer.error,
    )
    return replace(whole, outputs=[new])
