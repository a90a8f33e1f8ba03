"""Who may use the API: a key, compared in constant time, for the routes that vLLM guards and those of operators."""

import hmac

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

# Health, metrics and documentation stay open, as probes and scrapers carry no key.
_GUARDED = (
    "/v1",
    "/v2",
    "/inference",
    "/cohere",
    "/pause",
    "/resume",
    "/is_paused",
    "/sleep",
    "/wake_up",
    "/is_sleeping",
)


class ApiKeyMiddleware:
    """Answers 401 to a guarded route without `Authorization: Bearer <key>`.

    Args:
        app: what is guarded.
        key: the key.
        root_path: prefix of all routes behind a proxy.
    """

    def __init__(self, app: ASGIApp, key: str, root_path: str = "") -> None:
        self._app = app
        self._key = key.encode()
        self._root_path = root_path.rstrip("/")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        open_to_all = scope["type"] != "http" or scope["method"] == "OPTIONS" or not self._guards(scope["path"])
        if open_to_all or self._knows(scope):
            await self._app(scope, receive, send)
        else:
            # A string, not the usual object: vLLM's clients compare with exactly this.
            await JSONResponse({"error": "Unauthorized"}, status_code=401)(scope, receive, send)

    def _guards(self, path: str) -> bool:
        return path.removeprefix(self._root_path).startswith(_GUARDED)

    def _knows(self, scope: Scope) -> bool:
        for name, value in scope["headers"]:
            if name == b"authorization":
                scheme, _, key = value.partition(b" ")
                return scheme.lower() == b"bearer" and hmac.compare_digest(key.strip(), self._key)
        return False
