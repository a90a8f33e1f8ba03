"""Decides whether a server that is stopping takes a request, and knows when the last one under way has ended."""

import asyncio

from starlette.types import ASGIApp, Receive, Scope, Send

from octavo.errors import EngineDeadError
from octavo.serving.access import QUIET
from octavo.serving.errors import error_response
from octavo.serving.record import route_path


class Admission:
    """Requests under way, from their head to the end of their answer. Owner: the event loop."""

    def __init__(self) -> None:
        self.draining = False
        self.under_way = 0
        self._empty = asyncio.Event()
        self._empty.set()

    def enter(self) -> None:
        """A request begins."""
        self.under_way += 1
        self._empty.clear()

    def leave(self) -> None:
        """A request has ended."""
        self.under_way -= 1
        if not self.under_way:
            self._empty.set()

    async def emptied(self) -> None:
        """Wait until nothing is under way."""
        await self._empty.wait()


class AdmissionMiddleware:
    """Answers 503 while the server drains; probes and scrapers still get their answers.

    Args:
        app: the rest.
        admission: what is counted, and whether the server drains.
    """

    def __init__(self, app: ASGIApp, admission: Admission) -> None:
        self._app = app
        self._admission = admission

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http" or route_path(scope) in QUIET:
            await self._app(scope, receive, send)
            return
        if self._admission.draining:
            error = EngineDeadError("the server is shutting down and takes no new requests")
            response = error_response(error, route_path(scope))
            # The next try is for another server.
            response.headers["Connection"] = "close"
            response.headers["Retry-After"] = "1"
            await response(scope, receive, send)
            return
        self._admission.enter()
        try:
            await self._app(scope, receive, send)
        finally:
            self._admission.leave()
