"""What happens when clients go, engines fail and servers stop."""

import asyncio
import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from octavo.engine.threaded import ThreadedEngine
from octavo.engine.transport import Cancel, Submit
from octavo.errors import EngineDeadError
from octavo.flow.request import GenerationRequest, Sampling, Stopping
from tests.serving.scripted import HTTP, PATIENCE, RunningServer, config_of, run_server, until
from tests.serving.scripted_engine import ScriptedClient, endless

CHAT = "/v1/chat/completions"
GOOD = {"messages": [{"role": "user", "content": "Hi"}]}


def idle(server: RunningServer) -> bool:
    return server.state.engine.live == 0 and server.client.stats().running == 0 and server.client.stats().waiting == 0


@pytest.mark.parametrize("extra", [{}, {"n": 4}])
def test_leaving_a_stream_cancels_it(extra: dict) -> None:
    with run_server(ScriptedClient(endless, hold_at=20)) as server:
        with (
            until(lambda: idle(server)),
            HTTP.stream("POST", server.url + CHAT, json=GOOD | {"stream": True} | extra) as r,
        ):
            next(r.iter_lines())
        assert len(server.client.cancelled) == 1


@pytest.mark.parametrize("max_running", [1024, 0])
def test_leaving_before_the_answer_cancels_it(max_running: int) -> None:
    client = ScriptedClient(endless, step_seconds=0.01, max_running=max_running, hold_at=20)
    with run_server(client) as server:
        body = json.dumps(GOOD).encode()
        head = (
            f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        address = httpx.URL(server.url)
        with until(lambda: idle(server)), socket.create_connection((address.host, address.port)) as connection:
            connection.sendall(head.encode() + body)
            with until(lambda: server.state.engine.live == 1):
                pass
        with until(lambda: len(client.cancelled) == 1):
            pass


def test_nothing_is_cancelled_after_a_normal_end() -> None:
    with run_server() as server:
        for stream in (False, True):
            HTTP.post(server.url + CHAT, json=GOOD | {"stream": stream})
        assert server.client.cancelled == []


def test_a_stop_text_cancels_the_rest() -> None:
    with run_server(ScriptedClient(endless)) as server:
        with until(lambda: idle(server)):
            answer = HTTP.post(server.url + CHAT, json=GOOD | {"stop": ["xxx"]}).json()
        assert answer["choices"][0]["finish_reason"] == "stop"
        assert len(server.client.cancelled) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_failure_before_the_first_token_is_a_status(stream: bool) -> None:
    with run_server(ScriptedClient(fail_at=0)) as server:
        answer = HTTP.post(server.url + CHAT, json=GOOD | {"stream": stream})
        assert answer.status_code == 500
        assert answer.json()["error"]["type"] == "InternalServerError"
        assert "Traceback" not in answer.text


def test_failure_in_mid_stream_is_an_event() -> None:
    with run_server(ScriptedClient(fail_at=3)) as server:
        for path, body in ((CHAT, GOOD), ("/v1/completions", {"prompt": "Hi"})):
            lines = [x for x in HTTP.post(server.url + path, json=body | {"stream": True}).text.split("\n\n") if x]
            assert lines[-1] == "data: [DONE]"
            assert json.loads(lines[-2].removeprefix("data: "))["error"]["code"] == 500
            assert 'finish_reason":"' not in "".join(lines)
            assert idle(server)


def test_64_streams_at_once() -> None:
    with run_server(ScriptedClient(step_seconds=0.002)) as server, httpx.Client(timeout=PATIENCE) as client:

        def ask(number: int) -> str:
            body = GOOD | {"stream": True, "seed": number}
            text = ""
            with client.stream("POST", server.url + CHAT, json=body) as answer:
                for line in answer.iter_lines():
                    if line.startswith("data: {"):
                        text += json.loads(line[6:])["choices"][0]["delta"].get("content", "")
            return text

        with ThreadPoolExecutor(64) as pool:
            assert set(pool.map(ask, range(128))) == {"Hello, world!"}
        with until(lambda: idle(server)):
            pass


def test_drain_finishes_what_is_under_way() -> None:
    client = ScriptedClient(hold_at=3)
    with run_server(client) as server:
        with HTTP.stream("POST", server.url + CHAT, json=GOOD | {"stream": True}) as answer:
            lines = answer.iter_lines()
            next(lines)
            server.stop()
            with until(lambda: server.state.draining):
                pass
            client.hold_at = None
            rest = "".join(lines)
        assert rest.endswith("data: [DONE]")
        assert '"error"' not in rest
        server.thread.join(PATIENCE)
        assert not server.thread.is_alive()
        with pytest.raises(httpx.ConnectError):
            HTTP.get(server.url + "/health")


@pytest.mark.parametrize("stream", [False, True])
def test_drain_ends_what_takes_too_long(stream: bool) -> None:
    client = ScriptedClient(endless, hold_at=20)
    with run_server(client, config_of(shutdown_timeout=0.2)) as server:
        answers: list[httpx.Response] = []
        body = GOOD | {"stream": stream}
        thread = threading.Thread(target=lambda: answers.append(HTTP.post(server.url + CHAT, json=body)))
        thread.start()
        with until(lambda: server.state.engine.live == 1 and client.steps > 2):
            pass
        server.stop()
        thread.join(PATIENCE)
        text = answers[0].text
        assert answers[0].status_code == (200 if stream else 503)
        assert "shutting down" in text
        if stream:
            assert text.rstrip().endswith("data: [DONE]")


def test_a_second_signal_ends_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    client = ScriptedClient(endless, hold_at=20)
    with run_server(client, config_of(shutdown_timeout=300)) as server:
        answers: list[httpx.Response] = []
        thread = threading.Thread(target=lambda: answers.append(HTTP.post(server.url + CHAT, json=GOOD)))
        thread.start()
        with until(lambda: server.state.engine.live == 1 and client.steps > 2):
            pass
        monkeypatch.setattr("octavo.serving.server._ONE_PRESS", 1e6)
        server.stop()
        server.stop()  # the same key press, passed on by a parent
        with until(lambda: server.state.draining):
            pass
        assert server.state.engine.live == 1
        monkeypatch.undo()

        def again() -> bool:
            server.stop()
            return not thread.is_alive()

        with until(again):
            pass
        assert answers[0].status_code == 503
        assert "shutting down" in answers[0].text


def test_who_hears_of_an_engines_death_sees_it_dead() -> None:
    """Also while its thread has not quite ended."""
    client, ended = ScriptedClient(), threading.Event()

    async def main() -> None:
        link = ThreadedEngine(client)
        heard: asyncio.Future[tuple[bool, bool]] = asyncio.get_running_loop().create_future()
        link.attach(lambda _message: None, lambda _reason: heard.set_result((link.alive, link.lost)))
        await link.ready()
        mailbox = link._mailbox
        assert mailbox is not None
        call = mailbox.call
        mailbox.call = lambda *arguments: (call(*arguments), ended.wait(PATIENCE))  # type: ignore[method-assign]
        client.submit = lambda request: 1 / 0  # type: ignore[method-assign, assignment]
        link.send(Submit(GenerationRequest("r", (1,), Sampling(), Stopping(1))))
        assert await heard == (False, True)
        with pytest.raises(EngineDeadError):
            link.send(Cancel(("r",)))
        ended.set()
        await link.close()

    asyncio.run(main())


def test_a_dead_engine_is_503() -> None:
    with run_server(ScriptedClient(endless, step_seconds=0.01)) as server:

        def die(timeout: float | None = None) -> list:
            raise RuntimeError("gone")

        server.client.receive = die  # type: ignore[method-assign]
        answer = HTTP.post(server.url + CHAT, json=GOOD)
        assert (answer.status_code, answer.json()["error"]["type"]) == (503, "ServiceUnavailableError")
        assert HTTP.get(server.url + "/health").status_code == 503
        assert HTTP.post(server.url + CHAT, json=GOOD).status_code == 503
