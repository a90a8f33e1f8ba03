"""Whatever is asked of the cache and of the clock: a clear answer, service goes on, every block comes back."""

import asyncio
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import httpx
import pytest

from octavo.cache.manager import CacheManager, CacheOptions
from octavo.engine.async_engine import AsyncEngine
from octavo.engine.client import EngineInfo
from octavo.engine.local_client import LocalClient
from octavo.engine.loop import EngineLoop
from octavo.engine.threaded import ThreadedEngine
from octavo.flow.request import GenerationRequest, Sampling, Stopping
from octavo.outputs.processor import OutputProcessor
from octavo.scheduling.budget import SchedulerLimits
from octavo.scheduling.scheduler import Scheduler
from tests.fakes import FULL, FakeExecutor
from tests.serving.scripted import HTTP, RunningServer, run_server, until
from tests.serving.scripted_engine import CONTEXT, VOCAB, ByteTokenizer

BLOCKS = 64
STORY = "Once upon a time there was a book that nobody had read."


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    cache = CacheManager((FULL,), CacheOptions(BLOCKS, 16, pin_budget=1.0))
    scheduler = Scheduler(cache, SchedulerLimits(8, 256, CONTEXT))
    loop = EngineLoop(scheduler, FakeExecutor((FULL,), BLOCKS, 16, vocab=128), time.monotonic)
    info = EngineInfo(CONTEXT, BLOCKS, 16, 8, 256, VOCAB, 0.0, cache.pin_tokens)
    with run_server(LocalClient(info, loop), dev_mode=True) as running:
        yield running


@pytest.fixture(autouse=True)
def all_blocks_return(server: RunningServer) -> Iterator[None]:
    """After each test the service answers, and nobody holds a block; after a reset nothing is cached either."""
    yield
    assert complete(server).status_code == 200
    assert HTTP.post(server.url + "/reset_prefix_cache").status_code == 200
    assert complete(server, "x" * 8).json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    with until(lambda: server.state.engine.live == 0):
        pass
    values = metrics(server)
    assert values["octavo_cache_blocks"] == BLOCKS
    assert values["octavo_cache_usage_ratio"] == values["octavo_cache_cached_blocks"] == 0
    assert values["octavo_cache_pinned_blocks"] == 0


def metrics(server: RunningServer) -> dict[str, float]:
    lines = HTTP.get(server.url + "/metrics").text.splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name.split("{")[0]: float(value) for name, value in pairs}


def complete(server: RunningServer, prompt: object = STORY, **body: object) -> httpx.Response:
    whole = {"prompt": prompt, "max_tokens": 3, "seed": 1, **body}
    return HTTP.post(server.url + "/v1/completions", content=json.dumps(whole))  # NaN and Infinity go as Python does


@pytest.mark.parametrize(
    ("body", "field", "word"),
    [
        ({"prompt_cache_key": "k" * 900_000}, "prompt_cache_key", "1024 characters, got 900000"),
        ({"prompt_cache_key": 7}, "prompt_cache_key", "str"),
        ({"cache_salt": 7}, "cache_salt", "str"),
        ({"cache_salt": ["a"]}, "cache_salt", "str"),
        ({"priority": 1 << 63}, "priority", ""),
        ({"priority": -(1 << 80)}, "priority", ""),
        ({"priority": 0.5}, "priority", "int"),
        ({"timeout": 0}, "timeout", "above 0"),
        ({"timeout": -3}, "timeout", "above 0"),
        ({"timeout": 1e30}, "timeout", "at most"),
        ({"ttft_deadline": -1e-9}, "ttft_deadline", "above 0"),
        ({"ttft_deadline": "soon"}, "ttft_deadline", "float"),
        ({"cache_control": {"type": "ephemeral", "ttl": "1e30h"}}, "cache_control", "'5m' or '1h'"),
        ({"cache_control": {"type": "ephemeral", "ttl": -5}}, "cache_control", "'5m' or '1h'"),
        ({"cache_control": "everything"}, "cache_control", "object"),
        ({"prompt_cache_retention": "for ever" * 1000}, "prompt_cache_retention", "'in_memory' or '24h'"),
    ],
)
def test_what_makes_no_sense_is_a_400_that_names_it(
    server: RunningServer, body: dict[str, object], field: str, word: str
) -> None:
    answer = complete(server, **body)
    assert answer.status_code == 400, answer.text
    message = answer.json()["error"]["message"]
    assert field in message
    assert word in message
    assert len(message) < 300


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("field", ["timeout", "ttft_deadline", "priority"])
def test_what_is_no_number_in_json_is_a_400(server: RunningServer, field: str, number: float) -> None:
    assert complete(server, **{field: number}).status_code == 400


