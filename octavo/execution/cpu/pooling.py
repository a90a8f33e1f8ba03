"""Runs a pooled model on the CPU: one recorded program up to the hidden states, another for what follows pooling."""

import numpy as np
from numpy.typing import NDArray

from octavo.execution.cpu.storage import CpuStorage
from octavo.execution.step_inputs import StepInputs, token_types
from octavo.kernels.cpu.cache import NativeCache
from octavo.kernels.cpu.instruction import Axis, Buffer, RecordedStep, Vector
from octavo.kernels.cpu.library import NativeLibrary
from octavo.kernels.cpu.program import NativeProgram, ProgramLimits, Recording
from octavo.kernels.cpu.recorder import ProgramRecorder
from octavo.kernels.cpu.step import NativeStep
from octavo.kernels.cpu.structs import SAMPLING_RECORD
from octavo.kernels.cpu.team import ThreadTeam
from octavo.model.decoder import Decoder

Floats = NDArray[np.float32]
_NO_ROWS = np.zeros(0, np.int32)
_NO_RULES = np.zeros(0, SAMPLING_RECORD)
_MOST_ROWS = 1024  # pooled states that the head takes at a time


class NativePoolingRunner:
    """Implements PoolingRunner over two programs.

    Args:
        library, team: what computes.
        decoder: a model without a head of its own.
        limits: most tokens of a step.
        cache: keys and values; its memory is `storage`.
        recording: longest text, and how forwards become programs.
    """

    def __init__(
        self,
        library: NativeLibrary,
        team: ThreadTeam,
        decoder: Decoder[Vector],
        limits: ProgramLimits,
        cache: NativeCache,
        storage: CpuStorage,
        recording: tuple[int, Recording],
    ) -> None:
        max_len, how = recording
        recorder = ProgramRecorder(library, cache, max_len, how.coding)
        self._states: Buffer = decoder.states(recorder, RecordedStep())
        self.program = NativeProgram(library, team, recorder.instructions, limits, cache, how.fused)
        self._types = decoder.spec.embedding.token_types is not None
        self._step = NativeStep(1)
        self._storage = storage
        self._head = _Head(library, team, decoder, how) if decoder.spec.pooled_head else None

    def states(self, inputs: StepInputs) -> Floats:
        """See PoolingRunner."""
        step = self._step
        step.set_tokens(inputs.token_ids, inputs.positions, inputs.query_starts, inputs.slots)
        step.set_states(inputs.state_reads, inputs.state_writes)
        step.set_rows(_NO_ROWS, _NO_RULES)
        if self._types:
            step.set_types(token_types(inputs))
        self.program.run(step)
        return self.program.view(self._states, inputs.tokens)

    def head(self, states: Floats) -> Floats:
        """See PoolingRunner."""
        return states if self._head is None else self._head.run(states)

    def copy_block(self, source: int, target: int) -> None:
        """See PoolingRunner."""
        self._storage.copy(source, target)


class _Head:
    """The dense layers behind pooling, as a program of its own."""

    def __init__(self, library: NativeLibrary, team: ThreadTeam, decoder: Decoder[Vector], how: Recording) -> None:
        recorder = ProgramRecorder(library, coding=how.coding)
        spec = decoder.spec
        self._in = recorder.input(spec.embedding.width if spec.embedding.project else spec.hidden, Axis.TOKENS)
        self._out = decoder.pooled_head(recorder, self._in)
        limits = ProgramLimits(_MOST_ROWS, 1)
        self._program = NativeProgram(library, team, recorder.instructions, limits, None, how.fused)
        self._step = NativeStep(1)

    def run(self, states: Floats) -> Floats:
        """[R, hidden] -> [R, width]."""
        return np.concatenate([self._part(states[at : at + _MOST_ROWS]) for at in range(0, len(states), _MOST_ROWS)])

    def _part(self, states: Floats) -> Floats:
        count = len(states)
        nothing = np.zeros(count, np.int32)
        self._step.set_tokens(nothing, nothing, np.array([0, count], np.int32), _NO_ROWS)
        self._step.set_rows(_NO_ROWS, _NO_RULES)
        self._program.view(self._in, count)[:] = states
        self._program.run(self._step)
        return self._program.view(self._out, count).copy()
