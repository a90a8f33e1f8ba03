"""The HTTP application: every route and every layer around them, each in one list."""

from typing import NamedTuple

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route

from octavo.serving import control, health, openapi
from octavo.serving.access import AccessFile, AccessLog, AccessLogMiddleware
from octavo.serving.admission import AdmissionMiddleware
from octavo.serving.anthropic.messages import count_tokens, create_message
from octavo.serving.auth import ApiKeyMiddleware
from octavo.serving.batches import routes as batches
from octavo.serving.errors import guarded, http_error
from octavo.serving.files import routes as files
from octavo.serving.keys import KeyRing
from octavo.serving.openai.chat import create_chat_completion
from octavo.serving.openai.completions import create_completion
from octavo.serving.openai.generate import generate
from octavo.serving.openai.models import list_models, show_model
from octavo.serving.openai.tokenize import detokenize, tokenize
from octavo.serving.pooling.cohere import create_cohere_embeddings
from octavo.serving.pooling.routes import create_classes, create_embeddings, create_pooling
from octavo.serving.pooling.scores import create_ranking, create_scores
from octavo.serving.responses import routes as responses
from octavo.serving.responses.create import create_response
from octavo.serving.state import ServerState
from octavo.telemetry.metrics import MetricsSink

ROUTES = (
    Route("/v1/chat/completions", guarded(create_chat_completion), methods=["POST"]),
    Route("/v1/completions", guarded(create_completion), methods=["POST"]),
    Route("/v1/messages", guarded(create_message), methods=["POST"]),
    Route("/v1/messages/count_tokens", guarded(count_tokens), methods=["POST"]),
    Route("/v1/responses", guarded(create_response), methods=["POST"]),
    Route("/v1/responses/{response_id}", guarded(responses.retrieve), methods=["GET"]),
    Route("/v1/responses/{response_id}", guarded(responses.delete), methods=["DELETE"]),
    Route("/v1/responses/{response_id}/cancel", guarded(responses.cancel), methods=["POST"]),
    Route("/v1/responses/{response_id}/input_items", guarded(responses.list_input_items), methods=["GET"]),
    Route("/v1/files", guarded(files.upload), methods=["POST"]),
    Route("/v1/files", guarded(files.list_files), methods=["GET"]),
    Route("/v1/files/{file_id}", guarded(files.retrieve), methods=["GET"]),
    Route("/v1/files/{file_id}", guarded(files.delete), methods=["DELETE"]),
    Route("/v1/files/{file_id}/content", guarded(files.content), methods=["GET"]),
    Route("/v1/batches", guarded(batches.create), methods=["POST"]),
    Route("/v1/batches", guarded(batches.list_batches), methods=["GET"]),
    Route("/v1/batches/{batch_id}", guarded(batches.retrieve), methods=["GET"]),
    Route("/v1/batches/{batch_id}/cancel", guarded(batches.cancel), methods=["POST"]),
    Route("/v1/embeddings", guarded(create_embeddings), methods=["POST"]),
    Route("/v2/embed", guarded(create_cohere_embeddings), methods=["POST"]),
    Route("/pooling", guarded(create_pooling), methods=["POST"]),
    Route("/classify", guarded(create_classes), methods=["POST"]),
    Route("/v1/classify", guarded(create_classes), methods=["POST"]),
    Route("/score", guarded(create_scores), methods=["POST"]),
    Route("/v1/score", guarded(create_scores), methods=["POST"]),
    Route("/rerank", guarded(create_ranking), methods=["POST"]),
    Route("/v1/rerank", guarded(create_ranking), methods=["POST"]),
    Route("/v2/rerank", guarded(create_ranking), methods=["POST"]),
    Route("/v1/models", guarded(list_models), methods=["GET"]),
    Route("/v1/models/{name:path}", guarded(show_model), methods=["GET"]),
    Route("/generate", guarded(generate), methods=["POST"]),
    Route("/tokenize", guarded(tokenize), methods=["POST"]),
    Route("/detokenize", guarded(detokenize), methods=["POST"]),
    Route("/health", guarded(health.health), methods=["GET"]),
    Route("/ping", guarded(health.health), methods=["GET", "POST"]),
    Route("/live", guarded(health.live), methods=["GET"]),
    Route("/ready", guarded(health.ready), methods=["GET"]),
    Route("/version", guarded(health.version), methods=["GET"]),
    Route("/load", guarded(health.load), methods=["GET"]),
    Route("/metrics", guarded(health.metrics), methods=["GET"]),
)

DOCUMENT_ROUTES = (
    Route("/openapi.json", guarded(openapi.document), methods=["GET"]),
    Route("/docs", guarded(openapi.page), methods=["GET"]),
)

# Served in development mode only: whoever reaches them stops the engine.
CONTROL_ROUTES = (
    Route("/server_info", guarded(health.server_info), methods=["GET"]),
    Route("/pause", guarded(control.pause), methods=["POST"]),
    Route("/resume", guarded(control.resume), methods=["POST"]),
    Route("/is_paused", guarded(control.is_paused), methods=["GET"]),
    Route("/reset_prefix_cache", guarded(control.reset_prefix_cache), methods=["POST"]),
    Route("/start_profile", guarded(control.start_profile), methods=["POST"]),
    Route("/stop_profile", guarded(control.stop_profile), methods=["POST"]),
    Route("/sleep", guarded(control.sleep), methods=["POST"]),
    Route("/wake_up", guarded(control.wake_up), methods=["POST"]),
    Route("/is_sleeping", guarded(control.is_sleeping), methods=["GET"]),
)


class BuiltApp(NamedTuple):
    """The application, and where what never reached it is recorded."""

    app: Starlette
    access: AccessLog


def build_app(state: ServerState, sink: MetricsSink, keys: KeyRing, file: AccessFile | None = None) -> BuiltApp:
    """The application around a running engine.

    Args:
        state: what handlers share.
        sink: where HTTP requests are counted.
        keys: the valid API keys.
        file: for the JSON access log.
    """
    config = state.config
    routes = ROUTES + (CONTROL_ROUTES if state.dev_mode else ())
    routes += () if config.disable_fastapi_docs else DOCUMENT_ROUTES
    access = AccessLog(
        sink,
        frozenset(route.path for route in routes),
        not config.disable_access_log,
        [path for item in config.disable_access_log_for_endpoints for path in item.split(",")],
        file,
    )
    # Outermost first: also refusals are logged, and a browser can read a 401.
    middleware = [
        Middleware(AccessLogMiddleware, access=access, tell_id=config.enable_request_id_headers),
        Middleware(
            CORSMiddleware,
            allow_origins=list(config.allowed_origins),
            allow_methods=list(config.allowed_methods),
            allow_headers=list(config.allowed_headers),
            allow_credentials=config.allow_credentials,
        ),
        Middleware(AdmissionMiddleware, admission=state.admission),
    ]
    if keys.wanted:
        also_open = () if config.metrics_need_key else ("/metrics",)
        middleware.append(Middleware(ApiKeyMiddleware, keys=keys, also_open=also_open))
    app = Starlette(routes=list(routes), middleware=middleware, exception_handlers={HTTPException: http_error})
    app.state.server = state
    return BuiltApp(app, access)
