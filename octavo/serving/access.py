"""Writes one line for each request that was answered, and counts it."""

import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from octavo.serving.errors import CLIENT_GONE
from octavo.telemetry.log import logger
from octavo.telemetry.metrics import HTTP_REQUESTS, MetricsSink

# Probes and scrapers would drown what a person looks for.
_QUIET = ("/health", "/ping", "/metrics", "/load")


class AccessLogMiddleware:
    """The outermost layer: sees the status of every answer, however it came about.

    Args:
        app: the rest.
        sink: where requests are counted.
        known: paths that have a metric label of their own; all others share one, so that clients cannot add labels.
        log: write lines, too.
    """

    def __init__(self, app: ASGIApp, sink: MetricsSink, known: frozenset[str], log: bool) -> None:
        self._app = app
        self._sink = sink
        self._known = known
        self._logs = log
        self._log = logger("access")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = CLIENT_GONE
        began = time.monotonic()

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, noting)
        finally:
            # A stream that ended early says so here: its status line had long been sent.
            status = scope.get("octavo.outcome", status)
            path = scope["path"]
            self._sink.add(HTTP_REQUESTS, labels=(path if path in self._known else "other", str(status)))
            if self._logs and path not in _QUIET:
                self._write(scope, status, time.monotonic() - began)

    def _write(self, scope: Scope, status: int, seconds: float) -> None:
        client = scope.get("client")
        fields = {"client": f"{client[0]}:{client[1]}" if client else "-", "seconds": f"{seconds:.3f}"}
        if request_id := scope.get("octavo.request_id"):
            fields["request_id"] = request_id
        self._log.info("%s %s %d", scope["method"], scope["path"], status, extra={"fields": fields})
