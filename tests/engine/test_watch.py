"""When an engine process counts as hung; the time is the test's own."""

import os
import subprocess
import sys
import time

from octavo.engine.watch import Activity, Watch, activity_of


class Clock:
    """Time that passes when it is told to."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


STILL = Activity(3.0, 4096, traced=False)


def wait(watch: Watch, clock: Clock, seconds: float, *activities: Activity | None) -> str | None:
    """Look as often as the watch wants; the activities are seen in turn. The first reason there is to end it."""
    looks = round(seconds / watch.period)
    for number in range(looks):
        clock.now += watch.period
        reason = watch.look(activities[number % len(activities)])
        if reason is not None:
            return reason
    return None


def watched(limit: float = 40.0, first_start: float | None = 2.0, ready: bool = True) -> tuple[Watch, Clock]:
    clock = Clock()
    watch = Watch(limit, first_start, clock)
    if ready:
        watch.heard(ready=True)
    watch.look(STILL)
    return watch, clock


def test_who_neither_answers_nor_works_is_ended_and_told_of_before() -> None:
    watch, clock = watched()
    assert wait(watch, clock, 15, STILL) is None
    assert watch.suspicion is None
    assert wait(watch, clock, 10, STILL) is None
    assert watch.suspicion == "the engine has neither answered nor worked for 25 s"
    assert wait(watch, clock, 100, STILL) == "it hung: no answer and no work for 40 s (--engine-timeout 40)"
    watch.heard(ready=False)
    assert watch.suspicion is None
    assert wait(watch, clock, 35, STILL) is None


def test_who_works_has_ten_times_as_long() -> None:
    for busy in (Activity(9.0, 4096, traced=False), Activity(3.0, 8192, traced=False), None):
        watch, clock = watched()
        assert wait(watch, clock, 395, busy, STILL) is None
        assert watch.suspicion is None
        assert wait(watch, clock, 10, busy, STILL) == (
            "it hung: no answer for 400 s, though it worked (--engine-timeout 40)"
        )


def test_the_trickle_of_one_who_waits_for_ever_is_no_work() -> None:
    watch, clock = watched()
    trickle = [Activity(3.0 + 0.01 * number, 4096, traced=False) for number in range(9)]
    assert wait(watch, clock, 45, *trickle) is not None


def test_time_in_which_the_watcher_was_stopped_does_not_count() -> None:
    watch, clock = watched()
    clock.now += 1e6
    assert watch.look(STILL) is None
    assert wait(watch, clock, 25, STILL) is None


def test_a_debugger_may_take_its_time() -> None:
    watch, clock = watched()
    assert wait(watch, clock, 1000, Activity(3.0, 4096, traced=True)) is None
    assert wait(watch, clock, 35, STILL) is None


def test_loading_may_take_what_it_took_before() -> None:
    busy = Activity(9.0, 4096, traced=False)
    watch, clock = watched(first_start=None, ready=False)
    assert wait(watch, clock, 10_000, STILL) is None  # the first start is in nobody's way
    watch, clock = watched(first_start=300.0, ready=False)
    assert wait(watch, clock, 895, busy, STILL) is None
    assert wait(watch, clock, 10, busy, STILL) is not None
    watch, clock = watched(first_start=300.0, ready=False)
    assert wait(watch, clock, 40, STILL) is not None


def test_there_need_be_no_limit() -> None:
    watch, _ = watched(limit=0.0)
    clock = Clock()
    watch.period = 1.0
    assert wait(watch, clock, 10_000, STILL) is None
    assert watch.suspicion is None


def test_what_a_process_does_is_read_from_the_system() -> None:
    own = activity_of(os.getpid())
    if sys.platform != "linux":
        assert own is None
        return
    assert own is not None
    end = time.process_time() + 0.05
    while time.process_time() < end:
        pass
    now = activity_of(os.getpid())
    assert now is not None
    assert now.processor_seconds > own.processor_seconds
    assert not now.traced
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert activity_of(gone.pid) is None
