"""The engine process, its wire, and what its supervisor makes of its ends."""

import asyncio
import dataclasses
import os
import shlex
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from octavo.config.engine import EngineConfig, ModelConfig, TelemetryConfig
from octavo.engine.async_engine import AsyncEngine
from octavo.engine.client import EngineStats
from octavo.engine.supervisor import EngineSupervisor
from octavo.engine.transport import (
    TO_ENGINE,
    TO_FRONTEND,
    Cancel,
    Configure,
    Outputs,
    PauseEngine,
    Refused,
    ResumeEngine,
    SocketDirectory,
    Submit,
)
from octavo.errors import EngineDeadError, EngineReturningError, InternalError, ModelNotFoundError
from octavo.flow.delta import TextDelta
from octavo.flow.request import GenerationRequest, Sampling, Stopping
from octavo.flow.result import FinishReason, SequenceOutput, SequenceTimes, TokenLogprobs
from octavo.flow.wire import VERSION, WireDecoder, WireEncoder, WireError
from octavo.outputs.processor import OutputProcessor
from octavo.telemetry import metrics
from octavo.telemetry.metrics import MetricsStore
from tests.serving.scripted import PATIENCE
from tests.serving.scripted_engine import ByteTokenizer

ROOT = Path(__file__).parents[2]
COMMAND = (sys.executable, "-m", "tests.serving.engine_process")
ENDS = 256


def request(name: str = "r", max_tokens: int = 100, n: int = 1) -> GenerationRequest:
    return GenerationRequest(name, (72, 105), Sampling(), Stopping(max_tokens), n=n)


def run(test: Callable[[AsyncEngine, EngineSupervisor], Coroutine[Any, Any, None]], model: str = "hello") -> None:
    """Run a test with an engine process that is ready; afterwards nothing is left of it."""

    async def main() -> None:
        supervisor = supervisor_of(model)
        engine = AsyncEngine(supervisor, OutputProcessor(ByteTokenizer()), MetricsStore())
        try:
            await engine.ready()
            await test(engine, supervisor)
        finally:
            process = supervisor.process_id
            await engine.close()
            assert process is None or not psutil.pid_exists(process)

    asyncio.run(asyncio.wait_for(main(), 2 * PATIENCE))


def supervisor_of(model: str, restarts: int = 1, steady_seconds: float = 600.0) -> EngineSupervisor:
    config = EngineConfig(model=ModelConfig(model=model), telemetry=TelemetryConfig(log_level="error"))
    return EngineSupervisor(config, COMMAND, restarts, steady_seconds)


async def text_of(engine: AsyncEngine, wanted: GenerationRequest) -> tuple[str, FinishReason | None]:
    deltas: list[TextDelta] = [delta async for delta in engine.generate(wanted)]
    return "".join(delta.text for delta in deltas), deltas[-1].finish_reason


def test_text_comes_through_the_process() -> None:
    async def test(engine: AsyncEngine, supervisor: EngineSupervisor) -> None:
        assert engine.info.max_model_len == 512
        assert await text_of(engine, request()) == ("Hello, world!", FinishReason.STOP)
        both = await asyncio.gather(*(text_of(engine, request(f"r{i}", max_tokens=5)) for i in range(20)))
        assert set(both) == {("Hello", FinishReason.LENGTH)}
        assert await engine.reset_prefix_cache()
        assert engine.live == 0

    run(test)


def test_closing_a_stream_cancels_it() -> None:
    async def test(engine: AsyncEngine, supervisor: EngineSupervisor) -> None:
        async with engine.open(request()) as stream:
            await anext(stream)
        while engine.stats.running:
            await asyncio.sleep(0.01)
        assert engine.live == 0

    run(test, "endless")


def test_a_killed_engine_comes_back_and_its_requests_go_on_where_they_were() -> None:
    async def test(engine: AsyncEngine, supervisor: EngineSupervisor) -> None:
        async with engine.open(request(max_tokens=300, n=2), request("other", max_tokens=300)) as stream:
            deltas = await anext(stream)
            assert supervisor.process_id is not None
            os.kill(supervisor.process_id, signal.SIGKILL)
            while engine.healthy:
                await asyncio.sleep(0.002)
            with pytest.raises(EngineReturningError, match="being started again"):
                engine.open(request("meanwhile"))
            deltas += [delta async for more in stream for delta in more]
        for name, index in (("r", 0), ("r", 1), ("other", 0)):
            own = [delta for delta in deltas if (delta.request_id, delta.index) == (name, index)]
            assert "".join(delta.text for delta in own) == "x" * 300
            assert [delta.finish_reason for delta in own if delta.finish_reason] == [FinishReason.LENGTH]
        assert engine.live == 0
        assert await text_of(engine, request("again", max_tokens=3)) == ("xxx", FinishReason.LENGTH)

    run(test, "endless")


