"""Turns the tensors of one quantized module into one matrix that kernels know: which format it gets, and its rows.

Nothing is expanded unless no kernel has such rows: widths or groups that are no multiple of 32.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.errors import CheckpointError
from octavo.ops.weight import Bytes, StoredTensor
from octavo.quantization.format import FORMATS, SPAN_CODES, SPAN_INPUTS, Spans
from octavo.quantization.span_rows import pack_codes, scale_values, unpack_codes, value_of_codes, write_rows

Rows = Callable[[int, int], NDArray[Any]]


@dataclass(frozen=True, slots=True)
class ModuleParts:
    """A quantized matrix, its parts as functions of (first row, rows).

    Args:
        name: the module's, without ending. shape: [out, in].
        codes: of SPAN_CODES. group: inputs that share a scale; at least `in` when all do.
        packed: codes as rows hold them. scales: [rows, groups] of type `scale`. zeros: [rows, groups], bytes.
        data: the largest tensor. uses: names of all tensors it is made of.
        groups: the group of each input, when they do not follow each other.
    """

    name: str
    shape: tuple[int, int]
    codes: str
    group: int
    packed: Rows
    scale: str
    scales: Rows
    data: Bytes
    uses: frozenset[str]
    zeros: Rows | None = None
    groups: NDArray[np.int32] | None = None


@dataclass(frozen=True, slots=True)
class Module:
    """A quantized module: the matrix ".weight", and why it had to be expanded ("" when it was not)."""

    tensor: StoredTensor
    uses: frozenset[str]
    expanded: str = ""


def build_module(parts: ModuleParts) -> Module:
    """The matrix of a module, in the format that loses nothing and takes the least."""
    columns = parts.shape[1]
    order, reason = _order(parts)
    span = _span(columns, parts.group)
    if span is None:
        reason = reason or f"rows of {columns} inputs in groups of {min(parts.group, columns)}: no multiples of 32"
    if reason or span is None:
        return Module(_tensor(parts, "f32", lambda start, count: _expand(parts, start, count)), parts.uses, reason)
    scale = "f32" if parts.scale == "shared" and not span else parts.scale
    format = Spans(parts.codes, span, scale, ordered=order is not None).name
    picked = np.arange(columns // span) * span // parts.group if span else np.zeros(1, np.int64)

    def read(start: int, count: int) -> Bytes:
        packed = parts.packed(start, count)
        if order is not None:
            bits = SPAN_CODES[parts.codes][0]
            packed = pack_codes(unpack_codes(packed, bits)[:, order], bits)
        zeros = None if parts.zeros is None else parts.zeros(start, count)[:, picked]
        return write_rows(packed, parts.scales(start, count)[:, picked], zeros)

    return Module(_tensor(parts, format, read, order), parts.uses)


def _tensor(
    parts: ModuleParts, format: str, read: Callable[[int, int], Bytes], order: NDArray[np.int32] | None = None
) -> StoredTensor:
    assert format in FORMATS
    return StoredTensor(f"{parts.name}.weight", format, parts.shape, parts.data, read, order)


def _span(columns: int, group: int) -> int | None:
    """Inputs that a stored scale is for: as many as groups and rows are multiples of; 0: a row's; None: none fits."""
    if group >= columns:
        return 0 if columns % SPAN_INPUTS[0] == 0 else None
    fitting = [inputs for inputs in SPAN_INPUTS if group % inputs == 0 and columns % inputs == 0]
    return max(fitting, default=None)


def _order(parts: ModuleParts) -> tuple[NDArray[np.int32] | None, str]:
    """The permutation that brings the inputs of a group together (None: they are), and why there is none."""
    groups, columns = parts.groups, parts.shape[1]
    if groups is None or parts.group >= columns:
        return None, ""
    wanted = np.arange(columns) // parts.group
    if np.array_equal(groups, wanted):
        return None, ""
    order = np.argsort(groups, kind="stable").astype(np.int32)
    if not np.array_equal(groups[order], wanted):
        return None, "its groups are of unlike sizes"
    return order, ""


