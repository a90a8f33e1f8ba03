"""POST /v1/completions."""

from collections.abc import AsyncGenerator, Sequence
from typing import Any, cast

from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from octavo.errors import InvalidRequestError
from octavo.flow.delta import TextDelta
from octavo.flow.result import TokenLogprobs
from octavo.flow.sampling_params import SamplingParams
from octavo.flow.structured_outputs import StructuredOutputsParams
from octavo.serving.errors import json_response
from octavo.serving.limits import check_counts
from octavo.serving.nested import COMPLETION
from octavo.serving.openai.answers import Completion, CompletionChoice, CompletionChunk, CompletionLogprobs, Usage
from octavo.serving.openai.forms import read_form
from octavo.serving.openai.generation import (
    AnswerParts,
    Job,
    Prompt,
    Reading,
    best_of,
    default_length,
    error_in,
    gather,
    more_drawn,
    open_job,
    read_generation,
    sampling_params,
)
from octavo.serving.openai.logprobs import NOTHING, CompletionLogprobsBuilder, TokenNames, joined, prompt_logprobs
from octavo.serving.openai.schema import BodyReader, CompletionRequest
from octavo.serving.state import ServerState, state_of
from octavo.serving.stream import EventStream, event, until_disconnect

_READER = BodyReader(CompletionRequest, COMPLETION)
_DEFAULT_MAX_TOKENS = 16  # OpenAI API reference


async def create_completion(request: Request) -> Response:
    """Continuations of one or more prompts, whole or streamed."""
    state = state_of(request)
    body, warnings = await read_generation(request, state, _READER)
    if body.suffix:
        gap = "leave it out; a model made for it takes both sides of the gap in prompt, between its own tokens"
        raise InvalidRequestError(f"suffix: insertion is not supported; {gap}", "suffix")
    prompts = read_prompts(body.prompt)
    check_counts(body, len(prompts))
    form, said = read_form(body)
    params = more_drawn(_params(body, state, form), body)
    options = {"add_special_tokens": True if body.add_special_tokens is None else body.add_special_tokens}
    longest = default_length(state, body.max_tokens, _DEFAULT_MAX_TOKENS)
    reading = Reading(warnings=warnings + said, longest=longest)
    job = await open_job(request, state, body, [(prompt, options) for prompt in prompts], params, reading)
    if body.truncate_prompt_tokens is not None:  # what is echoed is what was left
        prompts = [item.prompt_token_ids for item in job.requests]
    if not body.stream:
        parts = await until_disconnect(request.receive, gather(job))
        kept = best_of(parts, job, body.n or 1)
        return json_response(_Answer(body, job, state, prompts).whole(kept))
    events = _Answer(body, job, state, prompts).events()
    # Whatever fails before the first token is an HTTP status, not an event.
    first = await until_disconnect(request.receive, anext(events))
    return EventStream(first, events)


def read_prompts(prompt: Any) -> list[Prompt]:
    """One prompt or several, as text or token ids.

    Raises:
        InvalidRequestError: nothing, an empty one, or a mixture.
    """
    if prompt is None:
        raise InvalidRequestError("prompt: this field is required", "prompt")
    if isinstance(prompt, str):
        prompts: list[Prompt] = [prompt]
    elif prompt and all(type(item) is int for item in prompt):
        prompts = [prompt]
    elif all(isinstance(item, str) for item in prompt) or all(_is_ids(item) for item in prompt):
        prompts = prompt
    else:
        raise InvalidRequestError(
            "prompt: expected a text, a list of texts, a list of token ids, or a list of such lists", "prompt"
        )
    if not prompts or not all(prompts):
        raise InvalidRequestError("prompt: the prompt is empty; it needs at least one token", "prompt")
    return prompts


def _is_ids(item: object) -> bool:
    return isinstance(item, list) and all(type(token) is int for token in cast(list[object], item))


def _params(body: CompletionRequest, state: ServerState, form: StructuredOutputsParams | None) -> SamplingParams:
    top = body.logprobs
    most = state.inputs.limits.most_logprobs
    if top is not None and not 0 <= top <= most:
        raise InvalidRequestError(f"logprobs must be between 0 and {most}, got {top}", "logprobs")
    limit = body.max_tokens
    if limit == 0 and body.echo:
        if body.min_tokens:
            raise InvalidRequestError(f"min_tokens must be at most max_tokens (0), got {body.min_tokens}", "min_tokens")
        limit = 1  # computed and thrown away: the prompt alone is wanted
    prompt = body.prompt_logprobs
    if body.echo and top is not None and prompt != -1:
        prompt = max(top, prompt or 0)
    return sampling_params(body, state, limit, logprobs=top, prompt_logprobs=prompt, structured_outputs=form)