def test_a_salt_of_a_megabyte_is_a_salt_like_any_other(server: RunningServer) -> None:
    salts = ["s" * 1_000_000, "s" * 1_000_000, "s" * 999_999 + "t"]
    answers = [complete(server, cache_salt=salt).json()["usage"] for salt in salts]
    assert [usage["prompt_tokens_details"]["cached_tokens"] for usage in answers] == [0, 48, 0]
    refused = complete(server, cache_salt="s" * (1 << 21))
    assert refused.status_code == 413
    assert refused.json()["error"]["message"].startswith("the body is larger than 1048576 bytes")


def test_a_pin_of_everything_stops_nobody(server: RunningServer) -> None:
    whole = "".join(chr(32 + i % 90) + chr(33 + i // 90) for i in range(CONTEXT // 2))[: CONTEXT - 8]
    pinned = []
    for start in range(8):  # together far more than there is
        prompt = chr(35 + start) + whole[1:]
        answer = complete(server, prompt, cache_control={"type": "ephemeral", "ttl": "1h"})
        assert answer.status_code == 200
        pinned.append(metrics(server)["octavo_cache_pinned_blocks"])
    assert max(pinned) <= BLOCKS
    assert metrics(server)["octavo_cache_pins_broken_total"] > 0
    assert complete(server, "another one " * 12).status_code == 200


def test_a_reset_in_the_middle_of_answers(server: RunningServer) -> None:
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(complete, server, f"{i % 3} {STORY}", max_tokens=60, seed=i) for i in range(24)]
        for _ in range(10):
            assert HTTP.post(server.url + "/reset_prefix_cache").status_code == 200
        texts = [one.result().json()["choices"] for one in asked]
    again = [complete(server, f"{i % 3} {STORY}", max_tokens=60, seed=i).json()["choices"] for i in range(24)]
    assert texts == again


def test_ten_thousand_cancels_at_once(server: RunningServer) -> None:
    """They are all out of the way, and their blocks are back, before the next request is answered."""
    request = GenerationRequest("", tuple(range(40)), Sampling(), Stopping(400))

    async def storm(count: int) -> float:
        cache = CacheManager((FULL,), CacheOptions(BLOCKS, 16))
        scheduler = Scheduler(cache, SchedulerLimits(8, 256, CONTEXT, max_waiting=count))
        loop = EngineLoop(scheduler, FakeExecutor((FULL,), BLOCKS, 16, vocab=128), time.monotonic)
        link = ThreadedEngine(LocalClient(EngineInfo(CONTEXT, BLOCKS, 16, 8, 256, VOCAB, 0.0), loop))
        engine = AsyncEngine(link, OutputProcessor(ByteTokenizer()), max_waiting=count)
        await engine.ready()
        streams = [engine.open(replace(request, id=str(number))) for number in range(count)]
        async for _ in streams[0]:
            break  # some run by now, most wait
        begun = time.process_time()
        for stream in streams:
            stream.close()
        stream = engine.open(replace(request, id="next", stopping=Stopping(2)))
        deltas = [delta async for item in stream for delta in item]
        seconds = time.process_time() - begun
        assert [len(delta.token_ids) for delta in deltas] in ([2], [1, 1])
        assert engine.live == 0
        assert (cache.stats().used, scheduler.stats().waiting, scheduler.stats().running) == (0, 0, 0)
        await engine.close()
        return seconds

    assert asyncio.run(storm(10_000)) < 10.0
