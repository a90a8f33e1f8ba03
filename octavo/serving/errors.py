"""Which error becomes which answer: vLLM's body, the right status, and never a traceback."""

from collections.abc import Awaitable, Callable
from math import ceil

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from octavo.errors import InvalidRequestError, OctavoError, OverloadedError
from octavo.serving.openai.answers import ErrorAnswer, ErrorInfo
from octavo.telemetry.log import logger

_TYPES = {
    400: "BadRequestError",
    401: "AuthenticationError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    408: "RequestTimeoutError",
    413: "RequestEntityTooLargeError",
    415: "UnsupportedMediaTypeError",
    422: "UnprocessableEntityError",
    429: "RateLimitError",
    431: "RequestHeaderFieldsTooLargeError",
    500: "InternalServerError",
    503: "ServiceUnavailableError",
    504: "GatewayTimeoutError",
}
# nginx's status for a client that went away; only the access log sees it.
CLIENT_GONE = 499

Handler = Callable[[Request], Awaitable[Response]]
_encode = msgspec.json.Encoder().encode


class ClientGone(Exception):
    """The client closed its connection; nobody reads an answer."""


class TooLargeError(InvalidRequestError):
    """The body is larger than the server takes."""

    status = 413


class MediaTypeError(InvalidRequestError):
    """The body is not JSON by its own account."""

    status = 415


def json_response(answer: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """An answer as JSON."""
    return Response(_encode(answer), status, headers, media_type="application/json")


def describe(error: Exception) -> ErrorInfo:
    """What the client is told. An error that was not raised on purpose says nothing of the inside."""
    if isinstance(error, OctavoError):
        param = error.param if isinstance(error, InvalidRequestError) else None
        return ErrorInfo(str(error), _type(error.status), param, error.status)
    return ErrorInfo("the server failed on this request; its log tells why", _type(500), None, 500)


def error_response(error: Exception) -> Response:
    """The answer to a request that failed."""
    info = describe(error)
    headers = {"Retry-After": str(max(1, ceil(error.retry_after)))} if isinstance(error, OverloadedError) else None
    return json_response(ErrorAnswer(info), info.code, headers)


def refusal_body(status: int, message: str) -> bytes:
    """The body of an answer to what never became a request."""
    return _encode(ErrorAnswer(ErrorInfo(message, _type(status), None, status)))


def guarded(handler: Handler) -> Handler:
    """The handler, with every exception turned into an answer and the unexpected ones logged."""

    async def answer(request: Request) -> Response:
        try:
            return await handler(request)
        except (ClientGone, ClientDisconnect):
            return Response(status_code=CLIENT_GONE)
        except Exception as error:
            log_failure(request.url.path, error)
            return error_response(error)

    return answer


def log_failure(path: str, error: Exception) -> None:
    """Log an error that is the server's own; with a traceback when it was not raised on purpose."""
    if describe(error).code == 500:
        unexpected = None if isinstance(error, OctavoError) else error
        logger("serving").error("a request to %s failed: %s", path, error, exc_info=unexpected)


async def http_error(_request: Request, error: Exception) -> Response:
    """Answer to what the router refuses: unknown path, wrong method."""
    assert isinstance(error, HTTPException)
    info = ErrorInfo(error.detail, _type(error.status_code), None, error.status_code)
    return json_response(ErrorAnswer(info), error.status_code, dict(error.headers or {}))


def _type(status: int) -> str:
    return _TYPES.get(status, "BadRequestError" if status < 500 else "InternalServerError")
