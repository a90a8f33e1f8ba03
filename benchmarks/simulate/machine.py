"""A server without a model: the real loop, scheduler and cache over a device that only takes (virtual) time."""

import random
import time
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import ClassVar

from benchmarks.simulate.costs import StepCosts
from benchmarks.simulate.measures import Histogram
from benchmarks.simulate.workload import Job, Source, number_of
from octavo.cache.group import KVCacheGroup
from octavo.cache.manager import CacheManager
from octavo.cache.options import CacheOptions
from octavo.engine.loop import EngineLoop
from octavo.execution.sleep import Part
from octavo.flow.plan import StepPlan
from octavo.flow.result import SequenceOutput, StepResult
from octavo.scheduling.budget import SchedulerLimits
from octavo.scheduling.fairness import OUTPUT_COST, PROMPT_COST
from octavo.scheduling.scheduler import Scheduler
from octavo.scheduling.step_time import StepLoad, pairs_of

_SAMPLED = 32  # steps from one look at the pool to the next
FULL = KVCacheGroup("full", None, (0,))


@dataclass(slots=True)
class Tally:
    """What was seen. The arrays have an entry for every request that ended; times in virtual seconds."""

    RECORD: ClassVar[int] = 36  # bytes that a request leaves here

    kinds: list[str] = field(default_factory=list)
    tenants: list[str] = field(default_factory=list)
    first: array = field(default_factory=lambda: array("f"))  # from arrival to the first token
    whole: array = field(default_factory=lambda: array("f"))  # from arrival to the last one
    prompts: array = field(default_factory=lambda: array("I"))  # tokens
    cached: array = field(default_factory=lambda: array("I"))  # tokens of these that were found
    answers: array = field(default_factory=lambda: array("I"))  # tokens
    gaps: Histogram = field(default_factory=Histogram)  # seconds between two tokens of a stream
    steps: int = 0
    rows: int = 0
    tokens: int = 0
    drawn: int = 0  # tokens of answers
    busy: float = 0.0  # seconds of steps
    row_seconds: float = 0.0
    most_rows: int = 0
    allocated: int = 0  # token slots of blocks that someone holds, summed over the looks
    unfilled: int = 0  # of these, how many hold no token
    served: dict[str, float] = field(default_factory=dict)  # units of service by tenant, if accounts are kept
    host: float = 0.0  # real seconds (of this thread) of plan and commit
    host_add: float = 0.0  # real seconds (of this thread) of taking requests on


@dataclass(frozen=True, slots=True)
class _Done:
    result: StepResult

    def wait(self) -> StepResult:
        return self.result


