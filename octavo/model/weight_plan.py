"""Matches a spec with the tensors of a file: which tensor becomes which rows of which weight, before any is read.

Everything that does not fit is collected and reported together.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

import numpy as np
from numpy.typing import NDArray

from octavo.errors import CheckpointError, OctavoError
from octavo.model.assembly import Part, assemble
from octavo.model.families.table import Source, WeightTable
from octavo.ops.weight import PackedWeight, StoredTensor
from octavo.quantization.format import FORMATS, check_computable
from octavo.quantization.gguf_blocks import bf16_from_f32, dequantize
from octavo.spec.decoder import AttentionSpec, DecoderSpec

# Rows of a large tensor are read in slices of about this size: bounds what a load needs beyond the weights.
SLICE_BYTES = 16 << 20
# Slices begin at multiples of this, which no packed layout splits.
_ROW_GRAIN = 64
_SHOWN = 10


@dataclass(frozen=True, slots=True)
class Slice:
    """Rows `start .. start + rows` of a tensor, as they will be packed: [rows, columns] in `format`."""

    tensor: StoredTensor
    source: Source
    start: int
    rows: int
    columns: int
    format: str
    head_rows: int = 0  # rows of a head to be unpaired; 0: none

    def read(self) -> StoredTensor:
        """The rows, transformed and converted; a view of the file where nothing is to be done."""
        name, stored = self.tensor.name, self.tensor
        if self.source.transpose:
            stored = _transposed(stored)
        bytes_a_row = stored.data.nbytes // stored.shape[0]
        rows = stored.data.reshape(-1, bytes_a_row)[self.start : self.start + self.rows]
        if self.head_rows:
            rows = rows.reshape(-1, self.head_rows // 2, 2, bytes_a_row).swapaxes(1, 2)
        shape = (self.rows, self.columns)
        return _converted(StoredTensor(name, stored.format, shape, np.ascontiguousarray(rows).reshape(-1)), self.format)


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
    """One float32 vector: tensors one after the other. `head_rows` as in Slice, for each tensor."""

    name: str
    tensors: tuple[StoredTensor, ...]
    add: float = 0.0
    head_rows: tuple[int, ...] = ()

    def read(self) -> NDArray[np.float32]:
        """The values; a copy."""
        parts: list[NDArray[np.float32]] = []
        for tensor, head_rows in zip(self.tensors, self.head_rows, strict=True):
            values = dequantize(tensor.format, tensor.data, tensor.shape)
            if head_rows:
                values = np.ascontiguousarray(values.reshape(-1, head_rows // 2, 2).swapaxes(1, 2)).reshape(-1)
            parts.append(values)
        return (np.concatenate(parts) + np.float32(self.add)).astype(np.float32, copy=False)


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """Every weight of a model, in the order of the spec."""

    matrices: tuple[MatrixPlan, ...]
    vectors: tuple[VectorPlan, ...]


def plan_load(
    spec: DecoderSpec, table: WeightTable, tensors: Mapping[str, StoredTensor], dtype: str | None = None
) -> LoadPlan:
    """Find every weight of `spec` in `tensors`.

    Args:
        dtype: format that unquantized matrices are converted to ("f32", "f16", "bf16"); None keeps the file's.

    Raises:
        CheckpointError: tensors are missing, surplus or misshapen; names the first ten of each kind.
    """
    planner = _Planner(spec, table, tensors, dtype)
    assemble(spec, planner)
    planner.find_surplus()
    problems = planner.describe_problems()
    if problems:
        raise CheckpointError(f"the checkpoint does not fit its configuration: {'; '.join(problems)}")
    return LoadPlan(tuple(planner.matrices), tuple(planner.vectors))


@dataclass(slots=True)
class _Problems:
    missing: list[str] = field(default_factory=list[str])
    misshapen: list[str] = field(default_factory=list[str])
    surplus: list[str] = field(default_factory=list[str])
    unusable: list[str] = field(default_factory=list[str])


class _Planner:
    """A Take that notes where things are."""

    def __init__(
        self, spec: DecoderSpec, table: WeightTable, tensors: Mapping[str, StoredTensor], dtype: str | None
    ) -> None:
        self._spec = spec
        self._table = table
        self._tensors = tensors
        self._dtype = dtype
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
            shape = (columns, rows) if source.transpose else (rows + source.first_row, columns)
            if self._fits(tensor, shape) and self._usable(tensor, source):
                slices += self._slices(source, tensor, rows, columns, self._head_rows(place, part, source))
        self.matrices.append(MatrixPlan(f"{place}{name}", columns, tuple(slices)))
        return PackedWeight((0, 0), ())

    def gain(self, place: str, name: str, width: int) -> None:
        """See Take."""
        source, tensor = self._find(place, name, ".weight")
        if source is not None and tensor is not None and self._fits(tensor, (width,)) and self._is_float(tensor):
            add = 1.0 if source.add_one else 0.0
            self.vectors.append(VectorPlan(f"{place}{name}.weight", (tensor,), add, (0,)))

    def bias(self, place: str, name: str, parts: Sequence[Part]) -> None:
        """See Take."""
        tensors: list[StoredTensor] = []
        head_rows: list[int] = []
        for part, rows in self._stacked_or_single(place, name, parts):
            source, tensor = self._find(place, part, ".bias")
            if source is not None and tensor is not None and self._fits(tensor, (rows,)) and self._is_float(tensor):
                tensors.append(tensor)
                head_rows.append(self._head_rows(place, part, source))
        self.vectors.append(VectorPlan(f"{place}{name}.bias", tuple(tensors), 0.0, tuple(head_rows)))

    def find_surplus(self) -> None:
        """Note every tensor that nothing asked for and the table does not know. A tied model may hold a head."""
        ignore = list(self._table.ignore)
        if self._spec.head.tied and "head" in self._table.model:
            ignore += [f"{name}.weight" for name in self._names("", self._table.model["head"])]
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
        return source, self._tensors[found]

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

    def _head_rows(self, place: str, name: str, source: Source) -> int:
        """Rows of a head whose rotary pairs must be taken apart."""
        if not source.unpair:
            return 0
        for block in self._spec.layers[int(place.split(".")[1])].blocks:
            for branch in block.branches:
                if isinstance(branch.body, AttentionSpec):
                    return branch.body.head_dim
        return 0

    def _slices(self, source: Source, tensor: StoredTensor, rows: int, columns: int, head_rows: int) -> list[Slice]:
        """The rows of a tensor, cut where it is large."""
        is_float = FORMATS[tensor.format].role == "float"
        format = self._dtype if self._dtype is not None and is_float else tensor.format
        bytes_a_row = max(tensor.data.nbytes // (rows + source.first_row), 1)
        grain = _ROW_GRAIN * max(head_rows, 1)
        step = max(SLICE_BYTES // bytes_a_row // grain * grain, grain)
        if source.transpose or rows < 2 * step:
            step = rows
        return [
            Slice(tensor, source, source.first_row + start, min(step, rows - start), columns, format, head_rows)
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
    values = dequantize(stored.format, stored.data, stored.shape)
    if format == "bf16":
        data = bf16_from_f32(values).view(np.uint8)
    elif format == "f16":
        with np.errstate(over="ignore"):  # infinities are found and named when the weight is checked
            data = values.astype(np.float16).view(np.uint8)
    else:
        data = values.view(np.uint8)
    return StoredTensor(stored.name, format, stored.shape, np.ascontiguousarray(data).reshape(-1))
