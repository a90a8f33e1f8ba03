"""A model's weights as float32, as its layers see them; they may be changed, which is kept by the file's tensors.

What a change means in the file is the inverse of what loading does: rows are found through rotary pairs, gains less
one stay so, matrices that a file has turned stay turned.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from octavo.errors import CheckpointError, UnsupportedError
from octavo.model.source import ModelSource
from octavo.model.weight_plan import LoadPlan, MatrixPlan, VectorPlan, plan_load
from octavo.ops.weight import StoredTensor
from octavo.quantization.format import FORMATS
from octavo.quantization.gguf_blocks import bf16_from_f32, dequantize

Floats = NDArray[np.float32]

_TOO_LARGE = "the float16 scales of this method; int8 and fp8 have larger ones, and --keep leaves modules as they are"


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive rows of a weight that come from one tensor: the tensor's name, and which of its rows they are."""

    tensor: str
    rows: NDArray[np.int64]


class Parameters:
    """Reads weights by canonical name ("layers.3.mlp.down"); owns what was changed.

    Raises:
        CheckpointError: the file's tensors do not fit its configuration.
    """

    def __init__(self, source: ModelSource) -> None:
        self._source = source
        self.plan: LoadPlan = plan_load(source.spec, source.weights, source.tensors)
        self._matrices = {plan.name: plan for plan in self.plan.matrices}
        self._vectors = {plan.name: plan for plan in self.plan.vectors}
        self._changed: dict[str, Floats] = {}  # tensor -> [out, in] or [width], as stored but not turned
        self._turned = {
            part.tensor.name for plan in self.plan.matrices for part in plan.slices if part.source.transpose
        }

    def matrix(self, name: str) -> Floats:
        """[out, in]."""
        plan = self._matrices[name]
        return np.concatenate([self._read(plan, index) for index in range(len(plan.slices))])

    def rows(self, name: str, wanted: NDArray[np.int64]) -> Floats:
        """Some rows of a matrix, of which no more is held than these and a slice."""
        result = np.empty((len(wanted), self._matrices[name].columns), np.float32)
        for first, values in self.slices(name):
            own = (wanted >= first) & (wanted < first + len(values))
            result[own] = values[wanted[own] - first]
        return result

    def slices(self, name: str) -> Iterator[tuple[int, Floats]]:
        """A matrix in pieces of bounded size: the first row of each, and its rows."""
        plan, first = self._matrices[name], 0
        for index in range(len(plan.slices)):
            yield first, self._read(plan, index)
            first += plan.slices[index].rows

    def heads(self, name: str) -> list[Floats]:
        """A matrix of its own for each head."""
        plan = self._matrices[name]
        return [self._read(plan, index) for index in range(len(plan.slices))]

    def vector(self, name: str) -> Floats:
        """A gain, a bias, or parameters."""
        plan = self._vectors[name]
        tensors = tuple(self._vector_tensor(tensor) for tensor in plan.tensors)
        return replace(plan, tensors=tensors).read()

    def tensors_of(self, name: str) -> list[str]:
        """The file's tensors that a matrix is stacked of, in order."""
        return list(dict.fromkeys(part.tensor.name for part in self._matrices[name].slices))

    def users(self, tensor: str) -> int:
        """How many weights a tensor is part of."""
        found = sum(any(part.tensor.name == tensor for part in plan.slices) for plan in self.plan.matrices)
        return found + sum(any(part.name == tensor for part in plan.tensors) for plan in self.plan.vectors)

    def stored(self, tensor: str) -> Floats:
        """A tensor as stored, but [out, in] where the file has it turned; changes included."""
        if tensor in self._changed:
            return self._changed[tensor]
        stored = self._source.tensors[tensor]
        values = finite(tensor, dequantize(stored.format, stored.data, stored.shape))
        return np.ascontiguousarray(values.T) if tensor in self._turned else values

    def is_turned(self, tensor: str) -> bool:
        """Whether the file has a matrix [in, out]."""
        return tensor in self._turned

    def change(self, tensor: str, values: Floats) -> None:
        """Take other values for a tensor, in the orientation of `stored`.

        Raises:
            UnsupportedError: they are no numbers, because a scale has become too large for its type.
        """
        if not np.isfinite(values).all():
            raise UnsupportedError(f"{tensor}: its numbers are too large for {_TOO_LARGE}")
        self._changed[tensor] = np.ascontiguousarray(values, np.float32)

    def forget(self, tensors: Sequence[str]) -> None:
        """Drop changes that nobody will read again: what they were is written."""
        for tensor in tensors:
            self._changed.pop(tensor, None)

    @property
    def changed(self) -> dict[str, Floats]:
        """All changes."""
        return self._changed

    def scale_columns(self, name: str, factors: Floats) -> None:
        """A matrix times `factors` [in], column by column."""
        for tensor in self.tensors_of(name):
            self.change(tensor, self.stored(tensor) * factors)

    def scale_rows(self, name: str, first: int, factors: Floats) -> None:
        """Rows of a matrix from `first` on times `factors`, and those elements of its bias."""
        self._scale_pieces(self._pieces(self._matrices[name]), first, factors)
        bias = self._vectors.get(f"{name}.bias")
        if bias is not None:
            self._scale_pieces(_vector_pieces(bias), first, factors)

    def scale_vector(self, name: str, factors: Floats) -> None:
        """A gain or a norm's bias times `factors`, as it is after loading."""
        plan = self._vectors[name]
        (tensor,) = plan.tensors
        values = self.vector(name) * factors - np.float32(plan.add)
        self.change(tensor.name, rounded(values, tensor.format))

    def _read(self, plan: MatrixPlan, index: int) -> Floats:
        part = plan.slices[index]
        if part.tensor.name in self._changed:
            values = self._changed[part.tensor.name]
            stored = StoredTensor(part.tensor.name, "f32", values.shape, values.reshape(-1).view(np.uint8))
            part = replace(part, tensor=stored, source=replace(part.source, transpose=False), format="f32")
        read = part.read()
        values = finite(plan.slices[index].tensor.name, dequantize(read.format, read.data, read.shape))
        self._source.release(plan.slices[index].tensor)
        return values

    def _vector_tensor(self, tensor: StoredTensor) -> StoredTensor:
        values = self._changed.get(tensor.name)
        if values is None:
            return tensor
        return StoredTensor(tensor.name, "f32", tensor.shape, values.reshape(-1).view(np.uint8))

    def _pieces(self, plan: MatrixPlan) -> list[Piece]:
        """Which rows of which tensors the rows of a matrix are, in its order."""
        return [
            Piece(part.tensor.name, part.pairs.undo(np.arange(part.start, part.start + part.rows)))
            for part in plan.slices
        ]

    def _scale_pieces(self, pieces: Sequence[Piece], first: int, factors: Floats) -> None:
        at, last = 0, first + len(factors)
        for piece in pieces:
            begin, end = max(first, at), min(last, at + len(piece.rows))
            if begin < end:
                values = self.stored(piece.tensor).copy()
                own = factors[begin - first : end - first]
                values[piece.rows[begin - at : end - at]] *= own.reshape(-1, *(1,) * (values.ndim - 1))
                self.change(piece.tensor, values)
            at += len(piece.rows)


