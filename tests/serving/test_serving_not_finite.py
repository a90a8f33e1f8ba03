"""What a client is told whose request's logits are not finite, in every API; its neighbour notices nothing."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from octavo.config.engine import EngineConfig
from octavo.engine.build import build_engine
from tests.engine.test_not_finite import GRANITE, OPTIONS, poisoned
from tests.serving.scripted import HTTP, RunningServer, run_server
from tests.serving.scripted_engine import CONTEXT, VOCAB

# The byte 13, a carriage return, is the token that overflows.
SPOILT, HEALTHY = "a line\r\nanother one", "a line\nanother one"
MESSAGE = "the model's logits are not finite"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    config: dict[str, Any] = {**GRANITE, "vocab_size": VOCAB, "max_position_embeddings": CONTEXT}
    model = poisoned(tmp_path_factory.mktemp("served") / "model", config)
    options: dict[str, Any] = OPTIONS | {"num_gpu_blocks_override": 64}
    engine = build_engine(EngineConfig.from_options(model=model, **options))
    with run_server(engine.client) as running:
        yield running
    engine.close()


def complete(server: RunningServer, prompt: Any, **more: Any) -> Any:
    body = {"prompt": prompt, "temperature": 0, "max_tokens": 12, "ignore_eos": True, **more}
    return HTTP.post(f"{server.url}/v1/completions", json=body)


def counted(server: RunningServer) -> float:
    lines = HTTP.get(f"{server.url}/metrics").text.splitlines()
    return float(next(line.split()[-1] for line in lines if line.startswith("octavo_not_finite_streams_total{")))


def test_the_whole_answer_is_an_error_and_the_neighbour_is_not_touched(server: RunningServer) -> None:
    wanted = complete(server, HEALTHY).json()["choices"]
    before = counted(server)
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda prompt: complete(server, prompt), [SPOILT, HEALTHY] * 3))
    for answer in answers[::2]:
        assert answer.status_code == 500
        error = answer.json()["error"]
        assert MESSAGE in error["message"]
        assert (error["type"], error["code"]) == ("InternalServerError", 500)
    for answer in answers[1::2]:
        assert answer.status_code == 200
        assert answer.json()["choices"] == wanted
    assert counted(server) == before + 3


def test_a_stream_ends_with_an_error_event(server: RunningServer) -> None:
    # It is drawn after the first token: the stream has begun by then.
    answer = complete(server, HEALTHY, stream=True, logit_bias={"13": 100})
    events = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    assert answer.status_code == 200
    assert events[-1] == "[DONE]"
    assert json.loads(events[0])["choices"][0]["text"] == "\r"
    error = json.loads(events[-2])["error"]
    assert MESSAGE in error["message"]
    assert error["code"] == 500


def test_a_chat_and_other_apis(server: RunningServer) -> None:
    messages = [{"role": "user", "content": SPOILT}]
    bodies: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": {"messages": messages, "max_tokens": 4},
        "/v1/messages": {"messages": messages, "max_tokens": 4},
        "/v1/responses": {"input": SPOILT, "max_output_tokens": 4},
    }
    for path, body in bodies.items():
        answer = HTTP.post(server.url + path, json={"model": "tiny", **body})
        assert answer.status_code == 500, path
        assert MESSAGE in answer.json()["error"]["message"], path
    assert complete(server, HEALTHY).status_code == 200
