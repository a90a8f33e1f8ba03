"""What one step may take, and what it has been given so far."""

from dataclasses import dataclass, field
from typing import Literal

from octavo.flow.plan import PlannedRow, SlotArrival


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """Every number is final. `max_waiting` None: no limit."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    enable_chunked_prefill: bool = True
    policy: Literal["fcfs", "priority"] = "fcfs"
    max_waiting: int | None = None


@dataclass(slots=True)
class StepDraft:
    """A step while it is planned. Rows and arrivals by sequence, so that a preempted one can be taken out again."""

    tokens_left: int
    rows: dict[int, PlannedRow] = field(default_factory=dict[int, PlannedRow])
    arrivals: dict[int, SlotArrival] = field(default_factory=dict[int, SlotArrival])
    preempted: list[int] = field(default_factory=list[int])

    def add(self, row: PlannedRow) -> None:
        """Give a sequence its part of the step."""
        self.rows[row.sequence] = row
        self.tokens_left -= row.count

    def withdraw(self, sequence: int) -> bool:
        """Take a sequence out. True when it was new to the device, which then never hears of it."""
        row = self.rows.pop(sequence, None)
        if row is not None:
            self.tokens_left += row.count
        return self.arrivals.pop(sequence, None) is not None
