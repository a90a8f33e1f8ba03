"""A request's own rules for what is drawn, applied to the records of a step: a few ids a row, by way of its biases."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from octavo.execution.slots import Integers
from octavo.execution.step_inputs import StepInputs
from octavo.flow.logits_rules import in_effect


@dataclass(slots=True)
class RowArrays:
    """What a row's record points into; it must outlive the step."""

    ids: Integers
    values: NDArray[np.float32]
    allowed: Integers


def apply_rules(inputs: StepInputs) -> list[RowArrays]:
    """Fill in the records of drawing rows that have rules; the result is to be kept until the step has run."""
    table = inputs.table
    slots = inputs.slots[inputs.row_sequences[: inputs.drawn]]
    return [_apply(inputs, row, int(slots[row])) for row in table.ruled[slots].nonzero()[0].tolist()]


def _apply(inputs: StepInputs, row: int, slot: int) -> RowArrays:
    occupant, sampling = inputs.table.occupant(slot), inputs.sampling
    count = int(sampling["bias_count"][row])  # with the stop ids, where they are banned
    bias = dict(zip(occupant.bias_ids[:count].tolist(), occupant.bias_values[:count].tolist(), strict=True))
    effect = in_effect(occupant.sampling.rules, inputs.table.answer(slot), occupant.allowed_ids.tolist())
    for token, value in effect.bias.items():
        bias[token] = bias.get(token, 0.0) + value
    arrays = RowArrays(
        np.array([*effect.scale, *bias], np.int32),
        np.array([*effect.scale.values(), *bias.values()], np.float32),
        np.array(effect.allowed, np.int32),
    )
    sampling["scale_count"][row] = len(effect.scale)
    sampling["bias_count"][row] = len(arrays.ids)
    sampling["bias_ids"][row] = arrays.ids.ctypes.data
    sampling["bias_values"][row] = arrays.values.ctypes.data
    sampling["allowed_count"][row] = len(arrays.allowed)
    sampling["allowed_ids"][row] = arrays.allowed.ctypes.data
    return arrays
