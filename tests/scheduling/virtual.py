"""A scheduler over a device that only takes time (fixed, by token, by row, by attention), on a clock of its own."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from octavo.cache.manager import CacheManager, CacheOptions
from octavo.engine.loop import EngineLoop
from octavo.flow.plan import StepPlan
from octavo.flow.request import GenerationRequest
from octavo.flow.result import SequenceOutput, StepResult
from octavo.scheduling.budget import SchedulerLimits
from octavo.scheduling.scheduler import Scheduler
from octavo.scheduling.step_time import StepLoad
from tests.fakes import FULL


@dataclass
class Device:
    """Seconds a step takes. `noise`: relative, of a normal distribution."""

    fixed: float = 0.005
    token: float = 0.0001
    row: float = 0.0003
    pair: float = 1e-8
    noise: float = 0.0
    rng: random.Random = field(default_factory=lambda: random.Random(1))

    def seconds(self, plan: StepPlan) -> float:
        load = StepLoad.of(plan.rows)
        exact = self.fixed + self.token * load.tokens + self.row * load.rows + self.pair * load.pairs
        return exact * max(0.5, self.rng.gauss(1.0, self.noise))


@dataclass
class _Done:
    result: StepResult

    def wait(self) -> StepResult:
        return self.result


class Virtual:
    """Runs requests when they arrive. `steps`: (plan, seconds) of each step; `tokens`: when each request got one."""

    def __init__(
        self, device: Device | None = None, blocks: int = 4096, block_size: int = 16, **limits: object
    ) -> None:
        numbers = {"max_num_seqs": 16, "max_num_batched_tokens": 2048, "max_model_len": 8192} | limits
        self.cache = CacheManager((FULL,), CacheOptions(blocks, block_size))
        self.scheduler = Scheduler(self.cache, SchedulerLimits(**numbers))  # type: ignore[arg-type]
        self.now = 1.0
        self.device = device or Device()
        self.loop = EngineLoop(self.scheduler, self, lambda: self.now)
        self.steps: list[tuple[StepPlan, float]] = []
        self.tokens: dict[str, list[float]] = {}
        self.ends: dict[str, SequenceOutput] = {}
        self.on_step: Callable[[StepPlan], None] = lambda _plan: None

    def submit(self, plan: StepPlan) -> _Done:
        seconds = self.device.seconds(plan)
        self.now += seconds
        self.steps.append((plan, seconds))
        self.on_step(plan)
        return _Done(StepResult(plan.step, (7,) * sum(row.samples for row in plan.rows), seconds=seconds))

    def close(self) -> None:
        pass

    def run(self, arrivals: list[tuple[float, GenerationRequest]], until: float = float("inf")) -> "Virtual":
        """Play requests, each at its time, to the end or until the clock says so."""
        waiting = sorted(arrivals, key=lambda pair: pair[0])[::-1]
        while (waiting or self.loop.has_work) and self.now < until:
            if not self.loop.has_work:
                self.now = max(self.now, waiting[-1][0])
            while waiting and waiting[-1][0] <= self.now:
                self.loop.submit(waiting.pop()[1])
            for output in self.loop.step():
                if output.token_ids:
                    self.tokens.setdefault(output.request_id, []).append(self.now)
                if output.finish_reason is not None:
                    self.ends[output.request_id] = output
        return self

    def order(self) -> list[str]:
        """Requests in the order of their first tokens."""
        return sorted(self.tokens, key=lambda name: self.tokens[name][0])
