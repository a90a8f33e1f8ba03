"""Whether the server lives, what it is, and what it measures."""

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from octavo.serving.state import state_of
from octavo.telemetry.prometheus import CONTENT_TYPE


async def health(request: Request) -> Response:
    """200 while the engine takes requests, else 503; no body."""
    return Response(status_code=200 if state_of(request).healthy else 503)


async def version(request: Request) -> Response:
    """Octavo's version."""
    return JSONResponse({"version": state_of(request).version})


async def load(request: Request) -> Response:
    """How many requests are under way."""
    return JSONResponse({"server_load": state_of(request).engine.live})


async def metrics(request: Request) -> Response:
    """Prometheus' text format."""
    exporter = state_of(request).exporter
    if exporter is None:
        return Response(status_code=404)
    return Response(exporter.render(), media_type=CONTENT_TYPE)
