"""Which endpoints a batch may be of: those that the server's model can answer."""

from collections.abc import Mapping, Sequence

from starlette.applications import Starlette

from octavo.serving.batches.call import endpoints_of
from octavo.serving.batches.schema import ENDPOINTS
from octavo.serving.state import ServerState

_TEXT_ENDPOINTS = ("/v1/completions",)
_CHAT_ENDPOINTS = ("/v1/chat/completions", "/v1/responses", "/v1/messages")  # these need a chat template
_SCORING = ("/v1/score", "/score", "/v1/rerank", "/rerank", "/v2/rerank")
# What a pooled model has to do for each endpoint; any of them.
_TASKS: Mapping[str, Sequence[str]] = {
    "/v1/embeddings": ("embed",),
    "/classify": ("classify",),
}


def served_endpoints(app: Starlette) -> list[str]:
    """Their paths, in the usual order."""
    state: ServerState = app.state.server
    return [path for path in ENDPOINTS if path in endpoints_of(app) and _can(state, path)]


def _can(state: ServerState, path: str) -> bool:
    if state.pooling is None:
        return path in _TEXT_ENDPOINTS or (path in _CHAT_ENDPOINTS and state.inputs.chat_template is not None)
    if path in (*_TEXT_ENDPOINTS, *_CHAT_ENDPOINTS):
        return False
    if path in _SCORING:
        return state.pooling.scores
    tasks = _TASKS.get(path, state.pooling.tasks)
    return any(task in state.pooling.tasks for task in tasks)
