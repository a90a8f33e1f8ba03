"""What a step's bookkeeping costs: plan + commit of the real scheduler and cache, over an executor that does nothing.

python benchmarks/step.py [--rows 64 256 1024] [--groups 1 6]
"""

import argparse
import statistics
import time

from octavo.cache.group import KVCacheGroup
from octavo.cache.manager import CacheManager, CacheOptions
from octavo.flow.request import GenerationRequest, Sampling, Stopping
from octavo.flow.result import StepResult
from octavo.scheduling.budget import SchedulerLimits
from octavo.scheduling.scheduler import Scheduler

_PROMPT = 64
_BLOCK = 16


def measure(rows: int, groups: int, steps: int) -> tuple[float, float]:
    """Median seconds of plan and of commit in steady decode, block borders and publishing included."""
    kinds = [KVCacheGroup("full", None, (0,))] + [KVCacheGroup("window", 512, (0,))] * (groups - 1)
    blocks = rows * groups * (_PROMPT + steps + 2 * _BLOCK) // _BLOCK
    cache = CacheManager(kinds, CacheOptions(blocks + blocks // 50, _BLOCK))
    scheduler = Scheduler(cache, SchedulerLimits(rows, rows * _PROMPT, 4096))
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
        result = StepResult(plan.step, (step % 1000,) * drawn)
        ran = time.perf_counter()
        scheduler.commit(plan, result, ran)
        done = time.perf_counter()
        if step >= 2:
            assert drawn == rows
            plans.append(planned - begin)
            commits.append(done - ran)
    return statistics.median(plans), statistics.median(commits)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 64, 256, 1024])
    parser.add_argument("--groups", type=int, nargs="+", default=[1, 6])
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    print("rows  groups  plan us/row  commit us/row  both us/row  both us/step")
    for groups in options.groups:
        for rows in options.rows:
            plan, commit = (1e6 * seconds for seconds in measure(rows, groups, options.steps))
            both = plan + commit
            print(
                f"{rows:4}  {groups:6}  {plan / rows:11.2f}  {commit / rows:13.2f}  {both / rows:11.2f}  {both:12.1f}"
            )


if __name__ == "__main__":
    main()
