"""The running server: what stands behind the socket once the engine is ready, and the drain at its end."""

import asyncio
import contextlib
import socket
import time
from collections.abc import Generator
from functools import partial
from pathlib import Path
from typing import Any, cast

import msgspec
import uvicorn
from starlette.applications import Starlette

import octavo
from octavo.config.engine import EngineConfig, ServingConfig
from octavo.config.environment import read_environment
from octavo.config.values import parse_size
from octavo.engine.async_engine import AsyncEngine
from octavo.engine.frontend import Frontend, build_frontend
from octavo.engine.profile import profile_directory
from octavo.engine.supervisor import EngineSupervisor
from octavo.serving.access import AccessLog
from octavo.serving.app import build_app
from octavo.serving.batches.lane import Batches, room_beside
from octavo.serving.edge import Edge
from octavo.serving.files.kept import Files
from octavo.serving.openai.server_defaults import template_variables
from octavo.serving.protocol import BoundedProtocol, ConnectionLimits
from octavo.serving.responses.kept import Responses
from octavo.serving.server import BACKLOG, Stop
from octavo.serving.state import ServerState
from octavo.telemetry.log import ThroughputLog, logger
from octavo.telemetry.metrics import MetricsStore
from octavo.telemetry.prometheus import PrometheusExporter
from octavo.text.template_check import check_template

# After the drain has ended the last streams, their answers still have to be written.
_WRITE_SECONDS = 5
SECRETS = (("serving", "api_key"), ("model", "hf_token"))


def load(config: EngineConfig) -> Frontend:
    """The text side; slow enough to be called in a thread. What chats will trip over is logged."""
    frontend = build_frontend(config)
    template = frontend.chat_template
    if template is not None:
        # Of a template that never speaks of tools nobody expects them.
        for finding in check_template(template, template.mentions("tools")):
            logger("serving").warning("chat template: %s", finding)
    return frontend


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
    files = kept_files(config.serving)
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
        formats=frontend.formats,
        exporter=PrometheusExporter(store) if config.telemetry.enable_metrics else None,
        dev_mode=read_environment().dev_mode,
        policy=config.scheduling.scheduling_policy,
        responses=_responses(config.serving),
        files=files,
        batches=Batches(files, models[0]),
        fingerprint=frontend.answers_fingerprint(info),
        settings=shown(config),
        profile_dir=profile_directory(config),
        template_variables=template_variables(config.serving),
        pooling=None if frontend.pooler is None else frontend.pooling(info),
    )
    return state, store


def _responses(config: ServingConfig) -> Responses:
    where, size = config.response_store, parse_size(config.response_store_size)
    if where is None:
        # Opened when it is first needed: most servers are never asked for responses.
        return Responses(str(read_environment().cache_dir / "responses.sqlite3"), size, or_memory=True)
    kept = Responses(where, size)
    kept.open()
    return kept


def kept_files(config: ServingConfig) -> Files:
    """Where files and batches are kept; opened when it is first needed."""
    size, largest = parse_size(config.file_store_size), parse_size(config.max_file_size)
    if config.file_store == "none":
        return Files(None, size, largest)
    given = Path(config.file_store).expanduser() if config.file_store else read_environment().cache_dir / "files"
    files = Files(given, size, largest)
    if config.file_store:
        files.open()
    return files


def lines_beside(state: ServerState) -> int:
    """How many lines of batches may run now."""
    stats = state.engine.stats
    if not state.healthy or stats.paused or stats.asleep:
        return 0
    most = room_beside(state.admission.under_way, state.engine.info.max_num_seqs)
    return min(most, state.config.batch_concurrency or most)


def shown(config: EngineConfig) -> dict[str, Any]:
    """Every option's value, as operators may see it; of secrets only whether there are any."""
    sections = msgspec.to_builtins(config)
    for section, name in SECRETS:
        sections[section][name] = "set" if sections[section][name] else None
    return sections


async def serve(
    state: ServerState, store: MetricsStore, listener: socket.socket, stop: Stop, config: EngineConfig, edge: Edge
) -> None:
    """Answer requests at `listener` until `stop`; then finish those under way, within `shutdown_timeout`, or give
    them up when `stop` says so. New ones are answered 503 meanwhile."""
    app, access = build_app(state, store, edge.keys, edge.access_file)
    server = _Server(_uvicorn_config(app, access, config.serving, state.max_body_bytes))
    server.config.load()
    server.config.ssl = edge.tls.context if edge.tls else None
    tasks = [
        asyncio.ensure_future(work)
        for work in (_log_throughput(store, config), edge.follow(stop.reload), stop.asked.wait(), stop.at_once.wait())
    ]
    await state.batches.start(app, state.max_body_bytes, lambda: lines_beside(state))
    running, stopping, hurrying = asyncio.ensure_future(server.serve(sockets=[listener])), *tasks[2:]
    try:
        await asyncio.wait((running, stopping), return_when=asyncio.FIRST_COMPLETED)
        state.admission.draining = True
        await state.batches.close()  # they go on at the next start, and leave the time that is left to others
        draining = asyncio.ensure_future(state.admission.emptied())
        await asyncio.wait(
            (running, draining, hurrying),
            timeout=config.serving.shutdown_timeout,
            return_when=asyncio.FIRST_COMPLETED,
        )
        draining.cancel()
        server.should_exit = True
        await state.engine.drain(0)
        await asyncio.wait((running, hurrying), return_when=asyncio.FIRST_COMPLETED)
        server.force_exit = hurrying.done()
        await running
    finally:
        for task in tasks:
            task.cancel()
        await state.batches.close()
        await state.responses.close()
        await state.files.close()
        edge.close()


def _uvicorn_config(app: Starlette, access: AccessLog, config: ServingConfig, body_bytes: int) -> uvicorn.Config:
    limits = ConnectionLimits(config.max_connections, config.client_timeout, body_bytes, access.refused)
    return uvicorn.Config(
        app,
        http=cast("type[asyncio.Protocol]", partial(BoundedProtocol, limits)),
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="error",
        access_log=False,
        server_header=False,
        root_path=config.root_path.rstrip("/"),
        backlog=BACKLOG,
        timeout_keep_alive=cast("int", config.keep_alive_timeout),
        timeout_graceful_shutdown=_WRITE_SECONDS,
    )


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
