"""Profiles of the engine's steps, begun and ended over HTTP."""

import asyncio
import json
import pstats
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from octavo.cache.manager import CacheManager, CacheOptions
from octavo.engine.async_engine import AsyncEngine
from octavo.engine.client import EngineInfo
from octavo.engine.local_client import LocalClient
from octavo.engine.loop import EngineLoop
from octavo.engine.threaded import ThreadedEngine
from octavo.engine.transport import TO_ENGINE, TO_FRONTEND, ChangeProfile, ProfileChanged
from octavo.errors import EngineDeadError
from octavo.flow.wire import WireDecoder, WireEncoder
from octavo.outputs.processor import OutputProcessor
from octavo.scheduling.budget import SchedulerLimits
from octavo.scheduling.scheduler import Scheduler
from tests.fakes import FULL, FakeExecutor
from tests.serving.scripted import HTTP, RunningServer, run_server
from tests.serving.scripted_engine import CONTEXT, VOCAB, ByteTokenizer, ScriptedClient


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    scheduler = Scheduler(CacheManager((FULL,), CacheOptions(64, 16)), SchedulerLimits(8, 256, CONTEXT))
    loop = EngineLoop(scheduler, FakeExecutor((FULL,), 64, 16, vocab=128), time.monotonic)
    with run_server(LocalClient(EngineInfo(CONTEXT, 64, 16, 8, 256, VOCAB, 0.0), loop), dev_mode=True) as running:
        running.state.profile_dir = str(tmp_path / "profiles")
        yield running


def generate(server: RunningServer, tokens: int) -> None:
    body = {"prompt": "x" * 20, "max_tokens": tokens, "ignore_eos": True, "seed": 1}
    assert HTTP.post(server.url + "/v1/completions", json=body).status_code == 200


def test_what_the_steps_did_is_in_the_files(server: RunningServer) -> None:
    generate(server, 3)  # not recorded
    assert HTTP.post(server.url + "/start_profile").json() == {"status": "recording"}
    generate(server, 5)
    told = HTTP.post(server.url + "/stop_profile").json()
    generate(server, 3)  # not recorded
    trace, calls = (Path(name) for name in told["files"])
    assert {stat.S_IMODE(path.stat().st_mode) for path in (trace, calls)} == {0o600}
    events = json.loads(trace.read_text())["traceEvents"]
    steps = [event for event in events if event["ph"] == "X"]
    assert len(steps) == told["steps"] >= 5
    assert sum(step["args"]["generation_tokens"] for step in steps) == 5
    assert sum(step["args"]["prompt_tokens"] for step in steps) >= 4  # what is not cached of 20
    ends = [step["ts"] + step["dur"] for step in steps]
    # They follow each other.
    assert all(end <= step["ts"] + 0.2 for end, step in zip(ends, steps[1:], strict=False))
    names = {name for _, _, name in pstats.Stats(str(calls)).stats}  # type: ignore[attr-defined]
    assert {"receive", "step"} <= names


def test_out_of_turn(server: RunningServer, tmp_path: Path) -> None:
    answer = HTTP.post(server.url + "/stop_profile")
    assert answer.status_code == 400
    assert "begin one first" in answer.json()["error"]["message"]
    assert HTTP.post(server.url + "/start_profile").status_code == 200
    again = HTTP.post(server.url + "/start_profile")
    assert again.status_code == 400
    assert "end it first" in again.json()["error"]["message"]
    assert HTTP.post(server.url + "/stop_profile").json()["steps"] == 0
    (tmp_path / "file").write_text("")
    server.state.profile_dir = str(tmp_path / "file")
    assert "cannot hold profiles" in HTTP.post(server.url + "/start_profile").json()["error"]["message"]
    generate(server, 2)
    server.state.profile_dir = str(tmp_path)
    assert HTTP.post(server.url + "/start_profile").status_code == 200
    assert len(HTTP.post(server.url + "/stop_profile").json()["files"]) == 2


def test_only_in_development_mode() -> None:
    with run_server() as server:
        assert HTTP.post(server.url + "/start_profile").status_code == 404
        assert HTTP.post(server.url + "/stop_profile").status_code == 404


@pytest.mark.parametrize(
    ("message", "kinds"),
    [
        (ChangeProfile("/x"), TO_ENGINE),
        (ChangeProfile(None), TO_ENGINE),
        (ProfileChanged(("/x/a",), 3), TO_FRONTEND),
        (ProfileChanged(kind="ConfigError", message="no"), TO_FRONTEND),
    ],
)
def test_over_the_wire(message: object, kinds: tuple[type, ...]) -> None:
    assert WireDecoder(kinds).decode(WireEncoder().encode(message)) == message


def test_who_has_left_gets_no_answer_and_others_get_theirs(tmp_path: Path) -> None:
    async def main() -> None:
        engine = AsyncEngine(ThreadedEngine(ScriptedClient()), OutputProcessor(ByteTokenizer()))
        await engine.ready()
        calls = (engine.reset_prefix_cache(), engine.start_profile(str(tmp_path)), engine.reset_prefix_cache())
        leaving, starting, staying = (asyncio.ensure_future(call) for call in calls)
        await asyncio.sleep(0)
        leaving.cancel()
        starting.cancel()
        assert await staying
        # The profile was begun all the same.
        assert len((await engine.stop_profile()).files) == 2
        waiting = [asyncio.ensure_future(call) for call in (engine.reset_prefix_cache(), engine.stop_profile())]
        await asyncio.sleep(0)
        waiting[0].cancel()
        engine.fail_all("gone")
        with pytest.raises(EngineDeadError, match="gone"):
            await waiting[1]
        await engine.close()

    asyncio.run(main())
