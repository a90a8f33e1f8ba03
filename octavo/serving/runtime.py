"""The running server: what stands behind the socket once the engine is ready, and the drain at its end."""

import asyncio
import contextlib
import socket
import time
from collections.abc import Generator

import uvicorn

import octavo
from octavo.config.engine import EngineConfig
from octavo.config.environment import read_environment
from octavo.config.values import parse_size
from octavo.engine.async_engine import AsyncEngine
from octavo.engine.frontend import Frontend, build_frontend
from octavo.engine.supervisor import EngineSupervisor
from octavo.serving.app import build_app
from octavo.serving.server import Stop
from octavo.serving.state import ServerState
from octavo.telemetry.log import ThroughputLog
from octavo.telemetry.metrics import MetricsStore
from octavo.telemetry.prometheus import PrometheusExporter

# After the drain has ended the last streams, their answers still have to be written.
_WRITE_SECONDS = 5
_BACKLOG = 2048


def load(config: EngineConfig) -> Frontend:
    """The text side; slow enough to be called in a thread."""
    return build_frontend(config)


async def assemble(
    config: EngineConfig, frontend: Frontend, supervisor: EngineSupervisor
) -> tuple[ServerState, MetricsStore]:
    """Everything that handlers share, once the engine is ready.

    Raises:
        OctavoError: it does not get ready; says why.
    """
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
        dev_mode=read_environment().dev_mode,
        policy=config.scheduling.scheduling_policy,
    )
    return state, store


async def serve(
    state: ServerState, store: MetricsStore, listener: socket.socket, stop: Stop, config: EngineConfig
) -> None:
    """Answer requests at `listener` until `stop`; then finish those under way, within `shutdown_timeout`, or give
    them up when `stop` says so."""
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
    stopping = asyncio.ensure_future(stop.asked.wait())
    hurrying = asyncio.ensure_future(stop.at_once.wait())
    try:
        await asyncio.wait((running, stopping), return_when=asyncio.FIRST_COMPLETED)
        state.draining = True
        server.should_exit = True
        draining = asyncio.ensure_future(state.engine.drain(config.serving.shutdown_timeout))
        await asyncio.wait((draining, hurrying), return_when=asyncio.FIRST_COMPLETED)
        if not draining.done():
            draining.cancel()
            await state.engine.drain(0)
        await asyncio.wait((running, hurrying), return_when=asyncio.FIRST_COMPLETED)
        server.force_exit = hurrying.done()
        await running
    finally:
        for task in (logging, stopping, hurrying):
            task.cancel()


async def _log_throughput(store: MetricsStore, config: EngineConfig) -> None:
    log = ThroughputLog(store, time.monotonic)
    while not config.telemetry.disable_log_stats:
        await asyncio.sleep(config.telemetry.log_stats_interval)
        log.tick()


class _Server(uvicorn.Server):
    """uvicorn without its signal handling, which would end the process by the signal instead of with status 0."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leave signals to whoever runs the server."""
        yield