def _expand(parts: ModuleParts, start: int, count: int) -> Bytes:
    """Rows in float32."""
    columns = parts.shape[1]
    group_of = np.arange(columns) // parts.group if parts.groups is None else parts.groups
    bits = SPAN_CODES[parts.codes][0]
    numbers = value_of_codes(parts.codes, unpack_codes(parts.packed(start, count), bits))
    if parts.zeros is not None:
        zeros = np.ascontiguousarray(parts.zeros(start, count))
        numbers = numbers - (zeros.view(np.int8) if bits == 8 else zeros).astype(np.float32)[:, group_of]
    scales = np.ascontiguousarray(parts.scales(start, count))
    wide = scale_values("f32" if parts.scale == "shared" else parts.scale, scales)
    return np.ascontiguousarray(numbers * wide[:, group_of], np.float32).view(np.uint8)


# --- tensors of a module ---------------------------------------------------------------------------------------------

_TYPES: dict[str, Any] = {
    "i8": np.int8, "u8": np.uint8, "i32": np.int32, "i64": np.int64, "f16": np.float16, "bf16": np.uint16,
    "f32": np.float32, "f8_e4m3": np.uint8, "f8_e8m0": np.uint8,
}  # fmt: skip


class ModuleTensors:
    """The tensors whose names begin with a module's; each that is asked for counts as used."""

    def __init__(self, name: str, tensors: Mapping[str, StoredTensor]) -> None:
        self.name = name
        self.used: set[str] = set()
        self._tensors = tensors

    def find(self, ending: str) -> StoredTensor | None:
        """A tensor, when it is there."""
        tensor = self._tensors.get(f"{self.name}.{ending}")
        if tensor is not None:
            self.used.add(tensor.name)
        return tensor

    def take(self, ending: str, shape: tuple[int, ...], formats: tuple[str, ...]) -> StoredTensor:
        """A tensor that must be there.

        Raises:
            CheckpointError: it is missing, misshapen or of another type.
        """
        tensor = self.find(ending)
        if tensor is None:
            raise CheckpointError(f"{self.name}: tensor {self.name}.{ending} is missing; download the checkpoint again")
        if tensor.format not in formats:
            raise CheckpointError(f"{tensor.name} is {tensor.format}; {' or '.join(formats)} is needed")
        if tensor.shape != shape:
            raise CheckpointError(
                f"{tensor.name} is {list(tensor.shape)}, but {list(shape)} follows from the other tensors and the "
                "quantization's group size and bits: file and configuration do not belong together"
            )
        return tensor

    def parts(self, **fields: Any) -> ModuleParts:
        """ModuleParts with this name and what was used."""
        return ModuleParts(name=self.name, uses=frozenset(self.used), **fields)


def array_of(tensor: StoredTensor) -> NDArray[Any]:
    """A tensor's numbers as a view; bfloat16 as 16-bit and 8-bit floats as 8-bit integers."""
    return np.ascontiguousarray(tensor.data).view(_TYPES[tensor.format]).reshape(tensor.shape)


def shape_of(tensor: StoredTensor) -> tuple[int, int]:
    """Rows and columns.

    Raises:
        CheckpointError: it is no matrix, or empty.
    """
    if len(tensor.shape) != 2 or 0 in tensor.shape:
        raise CheckpointError(f"{tensor.name}: a matrix is expected, its shape is {list(tensor.shape)}")
    return tensor.shape[0], tensor.shape[1]


def read_groups(tensor: StoredTensor, count: int) -> NDArray[np.int32]:
    """The group of each input.

    Raises:
        CheckpointError: there are only `count` groups.
    """
    groups = array_of(tensor).astype(np.int32)
    if len(groups) and not 0 <= int(groups.min()) <= int(groups.max()) < count:
        raise CheckpointError(f"{tensor.name} names groups {groups.min()} to {groups.max()}, but there are {count}")
    return groups


def unpack_bits(words: NDArray[Any], bits: int, count: int) -> Bytes:
    """The first `count` numbers of `bits` bits of each row of 32-bit words, lowest bits first: [rows, count] bytes."""
    octets = np.ascontiguousarray(words).view(np.uint8).reshape(len(words), -1)
    if bits == 8:
        return octets[:, :count]
    if bits == 4:
        return unpack_codes(octets, 4)[:, :count]
    stream = np.unpackbits(octets, axis=1, bitorder="little")[:, : count * bits].reshape(len(words), count, bits)
    padded = np.zeros((*stream.shape[:2], 8), np.uint8)
    padded[:, :, :bits] = stream
    return np.packbits(padded, axis=2, bitorder="little")[:, :, 0]
