"""Pooled answers as numbers."""

import numpy as np
from numpy.typing import NDArray

from octavo.flow.pooling import Pooled


def values_of(pooled: Pooled) -> NDArray[np.float32]:
    """[rows, width]; a view of the bytes."""
    values: NDArray[np.float32] = np.ndarray((pooled.rows, pooled.width), np.dtype("<f4"), pooled.data)
    return values
