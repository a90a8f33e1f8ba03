"""Everything at once, with failures: does each request end as it must, and does every block come back?

The scheduler and the cache are the real ones, with real tiers that fail at random. The device is the test suite's: it
keeps a value for every token in every block and draws from what it reads there, so that a block given away too early, a
wrong copy or a spoilt page changes an answer; and every answer is compared with what its tokens alone say. It is slow,
but it tells.
"""

import logging
import random
from collections import Counter

from benchmarks.simulate.findings import Finding, Table
from benchmarks.simulate.setup import Setup
from octavo.errors import OctavoError
from octavo.flow.plan import StepPlan
from octavo.flow.request import Beam, CacheWish, GenerationRequest
from octavo.flow.result import FinishReason
from octavo.scheduling.policy import POLICIES
from tests.fakes import FULL, chunked, oracle, request, state, window
from tests.tiers.engine import TieredEngine
from tests.tiers.flaky import FlakyTier

_ERA = 150  # requests that one engine serves
_LAYOUTS = (
    (FULL,),
    (FULL, window(12)),
    (window(20),),
    (FULL, window(8), window(8)),
    (FULL, chunked(12)),
    (FULL, state(2)),
)
_BLOCK = 4
_LONGEST = 96
_LIVE = 24  # requests under way, about
_WORDS = f"""
Engines of {_ERA} requests each, of all policies and group layouts, pipelined and not, with pools from barely enough to
plenty. Requests with parallel samples, beams, tenants, priorities, salts, pins, deadlines and scores share prefixes;
they are cancelled one by one and all at once; admission is paused and resumed; the prefix cache is reset; steps fail;
tiers fail, lose, spoil, tear, swap and refuse. Every answer that was not broken off is compared with the right one,
every other one with its beginning. In the end of each engine all blocks are free.
"""


