"""Which error becomes which answer: the body of the API that was asked, the right status, and never a traceback."""

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from math import ceil

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from octavo.errors import EngineReturningError, InvalidRequestError, OctavoError, OverloadedError, UnsupportedError
from octavo.serving.anthropic.answers import AnthropicError, MessagesError
from octavo.serving.openai.answers import ErrorAnswer, ErrorInfo
from octavo.serving.record import route_path
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
# The error types of Anthropic's API reference; other statuses are of the type that their first digit tells.
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_ANTHROPIC_PATHS = ("/v1/messages", "/v1/messages/")
# nginx's status for a client that went away; only the access log sees it.
CLIENT_GONE = 499
_SHOWN_PATH = 200
_LONGEST = 2000  # characters of a message

Handler = Callable[[Request], Awaitable[Response]]
_encode = msgspec.json.Encoder().encode


class ClientGone(Exception):
    """The client closed its connection; nobody reads an answer."""


class TooLargeError(InvalidRequestError):
    """The body is larger than the server takes."""

    status = 413


class MediaTypeError(InvalidRequestError):
    """The body is not JSON, or not as it is, by its own account."""

    status = 415


def json_response(answer: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """An answer as JSON."""
    return Response(_encode(answer), status, headers, media_type="application/json")


def describe(error: Exception) -> ErrorInfo:
    """What the client is told. An error that was not raised on purpose says nothing of the inside."""
    if isinstance(error, OctavoError):
        param = error.param if isinstance(error, InvalidRequestError | UnsupportedError) else None
        text = str(error)
        if len(text) > _LONGEST:  # it quotes what was sent
            text = text[:_LONGEST] + "..."
        return ErrorInfo(text, _type(error.status), param, error.status)
    return ErrorInfo("the server failed on this request; its log tells why", _type(500), None, 500)


def error_response(error: Exception, path: str) -> Response:
    """The answer to a request for a path that failed."""
    info = describe(error)
    retry = isinstance(error, OverloadedError | EngineReturningError)
    headers = {"Retry-After": str(max(1, ceil(error.retry_after)))} if retry else None
    return json_response(error_answer(info, path), info.code, headers)


def error_answer(info: ErrorInfo, path: str) -> ErrorAnswer | MessagesError:
    """The body of an error, in the words of the API that the path belongs to."""
    return messages_error(info) if of_messages(path) else ErrorAnswer(info)


def messages_error(info: ErrorInfo) -> MessagesError:
    """An error in Anthropic's words."""
    kind = _ANTHROPIC_TYPES.get(info.code, "invalid_request_error" if info.code < 500 else "api_error")
    return MessagesError(AnthropicError(kind, info.message))


def of_messages(path: str) -> bool:
    """The path belongs to Anthropic's API."""
    return path == _ANTHROPIC_PATHS[0] or path.startswith(_ANTHROPIC_PATHS[1])


def unauthorized(path: str) -> Response:
    """The answer without a valid key."""
    if of_messages(path):
        return json_response(messages_error(ErrorInfo("no valid API key", "", None, 401)), 401)
    # A string, not the usual object: vLLM's clients compare with exactly this.
    return json_response({"error": "Unauthorized"}, 401)


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
            return error_response(error, route_path(request.scope))

    return answer


def log_failure(path: str, error: Exception) -> None:
    """Log an error that is the server's own; with a traceback when it was not raised on purpose."""
    if describe(error).code == 500:
        unexpected = None if isinstance(error, OctavoError) else error
        logger("serving").error("a request to %s failed: %s", path, error, exc_info=unexpected)


async def http_error(request: Request, error: Exception) -> Response:
    """Answer to what the router refuses: unknown path, wrong method."""
    assert isinstance(error, HTTPException)
    detail = error.detail
    if error.status_code == 404 and detail == HTTPStatus.NOT_FOUND.phrase:  # the router's own word
        hidden = request.app.state.server.config.disable_fastapi_docs
        hint = (
            "check the path; a client's base URL usually ends in /v1" if hidden else "GET /openapi.json lists what is"
        )
        detail = f"nothing is served at {route_path(request.scope)[:_SHOWN_PATH]}; {hint}"
    if error.status_code == 405 and (allowed := (error.headers or {}).get("Allow")):
        detail = f"{request.method[:16]} is not taken here; use {allowed.replace(', ', ' or ')}"
    info = ErrorInfo(detail, _type(error.status_code), None, error.status_code)
    return json_response(error_answer(info, route_path(request.scope)), error.status_code, dict(error.headers or {}))


def _type(status: int) -> str:
    return _TYPES.get(status, "BadRequestError" if status < 500 else "InternalServerError")
