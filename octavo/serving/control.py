"""Routes for operators that change what the engine does; served only in development mode, as in vLLM."""

from typing import cast, get_args

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from octavo.engine.client import Pause
from octavo.errors import InvalidRequestError
from octavo.serving.state import state_of


async def pause(request: Request) -> Response:
    """POST /pause?mode=abort|wait|keep&clear_cache=true: start no new requests; answers once that is done.

    With mode wait, when all that was under way has ended.
    """
    mode = request.query_params.get("mode", "abort")
    if mode not in get_args(Pause):
        raise InvalidRequestError(f"mode must be one of {', '.join(get_args(Pause))}, got {mode[:32]!r}", "mode")
    engine = state_of(request).engine
    await engine.pause(cast(Pause, mode))
    # What is kept goes on from its blocks; forgetting them for others is harmless, but pointless.
    if mode != "keep" and request.query_params.get("clear_cache", "true").lower() in ("true", "1"):
        await engine.reset_prefix_cache()
    return JSONResponse({"status": "paused"})


async def resume(request: Request) -> Response:
    """POST /resume: go on."""
    await state_of(request).engine.resume()
    return JSONResponse({"status": "resumed"})


async def is_paused(request: Request) -> Response:
    """GET /is_paused."""
    return JSONResponse({"is_paused": state_of(request).engine.stats.paused})
