"""The server as a citizen: errors, keys, limits, health, metrics, models, tokenizing."""

import json
import re
import socket
from collections.abc import Iterator

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from octavo.errors import ConfigError, EngineReturningError
from octavo.serving.errors import error_response
from octavo.serving.server import bind
from octavo.telemetry.metrics import METRICS
from tests.serving.scripted import HTTP, RunningServer, config_of, exchange, run_server
from tests.serving.scripted_engine import ScriptedClient

CHAT = "/v1/chat/completions"
GOOD = {"messages": [{"role": "user", "content": "Hi"}]}
# What differs between two answers to the same request; and of streams, where they were cut.
VARYING = rb'"(id|created)": ?("[^"]*"|\d+),?'


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with run_server() as running:
        yield running


def raw(server: RunningServer, body: bytes, kind: str = "application/json") -> httpx.Response:
    return HTTP.post(server.url + CHAT, content=body, headers={"content-type": kind})


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"tiny",x}',
        b"",
        b"[]",
        b'"s"',
        b"[" * 1_000_000,
        b'{"messages":' + b"[" * 900 + b"]" * 900 + b"}",
        b'{"messages":' + b'{"a":' * 100_000,
        b'{"messages":[{"role":"user","content":"\xff\xfe"}]}',
        b'{"messages":[{"role":"user","content":"x"}],"temperature":NaN}',
        b"\xef\xbb\xbf{}",
        b"\x1f\x8b\x08\x00{}",
        b"{}",
    ],
)
def test_malformed_bodies(server: RunningServer, body: bytes) -> None:
    answer = raw(server, body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["code"]) == ("BadRequestError", 400)
    assert HTTP.post(server.url + CHAT, json=GOOD).status_code == 200


def test_too_large(server: RunningServer) -> None:
    answer = raw(server, b'{"a":"' + b"x" * (1 << 20) + b'"}')
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, 413)

    def chunks() -> Iterator[bytes]:
        for _ in range(3):
            yield b"x" * (1 << 19)

    unsized = HTTP.post(server.url + CHAT, content=chunks(), headers={"content-type": "application/json"})
    assert unsized.status_code == 413


@pytest.mark.parametrize("path", [CHAT, "/v1/messages", "/tokenize"])
@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded; charset=utf-8", "json"])
def test_a_body_of_another_kind_is_told_what_to_send(server: RunningServer, path: str, kind: str) -> None:
    answer = HTTP.post(server.url + path, content=b'{"messages": []}', headers={"content-type": kind})
    assert answer.status_code == 415
    error = answer.json()["error"]
    if path == "/v1/messages":
        assert (answer.json()["type"], error["type"]) == ("error", "invalid_request_error")
    else:
        assert (error["type"], error["code"]) == ("UnsupportedMediaTypeError", 415)
    assert repr(kind.partition(";")[0]) in error["message"]
    assert "Content-Type: application/json" in error["message"]


def test_a_body_without_a_kind_is_json(server: RunningServer) -> None:
    for headers in ({}, {"content-type": ""}):
        answer = HTTP.post(server.url + CHAT, content=json.dumps(GOOD).encode(), headers=headers)
        assert answer.status_code == 200


def test_no_error_points_to_documents_that_are_off() -> None:
    with run_server(config=config_of(disable_fastapi_docs=True)) as server:
        for path in ("/v1/nothing", "/openapi.json", "/docs"):
            told = HTTP.get(server.url + path).json()["error"]
            assert told["code"] == 404
            assert "openapi" not in told["message"].replace(path, "")
            assert "/v1" in told["message"]


def test_unknown_model_path_and_method(server: RunningServer) -> None:
    answer = HTTP.post(server.url + CHAT, json=GOOD | {"model": "gpt-4"})
    assert (answer.status_code, answer.json()["error"]["type"]) == (404, "NotFoundError")
    assert "`gpt-4` does not exist" in answer.json()["error"]["message"]
    unknown = HTTP.get(server.url + "/v1/nothing").json()["error"]
    assert (unknown["code"], unknown["type"]) == (404, "NotFoundError")
    assert unknown["message"] == "nothing is served at /v1/nothing; GET /openapi.json lists what is"
    wrong = HTTP.get(server.url + CHAT)
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (405, 405)
    assert "use POST" in wrong.json()["error"]["message"]


def test_health_version_load(server: RunningServer) -> None:
    assert (HTTP.get(server.url + "/health").status_code, HTTP.get(server.url + "/health").content) == (200, b"")
    assert HTTP.get(server.url + "/version").json() == {"version": "1.2.3"}
    assert HTTP.get(server.url + "/load").json() == {"server_load": 0}


def test_models() -> None:
    with run_server(config=config_of(served_model_name=("first", "org/alias"))) as server:
        cards = HTTP.get(server.url + "/v1/models").json()
        assert cards["object"] == "list"
        assert [card["id"] for card in cards["data"]] == ["first", "org/alias"]
        assert cards["data"][0]["max_model_len"] == 512
        assert cards["data"][0]["root"] == "/models/tiny"
        assert HTTP.get(server.url + "/v1/models/org/alias").json()["id"] == "org/alias"
        assert HTTP.get(server.url + "/v1/models/other").status_code == 404
        assert HTTP.post(server.url + CHAT, json=GOOD | {"model": "org/alias"}).json()["model"] == "first"


