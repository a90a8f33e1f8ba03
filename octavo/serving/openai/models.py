"""GET /v1/models and GET /v1/models/{name}."""

from starlette.requests import Request
from starlette.responses import Response

from octavo.serving.errors import json_response
from octavo.serving.openai.answers import ModelCard, ModelList, ModelPermission
from octavo.serving.state import ServerState, state_of


async def list_models(request: Request) -> Response:
    """Every name of the served model."""
    state = state_of(request)
    return json_response(ModelList(data=[_card(state, name) for name in state.models]))


async def show_model(request: Request) -> Response:
    """One name of the served model."""
    state = state_of(request)
    name = str(request.path_params["name"])
    state.check_model(name)
    return json_response(_card(state, name))


def _card(state: ServerState, name: str) -> ModelCard:
    return ModelCard(
        id=name,
        created=state.started,
        root=state.model_path,
        max_model_len=state.engine.info.max_model_len,
        tasks=["generate"] if state.pooling is None else list(state.pooling.tasks),
        permission=[ModelPermission(id=f"modelperm-{name}", created=state.started)],
    )
