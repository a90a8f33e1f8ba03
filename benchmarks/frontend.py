"""What the HTTP frontend costs: CPU time of its process while streams run, with an engine that computes nothing.

    python benchmarks/frontend.py [--streams 64] [--steps-per-second 20] [--seconds 5] [--profile FILE]

The engine is a process of its own and says one token a step for every stream; the client is this process. So what the
frontend's process uses is the frontend: messages from the engine, text, JSON, HTTP. `load` is what it uses of one core.
"""

import argparse
import json
import multiprocessing
import selectors
import socket
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import psutil  # noqa: E402

from tests.serving.frontend_process import run_frontend  # noqa: E402
from tests.serving.scripted_engine import CONTEXT  # noqa: E402

TOKENS = CONTEXT - 32
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}),
    "chat, usage in every chunk": (
        "/v1/chat/completions",
        {
            "messages": [{"role": "user", "content": "Hi"}],
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        },
    ),
    "completions": ("/v1/completions", {"prompt": "Hi"}),
    "chat, 5 log-probabilities": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "Hi"}], "logprobs": True, "top_logprobs": 5},
    ),
}


class Clients:
    """Streams that are read and counted, with as little work as possible."""

    def __init__(self, port: int, path: str, body: dict[str, Any], count: int) -> None:
        self._selector = selectors.DefaultSelector()
        self.chunks = 0
        self.bytes = 0
        content = json.dumps({**body, "stream": True, "max_tokens": TOKENS, "ignore_eos": True}).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        request = f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content
        self._sockets = [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]
        for one in self._sockets:
            self._selector.register(one, selectors.EVENT_READ)
            one.sendall(request)

    def read(self, seconds: float) -> None:
        """Read for so long."""
        end = time.perf_counter() + seconds
        while (left := end - time.perf_counter()) > 0:
            for key, _ in self._selector.select(left):
                data = key.fileobj.recv(65536)  # type: ignore[union-attr]
                self.chunks += data.count(b"data: ")
                self.bytes += len(data)
                assert data, "a stream ended before its time"

    def close(self) -> None:
        """Leave."""
        for one in self._sockets:
            one.close()


def measure(kind: str, streams: int, steps_per_second: float, seconds: float, profile: str | None) -> None:
    """One row."""
    path, body = KINDS[kind]
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(
        target=run_frontend, args=(there, steps_per_second, profile), daemon=False
    )
    process.start()
    clients = Clients(here.recv(), path, body, streams)
    clients.read(1.0)  # all are under way
    frontend = psutil.Process(process.pid)
    before, chunks, began = frontend.cpu_times(), clients.chunks, time.perf_counter()
    clients.read(seconds)
    after, elapsed = frontend.cpu_times(), time.perf_counter() - began
    used = after.user + after.system - before.user - before.system
    chunks = clients.chunks - chunks
    clients.close()
    here.send("stop")
    process.join(20)
    print(
        f"{kind:28} {streams:4} streams {chunks / elapsed:7.0f} chunks/s   load {100 * used / elapsed:5.1f} %   "
        f"{1e6 * used / chunks:5.1f} us a chunk",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--steps-per-second", type=float, default=20.0)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--kind", choices=list(KINDS), help="only this")
    parser.add_argument("--profile", help="write a profile of the frontend to this file")
    given = parser.parse_args()
    for kind in [given.kind] if given.kind else KINDS:
        measure(kind, given.streams, given.steps_per_second, given.seconds, given.profile)


if __name__ == "__main__":
    main()
