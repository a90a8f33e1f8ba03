"""A recorded forward with its memory: one native call runs a whole step."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from octavo.errors import InternalError
from octavo.kernels.cpu.allocate import mapped_bytes
from octavo.kernels.cpu.cache import NativeCache
from octavo.kernels.cpu.fusion import fuse
from octavo.kernels.cpu.instruction import Buffer, Instruction, Operand
from octavo.kernels.cpu.library import NativeLibrary
from octavo.kernels.cpu.memory import MemoryPlan, plan_memory, tail_start
from octavo.kernels.cpu.step import NativeStep
from octavo.kernels.cpu.structs import Coding, OctavoInstruction, OctavoProgram, OctavoSegment, Opcode, format_code
from octavo.kernels.cpu.team import ThreadTeam
from octavo.ops.weight import PackedWeight


@dataclass(frozen=True, slots=True)
class ProgramLimits:
    """Most tokens and most sampled rows of a step: what the buffers are sized for."""

    tokens: int
    rows: int


@dataclass(frozen=True, slots=True)
class Recording:
    """How a forward becomes a program.

    fused: apply the peephole rules. coding: what products with weights of block formats round their inputs to.
    """

    fused: bool = True
    coding: Coding = Coding.EXACT


class NativeProgram:
    """Instructions, weights, buffers and cache, ready to run.

    It keeps every array alive that an instruction points to. Buffers take memory only as far as steps have touched
    them.

    Args:
        fused: apply the peephole rules; the numbers are the same without.
    """

    def __init__(
        self,
        library: NativeLibrary,
        team: ThreadTeam,
        instructions: Sequence[Instruction],
        limits: ProgramLimits,
        cache: NativeCache | None = None,
        fused: bool = True,
    ) -> None:
        self.instructions = tuple(fuse(instructions) if fused else instructions)
        self.limits = limits
        self.memory: MemoryPlan = plan_memory(self.instructions, limits.tokens, limits.rows)
        self._library = library
        self._team = team
        self._cache = cache
        self._arenas = [mapped_bytes(size).view(np.float32) for size in self.memory.sizes]
        self._kept: list[object] = []
        self._code = (OctavoInstruction * len(self.instructions))(*(self._lower(ins) for ins in self.instructions))
        self._pointers = (ctypes.c_void_p * len(self._arenas))(*(arena.ctypes.data for arena in self._arenas))
        self._cache_struct = None if cache is None else cache.struct()
        self._whole = self._struct(0, len(self.instructions))
        start = tail_start(self.instructions)
        self._tail = self._struct(start, len(self.instructions) - start)

    def run(self, step: NativeStep) -> None:
        """The whole step."""
        self._check(step)
        self._library.call.octavo_run(self._team.handle, ctypes.addressof(self._whole), step.address)

    def run_tail(self, step: NativeStep) -> None:
        """From the selection of rows on, for other rows of the step that ran last."""
        self._check(step)
        self._library.call.octavo_run(self._team.handle, ctypes.addressof(self._tail), step.address)

    def run_timed(self, step: NativeStep) -> NDArray[np.float64]:
        """As `run`; seconds that each instruction took."""
        self._check(step)
        seconds = np.zeros(len(self.instructions))
        whole = ctypes.addressof(self._whole)
        self._library.call.octavo_run_timed(self._team.handle, whole, step.address, seconds.ctypes.data)
        return seconds

    def view(self, buffer: Buffer, rows: int) -> NDArray[np.float32]:
        """The first `rows` rows of a buffer, [rows, width]; holds its values only while the buffer lives."""
        arena = self._arenas[self.memory.arena[buffer.index]]
        return arena[: rows * buffer.width].reshape(rows, buffer.width)

    @property
    def raw_logits(self) -> Buffer:
        """The logits that log-probabilities are taken of; they outlive a run.

        Raises:
            InternalError: the program does not sample.
        """
        last = self.instructions[-1]
        if last.opcode is not Opcode.SAMPLE or last.in1 is None:
            raise InternalError("the program does not end in SAMPLE")
        return last.in1

    def _check(self, step: NativeStep) -> None:
        tokens, rows = step.struct.tokens, step.struct.rows
        if tokens > self.limits.tokens or rows > self.limits.rows:
            raise InternalError(f"a step of {tokens} tokens and {rows} rows exceeds the program's {self.limits}")

    def _struct(self, first: int, count: int) -> OctavoProgram:
        """`count` instructions from `first` on, as native code takes them."""
        return OctavoProgram(
            code=ctypes.addressof(self._code) + first * ctypes.sizeof(OctavoInstruction),
            count=count,
            buffers=len(self._arenas),
            buffer=ctypes.addressof(self._pointers),
            cache=None if self._cache_struct is None else ctypes.addressof(self._cache_struct),
        )

    def _lower(self, ins: Instruction) -> OctavoInstruction:
        """The native form of an instruction."""
        lowered = OctavoInstruction(
            opcode=ins.opcode,
            out=self._number(ins.out),
            out2=self._number(ins.out2),
            in0=self._number(ins.in0),
            in1=self._number(ins.in1),
            width=ins.width,
            depth=ins.depth,
        )
        lowered.i[0] = ins.axis
        for position, value in enumerate(ins.integers):
            lowered.i[position + 1] = value
        for position, number in enumerate(ins.floats):
            lowered.f[position] = number
        for position, operand in enumerate(ins.operands):
            lowered.p[position] = self._pointer(operand)
        return lowered

    def _number(self, buffer: Buffer | None) -> int:
        return -1 if buffer is None else self.memory.arena[buffer.index]

    def _pointer(self, operand: Operand) -> int | None:
        """Address of an operand, which is kept alive."""
        self._kept.append(operand)
        if operand is None:
            return None
        if not isinstance(operand, PackedWeight):
            return operand.ctypes.data
        segments = (OctavoSegment * len(operand.segments))()
        for native, segment in zip(segments, operand.segments, strict=True):
            code, data = format_code(segment.format), segment.data
            assert code is not None, "formats were checked when the program was recorded"
            assert isinstance(data, np.ndarray), "data was checked when the program was recorded"
            native.format, native.rows, native.cols = code, segment.rows, operand.shape[1]
            native.data = data.ctypes.data
        self._kept.append(segments)
        return ctypes.addressof(segments)
