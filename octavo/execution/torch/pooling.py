"""Runs a pooled model op by op through the PyTorch reference."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from octavo.execution.step_inputs import StepInputs
from octavo.execution.torch.runner import spans_of, step_of
from octavo.execution.torch.storage import TorchStore
from octavo.model.decoder import Decoder
from octavo.ops.reference import ReferenceOps

Floats = NDArray[np.float32]


class TorchPoolingRunner:
    """Implements PoolingRunner over `ReferenceOps`."""

    def __init__(self, decoder: Decoder[Tensor], store: TorchStore, threads: int | None = None) -> None:
        self._decoder = decoder
        self._store = store
        if threads is not None:
            torch.set_num_threads(threads)

    def states(self, inputs: StepInputs) -> Floats:
        """See PoolingRunner."""
        self._store.use_tables(inputs.table.tables)
        self._store.use_states(inputs.state_reads, inputs.state_writes)
        with torch.inference_mode():
            return self._decoder.states(ReferenceOps(spans_of(inputs), (), self._store), step_of(inputs)).numpy()

    def head(self, states: Floats) -> Floats:
        """See PoolingRunner."""
        with torch.inference_mode():
            return self._decoder.pooled_head(ReferenceOps(), torch.from_numpy(states)).numpy()

    def copy_block(self, source: int, target: int) -> None:
        """See PoolingRunner."""
        self._store.copy_block(source, target)
