"""What tenants and streams get beside others: the real scheduler and cache over a device that only takes virtual time.

python benchmarks/fairness.py [--seconds 120] [--markdown]

Three loads. "Flood": one tenant sends far more than the machine can serve, another a request now and then; the figures
are the light tenant's, beside its own without the flood. "Shares": four tenants that always have something waiting,
with different prompts and answers; Jain's index of the service they got (1 is equal; Jain, Chiu, Hawe, 1984), where a
prompt's token counts 1 and a generated one 2. "Pace": eight streams generate while prompts of 4,000 tokens come, with
and without a target for inter-token latency.
"""

import argparse
import random
import statistics
from collections import defaultdict
from dataclasses import dataclass, replace

from octavo.cache.group import KVCacheGroup
from octavo.cache.manager import CacheManager, CacheOptions
from octavo.engine.loop import EngineLoop
from octavo.flow.plan import StepPlan
from octavo.flow.request import GenerationRequest, Sampling, Stopping
from octavo.flow.result import SequenceTimes, StepResult
from octavo.scheduling.budget import SchedulerLimits
from octavo.scheduling.fairness import OUTPUT_COST, PROMPT_COST
from octavo.scheduling.scheduler import Scheduler
from octavo.scheduling.step_time import StepLoad

# A small model on a few cores: seconds of a step, of a token, of a row, and of a position read by a token.
_FIXED, _TOKEN, _ROW, _PAIR = 0.004, 0.0002, 0.0003, 2e-9
_POLICIES = ("fcfs", "fair")

Arrivals = list[tuple[float, GenerationRequest]]


@dataclass
class _Done:
    result: StepResult

    def wait(self) -> StepResult:
        return self.result


class Machine:
    """A loop with a clock of its own."""

    def __init__(self, policy: str, weights: dict[str, float] | None = None, target: float | None = None) -> None:
        cache = CacheManager([KVCacheGroup("full", None, (0,))], CacheOptions(4096, 16))
        limits = SchedulerLimits(
            *(16, 512, 8192),
            policy=policy,  # type: ignore[arg-type]
            tenant_weights=weights or {},
            target_itl=target,
        )
        self.now = 0.001
        self.loop = EngineLoop(Scheduler(cache, limits), self, lambda: self.now)
        self.times: dict[str, SequenceTimes] = {}
        self.served: dict[str, float] = defaultdict(float)
        self._tenants: dict[int, str] = {}
        self._arrived: list[str] = []
        self.busy = self.rows = self.steps = 0.0
        self.gaps: list[float] = []  # seconds of steps that decode something

    def submit(self, plan: StepPlan) -> _Done:
        """Let the time pass that the plan takes."""
        load = StepLoad.of(plan.rows)
        seconds = _FIXED + _TOKEN * load.tokens + _ROW * load.rows + _PAIR * load.pairs
        self.now += seconds
        self.busy += seconds
        self.rows += load.rows
        if any(row.count == 1 for row in plan.rows):
            self.gaps.append(seconds)
        self.steps += 1
        for row in plan.rows:
            tenant = self._arrived[row.sequence - 1]
            self.served[tenant] += PROMPT_COST * row.count if row.count > 1 else OUTPUT_COST
        return _Done(StepResult(plan.step, (7,) * sum(row.samples for row in plan.rows), seconds=seconds))

    def close(self) -> None:
        """Nothing to close."""

    def run(self, arrivals: Arrivals, until: float) -> "Machine":
        """Play requests at their times until all have ended, or the clock says so."""
        coming = sorted(arrivals, key=lambda pair: pair[0])[::-1]
        while (coming or self.loop.has_work) and self.now < until:
            if not self.loop.has_work:
                self.now = max(self.now, coming[-1][0])
            while coming and coming[-1][0] <= self.now:
                request = coming.pop()[1]
                self._arrived.append(request.tenant)  # sequences are numbered in this order
                self.loop.submit(request)
            for output in self.loop.step():
                if output.finish_reason is not None and output.times is not None:
                    self.times[output.request_id] = output.times
        return self


def request(name: str, tenant: str, arrival: float, prompt: int, answer: int, rng: random.Random) -> GenerationRequest:
    """A prompt that shares nothing with others, of about these lengths."""
    tokens = tuple(rng.randrange(1 << 20) for _ in range(max(1, round(rng.gauss(prompt, prompt / 4)))))
    stopping = Stopping(max(1, round(rng.expovariate(1 / answer))))
    return GenerationRequest(name, tokens, Sampling(), stopping, arrival=arrival, tenant=tenant)


def poisson(tenant: str, rate: float, seconds: float, prompt: int, answer: int, seed: int) -> Arrivals:
    """`rate` requests a second."""
    rng, now, found = random.Random(seed), 0.01, []
    while (now := now + rng.expovariate(rate)) < seconds:
        found.append((now, request(f"{tenant}{len(found)}", tenant, now, prompt, answer, rng)))
    return found


