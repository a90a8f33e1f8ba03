"""What one step may take, and what it has been given so far."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from octavo.flow.plan import PlannedRow, SlotArrival
from octavo.scheduling.step_time import Pace

PolicyName = Literal["fcfs", "priority", "lpm", "sjf", "fair"]


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """Every number is final. None: no limit. Times are in seconds."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    enable_chunked_prefill: bool = True
    policy: PolicyName = "fcfs"
    max_waiting: int | None = None  # requests
    max_waiting_tokens: int | None = None  # of their prompts
    target_itl: float | None = None  # of a step that decodes something
    request_timeout: float | None = None  # from arrival to the end, whatever the request asks for
    ttft_deadline: float | None = None  # from arrival to the first token
    tenant_weights: Mapping[str, float] = field(default_factory=dict[str, float])


@dataclass(slots=True)
class StepDraft:
    """A step while it is planned. Rows and arrivals by sequence, so that a preempted one can be taken out again.

    `pace`: what prompts may take when the step has a target time.
    """

    tokens_left: int
    rows: dict[int, PlannedRow] = field(default_factory=dict[int, PlannedRow])
    arrivals: dict[int, SlotArrival] = field(default_factory=dict[int, SlotArrival])
    preempted: list[int] = field(default_factory=list[int])
    pace: Pace | None = None

    def room(self, start: int = 0) -> int:
        """Most tokens that a prompt may get from position `start` on."""
        return self.tokens_left if self.pace is None else min(self.tokens_left, self.pace.within(start))

    def add(self, row: PlannedRow) -> None:
        """Give a prompt its part of the step."""
        self.rows[row.sequence] = row
        self.tokens_left -= row.count
        if self.pace is not None:
            self.pace.spend(row.start, row.count)

    def withdraw(self, sequence: int) -> PlannedRow | None:
        """Take a sequence out; its row, if it had one."""
        row = self.rows.pop(sequence, None)
        if row is not None:
            self.tokens_left += row.count
        return row
