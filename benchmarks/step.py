"""What a step's bookkeeping costs: plan + commit of the real scheduler and cache, over an executor that does nothing.

python benchmarks/step.py [--rows 64 256 1024] [--groups 1 6] [--policy fair] [--target-itl-ms 50]

Also what a crowd of waiting requests costs under every policy, and the bytes that are kept for a request.
"""

import argparse
import random
import statistics
import time
import tracemalloc
from dataclasses import dataclass, replace

from octavo.cache.group import KVCacheGroup
from octavo.cache.manager import CacheManager, CacheOptions
from octavo.flow.request import GenerationRequest, Sampling, Stopping
from octavo.flow.result import StepResult
from octavo.scheduling.budget import SchedulerLimits
from octavo.scheduling.policy import POLICIES
from octavo.scheduling.scheduler import Scheduler

_PROMPT = 64
_BLOCK = 16


def measure(
    rows: int, groups: int, steps: int, policy: str = "fcfs", target: float | None = None, block: int = _BLOCK
) -> tuple[float, float]:
    """Median seconds (of this thread) of plan and of commit in steady decode, block borders and publishing included."""
    kinds = [KVCacheGroup("full", None, (0,))] + [KVCacheGroup("window", 512, (0,))] * (groups - 1)
    blocks = rows * groups * (_PROMPT + steps + 2 * block) // block
    cache = CacheManager(kinds, CacheOptions(blocks + blocks // 50, block))
    limits = SchedulerLimits(rows, rows * _PROMPT, 4096, policy=policy, target_itl=target)  # type: ignore[arg-type]
    scheduler = Scheduler(cache, limits)
    for index in range(rows):
        # Lengths differ, so that block borders are spread over the steps as they are in service.
        prompt = tuple(range(index * 7, index * 7 + _PROMPT - index % _BLOCK))
        scheduler.add(GenerationRequest(str(index), prompt, Sampling(), Stopping(4000)))
    plans, commits = [], []
    for step in range(steps + 2):
        begin = time.thread_time()
        plan = scheduler.plan(begin)
        planned = time.thread_time()
        drawn = sum(row.samples for row in plan.rows)
        result = StepResult(plan.step, (step % 1000,) * drawn, seconds=0.01)
        ran = time.thread_time()
        scheduler.commit(plan, result, ran)
        done = time.thread_time()
        if step >= 2:
            assert drawn == rows
            plans.append(planned - begin)
            commits.append(done - ran)
    return statistics.median(plans), statistics.median(commits)


@dataclass(frozen=True, slots=True)
class Crowd:
    """What a crowd that waits costs, in seconds of this thread.

    `step`: plan + commit of 64 sequences that run, none of which ends.
    """

    add: float
    step: float
    cancel: float


def measure_crowd(policy: str, count: int, steps: int = 50) -> Crowd:
    """`count` requests wait behind 64 that run; then all are cancelled, in no order."""
    cache = CacheManager([KVCacheGroup("full", None, (0,))], CacheOptions(4096, _BLOCK))
    limits = SchedulerLimits(64, 8192, 4096, policy=policy, request_timeout=6000.0)  # type: ignore[arg-type]
    scheduler = Scheduler(cache, limits)
    rng = random.Random(1)
    requests = [_request(index, rng) for index in range(64 + count)]
    for request in requests[:64]:
        scheduler.add(request, 1.0)
    _step(scheduler, 1.0)
    begin = time.thread_time()
    for request in requests[64:]:
        scheduler.add(request, 1.0)
    added = time.thread_time()
    taken = [_step(scheduler, 1.0 + step / 1000) for step in range(1, steps)]
    order = rng.sample(requests, len(requests))
    middle = time.thread_time()
    for request in order:
        scheduler.cancel(request.id)
    done = time.thread_time()
    assert not scheduler.has_work
    each = max(1, count)
    return Crowd((added - begin) / each, statistics.median(taken), (done - middle) / len(order))


def _request(index: int, rng: random.Random) -> GenerationRequest:
    prompt = (index,) * _PROMPT
    priority, tenant = (-9, "first") if index < 64 else (rng.randrange(5), str(rng.randrange(2000)))
    stopping = Stopping(400 + (index >= 64) * rng.randrange(400))
    return GenerationRequest(str(index), prompt, Sampling(), stopping, priority=priority, tenant=tenant, arrival=1.0)


def _step(scheduler: Scheduler, now: float) -> float:
    """Seconds of plan and commit."""
    begin = time.thread_time()
    plan = scheduler.plan(now)
    planned = time.thread_time()
    result = StepResult(plan.step, (7,) * sum(row.samples for row in plan.rows), seconds=0.01)
    ran = time.thread_time()
    scheduler.commit(plan, result, now)
    return planned - begin + time.thread_time() - ran


def measure_memory(rows: int, prompt: int = _PROMPT) -> tuple[float, float]:
    """Bytes that the scheduler and the cache keep for a request that waits, and for one that runs.

    The request itself (its prompt and parameters) is not among them.
    """
    rng = random.Random(1)
    requests = [replace(_request(index, rng), prompt_token_ids=(index,) * prompt) for index in range(rows)]
    blocks = rows * (prompt // _BLOCK + 2)
    scheduler = Scheduler(
        CacheManager([KVCacheGroup("full", None, (0,))], CacheOptions(blocks + blocks // 50, _BLOCK)),
        SchedulerLimits(rows, rows * prompt, 4096),
    )
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for request in requests:
        scheduler.add(request, 1.0)
    waiting = tracemalloc.get_traced_memory()[0]
    _step(scheduler, 1.0)
    running = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return (waiting - before) / rows, (running - before) / rows


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 64, 256, 1024, 4096])
    parser.add_argument("--groups", type=int, nargs="+", default=[1, 6])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--policy", default="fcfs", choices=list(POLICIES))
    parser.add_argument("--target-itl-ms", type=float, default=None, help="with the step-time model")
    parser.add_argument("--waiting", type=int, nargs="+", default=[0, 10_000, 100_000], help="requests that wait")
    options = parser.parse_args()
    target = None if options.target_itl_ms is None else options.target_itl_ms / 1000
    print("rows  groups  plan us/row  commit us/row  both us/row  both us/step")
    for groups in options.groups:
        for rows in options.rows:
            seconds = measure(rows, groups, options.steps, options.policy, target)
            plan, commit = (1e6 * part for part in seconds)
            both = plan + commit
            print(
                f"{rows:4}  {groups:6}  {plan / rows:11.2f}  {commit / rows:13.2f}  {both / rows:11.2f}  {both:12.1f}"
            )
    print("\npolicy    waiting  add us  step of 64 us  cancel us")
    for policy in POLICIES:
        for count in options.waiting:
            crowd = measure_crowd(policy, count)
            times = (f"{1e6 * crowd.add:6.1f}", f"{1e6 * crowd.step:13.0f}", f"{1e6 * crowd.cancel:9.1f}")
            print(f"{policy:8}  {count:7}  {'  '.join(times)}")
    print("\nprompt  bytes of a waiting request  of a running one")
    for prompt in (64, 1024):
        waiting, running = measure_memory(256, prompt)
        print(f"{prompt:6}  {waiting:26,.0f}  {running:16,.0f}")


if __name__ == "__main__":
    main()
