"""Damaged requests by the hundred: every answer is one, nothing fails inside, and the server goes on."""

import random
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.serving.scripted import HTTP, config_of, connect, run_server, until
from tests.serving.test_limits import GOOD, idle, request_bytes

TYPE = b"Content-Type: application/json\r\n"
SEEDS = (
    request_bytes(),
    request_bytes(stream=True),
    b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n",
    b"POST /tokenize HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" + TYPE + b'\r\n5\r\n{"pro\r\n0\r\n\r\n',
    b"GET / HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 14\r\n" + TYPE + b'\r\n{"prompt":"x"}',
)
TIMEOUT = 0.2  # seconds that the server gives a client
STATUSES = {b"100", b"200", b"400", b"404", b"405", b"408", b"413", b"415", b"431"}


def damaged(data: bytes, draw: random.Random) -> bytes:
    """A request with a few bytes changed, added, taken out, or others put in between."""
    changed = bytearray(data)
    for _ in range(draw.randint(1, 6)):
        at = draw.randrange(len(changed) + 1)
        what = draw.randrange(4)
        if what == 0 and at < len(changed):
            changed[at] = draw.randrange(256)
        elif what == 1:
            changed[at:at] = draw.randbytes(draw.randint(1, 20))
        elif what == 2:
            del changed[at : at + draw.randint(1, 10)]
        else:
            changed[at:at] = draw.choice(SEEDS)
    return bytes(changed)


@contextmanager
def hung_up_only_after(moment: float) -> Iterator[None]:
    """The server may have ended the connection of who was that late, and of nobody else."""
    try:
        yield
    except OSError:
        if time.monotonic() < moment:
            raise


def test_damaged_requests(caplog: pytest.LogCaptureFixture) -> None:
    draw = random.Random(1)
    seen: set[bytes] = set()
    with run_server(config=config_of(client_timeout=TIMEOUT, keep_alive_timeout=TIMEOUT)) as server:
        for _ in range(600):
            before = draw.choice(SEEDS) if draw.random() < 0.2 else b""
            data, ends, reads = before + damaged(draw.choice(SEEDS), draw), draw.random() < 0.5, draw.random() < 0.7
            begun = time.monotonic()
            with connect(server) as connection, hung_up_only_after(begun + TIMEOUT):
                connection.sendall(data)
                if ends:
                    connection.shutdown(socket.SHUT_WR)
                if reads and (answer := connection.recv(64)):
                    assert answer.startswith(b"HTTP/1.1 ")
                    seen.add(answer[9:12])
        with until(lambda: idle(server)):
            pass
        with until(lambda: HTTP.post(server.url + "/v1/chat/completions", json=GOOD).status_code == 200):
            pass
    assert seen <= STATUSES
    assert {b"200", b"400"} <= seen
    # An exception in a callback of the event loop, or in the application, would be here.
    assert not [record for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")]
