"""Weights on their way from a file to a kernel: as stored, and as packed by a backend. Both are plain numpy."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor as its file stores it: [out, in] row-major, or a vector [width].

    `format` is "f32", "f16", "bf16", a GGUF block format in lower case ("q4_0", "q4_k", ...) or one with spans of a
    quantized checkpoint (quantization/format.py). `data` holds the raw bytes, usually a view of a mapped file: rows are
    contiguous, and blocks run along the last axis.

    reader: gives rows `start .. start + count` of a matrix that the file has in another arrangement; `data` is then
    most of what it is made of. order: which input each column belongs to, int32 [in]; None: its own.
    """

    name: str  # for messages: the checkpoint's own name
    format: str
    shape: tuple[int, ...]
    data: Bytes
    reader: Callable[[int, int], Bytes] | None = field(default=None, compare=False)
    order: NDArray[np.int32] | None = field(default=None, compare=False)

    def rows(self, start: int, count: int) -> Bytes:
        """Bytes of rows `start .. start + count` of a matrix, [count, bytes of a row]."""
        if self.reader is not None:
            return self.reader(start, count).reshape(count, -1)
        return self.data.reshape(self.shape[0], -1)[start : start + count]


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive output rows of one matrix in one packed format.

    `format` names a kernel layout of the backend that packed it; `data` is that backend's object (native: Bytes;
    torch: a tensor).
    """

    format: str
    rows: int
    data: object


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A matrix [out, in] ready for a backend's `linear` and `embed`: segments stacked along the output axis.

    Segments may differ in format (q, k and v of one GGUF layer often do).
    """

    shape: tuple[int, int]
    segments: tuple[Segment, ...]

    @property
    def formats(self) -> tuple[str, ...]:
        """Format of each segment, in order."""
        return tuple(segment.format for segment in self.segments)


class Packer(Protocol):
    """Turns stored tensors into what a backend's ops take. Each backend has one."""

    def matrix(self, parts: Sequence[StoredTensor]) -> PackedWeight:
        """Stack `parts` (each [out_i, in]) along the output axis.

        Raises:
            CheckpointError: a part's format or shape cannot be packed; names the tensor.
        """
        ...

    def quantize(self, stored: StoredTensor, format: str) -> StoredTensor:
        """A matrix of plain numbers rounded to a block format, as a file would hold it."""
        ...

    def vector(self, values: NDArray[np.float32]) -> object:
        """A gain or bias, always float32, as the backend's ops take it."""
        ...
