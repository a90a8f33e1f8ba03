"""llama.cpp's names of fields mean what the usual ones do; what there is no equal of is told."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from octavo.flow.request import GenerationRequest
from tests.serving.scripted import HTTP, RunningServer, run_server
from tests.serving.scripted_engine import ScriptedClient

PROMPTS = {
    "/v1/completions": {"prompt": "Hi"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}]},
    "/generate": {"prompt": "Hi"},
}


class Recording(ScriptedClient):
    """Keeps what it was asked last."""

    last: GenerationRequest | None = None

    def submit(self, request: GenerationRequest) -> None:
        self.last = request
        super().submit(request)


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with run_server(Recording()) as running:
        yield running


def post(server: RunningServer, path: str, body: dict[str, Any]) -> httpx.Response:
    return HTTP.post(server.url + path, json=PROMPTS[path] | {"seed": 1} | body)


def asked(server: RunningServer, path: str, body: dict[str, Any]) -> GenerationRequest:
    answer = post(server, path, body)
    assert answer.status_code == 200
    assert "warnings" not in answer.json()
    assert isinstance(server.client, Recording)
    assert server.client.last is not None
    return server.client.last


@pytest.mark.parametrize(
    ("theirs", "usual"),
    [
        ({"repeat_penalty": 1.5}, {"repetition_penalty": 1.5}),
        ({"repeat_penalty": 1.5, "repeat_last_n": -1}, {"repetition_penalty": 1.5}),
        ({"repeat_penalty": 1.0, "repeat_last_n": 64}, {}),
        ({"repeat_penalty": 1.5, "presence_penalty": 1.0, "frequency_penalty": 1.0, "repeat_last_n": 0}, {}),
        ({"n_predict": 3}, {"max_tokens": 3}),
        ({"n_predict": 3, "max_tokens": 3}, {"max_tokens": 3}),
    ],
)
@pytest.mark.parametrize("path", PROMPTS)
def test_a_name_of_llama_cpp_means_what_the_usual_one_does(server, path: str, theirs: dict, usual: dict) -> None:
    first, second = asked(server, path, theirs), asked(server, path, usual)
    assert (first.sampling, first.stopping) == (second.sampling, second.stopping)


@pytest.mark.parametrize("body", [{"max_tokens": -1}, {"n_predict": -1}])
@pytest.mark.parametrize("path", PROMPTS)
def test_minus_one_token_is_no_limit_but_the_context(server, path: str, body: dict) -> None:
    request = asked(server, path, body)
    assert request.stopping.max_tokens == server.state.engine.info.max_model_len - len(request.prompt_token_ids)


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ({"repeat_penalty": 1.5, "repetition_penalty": 1.2}, "repeat_penalty"),
        ({"n_predict": 5, "max_tokens": 6}, "n_predict"),
        ({"repeat_penalty": 1.5, "repeat_last_n": 64}, "repeat_last_n"),
        ({"presence_penalty": 0.5, "repeat_last_n": 64}, "repeat_last_n"),
    ],
)
def test_what_has_no_effect_is_told(server, body: dict, name: str) -> None:
    (told,) = post(server, "/v1/completions", body).json()["warnings"]
    assert told.startswith(f"{name} has no effect")


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ({"max_tokens": -2}, "max_tokens"),
        ({"n_predict": -2}, "max_tokens"),
        ({"repeat_last_n": -2}, "repeat_last_n"),
        ({"repeat_penalty": 0}, "repetition_penalty"),
        ({"repeat_penalty": "much"}, "repeat_penalty"),
    ],
)
def test_out_of_range_is_400(server, body: dict, name: str) -> None:
    answer = post(server, "/v1/completions", body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == name
