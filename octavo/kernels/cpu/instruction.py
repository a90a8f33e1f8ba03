"""A recorded instruction before it has memory: buffers are numbered once each, operands are Python objects."""

from dataclasses import dataclass
from enum import Enum, IntEnum

import numpy as np
from numpy.typing import NDArray

from octavo.kernels.cpu.structs import Opcode
from octavo.ops.weight import PackedWeight

Vector = NDArray[np.float32]
Places = NDArray[np.int64]  # of the pieces of a state, as instruction.h has them
Operand = Vector | Places | PackedWeight | None


class Axis(IntEnum):
    """What the rows of a buffer are; the number is i[0] of an instruction."""

    TOKENS = 0
    ROWS = 1


class Ids(Enum):
    """A step's integer arrays, as a recorded forward sees them."""

    TOKEN_IDS = 0  # the number is i[2] of EMBED
    POSITIONS = 1
    TOKEN_TYPES = 2
    SAMPLED_ROWS = 3


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """The StepHandles of a recording."""

    token_ids: Ids = Ids.TOKEN_IDS
    positions: Ids = Ids.POSITIONS
    sampled_rows: Ids = Ids.SAMPLED_ROWS
    token_types: Ids = Ids.TOKEN_TYPES


@dataclass(frozen=True, slots=True)
class Buffer:
    """Stands for an activation [tokens or rows, width] while recording. Written once, by one instruction."""

    index: int
    width: int
    axis: Axis


@dataclass(frozen=True, slots=True)
class Instruction:
    """One line of a program; operands as instruction.h describes them for the opcode."""

    opcode: Opcode
    axis: Axis
    width: int  # of the output row
    in0: Buffer | None = None
    in1: Buffer | None = None
    out: Buffer | None = None
    out2: Buffer | None = None
    depth: int = 0
    integers: tuple[int, ...] = ()  # i[1], i[2], ...
    floats: tuple[float, ...] = ()  # f[0], f[1], ...
    operands: tuple[Operand, ...] = ()  # p[0], p[1], ...
    fused: tuple[Opcode, ...] = ()  # what this stands for, when it was fused

    @property
    def reads(self) -> tuple[Buffer, ...]:
        """Buffers it reads."""
        return tuple(buffer for buffer in (self.in0, self.in1) if buffer is not None)

    @property
    def writes(self) -> tuple[Buffer, ...]:
        """Buffers it writes."""
        return tuple(buffer for buffer in (self.out, self.out2) if buffer is not None)
