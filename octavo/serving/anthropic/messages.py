"""POST /v1/messages and POST /v1/messages/count_tokens."""

import asyncio
import uuid
from collections.abc import AsyncGenerator, Iterator

from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from octavo.errors import InvalidRequestError
from octavo.flow.delta import TextDelta
from octavo.outputs.answer.feed import AnswerEvent
from octavo.outputs.answer.parser import AnswerParser, joined
from octavo.serving.anthropic.answers import (
    AddedInput,
    AddedText,
    AddedThinking,
    Block,
    BlockDelta,
    BlockStart,
    BlockStop,
    Message,
    MessageDelta,
    MessageEnd,
    MessageEvent,
    MessageStart,
    MessageStop,
    MessageUsage,
    Ping,
    TextBlock,
    ThinkingBlock,
    TokenCount,
    ToolUseBlock,
)
from octavo.serving.anthropic.partial import object_of
from octavo.serving.anthropic.schema import CountTokensRequest, MessagesRequest
from octavo.serving.anthropic.translate import chat_request
from octavo.serving.errors import describe, json_response, messages_error
from octavo.serving.limits import MAX_TOKENIZED
from octavo.serving.naming import MESSAGES as NAMES
from octavo.serving.nested import ANTHROPIC
from octavo.serving.openai.chat import open_chat, render
from octavo.serving.openai.chat_choice import ChoiceOptions
from octavo.serving.openai.generation import AnswerParts, Job, check_generation, error_in, gather, read_fields
from octavo.serving.openai.notices import template_notices
from octavo.serving.openai.schema import BodyReader, refuse_fields
from octavo.serving.openai.tools import unshown
from octavo.serving.state import state_of
from octavo.serving.stream import EventStream, named_event, until_disconnect

_READER = BodyReader(MessagesRequest, ANTHROPIC)
_COUNT_READER = BodyReader(CountTokensRequest, ANTHROPIC)
# What a finish is called here; an answer whose time is over may be gone on with, as from a pause.
_STOPS = {"stop": "end_turn", "length": "max_tokens", "timeout": "pause_turn"}


async def create_message(request: Request) -> Response:
    """An answer to a conversation, whole or streamed."""
    state = state_of(request)
    body, warnings = await read_fields(request, state, _READER)
    chat, said = chat_request(body, state)
    with NAMES.of_errors():
        check_generation(state, chat)
        job, choice = await open_chat(request, state, chat, warnings + said)
        job.warnings = [NAMES.message(text) for text in job.warnings]
    answer = _Answer(job, choice)
    if not chat.stream:
        parts = await until_disconnect(request.receive, gather(job))
        return json_response(answer.whole(parts[0]))
    events = answer.events()
    first = await until_disconnect(request.receive, anext(events))
    return EventStream(first, events, b"", _failed)


async def count_tokens(request: Request) -> Response:
    """How many tokens a conversation is."""
    state = state_of(request)
    body, warnings = await read_fields(request, state, _COUNT_READER)
    state.check_model(body.model)
    chat, said = chat_request(body, state)
    refuse_fields(chat)
    warnings += [*said, *unshown(state, bool(chat.tools)), *template_notices(state, chat.chat_template_kwargs)]
    with NAMES.of_errors():
        state.check_strict(warnings)
        text = await render(request, state, chat)
    if len(text) > MAX_TOKENIZED:
        raise InvalidRequestError(
            f"a text of {len(text)} characters; at most {MAX_TOKENIZED} are tokenized", "messages"
        )
    tokens = await until_disconnect(request.receive, asyncio.to_thread(state.tokenizer.encode, text, False))
    return json_response(TokenCount(len(tokens), warnings or UNSET))


def _failed(error: Exception) -> bytes:
    return named_event("error", messages_error(describe(error)))


