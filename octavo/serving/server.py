"""Starts and stops the HTTP server: socket first, engine beside the text side, ten quiet lines, a drain at the end."""

import asyncio
import contextlib
import signal
import socket
import stat
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import uvicorn
import uvloop

import octavo
from octavo.config.engine import EngineConfig, ServingConfig
from octavo.config.values import parse_size
from octavo.engine.async_engine import AsyncEngine
from octavo.engine.frontend import build_frontend
from octavo.engine.supervisor import EngineSupervisor
from octavo.errors import ConfigError
from octavo.serving.app import build_app
from octavo.serving.state import ServerState
from octavo.telemetry.log import ThroughputLog, configure
from octavo.telemetry.metrics import MetricsStore
from octavo.telemetry.prometheus import PrometheusExporter

# After the drain has ended the last streams, their answers still have to be written.
_WRITE_SECONDS = 5
_BACKLOG = 2048

Say = Callable[[str], None]


def run_server(config: EngineConfig, say: Say = print) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit status 0.

    Args:
        config: what to serve and where.
        say: gets the lines that tell a person what is there; at most ten.

    Raises:
        UserError: the model, an option or the address is wrong; the message is one line.
    """
    configure(config.telemetry.log_level)
    # First, so that an address in use is told before the model is loaded.
    listener = bind(config.serving)
    try:
        return uvloop.run(_run(config, listener, say))
    finally:
        listener.close()
        if config.serving.uds:
            Path(config.serving.uds).unlink(missing_ok=True)


async def _run(config: EngineConfig, listener: socket.socket, say: Say) -> int:
    began = time.monotonic()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    supervisor = EngineSupervisor(config)
    try:
        # The engine loads weights in its process while this one reads the tokenizer.
        supervisor.launch()
        starting = asyncio.ensure_future(_start(config, supervisor))
        stopping = asyncio.ensure_future(stop.wait())
        await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not starting.done():
            starting.cancel()
            return 0
        state, store = starting.result()
        for line in greeting(config, state, address_of(listener, config.serving), time.monotonic() - began):
            say(line)
        await serve(state, store, listener, stop, config)
        return 0
    finally:
        await supervisor.close()


async def _start(config: EngineConfig, supervisor: EngineSupervisor) -> tuple[ServerState, MetricsStore]:
    frontend = await asyncio.to_thread(build_frontend, config)
    info = await supervisor.ready()
    models = config.serving.served_model_name or (frontend.name,)
    store = MetricsStore(models[0])
    engine = AsyncEngine(supervisor, frontend.outputs(), store, config.scheduling.max_waiting)
    state = ServerState(
        engine=engine,
        inputs=frontend.inputs(info),
        config=config.serving,
        models=models,
        model_path=str(frontend.path),
        version=octavo.__version__,
        max_body_bytes=parse_size(config.serving.max_body_size),
        started=int(time.time()),
        sampling_defaults=frontend.sampling_defaults(),
        exporter=PrometheusExporter(store) if config.telemetry.enable_metrics else None,
    )
    return state, store


async def serve(
    state: ServerState, store: MetricsStore, listener: socket.socket, stop: asyncio.Event, config: EngineConfig
) -> None:
    """Answer requests at `listener` until `stop`; then finish those under way, within `shutdown_timeout`."""
    server = _Server(
        uvicorn.Config(
            build_app(state, store),
            http="httptools",
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="error",
            access_log=False,
            server_header=False,
            root_path=config.serving.root_path,
            backlog=_BACKLOG,
            timeout_graceful_shutdown=int(config.serving.shutdown_timeout) + _WRITE_SECONDS,
        )
    )
    running = asyncio.ensure_future(server.serve(sockets=[listener]))
    logging = asyncio.ensure_future(_log_throughput(store, config))
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((running, stopping), return_when=asyncio.FIRST_COMPLETED)
        state.draining = True
        server.should_exit = True
        await state.engine.drain(config.serving.shutdown_timeout)
        await running
    finally:
        logging.cancel()
        stopping.cancel()


async def _log_throughput(store: MetricsStore, config: EngineConfig) -> None:
    log = ThroughputLog(store, time.monotonic)
    while not config.telemetry.disable_log_stats:
        await asyncio.sleep(config.telemetry.log_stats_interval)
        log.tick()


class _Server(uvicorn.Server):
    """uvicorn without its signal handling, which would end the process by the signal instead of with status 0."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leave signals to `_run`."""
        yield


def bind(config: ServingConfig) -> socket.socket:
    """The socket to listen at; it refuses connections until the server listens.

    Raises:
        ConfigError: the address is in use or not of this machine.
    """
    try:
        return _bind_unix(config.uds) if config.uds else _bind_tcp(config.host, config.port)
    except (OSError, OverflowError) as error:
        place = config.uds or f"{config.host}:{config.port}"
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"cannot listen at {place}: {reason}; choose another --port or --host") from None


def _bind_tcp(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError:
        listener.close()
        raise
    return listener


def _bind_unix(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    file = Path(path)
    if file.exists() and stat.S_ISSOCK(file.stat().st_mode) and not _answers(path):
        file.unlink()  # left behind by a server that was killed
    listener.bind(path)
    return listener


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(path) == 0


def address_of(listener: socket.socket, config: ServingConfig) -> str:
    """The URL to reach the server by; the port that was really taken."""
    if config.uds:
        return f"unix:{config.uds}"
    host, port = listener.getsockname()[:2]
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{shown}:{port}{config.root_path}"


def greeting(config: EngineConfig, state: ServerState, address: str, seconds: float) -> Iterator[str]:
    """What a person wants to know when the server is up; at most ten lines."""
    info = state.engine.info
    model = state.models[0]
    yield f"Octavo {state.version}"
    yield f"model    {model}" + (f" ({state.model_path})" if state.model_path != model else "")
    yield f"context  {info.max_model_len} tokens, {info.max_num_seqs} sequences at once"
    yield f"cache    {info.num_blocks} blocks of {info.block_size} tokens"
    yield f"ready    in {seconds:.1f} s (engine {info.start_seconds:.1f} s)"
    yield f"address  {address}" + (" (API key needed)" if config.serving.api_key else "")
    yield "Application startup complete."
    route, body = "/v1/completions", '{"prompt": "Once upon a time"}'
    if state.inputs.chat_template is not None:
        route, body = "/v1/chat/completions", '{"messages": [{"role": "user", "content": "Hello!"}]}'
    target = f"--unix-socket {config.serving.uds} http://localhost" if config.serving.uds else address
    yield f"try      curl {target}{route} -H 'Content-Type: application/json' -d '{body}'"
    yield "stop     Ctrl-C"
