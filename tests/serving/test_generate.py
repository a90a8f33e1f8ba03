"""The bare /generate, the best of several answers, and answers that end while others of their request go on."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from octavo.flow.request import GenerationRequest
from octavo.flow.result import FinishReason, TokenLogprobs
from tests.fakes import request as asked
from tests.scheduling.driver import Engine
from tests.serving.scripted import HTTP, RunningServer, run_server, until
from tests.serving.scripted_engine import END, ScriptedClient, _Stream

WORDS = ("one.", "three.", "fifteen.", "two.")


def numbered(_request: GenerationRequest, index: int) -> Sequence[int]:
    return [*WORDS[index].encode(), END]


class Scored(ScriptedClient):
    """Stream i's tokens have log-probability -SCORES[i]."""

    SCORES = (3.0, 1.0, 2.0, 4.0)

    def _output(
        self, stream: _Stream, tokens: tuple[int, ...], reason: FinishReason | None, error: str | None = None
    ) -> Any:
        output = super()._output(stream, tokens, reason, error)
        if stream.request.sampling.logprobs is None:
            return output
        from msgspec.structs import replace

        value = -self.SCORES[stream.index]
        return replace(output, logprobs=tuple(TokenLogprobs((token,), (value,), 1) for token in tokens))


@pytest.fixture
def server() -> Iterator[RunningServer]:
    with run_server(Scored(numbered)) as running:
        yield running


def post(server: RunningServer, path: str, **body: Any) -> Any:
    return HTTP.post(server.url + path, json=body)


def test_generate_gives_the_prompt_and_what_follows(server: RunningServer) -> None:
    assert post(server, "/generate", prompt="Say ", n=2, max_tokens=20).json() == {"text": ["Say one.", "Say three."]}
    assert isinstance(server.client, ScriptedClient)
    server.client.hold_at = 3
    with HTTP.stream("POST", server.url + "/generate", json={"prompt": "Say ", "n": 2, "stream": True}) as stream:
        texts = stream.iter_lines()
        lines = [json.loads(next(texts))]  # before the answer is complete
        server.client.hold_at = None
        lines += map(json.loads, texts)
    assert lines[-1] == {"text": ["Say one.", "Say three."]}
    assert all(line["text"][0].startswith("Say ") for line in lines)
    assert len(lines) > 1
    for wrong in ({"prompt": ""}, {"prompt": ["a"]}, {}, {"prompt": "a", "temperature": -1}):
        assert post(server, "/generate", **wrong).status_code == 400


def test_the_best_of_several_answers(server: RunningServer) -> None:
    answer = post(server, "/v1/completions", prompt=["a", "b"], n=2, best_of=4, max_tokens=20).json()
    assert [(choice["index"], choice["text"]) for choice in answer["choices"]] == [
        *[(0, "three."), (1, "fifteen.")],
        *[(2, "three."), (3, "fifteen.")],
    ]
    assert all(choice["logprobs"] is None for choice in answer["choices"])
    assert answer["usage"]["completion_tokens"] == 2 * sum(len(word) + 1 for word in WORDS)
    scored = post(server, "/v1/completions", prompt="a", best_of=3, max_tokens=20, logprobs=0).json()["choices"]
    assert [(choice["text"], choice["logprobs"]["token_logprobs"][0]) for choice in scored] == [("three.", -1.0)]


def test_the_best_answers_of_a_chat_and_of_the_bare_route(server: RunningServer) -> None:
    chat = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 20, "logprobs": True}
    answer = post(server, "/v1/chat/completions", n=2, best_of=4, **chat).json()
    told = [(choice["index"], choice["message"]["content"]) for choice in answer["choices"]]
    assert told == [(0, "three."), (1, "fifteen.")]
    assert answer["choices"][0]["logprobs"]["content"][0]["logprob"] == -1.0
    assert answer["usage"]["completion_tokens"] == sum(len(word) + 1 for word in WORDS)
    quiet = post(server, "/v1/chat/completions", best_of=3, **{**chat, "logprobs": None}).json()["choices"]
    assert [(choice["message"]["content"], choice["logprobs"]) for choice in quiet] == [("three.", None)]
    assert post(server, "/generate", prompt="x", best_of=3, max_tokens=20).json() == {"text": ["xthree."]}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
        ("/v1/completions", {"prompt": "a"}),
        ("/generate", {"prompt": "a"}),
    ],
)
def test_what_best_of_cannot_mean_is_refused_with_the_reason(
    server: RunningServer, path: str, body: dict[str, Any]
) -> None:
    for more, told in (({"best_of": 3, "stream": True}, "known at the end"), ({"best_of": 1, "n": 2}, "at least n")):
        answer = post(server, path, **body, **more)
        assert answer.status_code == 400
        assert told in answer.json()["error"]["message"]
        assert answer.json()["error"]["param"] == "best_of"
    assert post(server, path, **body, n=2, best_of=2, stream=True).status_code == 200


def test_the_bare_route_tells_what_has_no_effect(server: RunningServer) -> None:
    assert post(server, "/generate", prompt="a", mood=1, max_tokens=9).json()["warnings"] == [
        "unknown field 'mood' was ignored"
    ]
    lines = post(server, "/generate", prompt="a", mood=1, max_tokens=9, stream=True).text.splitlines()
    assert ["warnings" in json.loads(line) for line in lines] == [True, *[False] * (len(lines) - 1)]


def test_an_answer_that_has_ended_is_not_computed_on(server: RunningServer) -> None:
    client = server.client
    assert isinstance(client, ScriptedClient)
    client.script = lambda _request, index: list(b"aaSTOP" + b"b" * 400) if index else list(b"c" * 400)
    client.hold_at = 50
    with HTTP.stream(
        "POST",
        server.url + "/v1/completions",
        json={"prompt": "a", "n": 3, "stop": "STOP", "max_tokens": 400, "stream": True},
    ) as stream:
        events = stream.iter_lines()
        with until(lambda: len(client.ended) == 2):
            next(events)
        assert client.stats().running == 1
        assert client.cancelled == []
    assert {index for _, index in client.ended} == {1, 2}


def test_the_scheduler_ends_one_stream() -> None:
    engine = Engine()
    one = asked("a", [1] * 9, 20, n=3)
    engine.add(one)
    for _ in range(4):
        engine.step()
    engine.loop.cancel_streams([("a", 1), ("nobody", 0), ("a", 7)])
    engine.step()
    assert engine.streams["a", 1].reason is FinishReason.ABORT
    assert len(engine.scheduler._roster.running) == 2
    engine.loop.cancel_streams([("a", 1)])
    engine.run().check_answers([one])
    assert len(engine.streams["a", 0].token_ids) == 20