class _Answer:
    """Writes one answer, whole or in events."""

    def __init__(self, job: Job, choice: ChoiceOptions) -> None:
        self._job = job
        self._parser = AnswerParser(choice.shape)
        self._open: str | None = None  # kind of the block that is not complete
        self._index = -1

    def whole(self, part: AnswerParts) -> Message:
        """The answer in one piece."""
        blocks: list[Block] = []
        calls: list[tuple[ToolUseBlock, list[str]]] = []
        for event in joined([*self._parser.push(part.text), *self._parser.finish()]):
            if event.kind == "content":
                blocks.append(TextBlock(event.text))
            elif event.kind == "reasoning":
                blocks.append(ThinkingBlock(event.text))
            elif event.kind == "call":
                calls.append((_call(event.text), []))
                blocks.append(calls[-1][0])
            else:
                calls[-1][1].append(event.text)
        for block, pieces in calls:
            block.input.update(object_of("".join(pieces)))
        end = self._end(part.finish_reason, part.stop_reason)
        return self._message(blocks, end.stop_reason, end.stop_sequence)

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The answer in events; the first come with the first token."""
        async with self._job.stream as stream:
            opened = False
            async for deltas in stream:
                error = error_in(deltas, self._job.tally)
                for delta in deltas:
                    self._job.tally.add(delta)
                told: list[MessageEvent] = [] if opened or not deltas else [self._start(), Ping()]
                opened = opened or bool(deltas)
                for delta in deltas:
                    told += self._told(delta)
                if told:
                    yield b"".join(named_event(_name(event), event) for event in told)
                if error:
                    raise error

    def _start(self) -> MessageStart:
        return MessageStart(self._message([], None, None))

    def _told(self, delta: TextDelta) -> Iterator[MessageEvent]:
        found = self._parser.push(delta.text)
        if delta.finish_reason is not None:
            found += self._parser.finish()
        for event in joined(found):
            yield from self._part(event)
        if delta.finish_reason is not None:
            yield from self._close()
            end = self._end(delta.finish_reason.value, delta.stop_reason)
            yield MessageDelta(end, self._usage(), self._job.written())
            yield MessageStop()

    def _part(self, event: AnswerEvent) -> Iterator[MessageEvent]:
        """Blocks come one after another: what belongs to no open one begins the next."""
        if event.kind == "call":
            yield from self._begin(event.kind, _call(event.text))
        elif event.kind == "arguments":
            yield BlockDelta(self._index, AddedInput(event.text))
        elif event.kind == "reasoning":
            if self._open != event.kind:
                yield from self._begin(event.kind, ThinkingBlock(""))
            yield BlockDelta(self._index, AddedThinking(event.text))
        else:
            if self._open != event.kind:
                yield from self._begin(event.kind, TextBlock(""))
            yield BlockDelta(self._index, AddedText(event.text))

    def _begin(self, kind: str, block: Block) -> Iterator[MessageEvent]:
        yield from self._close()
        self._open = kind
        self._index += 1
        yield BlockStart(self._index, block)

    def _close(self) -> Iterator[MessageEvent]:
        if self._open is not None:
            self._open = None
            yield BlockStop(self._index)

    def _end(self, reason: str | None, stop: int | str | None) -> MessageEnd:
        if reason == "stop" and isinstance(stop, str):
            return MessageEnd("stop_sequence", stop)
        if reason == "stop" and self._parser.calls:
            return MessageEnd("tool_use", None)
        return MessageEnd(_STOPS.get(reason or "stop", "end_turn"), None)

    def _message(self, blocks: list[Block], reason: str | None, sequence: str | None) -> Message:
        job = self._job
        return Message(
            id=job.id,
            model=job.model,
            content=blocks,
            stop_reason=reason,
            stop_sequence=sequence,
            usage=self._usage(),
            warnings=job.warnings or UNSET,
            receipt=UNSET if reason is None else job.written(),
        )

    def _usage(self) -> MessageUsage:
        tally = self._job.tally
        return MessageUsage(
            input_tokens=tally.prompt_tokens - tally.cached_tokens,
            cache_read_input_tokens=tally.cached_tokens,
            output_tokens=tally.completion_tokens,
        )


def _call(name: str) -> ToolUseBlock:
    return ToolUseBlock(f"toolu_{uuid.uuid4().hex[:24]}", name, {})


def _name(event: MessageEvent) -> str:
    return str(type(event).__struct_config__.tag)