def jain(values: list[float]) -> float:
    """(sum x)^2 / (n * sum x^2)."""
    return sum(values) ** 2 / (len(values) * sum(value * value for value in values))


def flood(seconds: float) -> list[list[str]]:
    """The light tenant's times under each policy, with and without the flood."""
    light = poisson("light", 0.5, seconds, 128, 64, 1)
    heavy = poisson("heavy", 20.0, seconds, 256, 128, 2)
    rows, alone = [], 0.0
    for policy, load in [("alone", light)] + [(policy, light + heavy) for policy in _POLICIES]:
        machine = Machine("fcfs" if policy == "alone" else policy).run(load, seconds)
        times = [one for name, one in machine.times.items() if name.startswith("light")]
        first = sorted(one.first_token - one.arrival for one in times)
        whole = [one.last_token - one.arrival for one in times]
        alone = alone or statistics.mean(whole)
        rows.append(
            [
                policy,
                f"{len(times)} of {len(light)}",
                f"{1000 * statistics.median(first):.0f}",
                f"{1000 * first[int(len(first) * 0.99)]:.0f}",
                f"{statistics.mean(whole):.2f}",
                f"{statistics.mean(whole) / alone:.1f}",
                f"{sum(machine.served.values()) / machine.now:.0f}",
            ]
        )
    return rows


def shares(seconds: float) -> list[list[str]]:
    """Service of four tenants under each policy; with weights 4 : 2 : 1 : 1 in the last row."""
    kinds = {"short": (64, 32, 200.0), "long": (1024, 64, 10.0), "chatty": (32, 256, 8.0), "bursty": (256, 128, 40.0)}
    load = [
        pair
        for seed, (tenant, (prompt, answer, rate)) in enumerate(kinds.items())
        for pair in poisson(tenant, rate, seconds, prompt, answer, seed)
    ]
    weights = dict(zip(kinds, (4.0, 2.0, 1.0, 1.0), strict=True))
    rows = []
    for policy, shared in [*((policy, None) for policy in _POLICIES), ("fair", weights)]:
        machine = Machine(policy, shared).run(load, seconds)
        due = [machine.served[tenant] / (shared or {}).get(tenant, 1.0) for tenant in kinds]
        total = sum(machine.served.values())
        rows.append(
            [
                policy + (" 4:2:1:1" if shared else ""),
                *(f"{100 * machine.served[tenant] / total:.0f} %" for tenant in kinds),
                f"{jain(due):.3f}",
                f"{total / machine.now:.0f}",
                f"{machine.rows / machine.steps:.1f}",
            ]
        )
    return rows


def pace() -> list[list[str]]:
    """Time between tokens of the streams, and to the first token of the prompts, under several targets."""
    rows = []
    for target in (None, 0.05, 0.03, 0.02):
        rng = random.Random(3)
        streams = [(0.01, request(f"s{index}", "", 0.01, 64, 64, rng)) for index in range(8)]
        streams = [(at, replace(one, stopping=Stopping(1000))) for at, one in streams]
        prompts = [(1.0 + index, request(f"p{index}", "", 1.0 + index, 4000, 1, rng)) for index in range(8)]
        machine = Machine("fcfs", target=target).run(streams + prompts, 1e9)
        gaps = sorted(1000 * gap for gap in machine.gaps)
        first = [one.first_token - one.arrival for name, one in machine.times.items() if name.startswith("p")]
        shown = [gaps[int(len(gaps) * share)] for share in (0.5, 0.9, 0.99)]
        rows.append(
            [
                "none" if target is None else f"{1000 * target:.0f}",
                *(f"{gap:.1f}" for gap in (*shown, gaps[-1])),
                f"{statistics.mean(first):.2f}",
            ]
        )
    return rows


def show(titles: list[str], rows: list[list[str]], markdown: bool) -> None:
    """A table for people, or for a page."""
    if markdown:
        for line in (titles, ["---"] * len(titles), *rows):
            print("| " + " | ".join(line) + " |")
        print()
        return
    widths = [max(len(line[column]) for line in (titles, *rows)) for column in range(len(titles))]
    for line in (titles, *rows):
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))
    print()


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=120.0, help="of virtual time")
    parser.add_argument("--markdown", action="store_true")
    options = parser.parse_args()
    light = ["policy", "ended", "TTFT p50 ms", "TTFT p99 ms", "whole s", "slowdown", "units/s in all"]
    show(light, flood(options.seconds), options.markdown)
    show(
        ["policy", "short", "long", "chatty", "bursty", "Jain", "units/s in all", "rows a step"],
        shares(options.seconds),
        options.markdown,
    )
    titles = ["target ms", "ITL p50 ms", "p90", "p99", "longest", "TTFT of prompts, mean s"]
    show(titles, pace(), options.markdown)


if __name__ == "__main__":
    main()
