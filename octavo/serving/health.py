"""Whether the server lives, what it is, and what it measures."""

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from octavo.serving.state import state_of
from octavo.telemetry.prometheus import CONTENT_TYPE


async def health(request: Request) -> Response:
    """200 without a body while the engine takes requests and answers; else 503, and the reason if it is the engine."""
    state = state_of(request)
    trouble = state.engine.trouble
    if trouble is not None:
        return JSONResponse({"reason": trouble}, 503)
    return Response(status_code=200 if state.healthy else 503)


async def live(request: Request) -> Response:
    """200 unless the engine has ended for good: then 503, and only a new start of the server helps."""
    return Response(status_code=503 if state_of(request).engine.lost else 200)


async def ready(request: Request) -> Response:
    """200 while requests are taken, else 503 and why not."""
    state = state_of(request)
    stats = state.engine.stats
    reasons = (
        "the server is shutting down" if state.draining else None,
        state.engine.trouble,
        "the engine sleeps" if stats.asleep else None,
        "the engine is paused" if stats.paused else None,
    )
    reason = next((reason for reason in reasons if reason is not None), None)
    return JSONResponse({"ready": reason is None, "reason": reason}, 503 if reason else 200)


async def server_info(request: Request) -> Response:
    """What the server runs with: version, engine, every option; without secrets. In development mode only."""
    state = state_of(request)
    engine = msgspec.to_builtins(state.engine.info)
    return JSONResponse({"version": state.version, "engine": engine, "config": dict(state.settings)})


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
