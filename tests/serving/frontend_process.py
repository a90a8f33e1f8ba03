"""The HTTP server in a process, and the scripted engine in another: as they are served, without a model."""

import asyncio
import sys
from typing import Any

import uvloop

from octavo.config.engine import EngineConfig, ModelConfig, SchedulingConfig, ServingConfig, TelemetryConfig
from octavo.engine.async_engine import AsyncEngine
from octavo.engine.supervisor import EngineSupervisor
from octavo.inputs.limits import InputLimits
from octavo.inputs.processor import InputProcessor
from octavo.outputs.processor import OutputProcessor
from octavo.serving.edge import Edge
from octavo.serving.runtime import serve
from octavo.serving.server import Stop, bind
from octavo.serving.state import ServerState
from octavo.telemetry.metrics import MetricsStore
from octavo.telemetry.prometheus import PrometheusExporter
from octavo.text.chat_template import ChatTemplate
from tests.serving.scripted import TEMPLATE
from tests.serving.scripted_engine import CONTEXT, VOCAB, ByteTokenizer

COMMAND = (sys.executable, "-m", "tests.serving.engine_process")


def run_frontend(ready: Any, steps_per_second: float, profile: str | None) -> None:
    """Serve until something comes through `ready`, which is told the port at first.

    Args:
        ready: one end of a pipe.
        profile: file for a profile of this process.
    """
    config = EngineConfig(
        model=ModelConfig(model=f"paced:{1 / steps_per_second}"),
        serving=ServingConfig(
            port=0, client_timeout=300.0, shutdown_timeout=0.0, access_log="/dev/null", disable_access_log=True
        ),
        scheduling=SchedulingConfig(max_waiting=4096),
        telemetry=TelemetryConfig(log_level="error"),
    )
    listener = bind(config.serving)
    listener.listen()

    async def main() -> None:
        stop = Stop()
        supervisor = EngineSupervisor(config, COMMAND)
        await supervisor.ready()
        store, tokenizer = MetricsStore("tiny"), ByteTokenizer()
        state = ServerState(
            engine=AsyncEngine(supervisor, OutputProcessor(tokenizer), store, 4096),
            inputs=InputProcessor(tokenizer, ChatTemplate(TEMPLATE), InputLimits(CONTEXT, VOCAB, 20)),
            config=config.serving,
            models=("tiny",),
            model_path="tiny",
            version="0",
            max_body_bytes=1 << 20,
            started=0,
            exporter=PrometheusExporter(store),
        )
        loop = asyncio.get_running_loop()
        loop.add_reader(ready.fileno(), stop.ask)
        ready.send(listener.getsockname()[1])
        try:
            await serve(state, store, listener, stop, config, Edge(config.serving))
        finally:
            loop.remove_reader(ready.fileno())
            await supervisor.close()

    if profile is None:
        uvloop.run(main())
        return
    import cProfile

    profiler = cProfile.Profile()
    profiler.runcall(uvloop.run, main())
    profiler.dump_stats(profile)
