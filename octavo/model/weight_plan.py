"""Matches a spec with the tensors of a file: which tensor becomes which rows of which weight, before any is read.

Everything that does not fit is collected and reported together.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.errors import CheckpointError, OctavoError
from octavo.model.assembly import HeadPart, Part, assemble
from octavo.model.families.table import Source, WeightTable
from octavo.ops.weight import PackedWeight, StoredTensor
from octavo.quantization.format import FORMATS, check_computable
from octavo.quantization.gguf_blocks import bf16_from_f32, dequantize
from octavo.quantization.quantize import target_format
from octavo.quantization.span_rows import in_order
from octavo.spec.decoder import AttentionSpec, DecoderSpec, LatentSpec

# Rows of a large tensor are read in slices of about this size: bounds what a load needs beyond the weights.
SLICE_BYTES = 16 << 20
# Slices begin at multiples of this, which no packed layout splits.
_ROW_GRAIN = 64
_SHOWN = 10


@dataclass(frozen=True, slots=True)
class Pairs:
    """Rotary pairs that stand side by side: of each `head` rows those from `first` on. head 0: none."""

    head: int = 0
    first: int = 0

    def undo(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Rows (or elements, without further axes), the first of each pair before the second ones."""
        if not self.head:
            return rows
        heads = rows.reshape(-1, self.head, *rows.shape[1:])
        paired = heads[:, self.first :].reshape(len(heads), -1, 2, *rows.shape[1:])
        halves = paired.swapaxes(1, 2).reshape(len(heads), -1, *rows.shape[1:])
        return np.concatenate([heads[:, : self.first], halves], axis=1).reshape(rows.shape)


NO_PAIRS = Pairs()


@dataclass(frozen=True, slots=True)
class Slice:
    """Rows `start .. start + rows` of a tensor, as they will be packed: [rows, columns] in `format`.

    turned: it is the transpose of the rows `start .. start + columns`.
    """

    tensor: StoredTensor
    source: Source
    start: int
    rows: int
    columns: int
    format: str
    pairs: Pairs = NO_PAIRS
    turned: bool = False

    def read(self) -> StoredTensor:
        """The rows, transformed and converted; a view of the file where nothing is to be done."""
        name, stored = self.tensor.name, self.tensor
        if self.source.transpose:
            stored = _transposed(stored)
        shape = (self.columns, self.rows) if self.turned else (self.rows, self.columns)
        rows = self.pairs.undo(stored.rows(self.start, shape[0]))
        part = StoredTensor(name, stored.format, shape, np.ascontiguousarray(rows).reshape(-1), order=stored.order)
        if self.turned:
            part = _transposed(_converted(part, self.format))
        return part if self.is_quantized else _converted(part, self.format)

    @property
    def is_quantized(self) -> bool:
        """Whether plain numbers of the file become blocks; a packer does that, after `read`."""
        return FORMATS[self.format].role == "block" and FORMATS[self.tensor.format].role == "float"

    @property
    def stored_bytes(self) -> int:
        """What it takes in the file."""
        if self.source.transpose:
            return self.tensor.data.nbytes
        return self.tensor.data.nbytes // self.tensor.shape[0] * (self.columns if self.turned else self.rows)


@dataclass(frozen=True, slots=True)
class MatrixPlan:
    """One PackedWeight."""

    name: str
    columns: int
    slices: tuple[Slice, ...]

    @property
    def rows(self) -> int:
        """Output rows of all slices."""
        return sum(part.rows for part in self.slices)


@dataclass(frozen=True, slots=True)
class VectorPlan:
    """One float32 vector: tensors one after the other, each with its `pairs`."""

    name: str
    tensors: tuple[StoredTensor, ...]
    add: float = 0.0
    pairs: tuple[Pairs, ...] = ()
    taps: int = 0  # of a convolution [width, 1, taps], which becomes [taps * width]; 0: it is none
    negative_exp: tuple[bool, ...] = ()  # tensors that are stored as the logarithm of their negative

    def read(self) -> NDArray[np.float32]:
        """The values; a copy."""
        parts: list[NDArray[np.float32]] = []
        for tensor, pairs in zip(self.tensors, self.pairs, strict=True):
            parts.append(pairs.undo(dequantize(tensor.format, tensor.data, tensor.shape).reshape(-1)))
        if self.taps:
            parts = [np.ascontiguousarray(values.reshape(-1, self.taps).T).reshape(-1) for values in parts]
        for number, negative in enumerate(self.negative_exp):
            parts[number] = -np.exp(parts[number]) if negative else parts[number]
        return (np.concatenate(parts) + np.float32(self.add)).astype(np.float32, copy=False)


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """Every weight of a model, in the order of the spec."""

    matrices: tuple[MatrixPlan, ...]
    vectors: tuple[VectorPlan, ...]


