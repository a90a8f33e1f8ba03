"""Runs a model op by op through the PyTorch reference: slow, simple, and what everything else is compared with."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from octavo.execution.runner import StepOutputs
from octavo.execution.step_inputs import StepInputs, rules_of, token_types
from octavo.execution.torch.storage import TorchStore
from octavo.model.decoder import Decoder
from octavo.ops.reference import Drawn, ReferenceOps, Span

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TorchStep:
    """Handles of one step; here they are the values themselves."""

    token_ids: Tensor
    positions: Tensor
    sampled_rows: Tensor
    token_types: Tensor


class TorchRunner:
    """A Runner over `ReferenceOps`.

    Args:
        decoder: the model, its weights packed by `TorchPacker`.
        store: keys and values.
        threads: torch's threads, when given.
    """

    def __init__(self, decoder: Decoder[Tensor], store: TorchStore, threads: int | None = None) -> None:
        self._decoder = decoder
        self._store = store
        if threads is not None:
            torch.set_num_threads(threads)

    def run(self, inputs: StepInputs) -> StepOutputs:
        """See `Runner.run`."""
        ops, _ = self._through(inputs, self._decoder.forward)
        assert ops.drawn is not None, "a forward ends with a draw"
        return _outputs(ops.drawn, inputs)

    def logits(self, inputs: StepInputs) -> NDArray[np.float32]:
        """See `Runner.logits`."""
        _, logits = self._through(inputs, self._decoder.logits)
        return logits.numpy()

    def copy_block(self, source: int, target: int) -> None:
        """See `Runner.copy_block`."""
        self._store.copy_block(source, target)

    def _through(self, inputs: StepInputs, forward: Callable[[ReferenceOps, TorchStep], T]) -> tuple[ReferenceOps, T]:
        self._store.use_tables(inputs.table.tables)
        self._store.use_states(inputs.state_reads, inputs.state_writes)
        ops = ReferenceOps(spans_of(inputs), [rules_of(inputs, row) for row in range(inputs.rows)], self._store)
        with torch.inference_mode():
            return ops, forward(ops, step_of(inputs))


def step_of(inputs: StepInputs) -> TorchStep:
    """A step's arrays as tensors."""
    arrays = (inputs.token_ids, inputs.positions, inputs.sampled_rows, token_types(inputs))
    return TorchStep(*map(torch.from_numpy, arrays))


def spans_of(inputs: StepInputs) -> list[Span]:
    """Which tokens are whose."""
    bounds = inputs.query_starts
    return [
        Span(int(bounds[s]), int(bounds[s + 1] - bounds[s]), int(inputs.starts[s]), int(inputs.slots[s]))
        for s in range(inputs.sequences)
    ]


def _outputs(drawn: Drawn, inputs: StepInputs) -> StepOutputs:
    tokens = torch.tensor(drawn.tokens, dtype=torch.int64)
    logprobs = drawn.logprobs
    own = logprobs.gather(1, tokens.unsqueeze(1)).squeeze(1) if len(tokens) else logprobs.new_zeros(0)
    count = min(inputs.top_count, logprobs.shape[1])
    # A stable sort, so that ties go to the smaller id as everywhere.
    order = torch.sort(logprobs, dim=1, descending=True, stable=True)
    return StepOutputs(
        token_ids=tokens.to(torch.int32).numpy(),
        logprobs=own.numpy(),
        ranks=((logprobs > own.unsqueeze(1)).sum(dim=1) + 1).to(torch.int32).numpy(),
        invalid=np.array(drawn.invalid, np.int32),
        top_ids=order.indices[:, :count].to(torch.int32).numpy(),
        top_logprobs=order.values[:, :count].contiguous().numpy(),
        mu=np.array(drawn.mu, np.float32),
        whole={row: logprobs[row].numpy() for row in inputs.whole_rows},
    )
