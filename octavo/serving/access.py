"""Writes exactly one record for each request, when it has ended however it did, and counts it.

The JSON record's fields are listed in docs/operations/server.md. None of them holds a prompt, an answer, a header, a
query or a key.
"""

import os
import sys
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import BinaryIO

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from octavo.errors import ConfigError
from octavo.serving.errors import CLIENT_GONE
from octavo.serving.record import RequestRecord, begin_record, route_path
from octavo.telemetry.log import logger, printable
from octavo.telemetry.metrics import HTTP_REQUESTS, MetricsSink

# Probes and scrapers would drown what a person looks for.
QUIET = frozenset(("/health", "/ping", "/live", "/ready", "/metrics", "/load"))
_LONGEST_PATH = 256


class AccessRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the access log."""

    time: str  # when it ended, UTC
    request_id: str
    answer_id: str | None
    key: str | None  # name of the key's owner
    client: str | None
    method: str
    path: str
    status: int
    streamed: bool
    seconds: float
    first_byte_seconds: float | None
    bytes_received: int
    bytes_sent: int
    prompt_tokens: int | None
    cached_tokens: int | None
    completion_tokens: int | None


class AccessFile:
    """A file, or standard output, that takes one JSON line a request. Owner: the event loop.

    Raises:
        ConfigError: it cannot be written.
    """

    def __init__(self, path: str) -> None:
        self._path = None if path == "-" else Path(path)
        self._out = self._open()
        self._encode = msgspec.json.Encoder().encode
        self._failed = False

    def write(self, record: AccessRecord) -> None:
        """Append a line. A full disk loses the line, and is told once."""
        try:
            # One write a line, unbuffered: lines are never cut, whoever else appends.
            self._out.write(self._encode(record) + b"\n")
            self._failed = False
        except OSError as error:
            if not self._failed:
                logger("access").error("the access log cannot be written: %s", error)
            self._failed = True

    def reopen(self) -> None:
        """Go on in the file that has the name now: after its rotation."""
        if self._path is None:
            return
        try:
            fresh = self._open()
        except ConfigError as error:
            logger("access").error("%s", error)
            return
        self._out.close()
        self._out = fresh

    def follow(self) -> None:
        """`reopen`, if the file was moved away or deleted."""
        if self._path is None:
            return
        try:
            there = self._path.stat().st_ino
        except OSError:
            there = -1
        if there != _inode(self._out):
            self.reopen()

    def close(self) -> None:
        """No more is written."""
        if self._path is not None:
            self._out.close()

    def _open(self) -> BinaryIO:
        if self._path is None:
            return open(sys.stdout.fileno(), "wb", buffering=0, closefd=False)
        try:
            return open(self._path, "ab", buffering=0)
        except OSError as error:
            raise ConfigError(f"access_log: {self._path}: {error.strerror or error}") from None


def _inode(file: BinaryIO) -> int:
    return os.fstat(file.fileno()).st_ino


class AccessLog:
    """Where records go: a metric each, a line in the log, and a JSON line in the access file.

    Args:
        sink: where requests are counted.
        routes: paths that have a metric label of their own; all others share one, so that clients cannot add labels.
        log: write lines to the log, too.
        silent: paths of which nothing is written.
        file: for JSON lines.
    """

    def __init__(
        self, sink: MetricsSink, routes: frozenset[str], log: bool, silent: Sequence[str], file: AccessFile | None
    ) -> None:
        self._sink = sink
        self._routes = routes
        self._logs = log
        self._silent = frozenset(silent)
        self._file = file
        self._log = logger("access")

    def finish(self, scope: Scope, record: RequestRecord) -> None:
        """The request has ended."""
        now = time.monotonic()
        path = route_path(scope)
        self._sink.add(HTTP_REQUESTS, labels=(path if path in self._routes else "other", str(record.status)))
        if path in self._silent:
            return
        if self._logs and path not in QUIET:
            client, shown = _client(scope), path[:_LONGEST_PATH]
            fields = {
                "client": client or "-",
                "seconds": f"{now - record.began:.3f}",
                "request_id": record.answer_id or record.request_id,
            }
            if record.owner.name:
                fields["key"] = record.owner.name
            self._log.info("%s %s %d", scope["method"], shown, record.status, extra={"fields": fields})
        if self._file is not None:
            self._file.write(_access_record(scope, record, now))

    def refused(self, client: tuple[str, int] | None, status: int) -> None:
        """A connection was answered before there was a request: what came is not HTTP, too slow or too large."""
        record = RequestRecord("", status=status)
        self.finish({"path": "-", "method": "-", "client": client}, record)


def _client(scope: Scope) -> str | None:
    client = scope.get("client")
    return f"{client[0]}:{client[1]}" if client else None


def _access_record(scope: Scope, record: RequestRecord, now: float) -> AccessRecord:
    usage = record.usage
    return AccessRecord(
        time=datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
        request_id=record.request_id,
        answer_id=printable(record.answer_id) or None,
        key=record.owner.name or None,
        client=_client(scope),
        method=scope["method"],
        path=printable(route_path(scope))[:_LONGEST_PATH],
        status=record.status,
        streamed=record.streamed,
        seconds=round(now - record.began, 4),
        first_byte_seconds=round(record.first_byte - record.began, 4) if record.first_byte else None,
        bytes_received=record.bytes_received,
        bytes_sent=record.bytes_sent,
        prompt_tokens=usage.prompt_tokens if usage else None,
        cached_tokens=usage.cached_tokens if usage else None,
        completion_tokens=usage.completion_tokens if usage else None,
    )


class AccessLogMiddleware:
    """The outermost layer: sees the status of every answer, however it came about.

    Args:
        app: the rest.
        access: where the record goes.
        tell_id: answers carry X-Request-Id.
    """

    def __init__(self, app: ASGIApp, access: AccessLog, tell_id: bool) -> None:
        self._app = app
        self._access = access
        self._tells_id = tell_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = begin_record(scope)

        async def noting(message: Message) -> None:
            if message["type"] == "http.response.body":
                record.bytes_sent += len(message.get("body", b""))
            elif message["type"] == "http.response.start":
                record.status = message["status"]
                if self._tells_id:
                    named = (b"x-request-id", record.request_id.encode())
                    message = {**message, "headers": [*message.get("headers", ()), named]}
            await send(message)
            if not record.first_byte and record.bytes_sent:
                record.first_byte = time.monotonic()

        try:
            await self._app(scope, receive, noting)
        finally:
            # A stream that ended early says so here: its status line had long been sent.
            record.status = record.outcome or record.status or CLIENT_GONE
            self._access.finish(scope, record)