class _Answer:
    """Writes one job's answer, whole or in events."""

    def __init__(self, body: CompletionRequest, job: Job, state: ServerState, prompts: Sequence[Prompt]) -> None:
        self._body = body
        self._job = job
        self._tokenizer = state.inputs.tokenizer
        self._prompts = prompts
        self._top = body.logprobs
        self._names = TokenNames(state.inputs.tokenizer, bool(body.return_tokens_as_token_ids))
        choices = range(job.n * len(prompts))
        hidden = NOTHING
        if self._tokenizer is not None and body.skip_special_tokens is not False:
            hidden = self._tokenizer.special_ids
        self._builders = [CompletionLogprobsBuilder(self._top or 0, self._names, hidden) for _ in choices]
        self._opened: set[int] = set()
        self._named: set[int] = set()  # choices whose prompt's ids were told
        self._only_prompt = bool(body.echo) and body.max_tokens == 0
        options = body.stream_options
        self._usage = bool(options and options.include_usage)
        self._continuous = self._usage and bool(options and options.continuous_usage_stats)

    def whole(self, parts: Sequence[AnswerParts]) -> Completion:
        """The answer in one piece."""
        job = self._job
        return Completion(
            id=job.id,
            created=job.created,
            model=job.model,
            choices=[self._choice(index, part) for index, part in enumerate(parts)],
            usage=self._read_usage(),
            warnings=job.warnings or UNSET,
            cache_report=job.take_reports(self._tokenizer),
            receipt=job.written(),
        )

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The answer in events, without the closing one. The first item comes with the first token."""
        async with self._job.stream as stream:
            async for deltas in stream:
                error = error_in(deltas, self._job.tally)
                events = b"".join(map(self._event, deltas))
                if events:
                    yield events
                if error:
                    raise error
            if self._job.receipt is not None:
                last = self._chunk([])
                last.receipt = self._job.written()
                yield event(last)
            if self._usage:
                yield event(self._chunk([], self._read_usage()))

    def _choice(self, index: int, part: AnswerParts) -> CompletionChoice:
        number = index // self._job.n
        text, lists = self._opening(index, part.prompt_logprobs)
        if not self._only_prompt:
            text += part.text
            lists += self._built(index, part.logprobs)
        wanted = self._body.prompt_logprobs
        return CompletionChoice(
            index=index,
            text=text,
            logprobs=joined(lists) if self._top is not None else None,
            finish_reason="length" if self._only_prompt else part.finish_reason,
            stop_reason=None if self._only_prompt else part.stop_reason,
            token_ids=([] if self._only_prompt else part.token_ids) if self._body.return_token_ids else None,
            prompt_logprobs=prompt_logprobs(part.prompt_logprobs, self._names, wanted) if wanted is not None else None,
            prompt_token_ids=list(self._job.requests[number].prompt_token_ids) if self._body.return_token_ids else None,
        )

    def _event(self, delta: TextDelta) -> bytes:
        body, ended, index = self._body, delta.finish_reason, self._job.index_of(delta)
        self._job.tally.add(delta)
        text, lists = self._opening(index, delta.prompt_logprobs)
        if not self._only_prompt:
            text += delta.text
            lists += self._built(index, delta.logprobs)
        if not (text or ended or lists or (body.return_token_ids and delta.token_ids)):
            return b""
        choice = CompletionChoice(
            index,
            text,
            joined(lists) if lists else None,
            ("length" if self._only_prompt else ended.value) if ended else None,
            delta.stop_reason if ended and not self._only_prompt else None,
            ([] if self._only_prompt else list(delta.token_ids)) if body.return_token_ids else UNSET,
            prompt_token_ids=self._prompt_ids(index),
        )
        return event(self._chunk([choice]))

    def _prompt_ids(self, index: int) -> list[int] | UnsetType:
        """With the first event of a choice, if it was asked for."""
        if not self._body.return_token_ids or index in self._named:
            return UNSET
        self._named.add(index)
        return list(self._job.requests[index // self._job.n].prompt_token_ids)

    def _opening(self, index: int, entries: Sequence[TokenLogprobs]) -> tuple[str, list[CompletionLogprobs]]:
        """What an echoed prompt puts before choice `index`: its text the first time, its entries as they come."""
        if not self._body.echo:
            return "", []
        builder, text, lists = self._builders[index], "", list[CompletionLogprobs]()
        if index not in self._opened:
            self._opened.add(index)
            ids = self._job.requests[index // self._job.n].prompt_token_ids
            prompt = self._prompts[index // self._job.n]
            text = prompt if isinstance(prompt, str) else ""
            if not isinstance(prompt, str) and self._tokenizer is not None:
                text = self._tokenizer.decode(ids, skip_special_tokens=False)
            lists = [builder.begin_prompt(text, ids)]
        return text, [*lists, builder.build(entries)] if self._top is not None and (lists or entries) else []

    def _built(self, index: int, entries: Sequence[TokenLogprobs]) -> list[CompletionLogprobs]:
        if self._top is None or not entries:
            return []
        self._builders[index].end_prompt()
        return [self._builders[index].build(entries)]

    def _read_usage(self) -> Usage:
        tally = self._job.tally
        if self._only_prompt:
            tally.completion_tokens = 0
        return tally.usage()

    def _chunk(self, choices: list[CompletionChoice], usage: Usage | None = None) -> CompletionChunk:
        job = self._job
        if usage is None and self._continuous:
            usage = self._read_usage()
        warnings, job.warnings = job.warnings, []
        return CompletionChunk(
            id=job.id,
            created=job.created,
            model=job.model,
            choices=choices,
            usage=usage if self._usage else UNSET,
            warnings=warnings or UNSET,
            cache_report=job.take_reports(self._tokenizer),
        )
