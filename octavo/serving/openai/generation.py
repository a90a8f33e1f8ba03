"""From a body to running requests and back: sampling parameters, prompts, usage; the same for chat and completions."""

import asyncio
import math
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from msgspec import UNSET, UnsetType
from starlette.requests import Request

from octavo.engine.request_stream import RequestStream
from octavo.errors import DeadlineExceededError, InternalError, InvalidRequestError, OctavoError
from octavo.flow.cache_report import CacheReport
from octavo.flow.delta import TextDelta
from octavo.flow.receipt import Receipt, ReceiptFields, open_receipt
from octavo.flow.request import GenerationRequest
from octavo.flow.result import FinishReason, TokenLogprobs
from octavo.flow.sampling_params import SamplingParams
from octavo.inputs.processor import InputProcessor
from octavo.serving.limits import LONG_TEXT, check_counts, check_depth, read_body
from octavo.serving.openai.answers import PromptTokensDetails, Usage
from octavo.serving.openai.cache_report import told
from octavo.serving.openai.forms import form_naming
from octavo.serving.openai.notices import notices
from octavo.serving.openai.schema import BodyReader, ChatRequest, GenerationFields, refuse_unsupported
from octavo.serving.openai.server_defaults import fill_in
from octavo.serving.openai.spellings import NO_LIMIT, respell
from octavo.serving.openai.wishes import read_beam, read_cache_wish, with_wishes
from octavo.serving.record import record_of
from octavo.serving.state import ServerState
from octavo.serving.stream import until_disconnect
from octavo.serving.tenant import tenant_of
from octavo.text.grammar import Grammar
from octavo.text.tokenizer import Tokenizer

Prompt = str | Sequence[int]

CHAT_PATH, TEXT_PATH = "/v1/chat/completions", "/v1/completions"
_MAX_ID = 128
_MAX_SECONDS = 1e9
# How an answer's id begins, by the end of the path that was asked.
_PREFIXES = (("/chat/completions", "chatcmpl-"), ("/messages", "msg_"), ("/responses", "resp_"))

