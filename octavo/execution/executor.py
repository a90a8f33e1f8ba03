"""What the engine knows of the machines that compute: submit a plan, wait for its result."""

from typing import Protocol

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

    def close(self) -> None: ...
