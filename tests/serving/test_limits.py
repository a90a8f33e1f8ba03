"""What one connection may cost: slow, large, malformed, pipelined, unread, too many; and what the log says of it."""

import contextlib
import json
import socket
import threading

import pytest

from tests.serving.scripted import HTTP, PATIENCE, RunningServer, config_of, connect, exchange, run_server, until
from tests.serving.scripted_engine import ScriptedClient, say

CHAT = "/v1/chat/completions"
GOOD = {"messages": [{"role": "user", "content": "Hi"}]}


def head(body_length: int, path: str = CHAT, more: str = "") -> bytes:
    return (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{more}"
        f"Content-Length: {body_length}\r\n\r\n"
    ).encode()


def request_bytes(**more: object) -> bytes:
    body = json.dumps(GOOD | more).encode()
    return head(len(body)) + body


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def error_of(answer: bytes) -> dict:
    """The error object of a raw answer."""
    error = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == status_of(answer)
    return error


def idle(server: RunningServer) -> bool:
    return server.state.engine.live == 0 and server.state.admission.under_way == 0


@pytest.fixture(scope="module")
def server():
    with run_server() as running:
        yield running
        assert HTTP.post(running.url + CHAT, json=GOOD).status_code == 200
        with until(lambda: idle(running)):
            pass


@pytest.fixture(scope="module")
def hasty():
    """A server that waits for nobody: for requests that never become complete, for others it may be too hasty."""
    with run_server(config=config_of(client_timeout=0.4, keep_alive_timeout=0.4)) as running:
        yield running
        with until(lambda: idle(running)):
            pass


@pytest.mark.parametrize(
    "data",
    [
        b"hello\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS on a port that speaks plain HTTP
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET  HTTP/1.1\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET / HTTP/1.1\r\nna me: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nname: a\x00b\r\n\r\n",
    ],
)
def test_what_is_no_http_is_answered_with_an_error_object(server: RunningServer, data: bytes) -> None:
    answer = exchange(server, data)
    assert status_of(answer) == 400
    assert "not a valid HTTP request" in error_of(answer)["message"]


@pytest.mark.parametrize("whole", [False, True])
def test_a_large_head_is_431(server: RunningServer, whole: bool) -> None:
    filler = b"x" * (70 * 1024)
    data = b"GET /health HTTP/1.1\r\nHost: x\r\na: " + filler + (b"\r\n\r\n" if whole else b"")
    answer = exchange(server, data)
    assert status_of(answer) == 431
    assert "65536 bytes" in error_of(answer)["message"]
    long_url = exchange(server, b"GET /" + filler + b" HTTP/1.1\r\nHost: x\r\n\r\n")
    assert status_of(long_url) == 431


def test_a_head_of_usual_size_passes(server: RunningServer) -> None:
    answer = exchange(server, b"GET /health HTTP/1.1\r\nConnection: close\r\na: " + b"x" * 60_000 + b"\r\n\r\n")
    assert status_of(answer) == 200


def test_a_slow_head_is_408(hasty: RunningServer) -> None:
    answer = exchange(hasty, b"GET /health HTTP/1.1\r\nHost:")
    assert status_of(answer) == 408
    assert "head" in error_of(answer)["message"]


