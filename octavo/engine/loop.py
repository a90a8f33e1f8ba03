"""Owns the arrows: plan, submit, wait, commit; and what becomes of a step that fails."""

import time
from collections.abc import Callable, Iterable

from octavo.engine.client import EngineStats
from octavo.execution.executor import Executor
from octavo.flow.request import GenerationRequest
from octavo.flow.result import SequenceOutput
from octavo.scheduling.scheduler import Scheduler
from octavo.telemetry.log import logger

_log = logger("engine")


class EngineLoop:
    """Steps a scheduler and an executor. Not thread-safe: one owner.

    A step runs to its end before the next is planned: on CPUs there is nothing to hide behind. Behind a device that
    works on its own, the same arrows are pipelined by one step: submit plan n + 1, then wait for n and commit it.

    Args:
        clock: monotonic seconds, the clock of `GenerationRequest.arrival`.
    """

    def __init__(self, scheduler: Scheduler, executor: Executor, clock: Callable[[], float] = time.monotonic) -> None:
        self._scheduler = scheduler
        self._executor = executor
        self._clock = clock
        self._ready: list[SequenceOutput] = []  # outputs that belong to no step

    @property
    def has_work(self) -> bool:
        """A step would do something."""
        return bool(self._ready) or self._scheduler.has_work

    def submit(self, request: GenerationRequest) -> None:
        """Take a request on.

        Raises:
            InvalidRequestError, PromptTooLongError, OverloadedError: see `Scheduler.add`.
        """
        self._scheduler.add(request, self._clock())

    def cancel(self, request_ids: Iterable[str]) -> None:
        """End requests now; the next step hands out their last outputs."""
        now = self._clock()
        for request_id in request_ids:
            self._ready.extend(self._scheduler.cancel(request_id, now))

    def step(self) -> list[SequenceOutput]:
        """Compute one step. An error in it ends the requests that were in it, and no other."""
        outputs, self._ready = self._ready, []
        plan = self._scheduler.plan(self._clock())
        if not plan.rows:
            return outputs
        try:
            result = self._executor.submit(plan).wait()
            outputs.extend(self._scheduler.commit(plan, result, self._clock()))
        except Exception as error:
            _log.exception("step %d failed", plan.step)
            outputs.extend(self._scheduler.fail(plan, f"{type(error).__name__}: {error}"))
        except BaseException:  # Ctrl-C: nobody knows how far the step got
            self._ready = [*outputs, *self._scheduler.fail(plan, "interrupted")]
            raise
        return outputs

    def stats(self) -> EngineStats:
        """A reading."""
        stats = self._scheduler.stats()
        counters = stats.counters
        return EngineStats(
            running=stats.running,
            waiting=stats.waiting,
            used_blocks=stats.cache.used,
            num_blocks=stats.cache.num_blocks,
            prefix_queries=counters.prefix_queries,
            prefix_hits=counters.prefix_hits,
            preemptions=counters.preemptions,
            prompt_tokens=counters.prompt_tokens,
            generation_tokens=counters.generation_tokens,
            steps=counters.steps,
            step_seconds=counters.step_seconds,
        )

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes."""
        return self._scheduler.reset_prefix_cache()

    def close(self) -> None:
        """Release the executor."""
        self._executor.close()
