"""Asks a line of a batch of the server itself: the handlers of its routes, without a connection."""

import asyncio
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Route
from starlette.types import Message

from octavo.errors import UnsupportedError
from octavo.serving.batches.schema import ENDPOINTS, Line, LineAnswer, LineError, LineResult
from octavo.serving.errors import Handler, describe, error_answer
from octavo.serving.record import begin_record, record_in

LAG = 86_400.0  # seconds that everybody else goes before: the longest window of a batch
_HEADERS = [(b"content-type", b"application/json")]
_encode = msgspec.json.Encoder().encode


class _Flags(msgspec.Struct):
    stream: bool | None = None
    background: bool | None = None


_flags = msgspec.json.Decoder(_Flags).decode


@dataclass(frozen=True, slots=True)
class Caller:
    """Whom lines are asked for. lag: seconds that others go before."""

    tenant: str = ""
    lag: float = LAG


@dataclass(slots=True)
class LineRunner:
    """Runs lines, each as a request that comes in one piece and is answered in one piece."""

    app: Starlette
    caller: Caller = field(default_factory=Caller)

    async def run(self, line: Line) -> LineAnswer:
        """The answer to a line; also when that is an error."""
        scope = self._scope(line.url)
        number = record_in(scope).request_id
        if more := _wanted_more(line.body):
            error = UnsupportedError(f"{more}: the answers of a batch come whole, when they are there", more)
            info = describe(error)
            return LineAnswer(info.code, number, msgspec.Raw(_encode(error_answer(info, line.url))))
        body: list[Message] = [{"type": "http.request", "body": bytes(line.body), "more_body": False}]

        async def receive() -> Message:
            if body:
                return body.pop()
            await asyncio.Event().wait()  # this client stays until it is cancelled
            raise AssertionError

        response = await endpoints_of(self.app)[line.url](Request(scope, receive))
        return LineAnswer(response.status_code, number, msgspec.Raw(response.body))

    def _scope(self, url: str) -> dict[str, Any]:
        scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "scheme": "http",
            "method": "POST",
            "path": url,
            "raw_path": url.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": _HEADERS,
            "client": None,
            "server": None,
            "app": self.app,
        }
        record = begin_record(scope)
        record.tenant, record.lag = self.caller.tenant, self.caller.lag
        return scope


def _wanted_more(body: msgspec.Raw) -> str | None:
    """The field that asks for an answer which does not come whole."""
    try:
        flags = _flags(body)
    except (msgspec.DecodeError, UnicodeDecodeError):  # the handler tells what is wrong
        return None
    return "stream" if flags.stream else "background" if flags.background else None


def endpoints_of(app: Starlette) -> Mapping[str, Handler]:
    """The handlers that lines may ask, by path."""
    routes = [route for route in app.routes if isinstance(route, Route)]
    return {route.path: route.endpoint for route in routes if route.path in ENDPOINTS}


def result_of(line: Line, answer: LineAnswer | None, error: LineError | None = None) -> bytes:
    """A line of an output."""
    number = f"batch_req_{uuid.uuid4().hex}"
    return _encode(LineResult(id=number, custom_id=line.custom_id, response=answer, error=error)) + b"\n"