def finite(tensor: str, values: Floats) -> Floats:
    """The values of a model's tensor.

    Raises:
        CheckpointError: one is none; rounded, it would look like a number, or spoil those that share its scale.
    """
    if not np.isfinite(values).all():
        raise CheckpointError(f"{tensor} holds a NaN or an infinity; the file is damaged, download it again")
    return values


def readable(tensor: str, format: str, data: NDArray[np.uint8], shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Rounded values as a file will have them.

    Raises:
        UnsupportedError: nobody could read them, because a scale is too large for its type.
    """
    if not np.isfinite(dequantize(format, data, shape)).all():
        raise UnsupportedError(f"{tensor}: its numbers are too large for {_TOO_LARGE}")
    return data


def _vector_pieces(plan: VectorPlan) -> list[Piece]:
    return [
        Piece(tensor.name, pairs.undo(np.arange(tensor.shape[0])))
        for tensor, pairs in zip(plan.tensors, plan.pairs, strict=True)
    ]


def as_format(values: Floats, format: str) -> NDArray[np.generic]:
    """Values as the numbers of a plain format: uint16 bits for bf16."""
    if format == "bf16":
        return bf16_from_f32(values)
    return values.astype(np.float16) if format == "f16" else np.ascontiguousarray(values, np.float32)


def rounded(values: Floats, format: str) -> Floats:
    """What is left of values when a plain format holds them; of others, the values."""
    if FORMATS[format].role != "float":
        return values
    bits = np.ascontiguousarray(as_format(values, format))
    return dequantize(format, bits.reshape(-1).view(np.uint8), values.shape)
