"""Routes for operators that change what the engine does; served only in development mode, as in vLLM."""

from typing import cast, get_args

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from octavo.engine.client import Pause
from octavo.errors import InvalidRequestError
from octavo.execution.sleep import PARTS, Part
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


async def reset_prefix_cache(request: Request) -> Response:
    """POST /reset_prefix_cache: forget what is cached; what runs goes on, but shares nothing from before."""
    await state_of(request).engine.reset_prefix_cache()
    return Response(status_code=200)


async def sleep(request: Request) -> Response:
    """POST /sleep?level=1&mode=abort|wait: release memory once nothing runs any more; see `AsyncEngine.sleep`."""
    level, mode = request.query_params.get("level", "1"), request.query_params.get("mode", "abort")
    if level not in ("1", "2"):
        raise InvalidRequestError(f"level must be 1 or 2, got {level[:32]!r}", "level")
    if mode not in ("abort", "wait"):
        raise InvalidRequestError(f"mode must be abort or wait, got {mode[:32]!r}", "mode")
    await state_of(request).engine.sleep(int(level), "wait" if mode == "wait" else "abort")
    return Response(status_code=200)


async def wake_up(request: Request) -> Response:
    """POST /wake_up?tags=weights&tags=kv_cache: bring these parts back, or everything."""
    tags = request.query_params.getlist("tags")
    parts: list[Part] = [part for part in PARTS if part in tags]
    if len(parts) < len(set(tags)):
        raise InvalidRequestError(f"tags may be {', '.join(PARTS)}, got {', '.join(tags)[:64]!r}", "tags")
    await state_of(request).engine.wake(parts or None)
    return Response(status_code=200)


async def is_sleeping(request: Request) -> Response:
    """GET /is_sleeping."""
    return JSONResponse({"is_sleeping": state_of(request).engine.stats.asleep > 0})


async def start_profile(request: Request) -> Response:
    """POST /start_profile: record what the engine's steps do; see `EngineProfile`."""
    state = state_of(request)
    await state.engine.start_profile(state.profile_dir)
    return JSONResponse({"status": "recording"})


async def stop_profile(request: Request) -> Response:
    """POST /stop_profile: end that; which files were written, by the engine, where it runs."""
    written = await state_of(request).engine.stop_profile()
    return JSONResponse({"status": "stopped", "files": list(written.files), "steps": written.steps})