class Machine:
    """The executor, the clock and the measurements; `run` plays a load.

    Args:
        accounts: keep `Tally.served`, which takes a while for every row.
    """

    def __init__(
        self,
        limits: SchedulerLimits,
        costs: StepCosts,
        options: CacheOptions,
        accounts: bool = False,
        groups: Iterable[KVCacheGroup] = (FULL,),
    ) -> None:
        self.cache = CacheManager(list(groups), options)
        self.scheduler = Scheduler(self.cache, limits)
        self.now = 0.0
        self.loop = EngineLoop(self.scheduler, self, lambda: self.now)
        self.tally = Tally()
        self.jobs: dict[str, Job] = {}
        self._costs = costs
        self._rng = random.Random(1)
        self._block = options.block_size
        self._accounts = accounts
        self._scripts: list[tuple[int, ...]] = [()] * limits.max_num_seqs  # by slot
        self._away: dict[int, float] = {}  # when preempted sequences got their last tokens
        self._last = 0.0  # when the last step ended
        self._device_seconds = 0.0  # real ones, which are not the bookkeeping's

    def submit(self, plan: StepPlan) -> _Done:
        """Let the time pass that the plan takes."""
        began = time.thread_time()
        rows, tally, scripts = plan.rows, self.tally, self._scripts
        returned = self._seat(plan)
        drawn = [scripts[row.slot][row.output_index] for row in rows if row.samples]
        firsts = [row.output_index for row in rows if row.samples].count(0)
        counts = [row.count for row in rows]
        tokens = sum(counts)
        pairs = sum([row.start for row in rows]) + len(rows)
        if tokens != len(rows):
            pairs = sum([pairs_of(row.start, row.count) for row in rows])
        seconds = self._costs.seconds(StepLoad(tokens, len(rows), pairs))
        if self._costs.noise:
            seconds *= max(0.5, self._rng.gauss(1.0, self._costs.noise))
        self.now += seconds
        # Whoever draws in a step drew in the last one as well, but for those that begin or come back.
        tally.gaps.add(self.now - self._last, len(drawn) - firsts - len(returned))
        for at in returned:
            tally.gaps.add(self.now - at, 1)
        self._last = self.now
        tally.steps += 1
        tally.rows += len(rows)
        tally.tokens += tokens
        tally.drawn += len(drawn)
        tally.busy += seconds
        tally.row_seconds += seconds * len(rows)
        tally.most_rows = max(tally.most_rows, len(rows))
        if tally.steps % _SAMPLED == 0:
            self._look(plan)
        if self._accounts:
            self._charge(plan)
        result = StepResult(plan.step, tuple(drawn), seconds=seconds)
        self._device_seconds += time.thread_time() - began
        return _Done(result)

    def run(self, source: Source, until: float = float("inf"), stop: Callable[[], bool] | None = None) -> Tally:
        """Play a load to its end, or until the clock or `stop` (asked after each step) says so."""
        loop, tally, clock = self.loop, self.tally, time.thread_time
        while True:
            due = source.due()
            if not loop.has_work:
                if due is None:
                    return tally
                self.now = max(self.now, due)
            if self.now >= until:
                return tally
            while due is not None and due <= self.now:
                job = source.take()
                self.jobs[job.request.id] = job
                began = clock()
                loop.submit(job.request)
                tally.host_add += clock() - began
                due = source.due()
            before, began = self._device_seconds, clock()
            outputs = loop.step()
            tally.host += clock() - began - (self._device_seconds - before)
            for output in outputs:
                if output.finish_reason is not None:
                    self._note(source, output)
            if stop is not None and stop():
                return tally

    def close(self) -> None:
        """Nothing to close."""

    def sleep(self, level: int) -> None:
        """Nothing to let go of."""

    def wake(self, parts: Iterable[Part]) -> frozenset[Part]:
        """Nothing sleeps."""
        return frozenset()

    def _seat(self, plan: StepPlan) -> list[float]:
        """Note who has which slot; when those who come back in the middle of an answer had their last tokens."""
        for sequence in plan.preempted:
            self._away.setdefault(sequence, self._last)
        returned: list[float] = []
        for arrival in plan.arrivals:
            job = self.jobs[str(number_of(arrival.sampling.seed))]
            self._scripts[arrival.slot] = job.turn.answer
            if len(arrival.token_ids) == arrival.prompt_len:
                self._away.pop(arrival.sequence, None)
        if self._away:
            for row in plan.rows:
                if row.samples and row.sequence in self._away:
                    at = self._away.pop(row.sequence)
                    if row.output_index:
                        returned.append(at)
        return returned

    def _look(self, plan: StepPlan) -> None:
        """How much of the blocks that someone holds is filled. Only a sequence's last block can be unfilled."""
        block, tally = self._block, self.tally
        tally.allocated += self.cache.stats().used * block
        tally.unfilled += sum([-(row.start + row.count) % block for row in plan.rows])

    def _charge(self, plan: StepPlan) -> None:
        members, served = self.scheduler._roster.members, self.tally.served
        for row in plan.rows:
            tenant = members[row.sequence].request.tenant
            units = PROMPT_COST * row.count if row.start < members[row.sequence].prompt_len else OUTPUT_COST
            served[tenant] = served.get(tenant, 0.0) + units

    def _note(self, source: Source, output: SequenceOutput) -> None:
        job = self.jobs.pop(output.request_id)
        tally, turn, times = self.tally, job.turn, output.times
        assert times is not None
        tally.kinds.append(turn.kind)
        tally.tenants.append(turn.tenant)
        tally.first.append(times.first_token - times.arrival)
        tally.whole.append(times.last_token - times.arrival)
        tally.prompts.append(len(turn.prompt))
        tally.cached.append(output.num_cached_tokens)
        tally.answers.append(len(turn.answer))
        source.ended(job, self.now)
