"""What a client sees of the scheduler: deadlines, limits of what may wait, tenants, pauses."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import pytest

from octavo.cache.manager import CacheManager, CacheOptions
from octavo.engine.client import EngineInfo
from octavo.engine.local_client import LocalClient
from octavo.engine.loop import EngineLoop
from octavo.flow.plan import StepPlan
from octavo.scheduling.budget import SchedulerLimits
from octavo.scheduling.scheduler import Scheduler
from tests.fakes import FULL, FakeExecutor
from tests.serving.scripted import HTTP, PATIENCE, RunningServer, run_server, until
from tests.serving.scripted_engine import CONTEXT, VOCAB

TEXT = "/v1/completions"


class Held:
    """A real scheduler over a fake device that computes a step whenever `go` allows one."""

    def __init__(self, **limits: object) -> None:
        self.go = threading.Semaphore(0)
        self.free = False
        self.ahead = 0.0  # how far the engine's clock is
        executor = FakeExecutor((FULL,), 256, 16, vocab=256)
        executor.on_submit = self._hold
        cache = CacheManager((FULL,), CacheOptions(256, 16))
        numbers = {"max_num_seqs": 1, "max_num_batched_tokens": 64, "max_model_len": CONTEXT} | limits
        scheduler = Scheduler(cache, SchedulerLimits(**numbers))  # type: ignore[arg-type]
        self.loop = EngineLoop(scheduler, executor, lambda: time.monotonic() + self.ahead)
        self.client = LocalClient(EngineInfo(CONTEXT, 256, 16, 1, 64, VOCAB, 0.0), self.loop)

    def _hold(self, _plan: StepPlan) -> None:
        if not self.free:
            assert self.go.acquire(timeout=PATIENCE)

    def release(self) -> None:
        """Run on without waiting."""
        self.free = True
        self.go.release(1000)


@contextmanager
def serving(**limits: object) -> Iterator[tuple[Held, RunningServer, ThreadPoolExecutor]]:
    held = Held(**limits)
    with run_server(held.client, dev_mode=True) as server, ThreadPoolExecutor(8) as pool:
        try:
            yield held, server, pool
        finally:
            held.release()


def ask(pool: ThreadPoolExecutor, server: RunningServer, **body: object) -> "Future[httpx.Response]":
    return pool.submit(HTTP.post, server.url + TEXT, json={"prompt": "Hello", "max_tokens": 4, "seed": 1, **body})


def waits(server: RunningServer, count: int):
    return until(lambda: server.state.engine.live == count)


def test_a_deadline_that_passes_before_the_first_token_is_504() -> None:
    with serving() as (held, server, pool):
        with waits(server, 1):
            first = ask(pool, server, max_tokens=10)
        with waits(server, 3):
            late = [ask(pool, server, timeout=50), ask(pool, server, ttft_deadline=50, stream=True)]
        with until(lambda: held.loop.stats().waiting == 2):
            held.go.release()  # messages are taken between two steps
        held.ahead = 51.0
        held.go.release(2)  # what has expired goes out with the step after
        for answer in (one.result() for one in late):
            assert (answer.status_code, answer.json()["error"]["type"]) == (504, "GatewayTimeoutError")
        held.release()
        assert first.result().json()["choices"][0]["finish_reason"] == "length"
        assert held.loop.stats().expired == 2
        assert held.loop.stats().steps == 10  # nothing was computed for those


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_takes_too_long_ends_with_what_there_is(stream: bool) -> None:
    with serving() as (held, server, pool):
        with until(lambda: held.loop.stats().generation_tokens == 2):
            answer = ask(pool, server, timeout=50, max_tokens=400, stream=stream)
            held.go.release(2)
        held.ahead = 51.0
        held.release()
        assert answer.result().status_code == 200
        if stream:
            assert '"finish_reason":"timeout"' in answer.result().text
        else:
            assert answer.result().json()["choices"][0]["finish_reason"] == "timeout"
            assert 2 <= answer.result().json()["usage"]["completion_tokens"] <= 3


def test_deadlines_of_the_server_hold_for_all() -> None:
    with serving(request_timeout=50.0, ttft_deadline=20.0) as (held, server, pool):
        with waits(server, 3):
            bodies = ({"timeout": 1000}, {}, {"ttft_deadline": 1000})
            answers = [ask(pool, server, max_tokens=100, **body) for body in bodies]
        with until(lambda: held.loop.stats().waiting == 2):
            held.go.release()
        held.ahead = 21.0
        held.go.release(2)
        with until(lambda: sum(answer.done() for answer in answers) == 2):
            pass
        held.ahead = 51.0
        held.release()
        with until(lambda: all(answer.done() for answer in answers)):
            pass
        # Of the three one ran when the first deadline passed, and had a token by then.
        assert sorted(answer.result().status_code for answer in answers) == [200, 504, 504]
        assert held.loop.stats().expired == 3


@pytest.mark.parametrize("body", [{"timeout": 0}, {"timeout": -1.5}, {"ttft_deadline": -0.1}, {"timeout": "soon"}])
def test_deadlines_in_the_past_are_400(body: dict[str, object]) -> None:
    with run_server() as server:
        answer = HTTP.post(server.url + TEXT, json={"prompt": "x", **body})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, next(iter(body)))


def test_limits_of_the_queue_are_429_with_a_computed_retry_after() -> None:
    with serving(max_waiting=3, max_waiting_tokens=12) as (held, server, pool):
        held.loop._scheduler._admission._interval = 3.0  # a request ends every three seconds
        with until(lambda: held.loop.stats().running == 1):
            running = ask(pool, server, max_tokens=100)
        with waits(server, 3):
            waiting = [ask(pool, server) for _ in range(2)]  # of 5 tokens each
        with until(lambda: held.loop.stats().waiting == 2):
            held.go.release()
        with waits(server, 4):
            refused = ask(pool, server)
        held.go.release(2)
        answer = refused.result()
        assert answer.status_code == 429
        assert "max_waiting_tokens" in answer.json()["error"]["message"]
        assert answer.headers["retry-after"] == "3"  # half of two waiting ones, three seconds each
        held.release()
        assert [one.result().status_code for one in (running, *waiting)] == [200] * 3


def test_tenants_are_told_apart_by_user_and_by_key() -> None:
    with serving(policy="fair") as (held, server, _pool):
        seen: list[str] = []
        add = held.loop._scheduler.add
        held.loop._scheduler.add = lambda request, now: (seen.append(request.tenant), add(request, now))[1]  # type: ignore[method-assign]
        held.release()
        key = {"authorization": "Bearer secret"}
        for headers, user in [({}, None), ({}, "ann"), (key, None), (key, "ann"), ({}, "u" * 999)]:
            body = {"prompt": "x", "max_tokens": 1, "seed": 1, "user": user}
            answer = HTTP.post(server.url + TEXT, json=body, headers=headers)
            assert answer.status_code == 200
        assert seen[:2] == ["", "ann"]
        assert seen[2].startswith("key:")
        assert "secret" not in seen[2]
        assert seen[3] == "ann"
        assert seen[4].startswith("user:")
        assert len(seen[4]) < 64


def test_pause_waits_for_what_runs_and_resume_goes_on() -> None:
    with serving() as (held, server, pool):
        with until(lambda: held.loop.stats().running == 1):
            running = ask(pool, server, max_tokens=400)
        pausing = pool.submit(HTTP.post, server.url + "/pause?mode=wait")
        for _ in range(390):  # a step at a time: the pause is read between steps, and may come late
            if held.loop.paused:
                break
            held.go.release()
            time.sleep(0.05)
        assert held.loop.paused
        with waits(server, 2):
            waiting = ask(pool, server)
        held.release()
        assert pausing.result().json() == {"status": "paused"}
        assert running.result().status_code == 200
        assert HTTP.get(server.url + "/is_paused").json() == {"is_paused": True}
        assert "octavo_paused{" in HTTP.get(server.url + "/metrics").text
        assert not waiting.done()
        with waits(server, 2):
            late = ask(pool, server, timeout=50)
        held.ahead = 51.0  # deadlines pass also while nothing runs
        assert late.result().status_code == 504
        assert HTTP.post(server.url + "/resume").json() == {"status": "resumed"}
        assert waiting.result().status_code == 200
        assert HTTP.get(server.url + "/is_paused").json() == {"is_paused": False}


def test_pause_can_end_or_keep_what_runs() -> None:
    with serving() as (held, server, pool):
        held.release()
        kept = ask(pool, server, max_tokens=CONTEXT - 20, timeout=1000)
        assert HTTP.post(server.url + "/pause?mode=keep").status_code == 200
        steps = held.loop.stats().steps
        assert HTTP.post(server.url + "/resume").status_code == 200
        assert kept.result().json()["usage"]["completion_tokens"] == CONTEXT - 20
        assert held.loop.stats().steps >= steps
        with waits(server, 1):
            held.loop.pause("keep")
            ended = ask(pool, server)
        assert HTTP.post(server.url + "/pause").status_code == 200
        assert ended.result().json()["choices"][0]["finish_reason"] == "abort"
        assert HTTP.post(server.url + "/pause?mode=never").status_code == 400


def test_operators_routes_are_off_unless_asked_for() -> None:
    with run_server() as server:
        assert HTTP.post(server.url + "/pause").status_code == 404


def test_a_priority_without_effect_is_told() -> None:
    with run_server() as server:
        answer = HTTP.post(server.url + TEXT, json={"prompt": "x", "priority": 3}).json()
        assert answer["warnings"] == ["priority has no effect: the server's scheduling policy is 'fcfs'"]
        assert "warnings" not in HTTP.post(server.url + TEXT, json={"prompt": "x", "priority": 0}).json()
