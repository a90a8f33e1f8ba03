"""The server part of `octavo bench`: streams from clients in threads, with the standard library alone."""

import http.client
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from random import Random
from typing import Any, cast
from urllib.parse import urlsplit

from octavo.cli.bench_figures import Line, Load, summary
from octavo.config.environment import read_environment
from octavo.errors import ConfigError, OctavoError

_WORDS = (
    "river",
    "stone",
    "light",
    "garden",
    "engine",
    "paper",
    "winter",
    "market",
    "signal",
    "harbour",
    "silver",
    "moss",
)
_TIMEOUT = 600.0  # seconds that a client waits for the next event


class BenchError(OctavoError):
    """The server could not be measured."""


@dataclass(frozen=True, slots=True)
class _Stream:
    """One answer. Times in seconds of the same clock."""

    sent: float
    first: float
    last: float
    prompt_tokens: int
    output_tokens: int


def measure_server(url: str, model: str | None, load: Load) -> Line:
    """Run the load against a server with an OpenAI-compatible API.

    Raises:
        BenchError: it cannot be reached, or answers with an error.
    """
    target = _Target(url, model)
    random = Random(0)
    prompts = [" ".join(random.choice(_WORDS) for _ in range(load.prompt_tokens)) for _ in range(load.requests)]
    began = time.perf_counter()
    started = threading.Semaphore(load.concurrency)

    def one(index: int) -> _Stream:
        with started:
            return target.stream(prompts[index], load.output_tokens)

    with ThreadPoolExecutor(load.concurrency if not load.rate else load.requests) as clients:
        futures: list[Future[_Stream]] = []
        for index in range(load.requests):
            if load.rate:
                time.sleep(max(0.0, began + index / load.rate - time.perf_counter()))
            futures.append(clients.submit(one, index))
        streams = [future.result() for future in futures]
    seconds = time.perf_counter() - began
    per_token = [(s.last - s.first) / (s.output_tokens - 1) for s in streams if s.output_tokens > 1]
    tokens = sum(s.prompt_tokens for s in streams), sum(s.output_tokens for s in streams)
    return summary(f"{load.concurrency} clients", [s.first - s.sent for s in streams], per_token, tokens, seconds)


class _Target:
    """Where requests go. Shared by the clients' threads; constant."""

    def __init__(self, url: str, model: str | None) -> None:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"--url {url}: http://HOST:PORT is expected")
        self._parts = parts
        key = read_environment().api_key
        self._headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
        self._model = model or self._first_model()

    def stream(self, prompt: str, max_tokens: int) -> _Stream:
        """One streamed completion."""
        body = {
            "model": self._model,
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        sent = time.perf_counter()
        first = last = 0.0
        usage: dict[str, int] = {}
        for event in self._events("/v1/completions", body):
            if event.get("choices"):
                last = time.perf_counter()
                first = first or last
            usage = event.get("usage") or usage
        return _Stream(sent, first, last, usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0))

    def _first_model(self) -> str:
        connection = self._connect()
        try:
            connection.request("GET", f"{self._parts.path.rstrip('/')}/v1/models", headers=self._headers)
            return str(self._read(connection)["data"][0]["id"])
        except OSError as error:
            raise BenchError(f"cannot reach {self._parts.geturl()}: {error}") from error
        finally:
            connection.close()

    def _events(self, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        connection = self._connect()
        try:
            connection.request("POST", f"{self._parts.path.rstrip('/')}{path}", json.dumps(body), self._headers)
            response = connection.getresponse()
            if response.status != 200:
                raise BenchError(
                    f"the server answered {response.status}: {response.read(500).decode('utf-8', 'replace')}"
                )
            for line in response:
                if line.startswith(b"data: {"):
                    yield cast(dict[str, Any], json.loads(line[6:]))
        except OSError as error:
            raise BenchError(f"cannot reach {self._parts.geturl()}: {error}") from error
        finally:
            connection.close()

    def _connect(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
        return kind(cast(str, self._parts.hostname), self._parts.port, timeout=_TIMEOUT)

    def _read(self, connection: http.client.HTTPConnection) -> dict[str, Any]:
        response = connection.getresponse()
        content = response.read()
        if response.status != 200:
            raise BenchError(f"the server answered {response.status}: {content[:500].decode('utf-8', 'replace')}")
        return cast(dict[str, Any], json.loads(content))
