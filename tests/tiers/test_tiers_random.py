"""Random programs of requests, failures, resets and restarts over tiers that fail, lose, spoil and delay."""

import logging
import random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from octavo.flow.result import FinishReason
from tests.fakes import FULL, chunked, request, state, window
from tests.tiers.engine import TieredEngine
from tests.tiers.flaky import FlakyTier

LAYOUTS = [(FULL,), (FULL,), (FULL, window(6)), (window(5),), (FULL, FULL), (FULL, state(2)), (chunked(6), state())]
RNG = random.Random(2)
BASES = [[RNG.randrange(40) for _ in range(24)] for _ in range(4)]


class TierMachine(RuleBasedStateMachine):
    """Every request ends and says what it says alone; whatever tiers and steps do, every block returns."""

    @initialize(
        groups=st.sampled_from(LAYOUTS),
        blocks=st.integers(7, 12),
        host=st.integers(1, 16),
        keeps=st.booleans(),
        rate=st.sampled_from([0.0, 0.1, 0.3]),
        failing=st.sampled_from([0.0, 0.0, 0.1]),
        speed=st.sampled_from([1, 8, 30]),
        pipelined=st.booleans(),
        seed=st.integers(0, 2**16),
    )
    def start(self, groups, blocks, host, keeps, rate, failing, speed, pipelined, seed):
        self.tiers = [FlakyTier(6, rate, seed, name="near"), FlakyTier(24, rate, seed + 1, name="far")]
        options = {"host": host, "keeps": keeps, "pipelined": pipelined, "max_model_len": 28}
        self.build = lambda: TieredEngine(
            groups, blocks * sum(group.pages for group in groups), tiers=self.tiers, work=self.work, **options
        )
        self.speed = speed
        self.rng, self.failing = random.Random(seed), failing
        self.asked, self.hit, self.count = [], set(), 0
        self.fetched = 0
        self.open()

    def open(self):
        self.engine = self.build()
        self.engine.executor.inner.on_submit = self.maybe_fail
        self.asked.clear()
        self.hit.clear()

    def work(self):
        """How much a tier gets done during a step."""
        return self.rng.randrange(self.speed + 1)

    def maybe_fail(self, plan):
        self.engine.check_plan(plan)
        if self.rng.random() < self.failing:
            self.hit.update(row.sequence for row in plan.rows)
            raise RuntimeError("the device is gone")

    @rule(base=st.integers(0, 3), length=st.sampled_from([9, 16, 21, 24]), most=st.integers(1, 4), salt=st.booleans())
    def add(self, base, length, most, salt):
        self.count += 1
        one = request(str(self.count), BASES[base][:length], most, cache_salt="s" * salt)
        self.asked.append(one)
        self.engine.add(one)

    @rule(steps=st.integers(1, 5))
    def step(self, steps):
        for _ in range(steps):
            self.engine.step()

    @rule(order=st.permutations(range(4)))
    def go_round(self, order):
        """One prompt after the other, so that each pushes out what the last one left."""
        for base in order:
            self.add(base, 24, 2, False)
            self.engine.run()

    @rule(back=st.integers(0, 3))
    def cancel(self, back):
        self.engine.loop.cancel([str(self.count - back)])

    @rule()
    @precondition(lambda self: self.count % 4 == 0)
    def reset(self):
        assert self.engine.loop.reset_prefix_cache()

    @rule()
    @precondition(lambda self: self.count % 3 == 0)
    def restart(self):
        """The tiers keep what they keep, and a new engine makes of it what it can."""
        self.finish()
        self.open()

    def finish(self):
        engine = self.engine
        engine.run()
        failed = {key for key, stream in engine.streams.items() if stream.reason is FinishReason.ERROR}
        # Planned ahead, a step may fail for a sequence that had ended with the one before.
        assert len(failed) <= len(self.hit) if engine.loop._depth else len(failed) == len(self.hit)
        engine.check_answers([one for one in self.asked if (one.id, 0) not in failed])
        engine.settle()
        engine.check_books()
        for tier in self.tiers:
            assert engine.reading(tier.name).blocks <= tier.capacity
        self.fetched += engine.executor.fetched
        engine.close()

    def teardown(self):
        if hasattr(self, "engine"):
            self.finish()


TierMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None, derandomize=True)


class TestTierMachine(TierMachine.TestCase):
    def setUp(self):
        super().setUp()
        logging.getLogger("octavo").setLevel(logging.CRITICAL)

    def tearDown(self):
        logging.getLogger("octavo").setLevel(logging.NOTSET)
        super().tearDown()
