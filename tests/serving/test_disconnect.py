"""Who leaves is noticed at once, on every route and at every stage, and nothing goes on for them."""

import asyncio
import json
import os
import socket
import threading
from pathlib import Path

import pytest

from octavo.config.engine import ServingConfig
from octavo.flow.result import SequenceOutput
from octavo.serving.edge import Edge
from tests.serving.scripted import PATIENCE, RunningServer, connect, run_server, until
from tests.serving.scripted_engine import ScriptedClient, endless

CHAT = {"messages": [{"role": "user", "content": "Hi"}]}
BODIES = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"prompt": ["Hi", "there"]},
    "/v1/messages": CHAT | {"model": "tiny", "max_tokens": 400},
    "/v1/responses": {"input": "Hi"},
}


def post(path: str, body: dict) -> bytes:
    content = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


class Stepping(ScriptedClient):
    """Takes three steps; the fourth ends when `go` is set. `stands`: it has begun."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.go, self.stands = threading.Event(), False

    def receive(self, timeout: float | None = None) -> list[SequenceOutput]:
        if self.steps == 3:
            self.stands = True
            assert self.go.wait(PATIENCE)
        return super().receive(timeout)


def gone(server: RunningServer) -> bool:
    return server.state.engine.live == 0 and server.state.admission.under_way == 0


@pytest.mark.parametrize("stage", ["running", "queued"])
@pytest.mark.parametrize("extra", [{}, {"stream": True}, {"n": 3}, {"stream": True, "n": 3}])
@pytest.mark.parametrize("path", BODIES)
def test_within_one_step(path: str, extra: dict, stage: str) -> None:
    client = Stepping(endless, max_running=0 if stage == "queued" else 1024)
    with run_server(client) as server:
        with connect(server) as connection:
            connection.sendall(post(path, BODIES[path] | extra))
            with until(lambda: server.state.engine.live == len(BODIES[path].get("prompt", "1")) and client.stands):
                pass
        with until(lambda: gone(server)):
            pass
        client.go.set()
        with until(lambda: not client.stats().under_way):
            pass
        assert client.steps == 4  # the one that was running was the last
        assert len(client.cancelled) == len(BODIES[path].get("prompt", "1"))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", BODIES)
def test_at_once(path: str, stream: bool) -> None:
    """Neither a step nor a deadline is waited for: none comes."""
    with run_server(ScriptedClient(endless, hold_at=3)) as server:
        with connect(server) as connection:
            connection.sendall(post(path, BODIES[path] | {"stream": stream}))
            with until(lambda: server.state.engine.live > 0):
                pass
        with until(lambda: gone(server)):
            pass


def test_while_a_prompt_is_being_prepared() -> None:
    with run_server() as server:
        blocked, release = threading.Event(), threading.Event()
        submitted: list[object] = []
        server.client.submit = submitted.append  # type: ignore[method-assign]
        prepare = server.state.inputs.prepare

        def slow(*arguments, **options):
            blocked.set()
            assert release.wait(PATIENCE)
            return prepare(*arguments, **options)

        server.state.inputs.prepare = slow  # type: ignore[method-assign]
        with connect(server) as connection:
            connection.sendall(post("/v1/completions", {"prompt": "x" * 20_000}))
            assert blocked.wait(PATIENCE)
            assert server.state.admission.under_way == 1
        with until(lambda: server.state.admission.under_way == 0):
            pass
        release.set()
        assert gone(server)
    assert submitted == []


def test_a_half_closed_connection_counts_as_gone() -> None:
    client = ScriptedClient(endless, hold_at=20)
    with run_server(client) as server, connect(server) as connection:
        connection.sendall(post("/v1/chat/completions", CHAT))
        with until(lambda: server.state.engine.live == 1):
            pass
        connection.shutdown(socket.SHUT_WR)
        with until(lambda: gone(server) and len(client.cancelled) == 1):
            pass


def test_a_reset_connection_counts_as_gone() -> None:
    client = ScriptedClient(endless, hold_at=20)
    with run_server(client) as server:
        connection = connect(server)
        connection.sendall(post("/v1/chat/completions", CHAT | {"stream": True}))
        assert connection.recv(1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        connection.close()
        with until(lambda: gone(server) and len(client.cancelled) == 1):
            pass


def test_a_signal_to_read_files_again_is_followed_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.serving.edge._LOOK_SECONDS", 1e6)  # no look comes by itself
    path = tmp_path / "access.jsonl"

    async def run() -> None:
        edge, reload = Edge(ServingConfig(access_log=str(path))), asyncio.Event()
        following = asyncio.ensure_future(edge.follow(reload))
        await asyncio.sleep(0)
        os.replace(path, tmp_path / "old")
        reload.set()

        async def reopened() -> None:
            while not path.exists():
                await asyncio.sleep(0.005)

        await asyncio.wait_for(reopened(), PATIENCE)
        following.cancel()
        edge.close()

    asyncio.run(run())
    assert path.exists()
