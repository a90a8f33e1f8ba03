"""A server that stops: it says so, takes nothing new, finishes what it has, and ends with status 0."""

import json
import threading

import httpx

from tests.serving.scripted import HTTP, PATIENCE, RunningServer, config_of, connect, exchange, run_server, until
from tests.serving.scripted_engine import ScriptedClient, endless, say

CHAT = "/v1/chat/completions"
GOOD = {"messages": [{"role": "user", "content": "Hi"}]}


def stopping(server: RunningServer) -> None:
    """Ask the server to stop, and wait until it knows."""
    server.stop()
    with until(lambda: server.state.draining):
        pass


def test_a_draining_server_answers_503_and_finishes_what_it_has() -> None:
    client = ScriptedClient(say("x" * 60), hold_at=5)
    with run_server(client) as server:
        with HTTP.stream("POST", server.url + CHAT, json=GOOD | {"stream": True}) as answer:
            lines = answer.iter_lines()
            next(lines)
            assert HTTP.get(server.url + "/ready").json() == {"ready": True, "reason": None}
            stopping(server)
            for path in (CHAT, "/v1/completions", "/tokenize"):
                refused = HTTP.post(server.url + path, json=GOOD)
                assert (refused.status_code, refused.json()["error"]["type"]) == (503, "ServiceUnavailableError")
                assert "shutting down" in refused.json()["error"]["message"]
                assert refused.headers["connection"] == "close"
                assert refused.headers["retry-after"] == "1"
            ready = HTTP.get(server.url + "/ready")
            assert (ready.status_code, ready.json()["reason"]) == (503, "the server is shutting down")
            assert HTTP.get(server.url + "/live").status_code == 200
            assert HTTP.get(server.url + "/health").status_code == 503
            assert "octavo_http_requests" in HTTP.get(server.url + "/metrics").text
            client.hold_at = None
            rest = "".join(lines)
        assert rest.endswith("data: [DONE]")
        assert rest.count("x") >= 50
        assert '"error"' not in rest
        server.thread.join(PATIENCE)
        assert not server.thread.is_alive()


def test_a_request_whose_body_is_still_coming_is_finished() -> None:
    with run_server() as server, connect(server) as connection:
        body = json.dumps(GOOD).encode()
        head = b"POST %b HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        connection.sendall(head % (CHAT.encode(), len(body)))
        with until(lambda: server.state.admission.under_way == 1):
            pass
        stopping(server)
        assert server.thread.is_alive()
        connection.sendall(body)
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        server.thread.join(PATIENCE)
        assert not server.thread.is_alive()


def test_a_server_without_work_stops_at_once() -> None:
    with run_server(config=config_of(shutdown_timeout=300)) as server, connect(server):  # an idle connection, too
        server.stop()
        server.thread.join(PATIENCE)  # less than it would wait for requests
        assert not server.thread.is_alive()


def test_the_time_to_finish_is_bounded_whatever_a_client_does() -> None:
    client = ScriptedClient(endless, hold_at=20)
    with run_server(client, config_of(shutdown_timeout=0.2)) as server:
        answers: list[httpx.Response] = []
        thread = threading.Thread(target=lambda: answers.append(HTTP.post(server.url + CHAT, json=GOOD)))
        thread.start()
        with until(lambda: server.state.engine.live == 1):
            pass
        server.stop()
        thread.join(PATIENCE)
        assert answers[0].status_code == 503
        assert "shutting down" in answers[0].text
        server.thread.join(PATIENCE)
        assert not server.thread.is_alive()


def test_probes_tell_why_a_server_takes_nothing() -> None:
    with run_server(ScriptedClient(endless, step_seconds=0.01), dev_mode=True) as server:
        assert HTTP.post(server.url + "/pause", params={"mode": "keep"}).status_code == 200
        assert HTTP.get(server.url + "/ready").json()["reason"] == "the engine is paused"
        HTTP.post(server.url + "/resume")
        assert HTTP.get(server.url + "/ready").status_code == 200

        def die(timeout: float | None = None) -> list:
            raise RuntimeError("gone")

        server.client.receive = die  # type: ignore[method-assign]
        HTTP.post(server.url + CHAT, json=GOOD)
        with until(lambda: HTTP.get(server.url + "/live").status_code == 503):
            pass
        assert HTTP.get(server.url + "/ready").json()["reason"] == "the engine is not running"


def test_a_connection_that_is_kept_is_closed_when_the_server_stops() -> None:
    client = ScriptedClient(say("x" * 40), hold_at=5)
    with run_server(client) as server:
        with connect(server) as kept:
            kept.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert kept.recv(65536).startswith(b"HTTP/1.1 200")
            with HTTP.stream("POST", server.url + CHAT, json=GOOD | {"stream": True}) as answer:
                lines = answer.iter_lines()
                next(lines)
                stopping(server)
                # On the kept connection, too, there is an answer; then it is closed.
                kept.sendall(b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
                assert b"".join(iter(lambda: kept.recv(65536), b"")).startswith(b"HTTP/1.1 503")
                client.hold_at = None
                list(lines)
        server.thread.join(PATIENCE)
        assert not server.thread.is_alive()


def test_server_info_shows_options_but_no_secrets() -> None:
    config = config_of(api_key=("secret-key",), max_logprobs=7)
    with run_server(config=config, dev_mode=True) as server:
        auth = {"authorization": "Bearer secret-key"}
        answer = HTTP.get(server.url + "/server_info", headers=auth)
        told = answer.json()
        assert told["version"] == "1.2.3"
        assert told["engine"]["max_model_len"] == 512
        assert told["config"]["serving"]["max_logprobs"] == 7
        assert told["config"]["serving"]["api_key"] == "set"
        assert "secret-key" not in answer.text
        assert HTTP.get(server.url + "/server_info").status_code == 401
    with run_server() as server:
        answer = exchange(server, b"GET /server_info HTTP/1.1\r\nConnection: close\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 404")