class Soak:
    """Serves requests, era by era. Raises AssertionError as soon as anything is wrong."""

    def __init__(self, seed: int) -> None:
        self.seen: Counter[str] = Counter()  # what happened, so that it can be told that it did
        self._rng = random.Random(seed)
        self._eras = 0

    def run(self, requests: int) -> "Soak":
        """Serve so many."""
        while requests > 0:
            self._era(min(_ERA, requests))
            requests -= _ERA
        return self

    def _era(self, requests: int) -> None:
        rng = self._rng
        engine, tier = self._engine()
        asked: dict[str, GenerationRequest] = {}
        begun = [[rng.randrange(50) for _ in range(48)] for _ in range(4)]  # what prompts begin with
        for number in range(requests):
            one = self._request(f"{self._eras}-{number}", begun)
            try:
                engine.add(one)
                asked[one.id] = one
            except OctavoError as error:
                self.seen[type(error).__name__] += 1
            for _ in range(rng.choice((0, 0, 1, 1, 2, 4))):
                engine.step()
            while len(engine.scheduler.unfinished) > _LIVE and not engine.loop.paused:
                engine.step()
            self._disturb(engine)
        engine.loop.resume()
        engine.run()
        self._check(engine, asked)
        self._count(engine, tier)
        self._eras += 1

    def _engine(self) -> tuple[TieredEngine, FlakyTier]:
        rng = self._rng
        groups = rng.choice(_LAYOUTS)
        tier = FlakyTier(rng.choice((20, 200)), rate=rng.choice((0.0, 0.2)), seed=rng.randrange(1 << 30))
        engine = TieredEngine(
            groups,
            blocks=sum(group.pages for group in groups) * rng.choice((24, 24, 32, 48, 200)),
            block_size=_BLOCK,
            tiers=(tier,),
            host=rng.choice((4, 30)),
            keeps=rng.random() < 0.7,
            work=lambda: rng.randrange(3),
            pipelined=rng.random() < 0.3,
            eviction=rng.choice(("lru", "lfu", "priority-frequency")),
            max_num_seqs=rng.choice((3, 8, 16)),
            max_num_batched_tokens=rng.choice((16, 40)),
            max_model_len=_LONGEST,
            policy=list(POLICIES)[self._eras % len(POLICIES)],
            target_itl=rng.choice((None, None, 0.001)),
            max_waiting=rng.choice((None, 12)),
            request_timeout=rng.choice((None, 0.4)),
            tenant_weights={"a": 3.0},
        )
        engine.executor.inner.on_submit = lambda plan: self._fail(engine, plan)
        return engine, tier

    def _fail(self, engine: TieredEngine, plan: StepPlan) -> None:
        engine.check_plan(plan)
        self.seen["copied blocks"] += len(plan.copies)
        if self._rng.random() < 0.004:
            self.seen["failed steps"] += 1
            raise RuntimeError("the device is gone")

    def _request(self, name: str, begun: list[list[int]]) -> GenerationRequest:
        rng = self._rng
        prompt = rng.choice(begun)[: rng.randint(1, 48)] + [rng.randrange(50) for _ in range(rng.randint(0, 12))]
        options: dict[str, object] = {
            "priority": rng.randint(-2, 2),
            "tenant": rng.choice(("", "a", "b", "c")),
            "cache_salt": rng.choice(("", "", "", "salt")),
            "seed": rng.randrange(1000),
            "n": rng.choice((1, 1, 1, 1, 2, 4)),
            "stop_token_ids": rng.choice((frozenset[int](), frozenset(range(0, 50, 9)))),
            "min_tokens": rng.choice((0, 0, 3)),
            "logprobs": rng.choice((None, None, 1)),
            "cache": rng.choice((CacheWish(), CacheWish(), CacheWish(0.05, "key"), CacheWish(explain=True))),
            "timeout": rng.choice((None, None, None, 0.2)),
            "ttft_deadline": rng.choice((None, None, None, 0.1)),
        }
        if rng.random() < 0.08:
            options |= {"beam": Beam(3), "n": 2, "min_tokens": 0}
        if rng.random() < 0.1:
            options["prompt_logprobs"] = 0
        return request(name, prompt, rng.randint(1, 24), **options)  # type: ignore[arg-type]

    def _disturb(self, engine: TieredEngine) -> None:
        rng, loop = self._rng, engine.loop
        chance = rng.random()
        live = list(engine.scheduler.unfinished)
        if chance < 0.05 and live:
            loop.cancel([rng.choice(live)])
            self.seen["cancels"] += 1
        elif chance < 0.055:
            loop.cancel(live)
            self.seen["cancels"] += len(live)
        elif chance < 0.075:
            loop.pause(rng.choice(("wait", "keep", "abort")))
            self.seen["pauses"] += 1
        elif chance < 0.11:
            loop.resume()
        elif chance < 0.12:
            loop.reset_prefix_cache()
            self.seen["resets"] += 1

    def _check(self, engine: TieredEngine, asked: dict[str, GenerationRequest]) -> None:
        for (name, index), stream in engine.streams.items():
            one = asked[name]
            assert stream.end is not None, f"{name} never ended"
            reason = stream.end.finish_reason
            assert reason is not None
            self.seen[f"ended: {reason.value}"] += 1
            if one.beam is not None:
                self.seen["beams"] += 1
                continue
            whole, right = oracle(one, index, engine.groups, engine.executor.vocab, _LONGEST)
            if reason in (FinishReason.STOP, FinishReason.LENGTH):
                assert (stream.token_ids, reason) == (whole, right), f"{name} got another answer"
                self.seen["answers compared"] += 1
            else:
                assert stream.token_ids == whole[: len(stream.token_ids)], f"{name} began with another answer"
        engine.loop.reset_prefix_cache()
        stats = engine.cache.stats()
        assert (stats.free, stats.used, stats.cached, stats.pinned) == (engine.cache.num_blocks, 0, 0, 0)

    def _count(self, engine: TieredEngine, tier: FlakyTier) -> None:
        stats = engine.loop.stats()
        self.seen["steps"] += stats.steps
        self.seen["preemptions"] += stats.preemptions
        self.seen["preempted for a more urgent one"] += stats.overtaken
        self.seen["evictions"] += stats.evictions
        self.seen["pins broken or refused"] += stats.pins_broken + stats.pins_refused
        self.seen["blocks spilled"] += engine.executor.spilled
        self.seen["blocks fetched"] += engine.executor.fetched
        self.seen["things done to a tier"] += tier.harmed
        self.seen["prompt tokens found"] += stats.prefix_hits


def study(setup: Setup) -> Finding:
    """`setup.requests` of them."""
    logging.disable(logging.ERROR)  # each failed step is told of, as it should be
    try:
        seen = Soak(setup.seed).run(setup.requests).seen
    finally:
        logging.disable(logging.NOTSET)
    rows = [[name, f"{count:,}"] for name, count in sorted(seen.items())]
    table = Table("What happened, and did no harm", ("", "times"), rows)
    return Finding("soak", "Everything at once", _WORDS, [table], figures=dict(seen))