def test_a_request_that_two_engines_died_with_ends_and_others_go_on() -> None:
    async def main() -> None:
        supervisor = supervisor_of("paced:0.04", restarts=2)
        engine = AsyncEngine(supervisor, OutputProcessor(ByteTokenizer()), MetricsStore())
        await engine.ready()
        async with engine.open(request(max_tokens=500)) as first:
            await anext(first)
            await kill(engine, supervisor)
            async with engine.open(request("second", max_tokens=40)) as second:
                await anext(second)
                await kill(engine, supervisor)
                with pytest.raises(EngineDeadError, match=r"killed by signal 9.*twice with this request"):
                    async for _ in first:
                        pass
                assert [delta async for more in second for delta in more][-1].finish_reason == FinishReason.LENGTH
        assert engine.live == 0
        async with engine.open(request("third", max_tokens=500)) as third:
            await anext(third)
            os.kill(supervisor.process_id or 0, signal.SIGKILL)  # the last engine there is
            with pytest.raises(EngineDeadError, match="the engine stopped: killed by signal 9"):
                async for _ in third:
                    pass
        assert engine.lost
        await engine.close()

    asyncio.run(asyncio.wait_for(main(), 2 * PATIENCE))


async def kill(engine: AsyncEngine, supervisor: EngineSupervisor) -> None:
    """End the engine process; returns when there is another one."""
    process = supervisor.process_id
    assert process is not None
    os.kill(process, signal.SIGKILL)
    while supervisor.process_id == process or not engine.healthy:
        await asyncio.sleep(0.005)


def test_an_engine_that_ran_for_long_is_started_again_however_often_it_died() -> None:
    async def main() -> None:
        supervisor = supervisor_of("hello", restarts=1, steady_seconds=0.0)
        engine = AsyncEngine(supervisor, OutputProcessor(ByteTokenizer()), MetricsStore())
        await engine.ready()
        for _ in range(3):
            await kill(engine, supervisor)
        await engine.close()

    asyncio.run(asyncio.wait_for(main(), 2 * PATIENCE))


@pytest.mark.parametrize(("script", "reason"), [("#!/bin/sh\nexit 3\n", "exit status 3"), ("", "could not be started")])
def test_who_waits_for_an_engine_that_never_starts_again_is_told(script: str, reason: str, tmp_path: Path) -> None:
    start = tmp_path / "engine"
    start.write_text(f'#!/bin/sh\nexec {shlex.join(COMMAND)} "$@"\n')
    start.chmod(0o700)

    async def main() -> None:
        config = EngineConfig(model=ModelConfig(model="endless"), telemetry=TelemetryConfig(log_level="error"))
        # It counts as one that ran for long: its end, and not those of its successors, which never ran.
        supervisor = EngineSupervisor(config, (str(start),), max_restarts=2, steady_seconds=0.0)
        engine = AsyncEngine(supervisor, OutputProcessor(ByteTokenizer()), sink := MetricsStore())
        await engine.ready()
        async with engine.open(request(max_tokens=500)) as stream:
            await anext(stream)
            if script:
                start.write_text(script)
            else:
                start.unlink()
            os.kill(supervisor.process_id or 0, signal.SIGKILL)
            with pytest.raises(EngineDeadError, match=f"the engine stopped: .*{reason}"):
                async for _ in stream:
                    pass
        assert sink.value(metrics.ENGINE_DEATHS) == 3
        with pytest.raises(EngineDeadError, match="the engine is not running"):
            engine.open(request("later"))
        await engine.close()

    asyncio.run(asyncio.wait_for(main(), 2 * PATIENCE))


def test_requests_that_cannot_all_be_sent_leave_none_behind() -> None:
    async def test(engine: AsyncEngine, supervisor: EngineSupervisor) -> None:
        unsendable = dataclasses.replace(request("b"), priority=10**30)
        with pytest.raises(OverflowError):
            engine.open(request("a", max_tokens=500), unsendable)
        assert engine.live == 0
        assert await engine.drain(5)
        while engine.stats.running:
            await asyncio.sleep(0.01)

    run(test, "endless")


def test_restarts_are_bounded() -> None:
    async def main() -> None:
        supervisor = supervisor_of("hello", restarts=0)
        engine = AsyncEngine(supervisor, OutputProcessor(ByteTokenizer()), sink := MetricsStore())
        await engine.ready()
        assert supervisor.process_id is not None
        os.kill(supervisor.process_id, signal.SIGKILL)
        while engine.healthy:
            await asyncio.sleep(0.01)
        assert sink.value(metrics.ENGINE_DEATHS) == 1
        await engine.close()

    asyncio.run(asyncio.wait_for(main(), 2 * PATIENCE))