def test_who_says_nothing_is_hung_up_on(hasty: RunningServer) -> None:
    assert exchange(hasty, b"") == b""
    # Between two requests, too.
    with run_server(config=config_of(keep_alive_timeout=0.2)) as server:
        answer = exchange(server, b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
    assert status_of(answer) == 200


def test_a_trickling_head_gets_no_more_time(hasty: RunningServer) -> None:
    with connect(hasty) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\n")
        answer = b""
        connection.settimeout(0.02)
        while not answer:
            try:
                connection.sendall(b"a: b\r\n")
                answer = connection.recv(65536)
            except TimeoutError:
                continue
    assert status_of(answer) == 408


@pytest.mark.parametrize("sent", [b"", b'{"messages"'])
def test_a_slow_body_is_408(hasty: RunningServer, sent: bytes) -> None:
    answer = exchange(hasty, head(1000) + sent)
    assert status_of(answer) == 408
    assert "1024 bytes a second" in error_of(answer)["message"]


def test_a_body_that_flows_may_take_longer() -> None:
    timeout = 0.4
    body = json.dumps(GOOD | {"messages": [{"role": "user", "content": "x" * 4000}], "max_tokens": 1}).encode()
    pause = threading.Event()

    parts = [body[start : start + 400] for start in range(0, len(body), 400)]
    assert len(parts) * 0.05 > timeout

    def flow(server: RunningServer) -> bytes:
        """The answer to a body that is sent at 4 kB/s: above the least rate, for longer than the timeout."""
        with connect(server) as connection, contextlib.suppress(ConnectionError):
            connection.sendall(head(len(body), more="Connection: close\r\n"))
            for part in parts:
                connection.sendall(part)
                pause.wait(0.05)
            return b"".join(iter(lambda: connection.recv(65536), b""))
        return b""

    with run_server(config=config_of(client_timeout=timeout)) as server:
        # Where this thread is held up, it does not flow, and is rightly cut off.
        answer = next(found for found in (flow(server) for _ in range(20)) if found and status_of(found) != 408)
    # The prompt is too long for the model: it was read to its end.
    assert status_of(answer) == 400
    assert "512" in error_of(answer)["message"]


def test_the_rest_of_a_refused_body_is_not_read_for_ever() -> None:
    with run_server(config=config_of(max_body_size="1MiB")) as server, connect(server) as connection:
        connection.sendall(b"POST /v1/nothing HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        assert status_of(connection.recv(65536)) == 404
        chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
        with pytest.raises(OSError, match=r"reset|[Bb]roken pipe"):  # noqa: PT012
            for _ in range(1000):
                connection.sendall(chunk)


def test_pipelined_requests_are_not_taken() -> None:
    client = ScriptedClient(say("x" * 100), step_seconds=0.002)
    with run_server(client) as server:
        answer = exchange(server, request_bytes(stream=True) + request_bytes(stream=True))
        assert answer.count(b"HTTP/1.1 200") == 1
        assert answer.count(b"data: [DONE]") == 1
        # A client that leaves is noticed although it sent more.
        endless = ScriptedClient(lambda _r, _i: [120] * 500, step_seconds=0.01, hold_at=20)
    with run_server(endless) as server:
        with until(lambda: idle(server)), connect(server) as connection:
            connection.sendall(request_bytes() + request_bytes())
            with until(lambda: server.state.engine.live == 1):
                pass
        with until(lambda: len(endless.cancelled) == 1):
            pass


def test_nonsense_after_a_request_does_not_take_its_answer_away() -> None:
    for nonsense in (b"\x00\x01nonsense\r\n\r\n", b"GET / HTTP/1.1\r\na: " + b"x" * (70 << 10), b"GET / HTTP/1.1\r\n"):
        with run_server(config=config_of(keep_alive_timeout=0.2)) as server:  # from its answer on
            answer = exchange(server, request_bytes(stream=True) + nonsense)
        assert answer.count(b"HTTP/1.1") == 1
        assert status_of(answer) == 200
        assert answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


def test_a_body_that_breaks_off_in_nonsense_is_400(server: RunningServer) -> None:
    chunked = (
        b"POST %b HTTP/1.1\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n" % CHAT.encode()
    )
    answer = exchange(server, chunked + b'5\r\n{"pro\r\nnonsense\r\n')
    assert answer.count(b"HTTP/1.1") == 1
    assert status_of(answer) == 400
    assert "not a valid HTTP request" in error_of(answer)["message"]


def test_a_reader_that_never_reads_is_cut_off() -> None:
    client = ScriptedClient(lambda _r, _i: [120] * 500, tokens_per_step=4, hold_at=400)
    with run_server(client, config_of(client_timeout=0.5)) as server:
        stop = threading.Event()
        sockets: list[socket.socket] = []
        body = request_bytes(stream=True, n=16, logprobs=True, top_logprobs=20, max_tokens=490)

        def fill() -> None:
            # A small buffer on this side, and an answer larger than any on the other.
            connection = socket.socket()
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            connection.connect(("127.0.0.1", int(server.url.rpartition(":")[2])))
            sockets.append(connection)
            connection.sendall(body)
            stop.wait(PATIENCE)

        thread = threading.Thread(target=fill, daemon=True)
        thread.start()
        with until(lambda: server.state.engine.live == 1):
            pass
        with until(lambda: idle(server)):
            pass
        stop.set()
        thread.join(PATIENCE)
        with until(lambda: len(client.cancelled) == 1):
            pass
        for connection in sockets:
            connection.close()
        client.hold_at = None
        with until(lambda: HTTP.post(server.url + CHAT, json=GOOD).status_code == 200):
            pass


def test_too_many_connections_are_503() -> None:
    with run_server(config=config_of(max_connections=3)) as server:
        held = [connect(server) for _ in range(3)]
        for connection in held:
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert status_of(connection.recv(65536)) == 200
        answer = exchange(server, b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert status_of(answer) == 503
        assert "3 connections" in error_of(answer)["message"]
        held.pop().close()
        with until(lambda: exchange(server, b"GET /health HTTP/1.1\r\nConnection: close\r\n\r\n")[9:12] == b"200"):
            pass
        for connection in held:
            connection.close()


def test_a_body_larger_than_allowed_is_413() -> None:
    with run_server(config=config_of(max_body_size="1MiB")) as server:
        answer = exchange(server, head((1 << 20) + 1, more="Connection: close\r\n"))
        assert status_of(answer) == 413
        assert "--max-body-size" in error_of(answer)["message"]
