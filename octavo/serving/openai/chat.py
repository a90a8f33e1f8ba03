"""POST /v1/chat/completions."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from octavo.errors import InvalidRequestError
from octavo.flow.delta import TextDelta
from octavo.flow.sampling_params import SamplingParams
from octavo.flow.structured_outputs import StructuredOutputsParams
from octavo.outputs.answer.parser import AnswerShape
from octavo.serving.errors import json_response
from octavo.serving.limits import LONG_TEXT, body_bytes
from octavo.serving.naming import CHAT
from octavo.serving.nested import CHAT as INSIDE
from octavo.serving.openai.answers import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatLogprobs,
)
from octavo.serving.openai.chat_choice import ChatChoiceReader, ChoiceOptions
from octavo.serving.openai.forms import read_form
from octavo.serving.openai.generation import (
    AnswerParts,
    Job,
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
from octavo.serving.openai.held import HeldAnswer
from octavo.serving.openai.logprobs import TokenNames, chat_logprobs, prompt_logprobs
from octavo.serving.openai.schema import BodyReader, ChatRequest, refuse_modalities
from octavo.serving.openai.tools import read_tool_use, shape_of
from octavo.serving.state import ServerState, state_of
from octavo.serving.stream import EventStream, event, until_disconnect

_READER = BodyReader(ChatRequest, INSIDE)


async def create_chat_completion(request: Request) -> Response:
    """One or more answers to a conversation, whole or streamed."""
    state = state_of(request)
    body, warnings = await read_generation(request, state, _READER)
    job, choice = await open_chat(request, state, body, warnings)
    answer = _Answer(body, job, state, choice)
    if not body.stream:
        parts = await until_disconnect(request.receive, gather(job))
        return json_response(answer.whole(best_of(parts, job, body.n or 1)))
    events = answer.events()
    # Whatever fails before the first token is an HTTP status, not an event.
    first = await until_disconnect(request.receive, anext(events))
    return EventStream(first, events)


async def open_chat(
    request: Request, state: ServerState, body: ChatRequest, warnings: list[str]
) -> tuple[Job, ChoiceOptions]:
    """The answer to a conversation, under way, and how it is read: the one way for every API that has conversations.

    Args:
        body: checked as `check_generation` does.
        warnings: there are already.

    Raises:
        OctavoError: something is refused, or the engine takes nothing.
    """
    refuse_modalities(body)
    form, said = read_form(body)
    use, told = read_tool_use(body, state)
    text = await render(request, state, body)
    shape = shape_of(body, state, use, text)
    grammar = HeldAnswer(state, use, shape, form, body.thinking_token_budget).grammar()
    params = _params(body, state, form if grammar is None else None)
    # The template writes the special tokens that the model expects.
    options = {"add_special_tokens": bool(body.add_special_tokens)}
    longest = default_length(state, _asked_length(body))
    reading = Reading(_shown_ids(state, shape), grammar, warnings + said + told, longest)
    with CHAT.of_errors():
        job = await open_job(request, state, body, [(text, options)], params, reading)
    choice = ChoiceOptions(
        shape, use, state.config.response_role, _echoed(body, state), body.include_reasoning is not False
    )
    return job, choice


async def render(request: Request, state: ServerState, body: Any) -> str:
    """The prompt text of a conversation; `body` has a chat or tokenize request's template fields.

    Raises:
        InvalidRequestError: no template, or it refuses.
    """
    if not body.messages:
        raise InvalidRequestError("messages: at least one message is needed", "messages")
    # A long conversation is written in a thread, so that the event loop keeps serving others.
    if body_bytes(request) > LONG_TEXT:
        return await until_disconnect(request.receive, asyncio.to_thread(_render, state, body))
    return _render(state, body)


def _render(state: ServerState, body: Any) -> str:
    variables: dict[str, Any] = {**state.template_variables, **(body.chat_template_kwargs or {})}
    # As in vLLM, flags may stand among the variables, too, and win there.
    continued = _flag(variables.pop("continue_final_message", body.continue_final_message), "continue_final_message")
    new_turn = _flag(variables.pop("add_generation_prompt", body.add_generation_prompt), "add_generation_prompt")
    if getattr(body, "reasoning_effort", None) is not None:
        variables.setdefault("reasoning_effort", body.reasoning_effort)
    if body.tools:
        variables.setdefault("tools", body.tools)
    if getattr(body, "documents", None):
        variables.setdefault("documents", body.documents)
    return state.inputs.render(
        body.messages,
        # Asking to continue says that no new turn is wanted; only asking for both is a contradiction.
        add_generation_prompt=not continued if new_turn is None else new_turn,
        continue_final_message=bool(continued),
        **variables,
    )


def _shown_ids(state: ServerState, shape: AnswerShape) -> frozenset[int]:
    """Special tokens that the answer is read by."""
    tokenizer = state.inputs.tokenizer
    if tokenizer is None or shape.plain:
        return frozenset()
    found = {tokenizer.id_of(marker) for marker in shape.markers}
    return tokenizer.special_ids & found


def _echoed(body: ChatRequest, state: ServerState) -> str:
    """What an echoing answer begins with: the last message, where the answer continues it."""
    if not body.echo or not body.messages:
        return ""
    last = body.messages[-1]
    content = last.get("content")
    return content if last.get("role") == state.config.response_role and isinstance(content, str) else ""


def _flag(value: object, name: str) -> bool | None:
    if value is not None and not isinstance(value, bool):
        raise InvalidRequestError(f"chat_template_kwargs: {name} must be true or false", "chat_template_kwargs")
    return value


def _asked_length(body: ChatRequest) -> int | None:
    return body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens


def _params(body: ChatRequest, state: ServerState, form: StructuredOutputsParams | None) -> SamplingParams:
    top = body.top_logprobs
    if top is not None and not body.logprobs:
        raise InvalidRequestError("top_logprobs can only be given with logprobs=true", "top_logprobs")
    most = state.inputs.limits.most_logprobs
    if top is not None and not 0 <= top <= most:
        raise InvalidRequestError(f"top_logprobs must be between 0 and {most}, got {top}", "top_logprobs")
    top = (top or 0) if body.logprobs else None
    params = sampling_params(body, state, _asked_length(body), logprobs=top, structured_outputs=form)
    return more_drawn(params, body)


class _Answer:
    """Writes one job's answer, whole or in events."""

    def __init__(self, body: ChatRequest, job: Job, state: ServerState, choice: ChoiceOptions) -> None:
        self._body = body
        self._job = job
        self._choices = choice
        self._readers = [ChatChoiceReader(choice) for _ in range(job.n)]
        self._top = body.top_logprobs or 0
        self._tokenizer = state.inputs.tokenizer
        self._names = TokenNames(state.inputs.tokenizer, bool(body.return_tokens_as_token_ids))
        options = body.stream_options
        self._usage = bool(options and options.include_usage)
        self._continuous = self._usage and bool(options and options.continuous_usage_stats)

    def whole(self, parts: Sequence[AnswerParts]) -> ChatCompletion:
        """The answer in one piece."""
        job, body = self._job, self._body
        wants_prompt = body.prompt_logprobs is not None
        return ChatCompletion(
            id=job.id,
            created=job.created,
            model=job.model,
            choices=[self._choice(index, part) for index, part in enumerate(parts)],
            usage=job.tally.usage(),
            prompt_logprobs=prompt_logprobs(parts[0].prompt_logprobs, self._names) if wants_prompt else None,
            prompt_token_ids=list(job.requests[0].prompt_token_ids) if body.return_token_ids else None,
            warnings=job.warnings or UNSET,
            cache_report=job.take_reports(self._tokenizer),
            receipt=job.written(),
        )

    def _choice(self, index: int, part: AnswerParts) -> ChatChoice:
        reader = self._readers[index]
        return ChatChoice(
            index=index,
            message=reader.message(part.text),
            logprobs=chat_logprobs(part.logprobs, self._top, self._names) if self._body.logprobs else None,
            finish_reason=reader.finish_reason(part.finish_reason),
            stop_reason=part.stop_reason,
            token_ids=part.token_ids if self._body.return_token_ids else None,
        )

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The answer in events, without the closing one. The first item comes with the first token."""
        async with self._job.stream as stream:
            opened = False
            async for deltas in stream:
                error = error_in(deltas, self._job.tally)
                events = b"" if opened or not deltas else self._opening()
                opened = opened or bool(deltas)
                for delta in deltas:
                    self._job.tally.add(delta)
                    events += self._event(delta)
                if events:
                    yield events
                if error:
                    raise error
            if self._job.receipt is not None:
                last = self._chunk([])
                last.receipt = self._job.written()
                yield event(last)
            if self._usage:
                yield event(self._chunk([], usage=self._job.tally.usage()))

    def _opening(self) -> bytes:
        delta = ChatDelta(self._choices.role, self._choices.prefix)
        first, *others = [self._chunk([ChatChunkChoice(index, delta)]) for index in range(self._job.n)]
        first.prompt_token_ids = list(self._job.requests[0].prompt_token_ids) if self._body.return_token_ids else UNSET
        first.warnings = self._job.warnings or UNSET
        return b"".join(map(event, (first, *others)))

    def _event(self, delta: TextDelta) -> bytes:
        """The events of a delta: one for each part of it; token ids and log-probabilities come with the first."""
        body, ended, reader = self._body, delta.finish_reason, self._readers[delta.index]
        told: list[ChatDelta] = reader.deltas(delta.text, ended is not None)
        if not told and not (ended or delta.logprobs or (body.return_token_ids and delta.token_ids)):
            return b""
        parts = told or [ChatDelta(content="")]
        events = b""
        for number, part in enumerate(parts):
            first, last = not number, ended if number == len(parts) - 1 else None
            choice = ChatChunkChoice(
                delta.index,
                part,
                self._logprobs(delta) if body.logprobs and first else None,
                reader.finish_reason(last.value) if last else None,
                delta.stop_reason if last else UNSET,
                list(delta.token_ids) if body.return_token_ids and first else UNSET,
            )
            events += event(self._chunk([choice]))
        return events

    def _logprobs(self, delta: TextDelta) -> ChatLogprobs:
        return chat_logprobs(delta.logprobs, self._top, self._names)

    def _chunk(self, choices: list[ChatChunkChoice], usage: Any = None) -> ChatChunk:
        job = self._job
        if usage is None and self._continuous:
            usage = job.tally.usage()
        shown = usage if self._usage else UNSET
        return ChatChunk(
            id=job.id,
            created=job.created,
            model=job.model,
            choices=choices,
            usage=shown,
            cache_report=job.take_reports(self._tokenizer),
        )
