"""What is known of one HTTP request, from its first byte to its end: filled by the layers, read by the access log."""

import asyncio
import re
import time
import uuid
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from starlette.requests import Request

from octavo.serving.keys import Owner

_KEY = "octavo.record"
# What a client may choose: long enough for any tracing system, and harmless in every log.
_SAFE_ID = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._:/+=@-]{0,127}")


class Usage(Protocol):
    """Tokens of a request so far; `serving.openai.generation.Tally` counts them."""

    @property
    def prompt_tokens(self) -> int: ...

    @property
    def completion_tokens(self) -> int: ...

    @property
    def cached_tokens(self) -> int: ...


@dataclass(slots=True)
class RequestRecord:
    """Owner: the event loop.

    request_id: the client's X-Request-Id, or one made here. answer_id: the `id` in the answer. owner: of the key it
    came with. tenant: whom it is for, where no connection tells. lag: of background work; see `GenerationRequest`.
    status: what the client saw, or 499 when it left before the end. times: seconds of the monotonic clock.
    """

    request_id: str
    began: float = field(default_factory=time.monotonic)
    owner: Owner = field(default_factory=Owner)
    tenant: str = ""
    lag: float = 0.0
    answer_id: str = ""
    streamed: bool = False
    usage: Usage | None = None
    status: int = 0
    outcome: int = 0  # of a stream that ended early, after its status had been sent; 0: none
    first_byte: float = 0.0
    outlived: "asyncio.Future[None] | None" = None  # work that goes on when the answer has been sent
    bytes_received: int = 0
    bytes_sent: int = 0

    @property
    def tokens(self) -> int:
        """Of prompt and answers so far."""
        return self.usage.prompt_tokens + self.usage.completion_tokens if self.usage else 0

    def answering(self, answer_id: str, usage: Usage, streamed: bool) -> None:
        """The request was taken on by the engine."""
        self.answer_id, self.usage, self.streamed = answer_id, usage, streamed


def begin_record(scope: MutableMapping[str, Any]) -> RequestRecord:
    """The record of a request that has just come in; the same when it is asked for again."""
    if _KEY not in scope:
        scope[_KEY] = RequestRecord(_adopted(scope["headers"]) or uuid.uuid4().hex)
    return record_in(scope)


def route_path(scope: Mapping[str, Any]) -> str:
    """The path that routes are found by: what the client asked for, decoded, without the prefix of a proxy."""
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    inside = root and (path == root or path.startswith(root + "/"))
    return path[len(root) :] if inside else path


def record_in(scope: Mapping[str, object]) -> RequestRecord:
    """The record that belongs to a scope."""
    record = scope[_KEY]
    assert isinstance(record, RequestRecord)
    return record


def record_of(request: Request) -> RequestRecord:
    """The record of a request."""
    return record_in(request.scope)


def _adopted(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The X-Request-Id, if there is one that can be repeated anywhere."""
    for name, value in headers:
        if name == b"x-request-id":
            return value.decode("ascii") if _SAFE_ID.fullmatch(value) else ""
    return ""
