"""One record for every request, whatever became of it; nothing in it that a client must not write or know."""

import json
import logging
import os
import re
from pathlib import Path

import httpx
import pytest

from octavo.config.engine import EngineConfig, TelemetryConfig
from octavo.errors import ConfigError
from octavo.serving.access import AccessFile, AccessRecord
from octavo.serving.server import run_server as run_real_server
from octavo.telemetry.log import LineFormatter, configure
from tests.serving.scripted import HTTP, PATIENCE, RunningServer, config_of, connect, exchange, run_server, until
from tests.serving.scripted_engine import ScriptedClient, endless

CHAT = "/v1/chat/completions"
GOOD = {"messages": [{"role": "user", "content": "a very private question"}], "max_tokens": 3}
FIELDS = set(AccessRecord.__struct_fields__)


class Log:
    """An access log in a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def records(self) -> list[dict]:
        records = [json.loads(line) for line in self.path.read_text().splitlines()]
        for record in records:
            assert set(record) == FIELDS
        return records

    def wait(self, count: int) -> list[dict]:
        with until(lambda: len(self.records()) >= count):
            pass
        return self.records()


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "access.jsonl")


def serving(log: Log, client: ScriptedClient | None = None, **options: object) -> RunningServer:
    return run_server(client, config_of(access_log=str(log.path), **options))


def test_one_record_for_every_answer(log: Log) -> None:
    with serving(log, api_key=("secret-key",)) as server:
        auth = {"authorization": "Bearer secret-key"}
        good = HTTP.post(server.url + CHAT + "?token=hidden", json=GOOD, headers=auth | {"x-request-id": "trace-1"})
        streamed = HTTP.post(server.url + CHAT, json=GOOD | {"stream": True}, headers=auth)
        HTTP.post(server.url + CHAT, json=GOOD)
        HTTP.post(server.url + CHAT, json={"messages": 3}, headers=auth)
        HTTP.get(server.url + "/nothing", headers=auth)
        HTTP.get(server.url + "/health")
        exchange(server, b"no http\r\n\r\n")
        records = log.wait(7)
    assert [record["status"] for record in records] == [200, 200, 401, 400, 404, 200, 400]
    first, second = records[:2]
    assert (first["request_id"], first["answer_id"]) == ("trace-1", "chatcmpl-trace-1")
    assert good.json()["id"] == "chatcmpl-trace-1"
    assert (first["prompt_tokens"], first["completion_tokens"], first["cached_tokens"]) == (40, 3, 3)
    assert (first["streamed"], second["streamed"]) == (False, True)
    assert second["bytes_sent"] == len(streamed.content)
    assert 0 < second["first_byte_seconds"] <= second["seconds"]
    assert first["bytes_received"] == len(json.dumps(GOOD, separators=(",", ":")))
    assert first["client"].startswith("127.0.0.1:")
    assert (first["method"], first["path"]) == ("POST", CHAT)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", first["time"])
    assert records[6]["method"] == records[6]["path"] == "-"
    text = log.path.read_text()
    for secret in ("secret-key", "private", "hidden", "Hello"):
        assert secret not in text


def test_one_record_for_everyone_who_was_too_slow(log: Log) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{"
    with serving(log, client_timeout=0.3) as server:
        for slow in (b"GET /slow HTTP/1.1\r\n", head):
            exchange(server, slow)
        records = log.wait(2)
    assert [record["status"] for record in records] == [408, 408]
    assert records[0]["path"] == "-"


def test_one_record_for_everyone_who_left(log: Log) -> None:
    client = ScriptedClient(endless, step_seconds=0.01, hold_at=20)
    with serving(log, client) as server:
        body = json.dumps({**GOOD, "max_tokens": 400}).encode()
        head = b"POST %b HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        with connect(server) as connection:
            connection.sendall(head % (CHAT.encode(), len(body)) + body)
            with until(lambda: server.state.engine.live == 1):
                pass
        with HTTP.stream("POST", server.url + CHAT, json=GOOD | {"max_tokens": 400, "stream": True}) as answer:
            lines = answer.iter_lines()
            next(lines)
        with connect(server) as connection:  # before its body was complete
            connection.sendall(head % (CHAT.encode(), 100) + b"{")
            with until(lambda: server.state.admission.under_way > 0):
                pass
        records = log.wait(3)
        with until(lambda: server.state.admission.under_way == 0):
            pass
    assert [record["status"] for record in records] == [499] * 3
    (streamed,) = (record for record in records if record["streamed"])
    assert streamed["bytes_sent"] > 0
    assert 0 < streamed["completion_tokens"] < 400
    (partial,) = (record for record in records if record["prompt_tokens"] is None)
    assert partial["answer_id"] is None
    assert len(log.records()) == 3


def test_what_the_end_of_the_server_cuts_off_is_recorded(log: Log) -> None:
    server = serving(log, ScriptedClient(endless, hold_at=20), shutdown_timeout=0.1)
    with (
        server,
        httpx.Client(trust_env=False, timeout=PATIENCE) as client,
        client.stream("POST", server.url + CHAT, json=GOOD | {"max_tokens": 400, "stream": True}) as answer,
    ):
        lines = answer.iter_lines()
        next(lines)
        server.stop()
        assert "shutting down" in "".join(lines)
    assert [record["status"] for record in log.records()] == [503]


def test_failures_in_mid_stream_are_recorded_as_such(log: Log) -> None:
    with serving(log, ScriptedClient(fail_at=2)) as server:
        answer = HTTP.post(server.url + CHAT, json=GOOD | {"stream": True})
        assert answer.status_code == 200
    assert [record["status"] for record in log.records()] == [500]


def test_a_client_cannot_write_lines_of_its_own(log: Log, tmp_path: Path) -> None:
    text = tmp_path / "server.log"
    config = config_of(access_log=str(log.path), enable_request_id_headers=True)
    with run_server(config=config) as server:
        configure("info", file=str(text))
        try:
            hostile = b"/v1/x%0a%7b%22status%22:200%7d%0d%1b[2J%e2%80%a8%00"
            for header in (b"a\x1b[31m", b"\xff\xfe", b"x" * 500, b'"}{"', b"a b", b""):
                answer = exchange(
                    server,
                    b"GET %b HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-Request-Id: %b\r\n\r\n" % (hostile, header),
                )
                assert answer[:12] in (b"HTTP/1.1 404", b"HTTP/1.1 400")
            body = GOOD | {"request_id": 'evil\n{"status":1}\x1b[0m'}
            assert HTTP.post(server.url + CHAT, json=body).status_code == 200
        finally:
            configure("error")
    assert len(log.path.read_bytes().splitlines()) == len(log.records()) == 7
    for record in log.records():
        assert re.fullmatch(r"[A-Za-z0-9._-]*", record["request_id"])
    for written in (log.path.read_bytes(), text.read_bytes()):
        assert not set(written.replace(b"\n", b"")) & set(range(32))
    shown = text.read_text().split("\n")[:-1]
    assert len(shown) >= 2
    assert all(re.match(r"(INFO|WARNING|ERROR) \d\d-\d\d ", line) for line in shown)


def test_a_request_id_is_adopted_and_shown_when_asked_for() -> None:
    with run_server(config=config_of(enable_request_id_headers=True)) as server:
        adopted = HTTP.post(server.url + CHAT, json=GOOD, headers={"x-request-id": "a-1"})
        assert (adopted.headers["x-request-id"], adopted.json()["id"]) == ("a-1", "chatcmpl-a-1")
        made = [HTTP.get(server.url + "/nothing").headers["x-request-id"] for _ in range(2)]
        assert made[0] != made[1]
        assert all(re.fullmatch(r"[0-9a-f]{32}", one) for one in made)
        unsafe = HTTP.get(server.url + "/version", headers={"x-request-id": "a b"})
        assert re.fullmatch(r"[0-9a-f]{32}", unsafe.headers["x-request-id"])
    with run_server() as server:
        assert "x-request-id" not in HTTP.get(server.url + "/version", headers={"x-request-id": "a-1"}).headers


def test_paths_can_be_left_out(log: Log) -> None:
    with serving(log, disable_access_log_for_endpoints=("/version", "/health")) as server:
        for path in ("/version", "/health", "/load"):
            HTTP.get(server.url + path)
        assert [record["path"] for record in log.wait(1)] == ["/load"]


def test_a_rotated_file_is_followed(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    file = AccessFile(str(path))
    record = AccessRecord(
        time="t",
        request_id="1",
        answer_id=None,
        key=None,
        client=None,
        method="GET",
        path="/",
        status=200,
        streamed=False,
        seconds=0.1,
        first_byte_seconds=None,
        bytes_received=0,
        bytes_sent=0,
        prompt_tokens=None,
        cached_tokens=None,
        completion_tokens=None,
    )
    file.write(record)
    file.follow()
    file.write(record)
    os.replace(path, tmp_path / "a.1")
    file.write(record)
    file.follow()
    file.write(record)
    path.unlink()
    file.follow()
    assert path.read_text() == ""
    file.write(record)
    file.close()
    assert len((tmp_path / "a.1").read_text().splitlines()) == 3
    assert len(path.read_text().splitlines()) == 1


def test_a_file_that_cannot_be_written_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="access_log"):
        AccessFile(str(tmp_path / "none" / "a.jsonl"))
    options = TelemetryConfig(log_file=str(tmp_path / "none" / "a.log"))
    with pytest.raises(ConfigError, match="log_file"):
        run_real_server(EngineConfig(telemetry=options))


def test_standard_output_takes_records(capfd) -> None:
    with run_server(config=config_of(access_log="-")) as server:
        HTTP.get(server.url + "/version")
    records = [json.loads(line) for line in capfd.readouterr().out.splitlines() if line.startswith("{")]
    assert [record["path"] for record in records] == ["/version"]


def test_control_characters_are_escaped_in_the_log() -> None:
    record = logging.LogRecord("octavo.x", logging.INFO, "", 0, "a\x1b[2J\u2028b\x9b", (), None)
    record.fields = {"k": "v\x07\nw", "u": "žluť"}
    line = LineFormatter().format(record)
    assert line.endswith(r"x: a\x1b[2J\u2028b\x9b k=v\x07\nw u=žluť")
