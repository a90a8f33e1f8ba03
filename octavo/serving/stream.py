"""Decides what happens between a running answer and its connection: events, disconnects, failures in mid-stream."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TypeVar

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from octavo.serving.errors import CLIENT_GONE, ClientGone, describe, log_failure
from octavo.serving.openai.answers import ErrorAnswer
from octavo.serving.record import record_in

T = TypeVar("T")

DONE = b"data: [DONE]\n\n"
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx would hold events back
]
_encode = msgspec.json.Encoder().encode


def event(answer: object) -> bytes:
    """One server-sent event."""
    return b"data: " + _encode(answer) + b"\n\n"


def named_event(name: str, answer: object) -> bytes:
    """One server-sent event with a name."""
    return f"event: {name}\ndata: ".encode() + _encode(answer) + b"\n\n"


def error_event(error: Exception) -> bytes:
    """How OpenAI's streams end when they fail."""
    return event(ErrorAnswer(describe(error))) + DONE


async def until_disconnect(receive: Receive, work: Awaitable[T]) -> T:
    """The result of `work`, which is cancelled as soon as the client closes its connection.

    Raises:
        ClientGone: it did.
    """
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((task, watcher), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGone
    finally:
        watcher.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait((task,))


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Sends events until they end, the client goes away, or they fail: then an error event tells why.

    Args:
        first: what the events have given already. Failures before it were answered with an HTTP status.
        events: the other events, without the closing one; closed in every case.
        closing: what is sent after the last one.
        failing: what is sent instead when they fail.
    """

    def __init__(
        self,
        first: bytes,
        events: AsyncGenerator[bytes, None],
        closing: bytes = DONE,
        failing: Callable[[Exception], bytes] = error_event,
    ) -> None:
        self.background = None
        self.status_code = 200
        self._first = first
        self._events = events
        self._closing = closing
        self._failing = failing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        try:
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            await until_disconnect(receive, self._pass_on(scope, send))
        except (ClientGone, OSError):
            record_in(scope).outcome = record_in(scope).outcome or CLIENT_GONE
        finally:
            await self._events.aclose()

    async def _pass_on(self, scope: Scope, send: Send) -> None:
        last = self._closing
        try:
            await send({"type": "http.response.body", "body": self._first, "more_body": True})
            async for chunk in self._events:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        except Exception as error:
            record_in(scope).outcome = describe(error).code
            log_failure(scope["path"], error)
            last = self._failing(error)
        await send({"type": "http.response.body", "body": last, "more_body": False})