@pytest.mark.parametrize(
    ("model", "error", "message"),
    [
        ("missing", ModelNotFoundError, r"^no model here; looked in /nowhere$"),
        ("bug", InternalError, "something unforeseen"),
        ("crash", EngineDeadError, "exit status 3"),
    ],
)
def test_why_it_does_not_start(model: str, error: type[Exception], message: str, capfd) -> None:
    async def main() -> None:
        supervisor = supervisor_of(model)
        with pytest.raises(error, match=message):
            await supervisor.ready()
        await supervisor.close()

    asyncio.run(asyncio.wait_for(main(), 2 * PATIENCE))
    if model == "missing":
        assert capfd.readouterr().err == ""


def test_the_engine_dies_with_its_frontend() -> None:
    script = textwrap.dedent(
        """
        import asyncio, os, sys
        from tests.serving.test_serving_process import supervisor_of
        async def main():
            supervisor = supervisor_of("endless")
            await supervisor.ready()
            print(supervisor.process_id, flush=True)
            os._exit(0)
        asyncio.run(main())
        """
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=240)
    pid = int(done.stdout)
    psutil.wait_procs([psutil.Process(pid)] if psutil.pid_exists(pid) else [], timeout=PATIENCE)
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_signals_to_the_group_leave_it_to_the_frontend() -> None:
    async def test(engine: AsyncEngine, supervisor: EngineSupervisor) -> None:
        assert supervisor.process_id is not None
        # Also while it starts and cannot ignore them yet, the terminal's do not reach it.
        assert os.getsid(supervisor.process_id) != os.getsid(0)
        os.kill(supervisor.process_id, signal.SIGINT)
        os.kill(supervisor.process_id, signal.SIGTERM)
        assert await text_of(engine, request()) == ("Hello, world!", FinishReason.STOP)

    run(test)


def test_an_idle_engine_sleeps() -> None:
    async def test(engine: AsyncEngine, supervisor: EngineSupervisor) -> None:
        await text_of(engine, request())
        process = psutil.Process(supervisor.process_id)

        async def used() -> float:
            before = process.cpu_times()
            await asyncio.sleep(0.5)
            after = process.cpu_times()
            return after.user + after.system - before.user - before.system

        assert await used() < 0.1 or await used() < 0.1  # it may have had something to end

    run(test)


def test_sockets_are_private() -> None:
    directory = SocketDirectory()
    path = Path(directory.address(0).removeprefix("ipc://")).parent
    assert path.stat().st_mode & 0o777 == 0o700
    directory.close()
    assert not path.exists()


MESSAGES_TO_ENGINE = [
    Configure(EngineConfig(model=ModelConfig(model="x", max_model_len=5))),
    Submit(
        GenerationRequest(
            "id",
            (1, 2),
            Sampling(0.5, logit_bias=((1, 2.0),), seed=2**64 - 1),
            Stopping(3, stop_token_ids=frozenset({7})),
            stop=("a",),
        )
    ),
    Cancel(("a", "b")),
    PauseEngine("keep"),
    ResumeEngine(),
]
MESSAGES_TO_FRONTEND = [
    Outputs(
        [
            SequenceOutput("id", 0, (5,)),
            SequenceOutput(
                "id",
                1,
                (),
                (TokenLogprobs((1, 2), (-0.5, float("-inf")), 1),),
                finish_reason=FinishReason.ABORT,
                times=SequenceTimes(1.0, 2.0, 3.0, 4.0, 1),
            ),
        ],
        EngineStats(running=1),
    ),
    Refused("id", "OverloadedError", "full", 12.5),
]


@pytest.mark.parametrize("types", ["engine", "frontend"])
def test_messages_survive_the_wire(types: str) -> None:
    messages, known = (MESSAGES_TO_ENGINE, TO_ENGINE) if types == "engine" else (MESSAGES_TO_FRONTEND, TO_FRONTEND)
    encoder, decoder = WireEncoder(), WireDecoder(known)
    for message in messages:
        assert decoder.decode(encoder.encode(message)) == message


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80\x04\x95",
        bytes([VERSION + 1]) + msgspec.msgpack.encode(["shutdown"]),
        bytes([VERSION]),
        bytes([VERSION]) + b"\xdd\xff\xff\xff\xff",
        bytes([VERSION]) + b"\x91" * 100_000,
        bytes([VERSION]) + msgspec.msgpack.encode({"type": "nothing"}),
        bytes([VERSION]) + msgspec.msgpack.encode({"type": "cancel", "request_ids": 5}),
    ],
)
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(WireError):
        WireDecoder(TO_ENGINE).decode(data)
