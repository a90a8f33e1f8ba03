"""Weights for the PyTorch reference: float tensors as stored, block formats expanded to float32.

The expansion is the point: this backend shows what a format means, it does not save memory.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from octavo.errors import CheckpointError
from octavo.ops.weight import PackedWeight, Segment, StoredTensor
from octavo.quantization.gguf_blocks import dequantize
from octavo.quantization.quantize import quantize
from octavo.quantization.span_rows import in_order

_FLOATS = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


class TorchPacker:
    """Packer of `ReferenceOps`."""

    def matrix(self, parts: Sequence[StoredTensor]) -> PackedWeight:
        """Stack [out_i, in] parts; see `Packer.matrix`."""
        width = parts[0].shape[1]
        for part in parts:
            if len(part.shape) != 2 or part.shape[1] != width:
                raise CheckpointError(f"{part.name}: shape {part.shape} cannot be stacked on rows of {width}")
        segments = tuple(Segment(part.format, part.shape[0], _tensor(part)) for part in parts)
        return PackedWeight((sum(part.shape[0] for part in parts), width), segments)

    def quantize(self, stored: StoredTensor, format: str) -> StoredTensor:
        """See `Packer.quantize`."""
        return quantize(stored, format)

    def vector(self, values: NDArray[np.float32]) -> torch.Tensor:
        """A gain or bias, float32."""
        return torch.from_numpy(np.array(values, dtype=np.float32))


def _tensor(part: StoredTensor) -> torch.Tensor:
    if part.format in _FLOATS:
        # A copy: the file's mapping is read-only, and torch wants writable memory.
        flat = torch.frombuffer(bytearray(part.data), dtype=_FLOATS[part.format])
        return flat.view(part.shape)
    values = in_order(dequantize(part.format, part.data, part.shape), part.order)
    return torch.from_numpy(np.array(values, dtype=np.float32))
