"""A real HTTP server around a scripted engine."""

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType

import httpx

from octavo.config.engine import EngineConfig, SchedulingConfig, ServingConfig, TelemetryConfig
from octavo.engine.async_engine import AsyncEngine
from octavo.engine.client import EngineClient
from octavo.engine.threaded import ThreadedEngine
from octavo.inputs.limits import InputLimits
from octavo.inputs.processor import InputProcessor
from octavo.outputs.processor import OutputProcessor
from octavo.serving.batches.lane import Batches
from octavo.serving.edge import Edge
from octavo.serving.openai.server_defaults import template_variables
from octavo.serving.runtime import kept_files, serve, shown
from octavo.serving.server import Stop, bind
from octavo.serving.state import ServerState
from octavo.telemetry.metrics import MetricsStore
from octavo.telemetry.prometheus import PrometheusExporter
from octavo.text.chat_template import ChatTemplate
from octavo.text.grammar import GrammarCompiler
from tests.serving.scripted_engine import CONTEXT, VOCAB, ByteTokenizer, ScriptedClient

# Seconds that anything may take: no busy machine needs so long, and what never comes fails all the same.
PATIENCE = 120.0

# One client for all tests: making one takes longer than most requests. No connection outlives its request.
HTTP = httpx.Client(timeout=PATIENCE, trust_env=False, limits=httpx.Limits(max_keepalive_connections=0))

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@dataclass
class RunningServer:
    """A server in a thread. `url` has no trailing slash."""

    url: str
    client: EngineClient
    state: ServerState
    store: MetricsStore
    stop: Callable[[], None]
    thread: threading.Thread

    def __enter__(self) -> "RunningServer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive(), "the server does not stop"


# Unused connections stay: none is closed because a test came to it late.
_SERVING = {"port": 0, "shutdown_timeout": 5.0, "keep_alive_timeout": 300.0, "file_store": "none"}


def config_of(**serving: object) -> EngineConfig:
    return EngineConfig(
        serving=ServingConfig(**{**_SERVING, **serving}),  # type: ignore[arg-type]
        scheduling=SchedulingConfig(max_waiting=200),
        telemetry=TelemetryConfig(log_level="error"),
    )


def run_server(
    client: EngineClient | None = None, config: EngineConfig | None = None, dev_mode: bool = False
) -> RunningServer:
    """Start a server on a free port; returns when it answers."""
    client, config = client or ScriptedClient(), config or config_of()
    listener = bind(config.serving)
    listener.listen()  # connections wait until the server accepts: no polling for readiness
    started: list[RunningServer] = []
    ready = threading.Event()

    async def main() -> None:
        stop = Stop()
        loop = asyncio.get_running_loop()
        store = MetricsStore("tiny")
        tokenizer = ByteTokenizer()
        link = ThreadedEngine(client)
        engine = AsyncEngine(link, OutputProcessor(tokenizer), store, config.scheduling.max_waiting)
        await engine.ready()
        files = kept_files(config.serving)
        limits = InputLimits(CONTEXT, VOCAB, config.serving.max_logprobs)
        state = ServerState(
            engine=engine,
            inputs=InputProcessor(
                tokenizer, ChatTemplate(TEMPLATE), limits, grammars=GrammarCompiler(lambda: tokenizer, VOCAB)
            ),
            config=config.serving,
            models=config.serving.served_model_name or ("tiny",),
            model_path="/models/tiny",
            version="1.2.3",
            max_body_bytes=1 << 20,
            started=1_700_000_000,
            exporter=PrometheusExporter(store),
            dev_mode=dev_mode,
            settings=shown(config),
            files=files,
            batches=Batches(files, "tiny"),
            template_variables=template_variables(config.serving),
        )
        scheme = "https" if config.serving.ssl_certfile else "http"
        url = "unix:" if config.serving.uds else "{}://{}:{}".format(scheme, *listener.getsockname()[:2])
        halt = lambda: loop.call_soon_threadsafe(stop.ask) if not loop.is_closed() else None  # noqa: E731
        started.append(RunningServer(url, client, state, store, halt, threading.current_thread()))
        ready.set()
        await serve(state, store, listener, stop, config, Edge(config.serving))
        await engine.close()

    thread = threading.Thread(target=lambda: asyncio.run(main()), daemon=True)
    thread.start()
    assert ready.wait(PATIENCE)
    return started[0]


def connect(server: RunningServer) -> socket.socket:
    """A bare connection."""
    return socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=PATIENCE)


def exchange(server: RunningServer, data: bytes) -> bytes:
    """What comes back for these bytes, until the server closes the connection."""
    with connect(server) as connection:
        connection.sendall(data)
        return b"".join(iter(lambda: connection.recv(65536), b""))


@contextmanager
def until(condition: Callable[[], bool], seconds: float = PATIENCE) -> Iterator[None]:
    """After the body, wait until `condition` holds."""
    yield
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not come true in time"
        time.sleep(0.005)
