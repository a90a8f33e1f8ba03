"""The routes of batches: create, retrieve, list, cancel; as OpenAI's Batch API."""

import re
import time
import uuid

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from octavo.errors import InvalidRequestError, OctavoError
from octavo.serving.batches.run import stored
from octavo.serving.batches.schema import BatchList, BatchObject, BatchRequest
from octavo.serving.batches.served import served_endpoints
from octavo.serving.errors import json_response
from octavo.serving.files.store import StoredBatch
from octavo.serving.limits import check_depth, read_body
from octavo.serving.openai.schema import BodyReader
from octavo.serving.paging import read_page
from octavo.serving.state import state_of
from octavo.serving.tenant import tenant_of

_READER = BodyReader(BatchRequest)
_WINDOW = re.compile(r"([1-9]\d{0,6})([smhd])")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_LONGEST_WINDOW = 7 * 86_400
_MOST_LIVE = 1000  # batches under way at once
_PAIRS, _KEY, _VALUE = 16, 64, 512  # OpenAI API reference, metadata
_decode = msgspec.json.Decoder(BatchObject).decode


class UnknownBatchError(OctavoError):
    """There is no such batch, or it belongs to somebody else."""

    status = 404


async def create(request: Request) -> Response:
    """POST /v1/batches: run the lines of a file when there is room."""
    state = state_of(request)
    state.check_admission()
    data = await read_body(request, state.max_body_bytes)
    check_depth(data)
    body, warnings = _READER.read(data)
    state.check_strict(warnings)
    seconds = _check(request, body)
    tenant, now = tenant_of(request, None), time.time()
    found = await state.files.call(lambda store: store.file(body.input_file_id, tenant))
    if found.purpose != "batch":
        raise InvalidRequestError(
            f"{found.id} was uploaded for {found.purpose!r}; a batch reads files of the purpose 'batch'",
            "input_file_id",
        )
    if len(state.batches.running) >= _MOST_LIVE:
        raise InvalidRequestError(f"{_MOST_LIVE} batches are under way; wait for some of them to end")
    batch = BatchObject(
        id=f"batch_{uuid.uuid4().hex}",
        endpoint=body.endpoint,
        input_file_id=found.id,
        completion_window=body.completion_window,
        created_at=int(now),
        expires_at=int(now + seconds),
        metadata=body.metadata,
        model=state.models[0],
    )
    item = stored(batch, tenant, live=True)
    await state.files.call(lambda store: store.put_batch(item, state.batches.server))
    state.batches.go_on(item)
    return json_response(batch)


def _check(request: Request, body: BatchRequest) -> int:
    """Refuse what cannot be; gives the seconds of the window."""
    served = served_endpoints(request.app)
    if body.endpoint not in served:
        raise InvalidRequestError(
            f"endpoint must be one that this model serves: {', '.join(served)}; got {body.endpoint[:64]!r}", "endpoint"
        )
    window = _WINDOW.fullmatch(body.completion_window)
    seconds = int(window[1]) * _UNITS[window[2]] if window else 0
    if not 0 < seconds <= _LONGEST_WINDOW:
        raise InvalidRequestError(
            "completion_window must be a time such as '24h' or '30m', at most '7d', "
            f"got {body.completion_window[:16]!r}",
            "completion_window",
        )
    pairs = body.metadata or {}
    if len(pairs) > _PAIRS or any(len(name) > _KEY or len(value) > _VALUE for name, value in pairs.items()):
        raise InvalidRequestError(
            f"metadata may have {_PAIRS} entries with names of {_KEY} and values of {_VALUE} characters", "metadata"
        )
    if body.output_expires_after is not None:
        raise InvalidRequestError("output_expires_after: outputs are kept for 30 days", "output_expires_after")
    return seconds


async def retrieve(request: Request) -> Response:
    """GET /v1/batches/{id}: as it is."""
    number, tenant = _named(request)
    state = state_of(request)
    running = state.batches.of(number, tenant)
    return json_response(running or _decode((await _found(request)).body))


async def cancel(request: Request) -> Response:
    """POST /v1/batches/{id}/cancel: no more lines; those that are done are in its output."""
    number, tenant = _named(request)
    batches = state_of(request).batches
    run = batches.running.get(number)
    if run is not None and run.tenant == tenant:
        await run.cancel()
        return json_response(run.batch)
    found = await _found(request)
    if found.live:
        raise InvalidRequestError("this batch is under way at another server process, which has to cancel it")
    return json_response(_decode(found.body))


async def list_batches(request: Request) -> Response:
    """GET /v1/batches: those of whoever asks, the newest first."""
    page, tenant = read_page(request, 20, 100), tenant_of(request, None)
    state = state_of(request)
    found = await state.files.call(lambda store: store.batches(tenant, page))
    shown = [state.batches.of(item.id, tenant) or _decode(item.body) for item in found[: page.limit]]
    first, last = (shown[0].id, shown[-1].id) if shown else (None, None)
    return json_response(BatchList(data=shown, first_id=first, last_id=last, has_more=len(found) > len(shown)))


async def _found(request: Request) -> StoredBatch:
    number, tenant = _named(request)
    found = await state_of(request).files.call(lambda store: store.batch(number, tenant))
    if found is None:
        raise UnknownBatchError(f"there is no batch {number[:128]!r}")
    return found


def _named(request: Request) -> tuple[str, str]:
    """The id in the path, and who asks."""
    return str(request.path_params["batch_id"]), tenant_of(request, None)
