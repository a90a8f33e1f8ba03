"""An engine process that hangs is ended and started again, and its requests go on; it is told what the last one was."""

import asyncio
import io
import logging
import os
import shlex
import signal
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from octavo.config.engine import EngineConfig, ModelConfig, ServingConfig, TelemetryConfig
from octavo.engine.async_engine import AsyncEngine
from octavo.engine.supervisor import EngineSupervisor
from octavo.errors import EngineAsleepError
from octavo.flow.request import GenerationRequest, Sampling, Stopping
from octavo.flow.result import FinishReason
from octavo.outputs.processor import OutputProcessor
from octavo.telemetry import metrics
from octavo.telemetry.log import logger
from octavo.telemetry.metrics import MetricsStore
from tests.serving.scripted_engine import ByteTokenizer

COMMAND = (sys.executable, "-m", "tests.serving.engine_process")
Test = Callable[[AsyncEngine, EngineSupervisor, MetricsStore], Coroutine[Any, Any, None]]


def request(name: str = "r", max_tokens: int = 100, n: int = 1) -> GenerationRequest:
    return GenerationRequest(name, (72, 105), Sampling(), Stopping(max_tokens), n=n)


def run(test: Test, command: tuple[str, ...] = COMMAND, timeout: float = 8.0) -> None:
    """Run a test with an engine process that is ready."""
    config = EngineConfig(
        model=ModelConfig(model="endless"),
        serving=ServingConfig(engine_timeout=timeout),
        telemetry=TelemetryConfig(log_level="error"),
    )

    async def main() -> None:
        supervisor = EngineSupervisor(config, command)
        engine = AsyncEngine(supervisor, OutputProcessor(ByteTokenizer()), store := MetricsStore())
        try:
            await engine.ready()
            await test(engine, supervisor, store)
        finally:
            await engine.close()

    asyncio.run(asyncio.wait_for(main(), 120))


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


async def check_answers(engine: AsyncEngine, stop: Callable[[], None]) -> None:
    """Answers under way come out whole, though the engine stops in the middle of them."""
    async with engine.open(request(n=2), request("other")) as stream:
        deltas = await anext(stream)
        stop()
        deltas += [delta async for more in stream for delta in more]
    for name, index in (("r", 0), ("r", 1), ("other", 0)):
        own = [delta for delta in deltas if (delta.request_id, delta.index) == (name, index)]
        assert "".join(delta.text for delta in own) == "x" * 100
        assert [delta.finish_reason for delta in own if delta.finish_reason] == [FinishReason.LENGTH]


def stop(supervisor: EngineSupervisor) -> None:
    assert supervisor.process_id is not None
    os.kill(supervisor.process_id, signal.SIGSTOP)


def test_requests_of_an_engine_that_hangs_go_on_in_the_next() -> None:
    lines = io.StringIO()
    handler = logging.StreamHandler(lines)

    async def test(engine: AsyncEngine, supervisor: EngineSupervisor, store: MetricsStore) -> None:
        hung, told = supervisor.process_id, list[str]()

        async def listen() -> None:
            await until(lambda: engine.trouble)
            told.append(engine.trouble or "")

        listener = asyncio.create_task(listen())
        await check_answers(engine, lambda: stop(supervisor))
        await listener
        await until(lambda: store.value(metrics.ENGINE_HANGS) and engine.healthy)
        assert told[0].startswith("the engine has neither answered nor worked for")
        assert supervisor.process_id != hung
        assert engine.trouble is None
        assert (store.value(metrics.ENGINE_DEATHS), store.value(metrics.ENGINE_HANGS)) == (1, 1)

    logger("supervisor").addHandler(handler)
    try:
        run(test)
    finally:
        logger("supervisor").removeHandler(handler)
    assert "hangs and is ended: it hung: no answer and no work for" in lines.getvalue()


def test_an_idle_engine_that_hangs_is_noticed_and_one_that_is_killed_is_no_hang() -> None:
    async def test(engine: AsyncEngine, supervisor: EngineSupervisor, store: MetricsStore) -> None:
        stop(supervisor)
        await until(lambda: store.value(metrics.ENGINE_HANGS) == 1)
        assert engine.trouble == "the engine has ended and is being started again"
        await until(lambda: engine.healthy)
        os.kill(supervisor.process_id or 0, signal.SIGKILL)
        await until(lambda: store.value(metrics.ENGINE_DEATHS) == 2)
        assert store.value(metrics.ENGINE_HANGS) == 1

    run(test)


def test_one_that_hangs_while_it_is_loaded_again_is_started_once_more(tmp_path: Path) -> None:
    start, tries = tmp_path / "engine", tmp_path / "tries"
    start.write_text(
        f"#!/bin/sh\necho x >> {shlex.quote(str(tries))}\n"
        f"[ $(wc -l < {shlex.quote(str(tries))}) -eq 2 ] && kill -STOP $$\n"
        f'exec {shlex.join(COMMAND)} "$@"\n'
    )
    start.chmod(0o700)

    async def test(engine: AsyncEngine, supervisor: EngineSupervisor, store: MetricsStore) -> None:
        await check_answers(engine, lambda: os.kill(supervisor.process_id or 0, signal.SIGKILL))
        await until(lambda: store.value(metrics.ENGINE_HANGS) and engine.healthy)
        assert (store.value(metrics.ENGINE_DEATHS), store.value(metrics.ENGINE_HANGS)) == (2, 1)
        assert tries.read_text() == "x\n" * 3

    run(test, (str(start),))


def test_a_pause_that_keeps_holds_in_the_next_engine() -> None:
    async def test(engine: AsyncEngine, supervisor: EngineSupervisor, store: MetricsStore) -> None:
        await engine.pause("keep")
        async with engine.open(request()) as stream:
            await until(lambda: engine.stats.under_way)
            os.kill(supervisor.process_id or 0, signal.SIGKILL)
            await until(lambda: not engine.healthy)
            assert engine.stats.paused
            await until(lambda: engine.stats.under_way)  # of the next one: the first reading after a death has none
            assert not await engine.reset_prefix_cache()  # it has had its turns
            assert (engine.stats.paused, engine.stats.steps, engine.stats.under_way) == (True, 0, 1)
            await engine.resume()
            deltas = [delta async for more in stream for delta in more]
        assert "".join(delta.text for delta in deltas) == "x" * 100
        assert not engine.stats.paused
        os.kill(supervisor.process_id or 0, signal.SIGKILL)
        await until(lambda: not engine.healthy)
        await until(lambda: engine.healthy)
        async with engine.open(request("after", 3)) as stream:
            assert [delta async for more in stream for delta in more][-1].finish_reason == FinishReason.LENGTH

    run(test, timeout=0.0)


def test_sleep_holds_in_the_next_engine() -> None:
    async def test(engine: AsyncEngine, supervisor: EngineSupervisor, store: MetricsStore) -> None:
        await engine.sleep(1)
        os.kill(supervisor.process_id or 0, signal.SIGKILL)
        await until(lambda: not engine.healthy)
        await until(lambda: engine.healthy)
        with pytest.raises(EngineAsleepError):
            engine.open(request())
        await engine.wake()
        async with engine.open(request(max_tokens=3)) as stream:
            assert [delta async for more in stream for delta in more][-1].finish_reason == FinishReason.LENGTH

    run(test, timeout=0.0)
