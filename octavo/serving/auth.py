"""Who may use the API: every path but a short list needs a key, and an owner's limits hold for all of them."""

from collections.abc import Iterable

from starlette.types import ASGIApp, Receive, Scope, Send

from octavo.errors import OverloadedError
from octavo.serving.errors import error_response, unauthorized
from octavo.serving.keys import KeyRing, Owner
from octavo.serving.quota import Quotas
from octavo.serving.record import record_in, route_path

# Probes carry no key, and what these tell is no secret. A path that is not exactly one of these needs a key.
_OPEN = frozenset(("/health", "/ping", "/live", "/ready", "/version", "/openapi.json", "/docs"))


class ApiKeyMiddleware:
    """Answers 401 without a valid `Authorization: Bearer <key>` (or `X-Api-Key`, which Anthropic's clients send), and
    429 when the key's owner has used up what it may.

    Args:
        app: what is guarded.
        keys: the valid ones.
        also_open: more paths that need none.
    """

    def __init__(self, app: ASGIApp, keys: KeyRing, also_open: Iterable[str] = ()) -> None:
        self._app = app
        self._keys = keys
        self._quotas = Quotas()
        self._open = _OPEN.union(also_open)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        # The path is the one that routes are found by, as the server decoded it; the Host header has no part in it.
        if scope["type"] != "http" or route_path(scope) in self._open:
            await self._app(scope, receive, send)
            return
        owner = self._owner(scope)
        if owner is None:
            await unauthorized(route_path(scope))(scope, receive, send)
            return
        await self._limited(owner, scope, receive, send)

    async def _limited(self, owner: Owner, scope: Scope, receive: Receive, send: Send) -> None:
        record = record_in(scope)
        record.owner = owner
        try:
            number = self._quotas.enter(owner, record, counted=scope["method"] == "POST")
        except OverloadedError as error:
            await error_response(error, route_path(scope))(scope, receive, send)
            return
        try:
            await self._app(scope, receive, send)
        finally:
            if record.outlived is None:
                self._quotas.leave(owner, number)
            else:
                record.outlived.add_done_callback(lambda _: self._quotas.leave(owner, number))

    def _owner(self, scope: Scope) -> Owner | None:
        bearers = [value for name, value in scope["headers"] if name == b"authorization"]
        plain = [value for name, value in scope["headers"] if name == b"x-api-key"]
        # Two of one kind: whoever stands between us and the client may have checked the other one.
        if len(bearers) > 1 or len(plain) > 1:
            return None
        if bearers:
            scheme, _, key = bearers[0].partition(b" ")
            return self._keys.owner_of(key) if scheme.lower() == b"bearer" else None
        return self._keys.owner_of(plain[0]) if plain else None
