"""Runs a decoder on the CPU: recorded once, then one native call a step, sampling included."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from octavo.execution.cpu.storage import CpuStorage
from octavo.execution.runner import StepOutputs
from octavo.execution.step_inputs import StepInputs
from octavo.kernels.cpu.cache import NativeCache
from octavo.kernels.cpu.instruction import Buffer, RecordedStep, Vector
from octavo.kernels.cpu.library import NativeLibrary
from octavo.kernels.cpu.program import NativeProgram, ProgramLimits, Recording
from octavo.kernels.cpu.recorder import ProgramRecorder
from octavo.kernels.cpu.step import NativeStep
from octavo.kernels.cpu.team import ThreadTeam
from octavo.model.decoder import Decoder

Floats = NDArray[np.float32]
Integers = NDArray[np.int32]
Results = tuple[Integers, Floats, Integers, Integers, Floats, Integers, Floats]
DEFAULT_RECORDING = Recording()


def record_program(
    library: NativeLibrary,
    team: ThreadTeam,
    decoder: Decoder[Vector],
    limits: ProgramLimits,
    cache: NativeCache,
    max_len: int,
    how: Recording = DEFAULT_RECORDING,
) -> NativeProgram:
    """One whole step of `decoder`, sampling included, as a program."""
    recorder = ProgramRecorder(library, cache, max_len, how.coding)
    decoder.forward(recorder, RecordedStep())
    return NativeProgram(library, team, recorder.instructions, limits, cache, how.fused)


class NativeRunner:
    """Implements Runner over a program that ends in SAMPLE.

    A step with more rows than the program has room for (prompt log-probabilities) selects, projects and draws in
    several turns; the tokens themselves are computed once.
    """

    def __init__(self, program: NativeProgram, storage: CpuStorage) -> None:
        self.program = program
        self._storage = storage
        self._raw: Buffer = program.raw_logits
        # Besides the drawing rows, every token may ask for a prompt log-probability.
        self._step = NativeStep(program.limits.rows + program.limits.tokens)
        self._views = _views(self._step, 0)

    def run(self, inputs: StepInputs) -> StepOutputs:
        """See Runner."""
        whole: dict[int, Floats] = {}
        for first, last in self._turns(inputs):
            rows = [row for row in inputs.whole_rows if first <= row < last]
            if rows:
                logits = self.program.view(self._raw, last - first)
                whole.update({row: _log_softmax(logits[row - first]) for row in rows})
        views = self._views
        if len(views[0]) != inputs.rows or views[-1].base is not self._step.top_logprobs:
            views = self._views = _views(self._step, inputs.rows)
        tokens, logprobs, ranks, invalid, mu, top_ids, top_logprobs = views
        return StepOutputs(tokens, logprobs, ranks, invalid, top_ids, top_logprobs, mu, whole)

    def logits(self, inputs: StepInputs) -> Floats:
        """See Runner."""
        parts = [self.program.view(self._raw, last - first).copy() for first, last in self._turns(inputs)]
        return np.concatenate(parts)

    def copy_block(self, source: int, target: int) -> None:
        """See Runner."""
        self._storage.copy(source, target)

    def _turns(self, inputs: StepInputs) -> Iterator[tuple[int, int]]:
        """Run the step, yielding each range of rows once it is drawn; the first turn computes the tokens."""
        step, turn = self._step, self.program.limits.rows
        step.set_tokens(inputs.token_ids, inputs.positions, inputs.query_starts, inputs.slots)
        step.set_states(inputs.state_reads, inputs.state_writes)
        step.set_top(inputs.top_count)
        for first in range(0, max(inputs.rows, 1), turn):
            last = min(first + turn, inputs.rows)
            step.set_rows(inputs.sampled_rows[first:last], inputs.sampling[first:last], first)
            if first == 0:
                self.program.run(step)
            else:
                self.program.run_tail(step)
            yield first, last


def _views(step: NativeStep, rows: int) -> Results:
    """Where the results of the first `rows` rows come to lie."""
    return (
        step.tokens[:rows],
        step.logprobs[:rows],
        step.ranks[:rows],
        step.invalid[:rows],
        step.mu[:rows],
        step.top_ids[:rows],
        step.top_logprobs[:rows],
    )


def _log_softmax(logits: Floats) -> Floats:
    """Natural log-probabilities of one row, [vocab]."""
    shifted = logits.astype(np.float64) - float(logits.max())
    return (shifted - np.log(np.exp(shifted).sum())).astype(np.float32)
