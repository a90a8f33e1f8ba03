"""Takes from a step's hidden states what pooled requests ask for, over as many steps as their prompts take."""

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from octavo.execution.step_inputs import StepInputs
from octavo.flow.plan import PlannedRow
from octavo.flow.pooling import Pooled, Pooling

Floats = NDArray[np.float32]
_LEAST_LENGTH = 1e-12  # of a vector that is normalized


class PoolingRunner(Protocol):
    """A model on one device whose hidden states are wanted. One caller at a time."""

    def states(self, inputs: StepInputs) -> Floats:
        """Hidden states of the step's tokens, [T, hidden]; a view that the next run overwrites."""
        ...

    def head(self, states: Floats) -> Floats:
        """What the model computes of pooled states: [R, hidden] -> [R, width]. Each row for itself."""
        ...

    def copy_block(self, source: int, target: int) -> None:
        """Copy a cache page's contents."""
        ...


@dataclass(frozen=True, slots=True)
class PooledStep:
    """What a step gave: answers by row index in the plan, and the rows whose numbers are not finite."""

    answers: tuple[tuple[int, Pooled], ...]
    invalid: frozenset[int]


@dataclass(slots=True)
class _Under:
    """A prompt under way: the sum of its states so far, or the states that are taken."""

    total: NDArray[np.float64] | None = None
    taken: list[Floats] = field(default_factory=list[Floats])


class StatePooler:
    """Pools step after step. Mutable; the worker owns it."""

    def __init__(self, runner: PoolingRunner) -> None:
        self._runner = runner
        self._under: dict[int, _Under] = {}  # by sequence

    def run(self, inputs: StepInputs) -> PooledStep:
        """Compute a step, and the answers of the prompts that end in it."""
        states = self._runner.states(inputs)
        waiting = self._under
        self._under = {}
        ready: list[tuple[int, Pooling, Floats]] = []
        for index, row in enumerate(inputs.planned):
            arrival = inputs.table.occupant(row.slot).arrival
            pooling = arrival.pooling
            assert pooling is not None, "a pooled model runs pooled requests"
            under = waiting.get(row.sequence, _Under()) if row.start else _Under()
            first, last = inputs.query_starts[index : index + 2].tolist()
            _take(under, pooling, row, states[first:last], inputs.token_ids[first:last])
            if row.samples:
                ready.append((index, pooling, _result(under, pooling, len(arrival.token_ids))))
            else:
                self._under[row.sequence] = under
        # Sequences that were not in this step go on in a later one, unless their slots were given away.
        present = {row.sequence for row in inputs.planned}
        self._under |= {key: under for key, under in waiting.items() if key not in present}
        return self._answers(ready)

    def forget(self, alive: frozenset[int]) -> None:
        """Let go of what belongs to sequences that have no slot any more."""
        if self._under:
            self._under = {key: under for key, under in self._under.items() if key in alive}

    def copy_block(self, source: int, target: int) -> None:
        """See PoolingRunner."""
        self._runner.copy_block(source, target)

    def _answers(self, ready: list[tuple[int, Pooling, Floats]]) -> PooledStep:
        if not ready:
            return PooledStep((), frozenset())
        whole = self._runner.head(np.concatenate([states for _, _, states in ready]))
        answers: list[tuple[int, Pooled]] = []
        invalid: set[int] = set()
        first = 0
        for index, pooling, states in ready:
            rows = finish(whole[first : first + len(states)], pooling)
            first += len(states)
            answers.append((index, Pooled(rows.astype("<f4", copy=False).tobytes(), *rows.shape)))
            if not np.isfinite(rows).all():
                invalid.add(index)
        return PooledStep(tuple(answers), frozenset(invalid))


def finish(rows: Floats, pooling: Pooling) -> Floats:
    """What is asked of the head's numbers: fewer of them, the length 1, or probabilities. [n, width] -> [n, asked]."""
    if pooling.returned:
        rows = rows[:, list(pooling.returned)]
    if pooling.dimensions:
        rows = rows[:, : pooling.dimensions]
    if pooling.normalize:
        exact = rows.astype(np.float64)
        length = np.sqrt(np.add.reduce(exact * exact, axis=1, keepdims=True))
        rows = (exact / np.maximum(length, _LEAST_LENGTH)).astype(np.float32)
    if pooling.squashing == "sigmoid":
        with np.errstate(over="ignore"):
            rows = (1.0 / (1.0 + np.exp(-rows.astype(np.float64)))).astype(np.float32)
    elif pooling.squashing == "softmax":
        powers = np.exp(rows.astype(np.float64) - rows.max(axis=1, keepdims=True))
        rows = (powers / powers.sum(axis=1, keepdims=True)).astype(np.float32)
    return np.ascontiguousarray(rows)


def _take(under: _Under, pooling: Pooling, row: PlannedRow, states: Floats, token_ids: NDArray[np.int32]) -> None:
    """Add what a step computed of a prompt."""
    match pooling.how:
        case "mean":
            exact = states.astype(np.float64)
            # One after the other, wherever the prompt was cut: chunks leave no trace in the bits.
            seen = exact if under.total is None else np.concatenate([under.total[None], exact])
            under.total = np.add.reduce(seen, axis=0)
        case "last":
            if row.samples:
                under.taken = [states[-1:].copy()]
        case "cls":
            if row.start == 0:
                under.taken = [states[:1].copy()]
        case "step":
            under.taken.append(states[token_ids == pooling.step_tag])
        case "all":
            kept = ~np.isin(token_ids, pooling.skipped) if pooling.skipped else slice(None)
            under.taken.append(states[kept].copy())


def _result(under: _Under, pooling: Pooling, length: int) -> Floats:
    """The states that stand for the whole prompt, [n, hidden]."""
    if pooling.how == "mean":
        assert under.total is not None, "a prompt has tokens"
        return (under.total / length).astype(np.float32)[None]
    return under.taken[0] if len(under.taken) == 1 else np.concatenate(under.taken)
