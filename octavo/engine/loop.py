"""Owns the arrows: plan, submit, wait, commit; and what becomes of a step that fails."""

import time
from collections import deque
from collections.abc import Callable, Iterable

from octavo.engine.client import EngineStats, Pause
from octavo.errors import EngineAsleepError, InvalidRequestError, OctavoError
from octavo.execution.executor import Executor, Pending
from octavo.execution.sleep import LEVELS, PARTS, Part
from octavo.flow.plan import StepPlan
from octavo.flow.request import GenerationRequest
from octavo.flow.result import FinishReason, SequenceOutput
from octavo.scheduling.scheduler import Scheduler
from octavo.telemetry.log import logger

_log = logger("engine")
# The longest that an end may take for the sake of the next start.
_SAVE_SECONDS = 8.0
# How long a step without work waits for a grammar to be compiled.
_GRAMMAR_SECONDS = 0.005


class EngineLoop:
    """Steps a scheduler and an executor. Not thread-safe: one owner.

    Args:
        clock: monotonic seconds, the clock of `GenerationRequest.arrival`.
        pipelined: plan and submit a step before waiting for the last one, for executors whose `submit` returns while
            the device works. On CPUs there is nothing to hide behind. Streams get the same tokens either way.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        clock: Callable[[], float] = time.monotonic,
        pipelined: bool = False,
    ) -> None:
        self._scheduler = scheduler
        self._executor = executor
        self._clock = clock
        self._depth = 1 if pipelined else 0
        self._under_way: deque[tuple[StepPlan, Pending]] = deque()
        self._ready: list[SequenceOutput] = []  # outputs that belong to no step
        self._held: list[GenerationRequest] = []  # their grammars are being compiled
        self._asleep: frozenset[Part] = LEVELS[0]
        self.stalled = False  # the last step had nothing to do

    @property
    def has_work(self) -> bool:
        """A step would do something."""
        return bool(self._ready or self._under_way or self._held) or self._scheduler.has_work

    def submit(self, request: GenerationRequest) -> None:
        """Take a request on.

        Raises:
            InvalidRequestError, PromptTooLongError, OverloadedError, DeadlineExceededError: see `Scheduler.add`.
            EngineAsleepError: it sleeps.
        """
        if self._asleep:
            raise EngineAsleepError(f"the engine sleeps (level {self.asleep}) and takes no requests until it is woken")
        if request.sampling.grammar and not self._executor.prepare(request.sampling.grammar, 0.0):
            self._held.append(request)
            return
        self._scheduler.add(request, self._clock())

    def cancel(self, request_ids: Iterable[str]) -> None:
        """End requests now; the next step hands out their last outputs."""
        for request_id in request_ids:
            for request in [held for held in self._held if held.id == request_id]:
                self._held.remove(request)
                self._ready += _ends(request, FinishReason.ABORT)
            self._ready.extend(self._scheduler.cancel(request_id))

    def cancel_streams(self, streams: Iterable[tuple[str, int]]) -> None:
        """End single streams of requests now; the others go on."""
        for request_id, index in streams:
            self._ready.extend(self._scheduler.cancel(request_id, index))

    def step(self) -> list[SequenceOutput]:
        """Plan a step, and wait for it or, pipelined, for the one before it.

        An error in a step ends the requests that were in it, and no other.
        """
        now = self._clock()
        if self._held:
            self._take_held(now)
        self._ready += self._scheduler.expire(now)
        plan = self._scheduler.plan(now)
        self.stalled = not (plan.runs or self._under_way)
        # After a step that was not even begun, the next one is planned on firm ground: on what has been committed.
        ahead = self._depth if plan.runs and self._begin(plan) and self._scheduler.has_work else 0
        while len(self._under_way) > ahead:
            self._finish(*self._under_way.popleft())
        outputs, self._ready = self._ready, []
        return outputs

    @property
    def paused(self) -> bool:
        """No new requests are started."""
        return self._scheduler.paused

    def pause(self, how: Pause = "wait") -> None:
        """Start no new requests until `resume`; see `engine.client.Pause`."""
        if how == "abort":
            self.cancel((*self._scheduler.unfinished, *(request.id for request in self._held)))
        self._scheduler.pause(freeze=how == "keep")

    def resume(self) -> None:
        """Go on after a pause."""
        self._scheduler.resume()

    def stats(self) -> EngineStats:
        """A reading."""
        stats = self._scheduler.stats()
        counters = stats.counters
        return EngineStats(
            running=stats.running,
            waiting=stats.waiting + len(self._held),
            used_blocks=stats.cache.used,
            num_blocks=stats.cache.num_blocks,
            prefix_queries=counters.prefix_queries,
            prefix_hits=counters.prefix_hits,
            preemptions=counters.preemptions,
            prompt_tokens=counters.prompt_tokens,
            generation_tokens=counters.generation_tokens,
            steps=counters.steps,
            step_seconds=counters.step_seconds,
            overtaken=counters.overtaken,
            expired=counters.expired,
            not_finite=counters.not_finite,
            waiting_tokens=stats.waiting_tokens,
            under_way=stats.under_way,
            tenants=stats.tenants,
            paused=stats.paused,
            prompt_room=stats.prompt_room,
            retry_after=stats.retry_after,
            asleep=self.asleep,
            spilled=counters.spilled,
            tiers=stats.tiers,
            cached_blocks=stats.cache.cached,
            pinned_blocks=stats.cache.pinned,
            pins_refused=stats.cache.pins_refused,
            pins_broken=stats.cache.pins_broken,
            evictions=stats.cache.evictions,
            prefix_misses=stats.cache.misses,
        )

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes."""
        done = self._scheduler.reset_prefix_cache()
        self._run_now(self._scheduler.plan_save(self._clock()))  # slower tiers forget now, not with the next request
        return done

    @property
    def asleep(self) -> int:
        """The level of sleep; 0: awake."""
        return next(level for level in range(len(LEVELS) - 1, -1, -1) if LEVELS[level] <= self._asleep)

    def sleep(self, level: int) -> None:
        """Let go of memory: level 1 of the cache's, level 2 of the weights' as well. Takes no requests until `wake`.

        Cached prefixes are stored in a tier first, if there is one, and come back from there.

        Raises:
            InvalidRequestError: there is no such level, or something is unfinished.
            UnsupportedError: the engine cannot sleep.
        """
        if level not in range(1, len(LEVELS)):
            raise InvalidRequestError(f"level must be 1 or 2, not {level}", "level")
        if self._scheduler.has_work or self._held:
            raise InvalidRequestError("requests are unfinished: an engine sleeps when nothing runs or waits")
        if "kv_cache" not in self._asleep:
            self.save_cache(_SAVE_SECONDS, into_host=True)
            self._scheduler.empty_device()
            self._run_now(self._scheduler.plan_save(self._clock()))
        self._executor.sleep(level)
        self._asleep |= LEVELS[level]

    def wake(self, parts: Iterable[Part] | None = None) -> None:
        """Bring parts back; all of them without `parts`.

        Raises:
            UserError: weights that have to be loaded again are not there any more.
        """
        self._asleep = self._executor.wake(PARTS if parts is None else parts)

    def save_cache(self, seconds: float, into_host: bool = False) -> None:
        """Store cached blocks where they outlive this process, as far as there is such a place and the time allows.

        Args:
            into_host: where they outlive the cache will do.
        """
        deadline = self._clock() + seconds
        while (plan := self._scheduler.plan_save(self._clock(), into_host)).runs and self._clock() < deadline:
            self._run_now(plan)

    def close(self) -> None:
        """Store what is cached, and release the executor."""
        if not self._asleep:
            self.save_cache(_SAVE_SECONDS)
        self._executor.close()

    def _take_held(self, now: float) -> None:
        """Start what waits for its grammar no longer."""
        patience = 0.0 if self._scheduler.has_work else _GRAMMAR_SECONDS
        for request in list(self._held):
            if self._executor.prepare(request.sampling.grammar, patience):
                self._held.remove(request)
                try:
                    self._scheduler.add(request, now)
                except OctavoError as error:
                    self._ready += _ends(request, FinishReason.ERROR, str(error))

    def _run_now(self, plan: StepPlan) -> None:
        """Run a plan without rows, after what is under way."""
        if plan.runs:
            self._begin(plan)
        while self._under_way:
            self._finish(*self._under_way.popleft())

    def _begin(self, plan: StepPlan) -> bool:
        """Submit a step; false when the executor did not take it."""
        try:
            self._under_way.append((plan, self._executor.submit(plan)))
        except Exception as error:
            self._fail(plan, error)
            return False
        except BaseException:  # Ctrl-C: nobody knows how far the step got
            self._ready += self._scheduler.fail(plan, "interrupted")
            raise
        return True

    def _finish(self, plan: StepPlan, pending: Pending) -> None:
        try:
            result = pending.wait()
            self._ready += self._scheduler.commit(plan, result, self._clock())
        except Exception as error:
            self._fail(plan, error)
        except BaseException:
            self._ready += self._scheduler.fail(plan, "interrupted")
            raise

    def _fail(self, plan: StepPlan, error: Exception) -> None:
        _log.error("step %d failed", plan.step, exc_info=error)
        self._ready += self._scheduler.fail(plan, f"{type(error).__name__}: {error}")


def _ends(request: GenerationRequest, reason: FinishReason, error: str | None = None) -> list[SequenceOutput]:
    """Every stream's end, of a request that has not begun."""
    return [SequenceOutput(request.id, index, (), finish_reason=reason, error=error) for index in range(request.n)]