_SAMPLING_FIELDS = (
    *("n", "temperature", "top_p", "top_k", "min_p", "seed", "stop", "stop_token_ids"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty", "min_tokens", "ignore_eos"),
    *("include_stop_str_in_output", "skip_special_tokens", "spaces_between_special_tokens"),
    *("allowed_token_ids", "logit_bias", "bad_words", "prompt_logprobs", "repetition_detection", "logits_rules"),
    *("typical_p", "top_n_sigma", "xtc_probability", "xtc_threshold", "dynatemp_range", "dynatemp_exponent"),
    *("truncate_prompt_tokens", "truncation_side"),
    *("dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers"),
    *("mirostat", "mirostat_tau", "mirostat_eta", "samplers"),
)


@dataclass(slots=True)
class Tally:
    """Counts tokens for `usage`. `details` tells whether cached tokens are reported."""

    prompt_tokens: int
    details: bool
    completion_tokens: int = 0
    cached: dict[str, int] = field(default_factory=dict[str, int])  # by engine request
    reports: dict[str, CacheReport] = field(default_factory=dict[str, CacheReport])  # that were not told yet
    drawn: dict[tuple[str, int], list[int]] | None = None  # token ids by stream, where a receipt needs them

    def add(self, delta: TextDelta) -> None:
        """Take a delta's tokens."""
        self.completion_tokens += len(delta.token_ids)
        if self.drawn is not None:
            self.drawn.setdefault((delta.request_id, delta.index), []).extend(delta.token_ids)
        if delta.num_cached_tokens and not delta.index:  # the other streams take the prompt over from the first
            self.cached[delta.request_id] = delta.num_cached_tokens
        if delta.cache_report is not None and not delta.index:
            self.reports[delta.request_id] = delta.cache_report

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that were not computed."""
        return sum(self.cached.values())

    def usage(self) -> Usage:
        """The reading so far."""
        total = self.prompt_tokens + self.completion_tokens
        details = PromptTokensDetails(self.cached_tokens) if self.details else None
        return Usage(self.prompt_tokens, total, self.completion_tokens, details)


@dataclass(slots=True)
class Job:
    """One API request under way: its identity in answers, and its engine requests, one a prompt."""

    id: str
    created: int
    model: str
    requests: list[GenerationRequest]
    stream: RequestStream
    tally: Tally
    warnings: list[str]
    n: int
    receipt: Receipt | None = None

    def written(self) -> ReceiptFields | UnsetType:
        """The receipt of what has come, if one is wanted; at the end."""
        drawn = self.tally.drawn
        if self.receipt is None or drawn is None:
            return UNSET
        choices = [(item.id, index) for item in self.requests for index in range(item.n)]
        return self.receipt.written([drawn.get(choice, []) for choice in choices])

    def take_reports(self, tokenizer: Tokenizer | None) -> list[dict[str, Any]] | UnsetType:
        """What the cache did for the prompts, as far as it was asked for and was not told yet."""
        reports, self.tally.reports = self.tally.reports, {}
        return [told(reports[item.id], item, tokenizer) for item in self.requests if item.id in reports] or UNSET

    def index_of(self, delta: TextDelta) -> int:
        """The choice that a delta belongs to: prompt number times n plus stream."""
        if len(self.requests) == 1:
            return delta.index
        return int(delta.request_id.rpartition("-")[2]) * self.n + delta.index


async def read_generation(request: Request, state: ServerState, reader: BodyReader) -> tuple[Any, list[str]]:
    """The body of a chat or completion request, checked as far as it can be without the model's text side.

    Raises:
        OctavoError: as the checks do.
    """
    body, warnings = await read_fields(request, state, reader)
    assert isinstance(body, GenerationFields)
    warnings += respell(body)
    check_generation(state, body)
    return body, warnings


async def read_fields(request: Request, state: ServerState, reader: BodyReader) -> tuple[Any, list[str]]:
    """A body that asks for an answer, and a warning for each field of it that is unknown.

    Raises:
        OctavoError: the server takes none now, or the body is not what it should be.
    """
    state.check_admission()
    data = await read_body(request, state.max_body_bytes)
    check_depth(data)
    return reader.read(data)


def check_generation(state: ServerState, body: GenerationFields) -> None:
    """What can be checked without the model's text side.

    Raises:
        OctavoError: something is refused.
    """
    state.check_model(body.model)
    if state.pooling is not None:
        raise state.pooling.refuse_generation()
    refuse_unsupported(body)
    check_counts(body)
    fill_in(body, state.config)


def sampling_params(body: GenerationFields, state: ServerState, max_tokens: int | None, **more: Any) -> SamplingParams:
    """The body's sampling parameters over the model's defaults.

    Args:
        max_tokens: None is all that the context has room for, and so is -1 where the body has it under this name.
        more: fields that the two kinds of completion spell differently; None means "not given".

    Raises:
        InvalidRequestError: a value is out of its range.
    """
    given: dict[str, Any] = {name: getattr(body, name) for name in _SAMPLING_FIELDS} | more
    options: dict[str, Any] = {**state.sampling_defaults}
    options |= {name: value for name, value in given.items() if value is not None}
    options["max_tokens"] = None if max_tokens == NO_LIMIT == body.max_tokens else max_tokens
    return SamplingParams(**options)


async def open_job(
    request: Request,
    state: ServerState,
    body: GenerationFields,
    prompts: Sequence[tuple[Prompt, dict[str, Any]]],
    params: SamplingParams,
    reading: "Reading",
) -> Job:
    """Turn prompts into engine requests and submit them.

    Args:
        prompts: each with options for `Inputs.prepare`.
        reading: how the answers are read, what they are held to beyond `params`, and what is to be said already.

    Raises:
        OctavoError: a prompt or parameter is refused, or the engine takes none.
    """
    # Other APIs' bodies have become one of these two: that is what is sent to give an answer again.
    receipt = open_receipt(body, CHAT_PATH if isinstance(body, ChatRequest) else TEXT_PATH, state.fingerprint)
    if receipt is not None:
        params = replace(params, seed=body.seed)
    beam, wish = read_beam(body), read_cache_wish(body)
    prefix = next((prefix for end, prefix in _PREFIXES if request.url.path.endswith(end)), "cmpl-")
    record = record_of(request)
    public = f"{prefix}{(body.request_id or record.request_id)[:_MAX_ID]}"
    prepared = await _prepared(request, state, body, prompts, params, reading)
    tenant, deadlines = tenant_of(request, body.user), read_deadlines(body)
    field = "cache_control" if body.prompt_cache_retention is None else "prompt_cache_retention"
    wished = [with_wishes(item, beam, wish, state.engine.info.pin_tokens, field) for item in prepared]
    said = [*reading.warnings, *notices(body, params, state), *(text for _, texts in wished for text in texts)]
    state.check_strict(said)
    owned = {"tenant": tenant, "tenant_weight": record.owner.weight, "lag": record.lag}
    requests = [replace(item, **owned, **deadlines) for item, _ in wished]
    tally = Tally(sum(len(item.prompt_token_ids) for item in requests), state.config.enable_prompt_tokens_details)
    tally.drawn = None if receipt is None else {}
    stream = state.engine.open(*requests)
    record.answering(public, tally, bool(body.stream))
    return Job(
        id=public,
        created=int(time.time()),
        model=state.models[0],
        requests=requests,
        stream=stream,
        tally=tally,
        warnings=list(dict.fromkeys(said)),
        n=requests[0].n,
        receipt=receipt,
    )


async def _prepared(
    request: Request,
    state: ServerState,
    body: GenerationFields,
    prompts: Sequence[tuple[Prompt, dict[str, Any]]],
    params: SamplingParams,
    reading: "Reading",
) -> list[GenerationRequest]:
    """An engine request for each prompt."""
    # Clients may repeat their ids; the engine's must differ.
    internal = uuid.uuid4().hex
    common = {"arrival": time.monotonic(), "priority": body.priority or 0, "cache_salt": body.cache_salt or ""}

    def prepare() -> list[GenerationRequest]:
        made = [
            state.inputs.prepare(prompt, params, f"{internal}-{number}", **common, **options)
            for number, (prompt, options) in enumerate(prompts)
        ]
        return [reading.applied(item, state.inputs) for item in made]

    # Long texts are tokenized in a thread, so that the event loop keeps serving others.
    size = sum(len(prompt) for prompt, _ in prompts)
    if params.structured_outputs is not None or reading.grammar is not None:
        with form_naming(body).of_errors():
            return await until_disconnect(request.receive, state.compile(prepare))
    if size > LONG_TEXT or params.dry_multiplier:  # the vocabulary may have to be looked through
        return await until_disconnect(request.receive, asyncio.to_thread(prepare))
    return prepare()


def default_length(state: ServerState, asked: int | None, otherwise: int | None = None) -> int | None:
    """The model's most tokens of an answer, or `otherwise`; None where the body asks for so many itself."""
    return None if asked is not None else state.sampling_defaults.get("max_tokens", otherwise)


@dataclass(frozen=True, slots=True)
class Reading:
    """How an answer is read: special tokens that show, a grammar that it is held to; and warnings there are already.

    longest: most tokens where the body does not say; it gives way to `min_tokens` and to the context.
    """

    shown_ids: frozenset[int] = frozenset()
    grammar: Callable[[], Grammar] | None = None
    warnings: Sequence[str] = ()
    longest: int | None = None

    def applied(self, request: GenerationRequest, inputs: InputProcessor) -> GenerationRequest:
        """The request with all of it.

        Raises:
            InvalidRequestError: the grammar is wrong or too costly.
        """
        if self.shown_ids:
            request = replace(request, shown_ids=self.shown_ids)
        if self.longest is not None:
            stopping = request.stopping
            most = min(stopping.max_tokens, max(self.longest, stopping.min_tokens))
            request = replace(request, stopping=replace(stopping, max_tokens=most))
        return request if self.grammar is None else inputs.constrain(request, self.grammar())


def read_deadlines(body: GenerationFields) -> dict[str, float | None]:
    """The seconds that a request allows until its first token and until its end.

    Raises:
        InvalidRequestError: one is not a number above 0: a deadline in the past.
    """
    given = {"timeout": body.timeout, "ttft_deadline": body.ttft_deadline}
    for name, seconds in given.items():
        if seconds is not None and not 0 < seconds <= _MAX_SECONDS:
            raise InvalidRequestError(
                f"{name} must be a number of seconds above 0 and at most {_MAX_SECONDS:.0f}, got {seconds}", name
            )
    return given


def error_in(deltas: list[TextDelta], tally: Tally) -> OctavoError | None:
    """The error of the first stream that failed; it and what follows are taken from the list.

    A deadline is an error when it passed before there was any token; else the answer ends there, with what it has.
    """
    generated = tally.completion_tokens
    for number, delta in enumerate(deltas):
        generated += len(delta.token_ids)
        if delta.finish_reason is FinishReason.ERROR:
            del deltas[number:]
            if delta.refused:
                return InvalidRequestError(delta.error or "the request was refused")
            return InternalError(delta.error or "the engine failed on this request")
        if delta.finish_reason is FinishReason.TIMEOUT and not generated:
            del deltas[number:]
            return DeadlineExceededError("the time allowed for this request has passed before its first token")
    return None


class AnswerParts:
    """One choice, gathered from its deltas."""

    __slots__ = ("finish_reason", "logprobs", "pieces", "prompt_logprobs", "stop_reason", "token_ids")

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprobs] = []
        self.prompt_logprobs: list[TokenLogprobs] = []
        self.finish_reason: str | None = None
        self.stop_reason: int | str | None = None

    def add(self, delta: TextDelta) -> None:
        """Take a delta."""
        self.pieces.append(delta.text)
        self.token_ids += delta.token_ids
        self.logprobs += delta.logprobs
        self.prompt_logprobs += delta.prompt_logprobs
        if delta.finish_reason is not None:
            self.finish_reason = delta.finish_reason.value
            self.stop_reason = delta.stop_reason

    @property
    def text(self) -> str:
        """The whole answer."""
        return "".join(self.pieces)