def plan_load(
    spec: DecoderSpec,
    table: WeightTable,
    tensors: Mapping[str, StoredTensor],
    dtype: str | None = None,
    scheme: str = "none",
) -> LoadPlan:
    """Find every weight of `spec` in `tensors`.

    Args:
        dtype: format that unquantized matrices are converted to ("f32", "f16", "bf16"); None keeps the file's.
        scheme: how unquantized matrices are rounded to blocks ("int8", "int4"), or "none".

    Raises:
        CheckpointError: tensors are missing, surplus or misshapen; names the first ten of each kind.
    """
    planner = _Planner(spec, table, tensors, dtype, scheme)
    assemble(spec, planner)
    planner.find_surplus()
    problems = planner.describe_problems()
    if problems:
        raise CheckpointError(f"the checkpoint does not fit its configuration: {'; '.join(problems)}")
    return LoadPlan(tuple(planner.matrices), tuple(planner.vectors))


def _some_rows(tensor: StoredTensor) -> NDArray[np.float32]:
    """Two rows of a matrix of plain numbers, which tell how its numbers are spaced."""
    rows, columns = tensor.shape
    some = [tensor.rows(row, 1) for row in (rows // 3, rows // 2)]
    return np.concatenate([dequantize(tensor.format, data, (1, columns)) for data in some])


def _some_columns(tensor: StoredTensor) -> NDArray[np.float32]:
    """The same of a matrix that is [in, out]: 32 neighbouring inputs of up to 16 outputs, at two places, [outputs, 32].

    Whole columns would touch every page of the file.
    """
    columns, rows = tensor.shape
    cells = tensor.data.reshape(columns, rows, -1)
    some = [cells[start // 32 * 32 :][:32, rows // 3 :][:, :16] for start in (columns // 3, columns // 2)]
    return np.concatenate([dequantize(tensor.format, data, data.shape[:2]).T for data in some])


@dataclass(slots=True)
class _Problems:
    missing: list[str] = field(default_factory=list[str])
    misshapen: list[str] = field(default_factory=list[str])
    surplus: list[str] = field(default_factory=list[str])
    unusable: list[str] = field(default_factory=list[str])


class _Planner:
    """A Take that notes where things are."""

    def __init__(
        self,
        spec: DecoderSpec,
        table: WeightTable,
        tensors: Mapping[str, StoredTensor],
        dtype: str | None,
        scheme: str,
    ) -> None:
        self._spec = spec
        self._table = table
        self._tensors = tensors
        self._dtype = dtype
        self._scheme = scheme
        self._used: set[str] = set()
        self._problems = _Problems()
        self._prefix = self._find_prefix()
        self.matrices: list[MatrixPlan] = []
        self.vectors: list[VectorPlan] = []

    def matrix(self, place: str, name: str, parts: Sequence[Part], columns: int) -> PackedWeight:
        """See Take; the result is empty, only the plan counts."""
        slices: list[Slice] = []
        for part, rows in self._stacked_or_single(place, name, parts):
            source, tensor = self._find(place, part, ".weight")
            if source is None or tensor is None:
                continue
            if rows == 1 and tensor.shape == (columns,):
                tensor = replace(tensor, shape=(1, columns))  # GGUF files may leave out an axis of one
            shape = (columns, rows) if source.transpose else (rows + source.first_row, columns)
            if self._fits(tensor, shape) and self._usable(tensor, source):
                cut = self._slices(source, tensor, rows, columns, self._pairs(place, part, source))
                if self._scheme != "none" and FORMATS[tensor.format].role == "float":
                    sample = partial(_some_columns if source.transpose else _some_rows, tensor)
                    format = target_format(self._scheme, f"{place}{name}", columns, sample) or self._format(tensor)
                    cut = [replace(each, format=format) for each in cut]
                slices += cut
        self.matrices.append(MatrixPlan(f"{place}{name}", columns, tuple(slices)))
        return PackedWeight((0, 0), ())

    def heads(self, place: str, name: str, part: HeadPart, columns: int) -> PackedWeight:
        """See Take; the result is empty, only the plan counts."""
        source, tensor = self._find(place, part.of, ".weight")
        slices: list[Slice] = []
        if source is not None and tensor is not None and self._fits(tensor, (part.heads * part.block, columns)):
            slices = self._head_slices(source, tensor, part, columns)
        self.matrices.append(MatrixPlan(f"{place}{name}", part.rows if part.turned else columns, tuple(slices)))
        return PackedWeight((0, 0), ())

    def gain(self, place: str, name: str, width: int) -> None:
        """See Take."""
        source, tensor = self._find(place, name, ".weight")
        if source is not None and tensor is not None and self._fits(tensor, (width,)) and self._is_float(tensor):
            add = 1.0 if source.add_one else 0.0
            self.vectors.append(VectorPlan(f"{place}{name}.weight", (tensor,), add, (NO_PAIRS,)))

    def bias(self, place: str, name: str, parts: Sequence[Part]) -> None:
        """See Take."""
        tensors: list[StoredTensor] = []
        pairs: list[Pairs] = []
        for part, rows in self._stacked_or_single(place, name, parts):
            source, tensor = self._find(place, part, ".bias")
            if source is not None and tensor is not None and self._fits(tensor, (rows,)) and self._is_float(tensor):
                tensors.append(tensor)
                pairs.append(self._pairs(place, part, source))
        self.vectors.append(VectorPlan(f"{place}{name}.bias", tuple(tensors), 0.0, tuple(pairs)))

    def parameters(self, place: str, name: str, parts: Sequence[Part]) -> None:
        """See Take."""
        tensors: list[StoredTensor] = []
        negative: list[bool] = []
        for part, rows in parts:
            source, tensor = self._find(place, part, "")
            if source is not None and tensor is not None and source.flat:
                tensor = replace(tensor, shape=(math.prod(tensor.shape),))
            if source is not None and tensor is not None and self._fits(tensor, (rows,)) and self._is_float(tensor):
                tensors.append(tensor)
                negative.append(source.negative_exp)
        none = (NO_PAIRS,) * len(tensors)
        self.vectors.append(VectorPlan(f"{place}{name}", tuple(tensors), 0.0, none, negative_exp=tuple(negative)))

    def taps(self, place: str, name: str, width: int, taps: int) -> None:
        """See Take."""
        source, tensor = self._find(place, name, ".weight")
        if (
            source is not None
            and tensor is not None
            and self._fits(tensor, (width, 1, taps))
            and self._is_float(tensor)
        ):
            self.vectors.append(VectorPlan(f"{place}{name}.weight", (tensor,), 0.0, (NO_PAIRS,), taps))

    def find_surplus(self) -> None:
        """Note every tensor that nothing asked for and the table does not know. A tied model may hold a head."""
        ignore = list(self._table.ignore)
        if (self._spec.head is None or self._spec.head.tied) and "head" in self._table.model:
            ignore += [
                f"{name}.{end}" for name in self._names("", self._table.model["head"]) for end in ("weight", "bias")
            ]
        for name in self._tensors:
            if name not in self._used and not any(fnmatchcase(name, pattern) for pattern in ignore):
                self._problems.surplus.append(name)

    def describe_problems(self) -> list[str]:
        """One phrase for each kind of problem."""
        kinds = {
            "missing": self._problems.missing,
            "misshapen": self._problems.misshapen,
            "surplus": self._problems.surplus,
            "unusable": self._problems.unusable,
        }
        return [describe(found, kind) for kind, found in kinds.items() if found]

    def _find_prefix(self) -> str:
        names = self._table.model["embed"].names
        for prefix in self._table.prefixes:
            if any(f"{name.format(p=prefix)}.weight" in self._tensors for name in names):
                return prefix
        return self._table.prefixes[0]

    def _stacked_or_single(self, place: str, name: str, parts: Sequence[Part]) -> Sequence[Part]:
        """The whole as one tensor where the table has it so, else its parts."""
        if len(parts) > 1 and name in self._table.layer and self._exists(place, self._table.layer[name]):
            return [(name, sum(rows for _, rows in parts))]
        return parts

    def _names(self, place: str, source: Source) -> list[str]:
        layer = place.removeprefix("layers.").rstrip(".")
        return [name.format(p=self._prefix, i=layer) for name in source.names]

    def _exists(self, place: str, source: Source) -> bool:
        return any(f"{name}.weight" in self._tensors for name in self._names(place, source))

    def _find(self, place: str, name: str, ending: str) -> tuple[Source | None, StoredTensor | None]:
        """The source and the tensor of a canonical name; notes it when missing."""
        source = (self._table.layer if place else self._table.model).get(name)
        if source is None:
            self._problems.missing.append(f"{place}{name}{ending} (this file layout has no such tensor)")
            return None, None
        names = [f"{candidate}{ending}" for candidate in self._names(place, source)]
        found = next((candidate for candidate in names if candidate in self._tensors), None)
        if found is None:
            self._problems.missing.append(names[0])
            return source, None
        self._used.add(found)
        tensor = self._tensors[found]
        # Quantization tools store every matrix as [out, in].
        return (replace(source, transpose=False) if tensor.reader is not None else source), tensor

    def _fits(self, tensor: StoredTensor, shape: tuple[int, ...]) -> bool:
        if tensor.shape != shape:
            self._problems.misshapen.append(f"{tensor.name} is {list(tensor.shape)}, not {list(shape)}")
        return tensor.shape == shape

    def _usable(self, tensor: StoredTensor, source: Source) -> bool:
        try:
            format = check_computable(tensor)
        except OctavoError as error:
            self._problems.unusable.append(str(error))
            return False
        if source.transpose and format.role != "float":
            self._problems.unusable.append(f"{tensor.name} is {format.name} and would have to be transposed")
            return False
        return True

    def _is_float(self, tensor: StoredTensor) -> bool:
        format = FORMATS.get(tensor.format)
        usable = format is not None and format.role == "float"
        if not usable:
            self._problems.unusable.append(f"{tensor.name} is {tensor.format}; a vector of floats is needed")
        return usable

    def _pairs(self, place: str, name: str, source: Source) -> Pairs:
        """The rotary pairs of a module's rows that must be taken apart."""
        if not source.unpair:
            return NO_PAIRS
        for block in self._spec.layers[int(place.split(".")[1])].blocks:
            for branch in block.branches:
                if isinstance(branch.body, AttentionSpec):
                    return Pairs(branch.body.head_dim)
                if isinstance(branch.body, LatentSpec):
                    down = name.endswith("kv_down")
                    first = branch.body.rank if down else branch.body.nope
                    return Pairs(first + branch.body.rope_dim, first)
        return NO_PAIRS

    def _format(self, tensor: StoredTensor, *, moved: bool = False) -> str:
        """What a matrix will be stored as. moved: its rows do not stay where 16 of them share scales."""
        format = FORMATS[tensor.format]
        if format.spans is not None and format.spans.scale == "shared" and moved:
            return replace(format.spans, scale="f32").name
        return self._dtype if self._dtype is not None and format.role == "float" else tensor.format

    def _head_slices(self, source: Source, tensor: StoredTensor, part: HeadPart, columns: int) -> list[Slice]:
        """A slice a head. Block formats run along a row: turned, they are expanded when their file is no GGUF, and so
        are those in an order of their own."""
        spans = FORMATS[tensor.format].spans if tensor.format in FORMATS else None
        if not self._usable(tensor, replace(source, transpose=part.turned and spans is None)):
            return []
        rows, depth = (columns, part.rows) if part.turned else (part.rows, columns)
        starts = range(part.first, part.heads * part.block, part.block)
        format = self._format(tensor, moved=True)
        if spans is not None and (part.turned or spans.ordered):
            format = self._dtype or "f32"
        return [Slice(tensor, source, at, rows, depth, format, turned=part.turned) for at in starts]

    def _slices(self, source: Source, tensor: StoredTensor, rows: int, columns: int, pairs: Pairs) -> list[Slice]:
        """The rows of a tensor, cut where it is large."""
        format = self._format(tensor, moved=bool(pairs.head or source.first_row % _ROW_GRAIN))
        bytes_a_row = max(tensor.data.nbytes // (rows + source.first_row), 1)
        grain = _ROW_GRAIN * max(pairs.head, 1)
        step = max(SLICE_BYTES // bytes_a_row // grain * grain, grain)
        if source.transpose or rows < 2 * step:
            step = rows
        return [
            Slice(tensor, source, source.first_row + start, min(step, rows - start), columns, format, pairs)
            for start in range(0, rows, step)
        ]


def describe(names: Sequence[str], kind: str) -> str:
    """ "3 missing tensors: a, b, c", the first ten in words."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{len(names)} {kind} tensor{'s' if len(names) > 1 else ''}: {', '.join(names[:_SHOWN])}{more}"


def _transposed(stored: StoredTensor) -> StoredTensor:
    """[in, out] of plain numbers to [out, in]."""
    element_bytes = FORMATS[stored.format].block_bytes
    cells = stored.data.reshape(*stored.shape, element_bytes).swapaxes(0, 1)
    return StoredTensor(stored.name, stored.format, stored.shape[::-1], np.ascontiguousarray(cells).reshape(-1))


def _converted(stored: StoredTensor, format: str) -> StoredTensor:
    """Plain numbers in another format."""
    if stored.format == format:
        return stored
    if FORMATS[format].spans is not None:  # scales that were shared: the same bytes
        return replace(stored, format=format)
    values = in_order(dequantize(stored.format, stored.data, stored.shape), stored.order)
    if format == "bf16":
        data = bf16_from_f32(values).view(np.uint8)
    elif format == "f16":
        with np.errstate(over="ignore"):  # infinities are found and named when the weight is checked
            data = values.astype(np.float16).view(np.uint8)
    else:
        data = values.view(np.uint8)
    return StoredTensor(stored.name, format, stored.shape, np.ascontiguousarray(data).reshape(-1))
