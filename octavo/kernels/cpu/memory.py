"""Where a program's buffers live: buffers that are never alive together share one arena."""

from collections.abc import Sequence
from dataclasses import dataclass

from octavo.kernels.cpu.allocate import ALIGNMENT
from octavo.kernels.cpu.instruction import Axis, Buffer, Instruction
from octavo.kernels.cpu.structs import Opcode

_FLOAT = 4  # bytes


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """arena[buffer index] is the buffer's arena; sizes[arena] its bytes, a multiple of 64."""

    arena: dict[int, int]
    sizes: tuple[int, ...]

    @property
    def total(self) -> int:
        """Bytes of all arenas."""
        return sum(self.sizes)


def plan_memory(instructions: Sequence[Instruction], max_tokens: int, max_rows: int) -> MemoryPlan:
    """Give every buffer an arena, by liveness.

    An output never shares an arena with an input of its instruction: no kernel is asked to work in place. Token-wide
    buffers that the tail (from the first SELECT_ROWS on) reads live to the end, so that the tail can run again for
    other rows.
    """
    last_use = _last_uses(instructions)
    limits = {Axis.TOKENS: max_tokens, Axis.ROWS: max_rows}
    planner = _Planner()
    written = {buffer.index for ins in instructions for buffer in ins.writes}
    inputs = {buffer.index: buffer for ins in instructions for buffer in ins.reads if buffer.index not in written}
    for buffer in inputs.values():
        planner.take(buffer, limits[buffer.axis])
    for position, ins in enumerate(instructions):
        for buffer in ins.writes:
            planner.take(buffer, limits[buffer.axis])
        for buffer in {buffer.index: buffer for buffer in ins.reads + ins.writes}.values():
            if last_use.get(buffer.index, position) <= position:
                planner.give_back(buffer)
    return MemoryPlan(planner.arena, tuple(planner.sizes))


def tail_start(instructions: Sequence[Instruction]) -> int:
    """Position of the first SELECT_ROWS; the number of instructions when there is none."""
    for position, ins in enumerate(instructions):
        if ins.opcode is Opcode.SELECT_ROWS:
            return position
    return len(instructions)


def _last_uses(instructions: Sequence[Instruction]) -> dict[int, int]:
    """Position of each buffer's last reader. What the tail must find again, and results nobody reads, never end."""
    end = len(instructions)
    tail = tail_start(instructions)
    uses: dict[int, int] = {}
    for position, ins in enumerate(instructions):
        for buffer in ins.reads:
            again = position >= tail and buffer.axis is Axis.TOKENS
            uses[buffer.index] = end if again else max(position, uses.get(buffer.index, 0))
    for ins in instructions:
        if ins.out is not None:
            uses.setdefault(ins.out.index, end)
    return uses


class _Planner:
    """Arenas in use and free, while instructions go by."""

    def __init__(self) -> None:
        self.arena: dict[int, int] = {}
        self.sizes: list[int] = []
        self._free: list[int] = []

    def take(self, buffer: Buffer, rows: int) -> None:
        """The free arena that fits best; else the largest free one grows; else a new one."""
        size = -(-rows * buffer.width * _FLOAT // ALIGNMENT) * ALIGNMENT
        if self._free:
            large = [arena for arena in self._free if self.sizes[arena] >= size]
            chosen = min(large, key=self._size) if large else max(self._free, key=self._size)
            self._free.remove(chosen)
            self.sizes[chosen] = max(self.sizes[chosen], size)
        else:
            chosen = len(self.sizes)
            self.sizes.append(size)
        self.arena[buffer.index] = chosen

    def give_back(self, buffer: Buffer) -> None:
        """The arena is free for others."""
        self._free.append(self.arena[buffer.index])

    def _size(self, arena: int) -> int:
        return self.sizes[arena]