async def gather(job: Job) -> list[AnswerParts]:
    """Every choice of a job, complete.

    Raises:
        OctavoError: one of them failed.
    """
    parts = [AnswerParts() for _ in range(job.n * len(job.requests))]
    async with job.stream as stream:
        async for deltas in stream:
            if error := error_in(deltas, job.tally):
                raise error
            for delta in deltas:
                job.tally.add(delta)
                parts[job.index_of(delta)].add(delta)
    return parts


def more_drawn(params: SamplingParams, body: GenerationFields) -> SamplingParams:
    """The parameters with as many answers as `best_of` has drawn, and what they are compared by."""
    if body.best_of is None or body.use_beam_search or body.best_of <= params.n:
        return params
    return replace(params, n=body.best_of, logprobs=params.logprobs or 0)


def best_of(parts: list[AnswerParts], job: Job, n: int) -> list[AnswerParts]:
    """Of each prompt's answers the n of the highest log-probability a token (OpenAI API reference, best_of)."""
    if n >= job.n:
        return parts
    kept: list[AnswerParts] = []
    for first in range(0, len(parts), job.n):
        kept += sorted(parts[first : first + job.n], key=_likelihood, reverse=True)[:n]
    job.n = n
    return kept


def _likelihood(part: AnswerParts) -> float:
    values = [entry.logprobs[0] for entry in part.logprobs]
    return sum(values) / len(values) if values else -math.inf
