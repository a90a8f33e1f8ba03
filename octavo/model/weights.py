"""Loads a model's weights: reads them tensor by tensor, checks them, has a backend pack them, and keeps them cached."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from octavo.errors import CheckpointError
from octavo.model.assembly import HeadPart, Part, assemble
from octavo.model.decoder import DecoderWeights
from octavo.model.rope import rope_tables
from octavo.model.source import ModelSource
from octavo.model.weight_cache import CacheWriter, IntoMemoryPacker, WeightCache, cache_key
from octavo.model.weight_plan import LoadPlan, MatrixPlan, VectorPlan, describe, plan_load
from octavo.ops.interface import RopeTable
from octavo.ops.weight import PackedWeight, Packer, Segment, StoredTensor
from octavo.quantization.gguf_blocks import first_invalid_row
from octavo.spec.decoder import DecoderSpec, RopeSpec

V = TypeVar("V")

_FORMAT_OF_DTYPE = {"auto": None, "float32": "f32", "float16": "f16", "bfloat16": "bf16"}


@dataclass(frozen=True, slots=True)
class LoadedModel(Generic[V]):
    """All that a Decoder needs beside its caches."""

    spec: DecoderSpec
    weights: DecoderWeights[V]
    ropes: dict[RopeSpec, RopeTable]
    from_cache: bool
    seconds: float


def load_decoder(
    source: ModelSource,
    packer: Packer,
    *,
    dtype: str = "auto",
    scheme: str = "none",
    max_positions: int | None = None,
    cache: WeightCache | None = None,
) -> LoadedModel[Any]:
    """Load and pack every weight of a model.

    Memory beyond the packed weights stays at a slice of one tensor: read pages of the files are given back.

    Args:
        packer: the backend's; if it packs into memory it is given, `cache` is used, and it checks values itself.
        dtype: "float32", "float16" or "bfloat16" converts unquantized matrices; "auto" keeps them. Block formats stay.
        scheme: "int8" or "int4" rounds unquantized matrices to blocks.
        max_positions: length of the rope tables (default: the model's own maximum).

    Raises:
        CheckpointError: tensors are missing, surplus, misshapen, or hold NaN or infinities; names them.
    """
    start = time.perf_counter()
    plan = plan_load(source.spec, source.weights, source.tensors, _FORMAT_OF_DTYPE[dtype], scheme)
    vectors = _read_vectors(source, plan.vectors, packer)
    from_cache = False
    if cache is not None and isinstance(packer, IntoMemoryPacker):
        matrices, from_cache = _cached_matrices(source, plan, packer, cache)
    else:
        matrices = _pack_all(source, plan.matrices, packer)
    weights = assemble(source.spec, _Loaded(matrices, vectors))
    ropes = build_ropes(source.spec, max_positions or source.spec.max_positions, packer)
    return LoadedModel(source.spec, weights, ropes, from_cache, time.perf_counter() - start)


def build_ropes(spec: DecoderSpec, positions: int, packer: Packer) -> dict[RopeSpec, RopeTable]:
    """The table of every RopeSpec that occurs, `positions` rows each."""
    ropes: dict[RopeSpec, RopeTable] = {}
    for rope in spec.ropes:
        cos, sin = (_shaped(packer, table) for table in rope_tables(rope, positions))
        ropes[rope] = RopeTable(rope.width, cos, sin)
    return ropes


def _shaped(packer: Packer, table: Any) -> object:
    """A table as the backend's array; backends may flatten their vectors."""
    return cast(Any, packer.vector(table)).reshape(table.shape)


def _read_vectors(source: ModelSource, plans: Iterable[VectorPlan], packer: Packer) -> dict[str, object]:
    """Every gain and bias.

    Raises:
        CheckpointError: some hold NaN or infinities.
    """
    vectors: dict[str, object] = {}
    bad: list[str] = []
    for plan in plans:
        bad += [tensor.name for tensor in plan.tensors if first_invalid_row(tensor) is not None]
        vectors[plan.name] = packer.vector(plan.read())
        for tensor in plan.tensors:
            source.release(tensor)
    if bad:
        raise CheckpointError(f"NaN or infinity in {describe(bad, 'damaged')}")
    return vectors


def _pack_all(source: ModelSource, plans: Iterable[MatrixPlan], packer: Packer) -> dict[str, PackedWeight]:
    """Pack every matrix, slice by slice.

    Raises:
        CheckpointError: some hold NaN or infinities, or cannot be packed; names them.
    """
    checks = isinstance(packer, IntoMemoryPacker)  # such packers look at the values themselves, in native code
    packed: dict[str, PackedWeight] = {}
    problems: dict[str, str] = {}
    for plan in plans:
        segments: list[Segment] = []
        for part in plan.slices:
            stored = part.read()
            try:
                if not checks:
                    _check_values(stored)
                stored = packer.quantize(stored, part.format) if part.is_quantized else stored
                segments += packer.matrix([stored]).segments
            except CheckpointError as error:
                problems.setdefault(stored.name, str(error))
            source.release(part.tensor)
        packed[plan.name] = PackedWeight((plan.rows, plan.columns), tuple(segments))
    _raise_all(problems)
    return packed


def _cached_matrices(
    source: ModelSource, plan: LoadPlan, packer: IntoMemoryPacker, cache: WeightCache
) -> tuple[dict[str, PackedWeight], bool]:
    """Matrices out of the cache, else packed into a new cache file; and whether they were there."""
    key = cache_key(source.fingerprint(), plan)
    cached = cache.load(key, packer)
    if cached is not None:
        return cached.matrices, True
    writer = cache.begin(key, plan, packer)
    if writer is None:
        return _pack_all(source, plan.matrices, packer), False
    try:
        matrices = _pack_into(source, plan.matrices, packer, writer)
    except BaseException:
        writer.abandon()
        raise
    cache.finish(writer)
    return matrices, False


def _pack_into(
    source: ModelSource, plans: Iterable[MatrixPlan], packer: IntoMemoryPacker, writer: CacheWriter
) -> dict[str, PackedWeight]:
    """As _pack_all, into the memory of a cache file."""
    packed: dict[str, PackedWeight] = {}
    problems: dict[str, str] = {}
    for plan in plans:
        segments: list[Segment] = []
        for index, part in enumerate(plan.slices):
            stored, region = part.read(), writer.region(plan.name, index)
            try:
                stored = packer.quantize(stored, part.format) if part.is_quantized else stored
                packer.pack_into(stored, region)
            except CheckpointError as error:
                problems.setdefault(stored.name, str(error))
            segments.append(Segment(part.format, part.rows, region))
            source.release(part.tensor)
        packed[plan.name] = PackedWeight((plan.rows, plan.columns), tuple(segments))
    _raise_all(problems)
    return packed


def _check_values(stored: StoredTensor) -> None:
    row = first_invalid_row(stored)
    if row is not None:
        raise CheckpointError(f"{stored.name}: row {row} holds a NaN or an infinity; the file is damaged")


def _raise_all(problems: dict[str, str]) -> None:
    if problems:
        reason = next(iter(problems.values()))
        raise CheckpointError(f"{describe(list(problems), 'damaged')} ({reason})")


class _Loaded:
    """A Take that gives what was loaded."""

    def __init__(self, matrices: dict[str, PackedWeight], vectors: dict[str, object]) -> None:
        self._matrices = matrices
        self._vectors = vectors

    def matrix(self, place: str, name: str, parts: Sequence[Part], columns: int) -> PackedWeight:
        return self._matrices[f"{place}{name}"]

    def heads(self, place: str, name: str, part: HeadPart, columns: int) -> PackedWeight:
        return self._matrices[f"{place}{name}"]

    def gain(self, place: str, name: str, width: int) -> Any:
        return self._vectors[f"{place}{name}.weight"]

    def bias(self, place: str, name: str, parts: Sequence[Part]) -> Any:
        return self._vectors[f"{place}{name}.bias"]

    def parameters(self, place: str, name: str, parts: Sequence[Part]) -> Any:
        return self._vectors[f"{place}{name}"]

    def taps(self, place: str, name: str, width: int, taps: int) -> Any:
        return self._vectors[f"{place}{name}.weight"]
