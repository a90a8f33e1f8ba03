"""POST /v1/responses: an answer whole, streamed, or in the background."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from octavo.errors import InternalError, InvalidRequestError
from octavo.serving.errors import describe, json_response, log_failure
from octavo.serving.naming import RESPONSES as NAMES
from octavo.serving.nested import RESPONSES
from octavo.serving.openai.chat import open_chat
from octavo.serving.openai.generation import Job, check_generation, error_in, read_fields
from octavo.serving.openai.schema import BodyReader
from octavo.serving.record import record_of
from octavo.serving.responses.items import input_items
from octavo.serving.responses.kept import BackgroundRun
from octavo.serving.responses.schema import JsonObject, ResponseObject, ResponsesRequest
from octavo.serving.responses.store import StoredResponse
from octavo.serving.responses.translate import chat_request, wants_logprobs, without_effect
from octavo.serving.responses.truncate import shortened
from octavo.serving.responses.writer import ResponseWriter
from octavo.serving.state import ServerState, state_of
from octavo.serving.stream import EventStream, until_disconnect
from octavo.serving.tenant import tenant_of

_READER = BodyReader(ResponsesRequest, RESPONSES)
_encode = msgspec.json.Encoder().encode


async def create_response(request: Request) -> Response:
    """An answer to items, whole, streamed or in the background."""
    state = state_of(request)
    body, warnings = await read_fields(request, state, _READER)
    kept, tenant = state.responses, tenant_of(request, None)
    keeps = kept.keeps and body.store is not False
    if body.background and not keeps:
        why = "leave out store: false" if kept.keeps else "this server keeps no responses (--response-store)"
        raise InvalidRequestError(f"background: the response has to be stored to be retrieved; {why}", "background")
    if body.store and not keeps:
        warnings.append("store has no effect: this server keeps no responses (--response-store)")
    items = input_items(body.input)
    previous = body.previous_response_id
    before = await kept.items_before(previous, tenant) if previous else []
    chat = chat_request(body, [*before, *items])
    with NAMES.of_errors():
        check_generation(state, chat)
        if body.truncation == "auto":
            warnings += await shortened(request, state, chat)
        job, choice = await open_chat(request, state, chat, [*warnings, *without_effect(body)])
        job.warnings = [NAMES.message(text) for text in job.warnings]
    response = _response(body, job, keeps, state)
    making = _Making(
        state, job, ResponseWriter(response, choice.shape, state.inputs.tokenizer, wants_logprobs(body)), tenant, items
    )
    if body.background:
        return await making.in_background(request, bool(body.stream))
    events = making.joined_events()
    if body.stream:
        first = await until_disconnect(request.receive, anext(events))
        return EventStream(first, events, b"", lambda _: b"")
    await until_disconnect(request.receive, _exhaust(events))
    return json_response(response)


async def _exhaust(events: AsyncGenerator[bytes, None]) -> None:
    async with aclosing(events):
        async for _ in events:
            pass


def _response(body: ResponsesRequest, job: Job, keeps: bool, state: ServerState) -> ResponseObject:
    asked: dict[str, Any] = {"tool_choice": body.tool_choice, "tools": body.tools, "metadata": body.metadata}
    asked |= {
        "parallel_tool_calls": body.parallel_tool_calls,
        "truncation": body.truncation,
        "top_logprobs": body.top_logprobs,
        "reasoning": body.reasoning,
    }
    for name in ("temperature", "top_p"):
        value = getattr(body, name)
        asked[name] = value if value is not None else state.sampling_defaults.get(name, 1.0)
    return ResponseObject(
        id=job.id,
        created_at=job.created,
        status="queued" if body.background else "in_progress",
        background=bool(body.background),
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        model=job.model,
        output=[],
        previous_response_id=body.previous_response_id,
        store=keeps,
        text={"format": {"type": "text"}, **(body.text or {})},
        user=body.user,
        warnings=job.warnings or UNSET,
        **{name: value for name, value in asked.items() if value is not None},
    )


@dataclass(slots=True)
class _Making:
    """A response on its way from the engine to its client and the store."""

    state: ServerState
    job: Job
    writer: ResponseWriter
    tenant: str
    items: list[JsonObject]
    run: BackgroundRun | None = None

    async def joined_events(self) -> AsyncGenerator[bytes, None]:
        """The events, the first of them with the first token."""
        async with aclosing(self.events()) as events:
            async for told in events:
                yield b"".join(told)

    async def events(self) -> AsyncGenerator[list[bytes], None]:
        """The events. A failure is told as one, if there were others before, and raised."""
        writer, tally, reason = self.writer, self.job.tally, "stop"
        opened = False
        if self.run is not None:
            yield [writer.state("created"), writer.state("queued")]
        try:
            async with self.job.stream as stream:
                async for deltas in stream:
                    error = error_in(deltas, tally)
                    told = [] if opened or not deltas else self._opening()
                    opened = opened or bool(deltas)
                    for delta in deltas:
                        tally.add(delta)
                        told += writer.push(delta)
                        reason = delta.finish_reason.value if delta.finish_reason is not None else reason
                    if told:
                        yield told
                    if error:
                        raise error
        except Exception as error:
            writer.fail("server_error", describe(error).message)
            if opened or self.run is not None:
                yield await self._ended([writer.state("failed")])
            raise
        closing = writer.finish(reason, tally)
        writer.response.receipt = self.job.written()
        # It is kept before its end is told, so that whoever has read that can go on from it.
        if writer.response.store and self.run is None:
            await self._keep(None)
        closing.append(writer.state(writer.response.status))
        yield closing if self.run is None else await self._ended(closing)

    def _opening(self) -> list[bytes]:
        self.writer.response.status = "in_progress"
        names = ("created", "in_progress") if self.run is None else ("in_progress",)
        return [self.writer.state(name) for name in names]

    async def in_background(self, request: Request, streamed: bool) -> Response:
        """Go on without the client; the answer is the response as it is, or its events."""
        response = self.writer.response
        run = self.run = BackgroundRun(response, self.tenant, streamed)
        if not await self._keep(None):
            self.job.stream.close()
            raise InternalError(
                "the response cannot be stored, so it could not be retrieved; the server's log tells why"
            )
        self.state.responses.running[response.id] = run
        self.state.admission.enter()
        snapshot = json_response(response)
        run.task = record_of(request).outlived = asyncio.ensure_future(self._go_on(run))
        return EventStream(b"", run.follow(0), b"", lambda _: b"") if streamed else snapshot

    async def _go_on(self, run: BackgroundRun) -> None:
        try:
            async with aclosing(self.events()) as events:
                async for told in events:
                    run.add(told)
        except asyncio.CancelledError as error:
            if error.args:
                self.writer.fail("server_error", str(error.args[0]))
            else:
                self.writer.cancel()
            run.add(await self._ended([self.writer.state("failed" if error.args else "incomplete")]))
        except Exception as error:
            log_failure("/v1/responses", error)
        finally:
            self.job.stream.close()
            self.state.responses.running.pop(run.response.id, None)
            run.end()
            self.state.admission.leave()

    async def _ended(self, last: list[bytes]) -> list[bytes]:
        """Keep what has ended; gives back its last events."""
        if self.run is not None:
            await self._keep(b"".join([*self.run.events, *last]) if self.run.streamed else None)
        elif self.writer.response.store:
            await self._keep(None)
        return last

    async def _keep(self, events: bytes | None) -> bool:
        response = self.writer.response
        live = response.status in ("queued", "in_progress")
        item = StoredResponse(
            *(response.id, self.tenant, float(response.created_at), response.previous_response_id, live),
            *(_encode(self.items), _encode(response), events),
        )
        done = await self.state.responses.put(item)
        if not done:
            response.store = False
            response.warnings = [*(response.warnings or ()), "store: the response could not be stored"]
        return done