def test_tokenize_and_detokenize(server: RunningServer) -> None:
    answer = HTTP.post(server.url + "/tokenize", json={"prompt": "Hi", "return_token_strs": True}).json()
    assert answer == {"count": 2, "max_model_len": 512, "tokens": [72, 105], "token_strs": ["H", "i"]}
    chat = HTTP.post(server.url + "/tokenize", json=GOOD).json()
    assert bytes(chat["tokens"]) == b"<user>Hi<assistant>"
    assert HTTP.post(server.url + "/detokenize", json={"tokens": [72, 105]}).json() == {"prompt": "Hi"}
    assert HTTP.post(server.url + "/detokenize", json={"tokens": [300]}).status_code == 400
    assert HTTP.post(server.url + "/tokenize", json={}).status_code == 400
    assert HTTP.post(server.url + "/tokenize", json=GOOD | {"chat_template": "x"}).status_code == 400
    odd = HTTP.post(server.url + "/tokenize", json={"prompt": "Hi", "colour": 1}).json()
    assert odd["warnings"] == ["unknown field 'colour' was ignored"]


def test_cross_origin(server: RunningServer) -> None:
    answer = HTTP.options(server.url + CHAT, headers={"origin": "http://page", "access-control-request-method": "POST"})
    assert answer.headers["access-control-allow-origin"] == "*"


def test_metrics_tell_what_happened() -> None:
    with run_server() as server:
        for _ in range(2):
            HTTP.post(server.url + CHAT, json=GOOD)
        HTTP.post(server.url + CHAT, json=GOOD | {"n": 0})
        answer = HTTP.get(server.url + "/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    families = {family.name: family for family in text_string_to_metric_families(answer.text)}
    assert set(families) == {name for metric in METRICS for name in (metric.name, *metric.aliases)}
    samples = {
        (s.name, s.labels.get("finished_reason"), s.labels.get("status"), s.labels.get("le")): s.value
        for family in families.values()
        for s in family.samples
    }
    assert samples["vllm:request_success_total", "stop", None, None] == 2
    assert samples["vllm:time_to_first_token_seconds_count", None, None, None] == 2
    assert samples["vllm:inter_token_latency_seconds_count", None, None, None] == 26
    assert samples["vllm:request_queue_time_seconds_sum", None, None, None] == 1.0
    assert samples["octavo_decode_seconds_bucket", None, None, "1.0"] == 2
    assert samples["octavo_http_requests_total", None, "200", None] == 2
    assert samples["octavo_http_requests_total", None, "400", None] == 1
    assert samples["octavo_steps_total", None, None, None] == 28


def test_address_in_use_is_told() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ConfigError, match=r"cannot listen at 127\.0\.0\.1"):
            bind(config_of(port=taken.getsockname()[1]).serving)


def test_unix_socket(tmp_path) -> None:
    path = str(tmp_path / "octavo.sock")
    for _ in range(2):  # the second time over the file that the first left
        with bind(config_of(uds=path).serving) as listener:
            assert listener.getsockname() == path


def test_too_many_waiting_is_429() -> None:
    client = ScriptedClient(max_running=0)
    with run_server(client, config_of(shutdown_timeout=0.0)) as server:
        answer = HTTP.post(server.url + "/v1/completions", json={"prompt": ["x"] * 201})
        assert (answer.status_code, answer.json()["error"]["type"]) == (429, "RateLimitError")
        assert answer.headers["retry-after"] == "1"


def test_while_the_engine_comes_back_clients_are_told_when_to_try_again() -> None:
    answer = error_response(EngineReturningError("the engine is being started again"), "/v1/completions")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "3")


def test_a_text_to_tokenize_has_a_limit(server: RunningServer) -> None:
    state = server.state
    size, state.max_body_bytes = state.max_body_bytes, 8 << 20
    try:
        answer = HTTP.post(server.url + "/tokenize", json={"prompt": "a" * ((1 << 21) + 1)})
    finally:
        state.max_body_bytes = size
    assert answer.status_code == 400
    assert "at most 2097152" in answer.json()["error"]["message"]


@pytest.mark.parametrize("more", ["", "Connection: keep-alive\r\n"])
@pytest.mark.parametrize("stream", [True, False])
def test_a_client_of_http_1_0_gets_a_body_that_ends_with_the_connection(
    server: RunningServer, stream: bool, more: str
) -> None:
    body = json.dumps(GOOD | {"stream": stream}).encode()
    head = f"POST {CHAT} HTTP/1.0\r\nContent-Type: application/json\r\n{more}Content-Length: {len(body)}\r\n\r\n"
    answered, _, came = exchange(server, head.encode() + body).partition(b"\r\n\r\n")
    fields = answered.lower().split(b"\r\n")
    assert fields[0].endswith(b" 200 ok")
    assert b"connection: close" in fields
    assert not any(field.startswith(b"transfer-encoding") for field in fields)
    assert any(field.startswith(b"content-length") for field in fields) is not stream
    usual = HTTP.post(server.url + CHAT, content=body, headers={"content-type": "application/json"}).content
    assert re.sub(VARYING, b"", came) == re.sub(VARYING, b"", usual)
    assert came.endswith(b"data: [DONE]\n\n") is stream


def test_every_kind_of_answer_reaches_a_client_of_http_1_0(server: RunningServer) -> None:
    for method, path, status in (
        ("GET", "/health", b"200"),
        ("HEAD", "/health", b"200"),
        ("GET", "/metrics", b"200"),
        ("GET", "/nothing", b"404"),
        ("GET", "/openapi.json", b"200"),
    ):
        answered, _, came = exchange(server, f"{method} {path} HTTP/1.0\r\n\r\n".encode()).partition(b"\r\n\r\n")
        assert answered.split()[1] == status, path
        assert f"content-length: {len(came)}".encode() in answered.lower()
