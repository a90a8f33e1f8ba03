"""Decides what one connection may cost: how large a head, how slow a client, how much that nobody reads."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from octavo.serving.errors import CLIENT_GONE, refusal_body
from octavo.serving.record import begin_record, record_in

MAX_HEAD = 64 * 1024  # bytes of a request line and its header fields
_LEAST_RATE = 1024  # bytes a second of a body that is being sent
_LINGER = 1.0  # seconds a client gets to read why it was refused
_MALFORMED = "what was sent is not a valid HTTP request"

Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """What holds for every connection.

    client_timeout: seconds for a whole head; and without progress, in a body or of a reader. unread: bytes that may
    still come of a body that was answered already. on_refusal: told of what was answered before it became a request.
    """

    connections: int
    client_timeout: float
    unread: int
    on_refusal: Callable[[Address | None, int], None]


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP/1.1, with limits. One timer a connection looks after it; requests start none.

    Requests that are pipelined are not answered: the connection ends after the answer before them, which HTTP allows
    (RFC 9112, section 9.3.2). So the end of a connection is always seen at once, and ends what runs for it.

    Args:
        limits: what holds.
        uvicorn: what uvicorn hands to its protocols.
    """

    def __init__(self, limits: ConnectionLimits, **uvicorn: Any) -> None:
        super().__init__(**uvicorn)
        self._limits = limits
        self._in_head = True
        self._in_body = False
        self._deaf = False  # nothing more is taken from this connection
        self._head_bytes = 0
        self._head_began = 0.0
        self._progress = 0  # bytes of the body since the last look
        self._unread = 0
        self._unsent = 0  # bytes that the client had not taken at the last look; 0: it kept up
        self._timer: asyncio.TimerHandle | None = None

    # What asyncio calls.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has connected."""
        super().connection_made(transport)
        self._head_began = self.loop.time()
        if len(self.connections) > self._limits.connections:
            self._refuse(503, f"{self._limits.connections} connections are open already; try again later")
            return
        self._timer = self.loop.call_later(self._limits.client_timeout, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is over."""
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes have come."""
        if self._deaf:
            return
        if self._in_head and not self._head_bytes:
            self._head_began = self.loop.time()
        self._head_bytes += len(data)
        super().data_received(data)
        # The parser holds a head back until it is complete; it is complete when `_in_head` is false.
        if self._in_head and self._head_bytes > MAX_HEAD:
            self._refuse(431, f"the head of a request may take {MAX_HEAD} bytes")

    def send_400_response(self, msg: str) -> None:
        """What came is not HTTP."""
        self._refuse(400, _MALFORMED)

    # What the parser calls.

    def on_headers_complete(self) -> None:
        """A head is complete."""
        if self._answering():
            self.cycle.keep_alive = False
            self._deaf = True
        if self._deaf:
            return
        self._in_head = False
        self._in_body = True
        self._progress = self._unread = 0
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > MAX_HEAD:
            self._refuse(431, f"the head of a request may take {MAX_HEAD} bytes")
            return
        super().on_headers_complete()
        if self.scope["http_version"] == "1.0":
            _send_unchunked(self.cycle)
        begin_record(cast("dict[str, Any]", self.scope))

    def on_body(self, body: bytes) -> None:
        """A part of a body."""
        if self._deaf:
            return
        self._progress += len(body)
        if self.cycle.response_complete:
            self._unread += len(body)
            if self._unread > self._limits.unread:
                self._deaf = True
                self.transport.close()
            return
        super().on_body(body)

    def on_message_complete(self) -> None:
        """A request has come whole."""
        if self._deaf:
            return
        self._in_head, self._in_body, self._head_bytes = True, False, 0
        super().on_message_complete()

    # What is done about it.

    @property
    def _cycle(self) -> RequestResponseCycle | None:
        return self.cycle  # None until the first head is complete, whatever its type says

    def _answering(self) -> bool:
        """A request is under way."""
        return self._cycle is not None and not self.cycle.response_complete

    def _look(self) -> None:
        """See that there was progress since the last look."""
        timeout = self._limits.client_timeout
        self._timer = None
        if self.transport.is_closing():
            # What was written last is still on its way out, to a client that may not take it.
            self.transport.abort()
            return
        wait = timeout
        if self._in_head and self._head_bytes and not self._answering():
            wait = self._head_began + timeout - self.loop.time()
            if wait <= 0:
                self._refuse(408, f"the head of the request took longer than {timeout:g} seconds")
                return
        elif self._in_body and not self.flow.read_paused:
            if self._progress < _LEAST_RATE * timeout:
                self._time_body_out(timeout)
                return
            self._progress = 0
        elif self._in_head and self._cycle is None:
            self.transport.close()  # it never sent anything
        if self._stalled():
            return
        self._timer = self.loop.call_later(max(wait, 0.01), self._look)

    def _stalled(self) -> bool:
        """Ends the connection of a client that does not take what it asked for."""
        left = self.transport.get_write_buffer_size() if self.flow.write_paused else 0
        if left and self._unsent and left >= self._unsent:
            record_in(self.cycle.scope).outcome = CLIENT_GONE
            self.transport.abort()
            return True
        self._unsent = left
        return False

    def _time_body_out(self, timeout: float) -> None:
        self._refuse(408, f"less than {_LEAST_RATE} bytes a second of the body have come in {timeout:g} seconds")

    def _refuse(self, status: int, message: str) -> None:
        """Answer what is no request, or cannot become a whole one; and take nothing more from this connection."""
        self._deaf = True
        if not self._answering():
            self._limits.on_refusal(self.client, status)
        elif self._in_body and not self.cycle.response_started:
            # Its own record tells it. Whoever works on the request sees the client as gone.
            record_in(self.cycle.scope).outcome = status
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        else:
            # What came after a request that is being answered; that one gets its answer.
            self.cycle.keep_alive = False
            return
        body = refusal_body(status, message)
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self._hang_up()

    def _hang_up(self) -> None:
        """Close so that the client can still read the answer: with bytes unread, a plain close would be a reset, which
        takes the answer away (RFC 9112, section 9.6)."""
        if not self.transport.can_write_eof() or len(self.connections) > 2 * self._limits.connections:
            self.transport.close()
            return
        try:
            self.transport.write_eof()
        except OSError:  # the client is gone already
            self.transport.abort()
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(_LINGER, self.transport.abort)


def _send_unchunked(cycle: RequestResponseCycle) -> None:
    """Let an answer of unknown length end with the connection: HTTP/1.0 knows no chunks (RFC 9112, section 6.3)."""
    send, unknown = cycle.send, False

    async def send_plain(message: Any) -> None:
        nonlocal unknown
        if message["type"] == "http.response.start":
            unknown = all(name.lower() != b"content-length" for name, _ in message.get("headers", []))
            if unknown:
                cycle.chunked_encoding = False
        elif message["type"] == "http.response.body" and unknown:
            cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    cycle.send = send_plain
