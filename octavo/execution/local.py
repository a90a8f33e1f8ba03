"""The executor of one process: the worker runs where the engine runs."""

from collections.abc import Iterable

from octavo.execution.sleep import Part
from octavo.execution.worker import Worker
from octavo.flow.plan import StepPlan
from octavo.flow.result import StepResult


class _Done:
    """A step that is over."""

    def __init__(self, result: StepResult) -> None:
        self._result = result

    def wait(self) -> StepResult:
        return self._result


class LocalExecutor:
    """Implements Executor with one worker; `submit` returns when the step is done."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def submit(self, plan: StepPlan) -> _Done:
        """Run the plan.

        Raises:
            InternalError: as Worker.run_step.
        """
        return _Done(self._worker.run_step(plan))

    def prepare(self, grammar: str, seconds: float) -> bool:
        """See Executor."""
        return self._worker.prepare(grammar, seconds)

    def sleep(self, level: int) -> None:
        """See Executor."""
        self._worker.sleep(level)

    def wake(self, parts: Iterable[Part]) -> frozenset[Part]:
        """See Executor."""
        return self._worker.wake(parts)

    def close(self) -> None:
        """Let the worker finish what it began beside steps."""
        self._worker.close()
