"""The routes of responses that exist: retrieve, cancel and delete one, list what it was made of."""

from collections.abc import AsyncGenerator
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from octavo.errors import InvalidRequestError
from octavo.serving.errors import json_response
from octavo.serving.paging import read_page, whole_number
from octavo.serving.responses.kept import Responses
from octavo.serving.responses.schema import Deleted, InputItems, JsonObject
from octavo.serving.state import state_of
from octavo.serving.stream import EventStream
from octavo.serving.tenant import tenant_of

_MOST_ITEMS = 100
_JSON = "application/json"
_decode_items = msgspec.json.Decoder(list[dict[str, Any]]).decode


async def retrieve(request: Request) -> Response:
    """GET /v1/responses/{id}: as it is; with stream=true its events, from `starting_after` on."""
    kept, number, tenant = _named(request)
    run = kept.running.get(number)
    streams = request.query_params.get("stream", "false").lower() in ("true", "1")
    start = whole_number(request, "starting_after", -1, 0) + 1
    if run is not None and run.tenant == tenant:
        if not streams:
            return json_response(run.response)
        _check_streamed(run.streamed)
        return EventStream(b"", run.follow(start), b"", lambda _: b"")
    stored = await kept.get(number, tenant)
    if not streams:
        return Response(stored.response, media_type=_JSON)
    _check_streamed(stored.events is not None)
    return EventStream(b"", _stored(stored.events or b"", start), b"", lambda _: b"")


async def cancel(request: Request) -> Response:
    """POST /v1/responses/{id}/cancel: end a response in the background; one that has ended stays as it is."""
    kept, number, tenant = _named(request)
    run = kept.running.get(number)
    if run is not None and run.tenant == tenant and run.task is not None:
        run.task.cancel()
        async for _ in run.follow(len(run.events)):
            pass
        return json_response(run.response)
    stored = await kept.get(number, tenant)
    if stored.live:
        raise InvalidRequestError("this response is under way at another server process, which has to cancel it")
    if not msgspec.json.decode(stored.response)["background"]:
        raise InvalidRequestError("only responses that were created with background can be cancelled")
    return Response(stored.response, media_type=_JSON)


async def delete(request: Request) -> Response:
    """DELETE /v1/responses/{id}; one under way is cancelled first."""
    kept, number, tenant = _named(request)
    run = kept.running.get(number)
    if run is not None and run.tenant == tenant:
        await cancel(request)
    await kept.delete(number, tenant)
    return json_response(Deleted(id=number))


async def list_input_items(request: Request) -> Response:
    """GET /v1/responses/{id}/input_items: the whole conversation that it answers, the last item first."""
    kept, number, tenant = _named(request)
    stored = await kept.get(number, tenant)
    before = await kept.items_before(stored.previous, tenant) if stored.previous else []
    items: list[JsonObject] = [*before, *_decode_items(stored.input)]
    page = read_page(request, 20, _MOST_ITEMS)
    if not page.ascending:
        items.reverse()
    if page.after is not None:
        place = next((place for place, item in enumerate(items) if item["id"] == page.after), None)
        if place is None:
            raise InvalidRequestError(f"after: there is no item {page.after[:128]!r}", "after")
        items = items[place + 1 :]
    shown = items[: page.limit]
    first, last = (shown[0]["id"], shown[-1]["id"]) if shown else (None, None)
    return json_response(InputItems(data=shown, first_id=first, last_id=last, has_more=len(shown) < len(items)))


def _named(request: Request) -> tuple[Responses, str, str]:
    """What is kept, the id in the path, and who asks."""
    return state_of(request).responses, str(request.path_params["response_id"]), tenant_of(request, None)


def _check_streamed(streamed: bool) -> None:
    if not streamed:
        raise InvalidRequestError(
            "stream: only a response that was created with background and stream has events to resume; "
            "retrieve it without stream",
            "stream",
        )


async def _stored(events: bytes, start: int) -> AsyncGenerator[bytes, None]:
    for event in events.split(b"\n\n")[start:-1]:
        yield event + b"\n\n"
