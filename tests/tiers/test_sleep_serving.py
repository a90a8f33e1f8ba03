"""/sleep, /wake_up and /is_sleeping: what runs ends or is ended, what comes is refused, and then it goes on."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from octavo.cache.manager import CacheManager, CacheOptions
from octavo.engine.client import EngineInfo
from octavo.engine.local_client import LocalClient
from octavo.engine.loop import EngineLoop
from octavo.errors import CheckpointError
from octavo.execution.sleep import LEVELS
from octavo.scheduling.budget import SchedulerLimits
from octavo.scheduling.scheduler import Scheduler
from tests.fakes import FULL, FakeExecutor
from tests.serving.scripted import HTTP, PATIENCE, config_of, run_server, until
from tests.serving.scripted_engine import CONTEXT, VOCAB


class SleepyExecutor(FakeExecutor):
    """Sleeps in name only, and computes steps when `go` allows it."""

    def __init__(self):
        super().__init__((FULL,), 64, 16, vocab=256)
        self.asleep, self.broken = LEVELS[0], False
        self.go = threading.Event()
        self.on_submit = lambda _plan: self.go.wait(PATIENCE)

    def sleep(self, level):
        self.asleep |= LEVELS[level]

    def wake(self, parts):
        if self.broken:
            raise CheckpointError("the weights' file is gone")
        self.asleep -= frozenset(parts)
        return self.asleep


@contextmanager
def serving(**options):
    executor = SleepyExecutor()
    limits = SchedulerLimits(max_num_seqs=2, max_num_batched_tokens=64, max_model_len=CONTEXT)
    loop = EngineLoop(Scheduler(CacheManager((FULL,), CacheOptions(64, 16)), limits), executor, time.monotonic)
    client = LocalClient(EngineInfo(CONTEXT, 64, 16, 2, 64, VOCAB, 0.0), loop)
    with run_server(client, dev_mode=True, **options) as server, ThreadPoolExecutor(4) as pool:
        try:
            yield executor, server, pool, loop
        finally:
            executor.go.set()


def ask(server, **fields):
    body = {"model": "tiny", "prompt": "hello", "max_tokens": 8, "seed": 1, **fields}
    return HTTP.post(server.url + "/v1/completions", json=body)


def is_sleeping(server):
    return HTTP.get(server.url + "/is_sleeping").json()["is_sleeping"]


def test_requests_are_refused_while_it_sleeps_and_answered_after():
    with serving() as (executor, server, _pool, _loop):
        executor.go.set()
        assert ask(server).status_code == 200
        assert not is_sleeping(server)
        assert HTTP.post(server.url + "/sleep?level=2").status_code == 200
        assert is_sleeping(server)
        assert executor.asleep == LEVELS[2]
        refused = ask(server)
        assert refused.status_code == 503
        assert "/wake_up" in refused.json()["error"]["message"]
        assert HTTP.get(server.url + "/health").status_code == 200
        assert HTTP.post(server.url + "/wake_up?tags=weights").status_code == 200
        assert is_sleeping(server)
        assert ask(server).status_code == 503
        assert HTTP.post(server.url + "/wake_up").status_code == 200
        assert ask(server).status_code == 200


def test_sleep_ends_what_runs_or_waits_for_it():
    with serving() as (executor, server, pool, loop):
        with until(lambda: loop.stats().running == 1):
            running = pool.submit(ask, server)
        sleeping = pool.submit(HTTP.post, server.url + "/sleep")
        assert running.result().status_code == 503
        executor.go.set()
        assert sleeping.result().status_code == 200
        HTTP.post(server.url + "/wake_up")
        executor.go.clear()
        with until(lambda: loop.stats().running == 1):
            running = pool.submit(ask, server)
        with until(lambda: server.state.engine._drowsy):
            sleeping = pool.submit(HTTP.post, server.url + "/sleep?mode=wait")
        assert ask(server).status_code == 503
        assert not sleeping.done()
        executor.go.set()
        assert sleeping.result().status_code == 200
        assert running.result().status_code == 200
        assert is_sleeping(server)


def test_what_makes_no_sense_is_told():
    with serving() as (executor, server, _pool, _loop):
        executor.go.set()
        for path in ("/sleep?level=3", "/sleep?mode=keep", "/wake_up?tags=brain"):
            assert HTTP.post(server.url + path).status_code == 400
        HTTP.post(server.url + "/sleep")
        executor.broken = True
        failed = HTTP.post(server.url + "/wake_up")
        assert "gone" in failed.json()["error"]["message"]
        assert is_sleeping(server)
        executor.broken = False
        HTTP.post(server.url + "/wake_up")
        assert ask(server).status_code == 200


def test_operators_only():
    with serving(config=config_of(api_key=("secret",))) as (_executor, server, _pool, _loop):
        assert HTTP.post(server.url + "/sleep").status_code == 401
    with run_server() as server:
        assert HTTP.post(server.url + "/sleep").status_code == 404
