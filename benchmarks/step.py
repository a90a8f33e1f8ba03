"""What a step's bookkeeping costs: plan + commit of the real scheduler and cache, over an executor that does nothing.

python benchmarks/step.py [--rows 64 256 1024] [--groups 1 6] [--policy fair] [--target-itl-ms 50]

Also what a cancel costs when ten thousand requests wait.
"""

import argparse
import random
import statistics
import time

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
    rows: int, groups: int, steps: int, policy: str = "fcfs", target: float | None = None
) -> tuple[float, float]:
    """Median seconds of plan and of commit in steady decode, block borders and publishing included."""
    kinds = [KVCacheGroup("full", None, (0,))] + [KVCacheGroup("window", 512, (0,))] * (groups - 1)
    blocks = rows * groups * (_PROMPT + steps + 2 * _BLOCK) // _BLOCK
    cache = CacheManager(kinds, CacheOptions(blocks + blocks // 50, _BLOCK))
    limits = SchedulerLimits(rows, rows * _PROMPT, 4096, policy=policy, target_itl=target)  # type: ignore[arg-type]
    scheduler = Scheduler(cache, limits)
    for index in range(rows):
        # Lengths differ, so that block borders are spread over the steps as they are in service.
        prompt = tuple(range(index * 7, index * 7 + _PROMPT - index % _BLOCK))
        scheduler.add(GenerationRequest(str(index), prompt, Sampling(), Stopping(4000)))
    plans, commits = [], []
    for step in range(steps + 2):
        begin = time.perf_counter()
        plan = scheduler.plan(begin)
        planned = time.perf_counter()
        drawn = sum(row.samples for row in plan.rows)
        result = StepResult(plan.step, (step % 1000,) * drawn, seconds=0.01)
        ran = time.perf_counter()
        scheduler.commit(plan, result, ran)
        done = time.perf_counter()
        if step >= 2:
            assert drawn == rows
            plans.append(planned - begin)
            commits.append(done - ran)
    return statistics.median(plans), statistics.median(commits)


def measure_cancels(policy: str, count: int) -> tuple[float, float]:
    """Seconds a request that `add` takes with `count` waiting, and seconds a request to cancel all of them at once."""
    cache = CacheManager([KVCacheGroup("full", None, (0,))], CacheOptions(4096, _BLOCK))
    limits = SchedulerLimits(64, 4096, 4096, policy=policy, request_timeout=600.0)  # type: ignore[arg-type]
    scheduler = Scheduler(cache, limits)
    requests = [
        GenerationRequest(
            str(index), (index,) * _PROMPT, Sampling(), Stopping(100), priority=index % 5, tenant=str(index % 50)
        )
        for index in range(count)
    ]
    begin = time.perf_counter()
    for request in requests:
        scheduler.add(request, 1.0)
    added = time.perf_counter()
    scheduler.plan(1.0)
    order = random.Random(1).sample(requests, count)
    middle = time.perf_counter()
    for request in order:
        scheduler.cancel(request.id, 1.0)
    done = time.perf_counter()
    assert not scheduler.has_work
    return (added - begin) / count, (done - middle) / count


def main() -> None:
    """Print two tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 64, 256, 1024])
    parser.add_argument("--groups", type=int, nargs="+", default=[1, 6])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--policy", default="fcfs", choices=list(POLICIES))
    parser.add_argument("--target-itl-ms", type=float, default=None, help="with the step-time model")
    parser.add_argument("--cancels", type=int, default=10_000, help="requests that wait, and are cancelled at once")
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
    print(f"\npolicy    add us  cancel us  ({options.cancels} requests)")
    for policy in POLICIES:
        add, cancel = (1e6 * part for part in measure_cancels(policy, options.cancels))
        print(f"{policy:8}  {add:6.1f}  {cancel:9.1f}")


if __name__ == "__main__":
    main()
