"""What the engine knows of the machines that compute: submit a plan, wait for its result."""

from collections.abc import Iterable
from typing import Protocol

from octavo.execution.sleep import Part
from octavo.flow.plan import StepPlan
from octavo.flow.result import StepResult


class Pending(Protocol):
    """A step under way."""

    def wait(self) -> StepResult:
        """Block until the step is done."""
        ...


class Executor(Protocol):
    """All ranks of one model. Plans are run in the order they are submitted."""

    def submit(self, plan: StepPlan) -> Pending: ...

    def prepare(self, grammar: str, seconds: float) -> bool:
        """Compile a grammar beside the steps; true once that is over, well or not. Waits up to `seconds` for it."""
        ...

    def sleep(self, level: int) -> None:
        """Let go of memory; nothing may be under way. See `sleep.LEVELS`."""
        ...

    def wake(self, parts: Iterable[Part]) -> frozenset[Part]:
        """Bring parts back; returns what still sleeps."""
        ...

    def close(self) -> None: ...
