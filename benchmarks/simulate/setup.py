"""What all experiments of one run share."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from benchmarks.simulate.costs import StepCosts
from benchmarks.simulate.machine import Machine
from benchmarks.simulate.workload import Session, Source, World
from octavo.cache.eviction import EvictionName
from octavo.cache.options import CacheOptions
from octavo.scheduling.budget import PolicyName, SchedulerLimits

BLOCK = 16
MAX_MODEL_LEN = 8448


@dataclass(frozen=True, slots=True)
class Setup:
    """`requests` is the size of a load; experiments that compare many variants take a part of it each."""

    requests: int
    seed: int
    costs: StepCosts
    rows: int = 64
    tokens: int = 512
    blocks: int = 3000

    def machine(
        self,
        policy: PolicyName = "fcfs",
        *,
        target: float | None = None,
        eviction: EvictionName = "priority-frequency",
        weights: Mapping[str, float] | None = None,
        accounts: bool = False,
        rows: int = 0,
    ) -> Machine:
        """A server of the usual size."""
        limits = SchedulerLimits(
            rows or self.rows,
            self.tokens,
            MAX_MODEL_LEN,
            policy=policy,
            target_itl=target,
            tenant_weights=weights or {},
        )
        return Machine(limits, self.costs, CacheOptions(self.blocks, BLOCK, eviction=eviction), accounts)

    def world(self) -> World:
        """The same sessions for everyone who asks."""
        return World(str(self.seed))


@lru_cache
def session_rate(setup: Setup, make: Callable[[World], Callable[[], Session]]) -> float:
    """Sessions a second that a server can serve, as `32 * setup.rows` requests show it.

    It is seen with three times as many users as there are rows, who begin a new session when one is over, once
    the first third has passed. A session is as long as a thousand are on average.
    """
    requests = 32 * setup.rows  # with less the sessions are still young, and their prompts short
    world = setup.world()
    build = make(world)
    turns = sum(sum(1 for _ in build()) for _ in range(1000)) / 1000

    def user() -> Session:
        while True:
            yield from build()

    machine = setup.machine()
    tally = machine.tally
    source = Source(((0.0, user()) for _ in range(3 * setup.rows)), requests)
    machine.run(source, stop=lambda: len(tally.first) * 3 >= requests)
    warm, begun = len(tally.first), machine.now
    machine.run(source, stop=lambda: source.handed_out == requests)
    return (len(tally.first) - warm) / (machine.now - begun) / turns
