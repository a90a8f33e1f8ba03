"""The routes of files: upload, list, retrieve, content, delete; as OpenAI's Files API."""

import unicodedata
from collections.abc import AsyncGenerator
from typing import NamedTuple
from urllib.parse import quote

from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request
from starlette.responses import FileResponse, Response

from octavo.errors import InvalidRequestError, OctavoError
from octavo.serving.errors import MediaTypeError, TooLargeError, json_response
from octavo.serving.files.schema import PURPOSES, UPLOADED, FileDeleted, FileList
from octavo.serving.files.store import MONTH
from octavo.serving.limits import media_type
from octavo.serving.paging import read_page
from octavo.serving.record import record_of
from octavo.serving.state import state_of
from octavo.serving.tenant import tenant_of

_LONGEST_NAME = 255
_FIELDS = 16
_FIELD_BYTES = 4096
_FRAMING = 64 * 1024  # bytes of a form besides its file
_LEAST_SECONDS, _MOST_SECONDS = 3600, int(MONTH)  # OpenAI API reference, expires_after


class _Upload(NamedTuple):
    file: UploadFile
    purpose: str
    seconds: float


async def upload(request: Request) -> Response:
    """POST /v1/files: keep the file of a form."""
    state = state_of(request)
    state.check_admission()
    files = state.files
    await files.call(lambda _: None)  # says at once that there is no store
    kind = media_type(request)
    if kind != "multipart/form-data":
        raise MediaTypeError(
            f"the body came as {kind[:64]!r}, and a form is expected: send file and purpose as 'multipart/form-data' "
            "(curl: -F purpose=batch -F file=@requests.jsonl)"
        )
    try:
        parser = MultiPartParser(
            request.headers,
            _bounded(request, files.largest),
            max_files=1,
            max_fields=_FIELDS,
            max_part_size=_FIELD_BYTES,
        )
        form = await parser.parse()
    except MultiPartException as error:
        raise InvalidRequestError(f"the form cannot be read: {error.message[:200]}") from None
    except OctavoError:
        raise
    except (KeyError, ValueError):
        raise InvalidRequestError("the form cannot be read: it is not multipart/form-data with a boundary") from None
    try:
        asked = _read_form({**form})
        tenant, name = tenant_of(request, None), _shown_name(asked.file.filename or "")
        source = asked.file.file
        made = await files.call(lambda store: store.add_file(tenant, name, asked.purpose, source, asked.seconds))
    finally:
        await form.close()
    return json_response(made)


async def _bounded(request: Request, most: int) -> AsyncGenerator[bytes, None]:
    """The body, as long as it is not too large."""
    too_large = TooLargeError(f"the file is larger than {most} bytes, the most this server takes (--max-file-size)")
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > most + _FRAMING:
        raise too_large
    size, record = 0, record_of(request)
    async for chunk in request.stream():
        size += len(chunk)
        record.bytes_received = size
        if size > most + _FRAMING:
            raise too_large
        yield chunk


def _read_form(form: dict[str, UploadFile | str]) -> _Upload:
    file, purpose = form.pop("file", None), form.pop("purpose", None)
    if not isinstance(file, UploadFile):
        raise InvalidRequestError("file: this field is required, as a file with a name", "file")
    if purpose not in UPLOADED:
        found = "nothing" if purpose is None else repr(str(purpose)[:32])
        raise InvalidRequestError(f"purpose must be one of {', '.join(UPLOADED)}, got {found}", "purpose")
    anchor = form.pop("expires_after[anchor]", "created_at")
    seconds = form.pop("expires_after[seconds]", str(_MOST_SECONDS))
    if form:
        raise InvalidRequestError(f"the form has fields that are not known: {', '.join(sorted(form))[:200]}")
    if anchor != "created_at":
        raise InvalidRequestError("expires_after[anchor] must be 'created_at'", "expires_after")
    if not isinstance(seconds, str) or not seconds.isascii() or not seconds.isdecimal() or len(seconds) > 9:
        raise InvalidRequestError("expires_after[seconds] must be a whole number", "expires_after")
    if not _LEAST_SECONDS <= int(seconds) <= _MOST_SECONDS:
        raise InvalidRequestError(
            f"expires_after[seconds] must be from {_LEAST_SECONDS} to {_MOST_SECONDS}, got {seconds}", "expires_after"
        )
    return _Upload(file, str(purpose), float(seconds))


def _shown_name(name: str) -> str:
    """A file's name as it is told; it names nothing on disk."""
    last = name.replace("\\", "/").rpartition("/")[2]
    kept = "".join(letter for letter in last if unicodedata.category(letter)[0] != "C")
    return kept[:_LONGEST_NAME] or "file"


async def list_files(request: Request) -> Response:
    """GET /v1/files: those of whoever asks."""
    page = read_page(request, 10_000, 10_000)
    purpose = request.query_params.get("purpose")
    if purpose is not None and purpose not in PURPOSES:
        raise InvalidRequestError(f"purpose must be one of {', '.join(PURPOSES)}, got {purpose[:32]!r}", "purpose")
    tenant = tenant_of(request, None)
    found = await state_of(request).files.call(lambda store: store.files(tenant, purpose, page))
    shown = found[: page.limit]
    first, last = (shown[0].id, shown[-1].id) if shown else (None, None)
    return json_response(FileList(data=shown, first_id=first, last_id=last, has_more=len(found) > len(shown)))


async def retrieve(request: Request) -> Response:
    """GET /v1/files/{id}."""
    number, tenant = _named(request)
    return json_response(await state_of(request).files.call(lambda store: store.file(number, tenant)))


async def content(request: Request) -> Response:
    """GET /v1/files/{id}/content."""
    number, tenant = _named(request)
    files = state_of(request).files
    found, path = await files.call(lambda store: (store.file(number, tenant), store.path(number)))
    disposition = f"attachment; filename*=UTF-8''{quote(found.filename, safe='')}"
    return FileResponse(path, media_type="application/octet-stream", headers={"Content-Disposition": disposition})


async def delete(request: Request) -> Response:
    """DELETE /v1/files/{id}."""
    number, tenant = _named(request)
    await state_of(request).files.call(lambda store: store.delete_file(number, tenant))
    return json_response(FileDeleted(id=number))


def _named(request: Request) -> tuple[str, str]:
    """The id in the path, and who asks."""
    return str(request.path_params["file_id"]), tenant_of(request, None)
