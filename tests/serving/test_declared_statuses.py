"""Every status that the document declares for a generating route is one that the server gives, as it says."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from octavo.flow.result import FinishReason, SequenceOutput
from octavo.serving.openapi import OPERATIONS
from octavo.serving.responses.kept import Responses
from tests.serving.request_fields import GENERATING
from tests.serving.scripted import HTTP, RunningServer, config_of, exchange, run_server
from tests.serving.scripted_engine import ScriptedClient, _Stream

POSTS = {operation.path: operation for operation in OPERATIONS if operation.path in GENERATING}
CASES = [(path, status) for path, operation in POSTS.items() for status in operation.errors]


class Late(ScriptedClient):
    """Times out before the first token where the request has a deadline."""

    def _advance(self, stream: _Stream) -> SequenceOutput:
        if stream.request.timeout is not None:
            return self._finish(stream, (), FinishReason.TIMEOUT)
        return super()._advance(stream)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    config = config_of(file_store=str(tmp_path_factory.mktemp("files")))
    with run_server(Late(), config) as running:
        running.state.responses = Responses("memory", 1 << 20)
        yield running


@pytest.fixture(scope="module")
def hasty() -> Iterator[RunningServer]:
    """Waits for nobody."""
    with run_server(config=config_of(client_timeout=0.4)) as running:
        yield running


@contextmanager
def changed(owner: Any, **values: Any) -> Iterator[None]:
    before = {name: getattr(owner, name) for name in values}
    for name, value in values.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)


def broken(*_arguments: object, **_options: object) -> Any:
    raise RuntimeError("a bug")


def send(server: RunningServer, path: str, **options: Any) -> httpx.Response:
    return HTTP.post(server.url + path, **({"json": GENERATING[path][0]} | options))


def given_up(server: RunningServer, path: str) -> httpx.Response:
    """The head of a request, and then nothing."""
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{{"
    answer = exchange(server, head.encode())
    first, _, body = answer.partition(b"\r\n\r\n")
    return httpx.Response(int(first.split()[1]), content=body)


def failing(server: RunningServer, path: str) -> httpx.Response:
    state = server.state
    with changed(state.engine, open=broken), changed(state.inputs.tokenizer, encode=broken, decode=broken):
        return send(server, path)


def stopping(server: RunningServer, path: str) -> httpx.Response:
    with changed(server.state.admission, draining=True):
        return send(server, path)


def crowded(server: RunningServer, path: str) -> httpx.Response:
    with changed(server.state.engine, _max_waiting=0):
        return send(server, path)


def body(path: str, **more: Any) -> dict[str, Any]:
    return {**GENERATING[path][0], **more}


WAYS: dict[int, Callable[[RunningServer, str], httpx.Response]] = {
    400: lambda server, path: send(server, path, json=None, content=b"{", headers={"content-type": "application/json"}),
    404: lambda server, path: send(server, path, json=body(path, model="other")),
    408: given_up,
    413: lambda server, path: send(server, path, json=body(path, user="x" * (1 << 20))),
    415: lambda server, path: send(server, path, json=None, content=b"{}", headers={"content-type": "text/csv"}),
    429: crowded,
    431: lambda server, path: send(server, path, headers={"x-long": "x" * 100_000}),
    500: failing,
    503: stopping,
    504: lambda server, path: send(server, path, json=body(path, timeout=9.0)),
}


@pytest.mark.parametrize(("path", "status"), CASES)
def test_a_declared_status_is_given(server: RunningServer, hasty: RunningServer, path: str, status: int) -> None:
    answer = WAYS[status](hasty if status == 408 else server, path)
    assert answer.status_code == status, answer.text
    told = json.loads(answer.content)
    document = HTTP.get(server.url + "/openapi.json").json()
    declared = document["paths"][path]["post"]["responses"][str(status)]["content"]["application/json"]["schema"]
    if declared["$ref"].endswith("/MessagesError"):
        assert set(told) == {"type", "error"}
        assert set(told["error"]) == {"type", "message"}
    else:
        assert declared["$ref"].endswith("/ErrorAnswer")
        assert set(told) == {"error"}
        assert set(told["error"]) == {"message", "type", "param", "code"}
        assert told["error"]["code"] == status
    assert told["error"]["message"]
    assert send(server, path).status_code == 200  # and service goes on


def test_every_declared_status_has_its_way() -> None:
    assert {status for _, status in CASES} == set(WAYS)
