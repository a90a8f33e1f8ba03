"""What the worker asks of a model on a device: run a step, or show its logits."""

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from octavo.execution.step_inputs import StepInputs


@dataclass(slots=True)
class StepOutputs:
    """What a step drew, for the inputs' R rows. Arrays may be views that the next run overwrites.

    Log-probabilities are of the raw logits; those of rows that asked for none are undefined. K is the inputs'
    `top_count`, or more.
    """

    token_ids: NDArray[np.int32]  # [R]
    logprobs: NDArray[np.float32]  # [R], of the drawn token
    ranks: NDArray[np.int32]  # [R], of the drawn token, 1 = likeliest
    invalid: NDArray[np.int32]  # [R], 1: the logits were not finite
    top_ids: NDArray[np.int32]  # [R, K], best first
    top_logprobs: NDArray[np.float32]  # [R, K]
    mu: NDArray[np.float32]  # [R], of rows with mirostat: what their next draw starts from
    # log-probabilities of the whole vocabulary, [vocab], of each of the inputs' `whole_rows`
    whole: dict[int, NDArray[np.float32]] = field(default_factory=dict[int, NDArray[np.float32]])


class Runner(Protocol):
    """A model on one device, with its cache. One caller at a time; steps run in the order they are given."""

    def run(self, inputs: StepInputs) -> StepOutputs:
        """Compute the step's tokens into the cache and draw for its rows. Any number of rows up to the tokens."""
        ...

    def logits(self, inputs: StepInputs) -> NDArray[np.float32]:
        """As `run`, but returns the raw logits of the rows, [R, vocab], and draws nothing. For tests."""
        ...

    def copy_block(self, source: int, target: int) -> None:
        """Copy a cache page's contents."""
        ...
