"""What a model takes in memory, from its headers (int4: and two rows of each matrix); nothing is packed.

Weights follow from the load plan and the packed layouts; activations from recording the program with weights that have
a shape and no data; the cache from its groups.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import cast

import numpy as np
from numpy.typing import NDArray

from octavo.cache.group import KVCacheGroup
from octavo.cache.layout import LayerBytes, groups_for, kept_types, layer_caches, page_bytes, state_pages
from octavo.config.cache_types import CacheTypes
from octavo.config.engine import EngineConfig
from octavo.config.environment import read_environment
from octavo.config.quantization import FORMAT_OF_DTYPE, FORMAT_OF_SCHEME, choose_quantization
from octavo.config.resolve import Choice, ResolvedModel
from octavo.config.resolve_cache import sizing_request
from octavo.config.sizing import Fit, Footprint, Setup, alternatives, least, measure, refusal
from octavo.engine.backends import cache_layer_bytes
from octavo.errors import ConfigError, OctavoError
from octavo.execution.memory import sequence_blocks
from octavo.kernels.cpu.fusion import fuse
from octavo.kernels.cpu.instruction import Instruction, Places, RecordedStep, Vector
from octavo.kernels.cpu.library import NativeLibrary, load_library
from octavo.kernels.cpu.memory import plan_memory
from octavo.kernels.cpu.recorder import ProgramRecorder
from octavo.kernels.cpu.structs import format_code
from octavo.model.assembly import HeadPart, Part, assemble
from octavo.model.decoder import Decoder
from octavo.model.source import ModelSource, open_model
from octavo.model.weight_plan import LoadPlan, Slice, plan_load
from octavo.ops.interface import LayerCache, RopeTable
from octavo.ops.weight import PackedWeight, Segment
from octavo.quantization.format import FORMATS
from octavo.spec.decoder import DecoderSpec, RopeSpec

_FLOAT = _INT32 = 4  # bytes
_MAX_FILES = 32  # files beside a model that are looked at for smaller formats


@dataclass(frozen=True, slots=True)
class FormatBytes:
    """All matrices of one storage format. Sizes in bytes; `stored` in the file, `packed` in memory."""

    format: str
    matrices: int
    stored: int
    packed: int


class HeaderFootprint:
    """Implements config.sizing.Footprint for an opened model.

    Raises:
        CheckpointError: tensors are missing, surplus or misshapen.
    """

    def __init__(self, source: ModelSource, model: ResolvedModel, dtype: str = "auto") -> None:
        self._spec = source.spec
        self._groups: dict[tuple[CacheTypes, int], tuple[KVCacheGroup, ...]] = {}  # by types and block size
        self._library = load_library(model.isa.value) if model.backend.value == "native" else None
        formats = FORMAT_OF_DTYPE.get(dtype), model.quantization.value
        self._plan: LoadPlan = plan_load(source.spec, source.weights, source.tensors, *formats)

    @cached_property
    def formats(self) -> tuple[FormatBytes, ...]:
        """Matrices by format, the largest first."""
        found: dict[str, FormatBytes] = {}
        for matrix in self._plan.matrices:
            for part in matrix.slices:
                before = found.get(part.format, FormatBytes(part.format, 0, 0, 0))
                found[part.format] = FormatBytes(
                    part.format,
                    before.matrices + (part.start == part.source.first_row),
                    before.stored + part.stored_bytes,
                    before.packed + self._packed(part),
                )
        return tuple(sorted(found.values(), key=lambda entry: -entry.packed))

    @property
    def vector_bytes(self) -> int:
        """Gains and biases, float32."""
        return sum(int(np.prod(t.shape)) * _FLOAT for vector in self._plan.vectors for t in vector.tensors)

    @property
    def weight_bytes(self) -> int:
        """See Footprint."""
        return sum(entry.packed for entry in self.formats) + self.vector_bytes

    def rope_bytes(self, length: int) -> int:
        """Tables of cos and sin for `length` positions."""
        return sum(length * rope.width * _FLOAT for rope in self._spec.ropes)

    def activation_bytes(self, tokens: int, rows: int) -> int:
        """Activations and logits of a step of `tokens` tokens that samples `rows` rows."""
        return sum(plan_memory(self._program, tokens, rows).sizes)

    def table_bytes(self, setup: Setup) -> int:
        """Token history and block tables of all slots."""
        blocks, groups = -(-setup.max_model_len // setup.block_size), self.groups(setup)
        tables = max(1, len(groups)) * blocks + 2 * sum(state_pages(groups))
        return setup.max_num_seqs * _INT32 * (setup.max_model_len + tables)

    def buffer_bytes(self, setup: Setup) -> int:
        """See Footprint."""
        activations = self.activation_bytes(setup.max_num_batched_tokens, setup.max_num_seqs)
        return activations + self.rope_bytes(setup.max_model_len) + self.table_bytes(setup)

    def groups(self, setup: Setup) -> tuple[KVCacheGroup, ...]:
        """The layers by what they keep; how they are divided depends on the sizes of blocks and elements."""
        key = (setup.cache_types, setup.block_size)
        if key not in self._groups:
            self._groups[key] = groups_for(self._spec, self._layer_bytes(setup))
        return self._groups[key]

    def page_bytes(self, setup: Setup) -> int:
        """See Footprint."""
        return page_bytes(self._spec, self.groups(setup), self._layer_bytes(setup))

    def sequence_blocks(self, setup: Setup) -> int:
        """See Footprint."""
        chunk = setup.max_num_batched_tokens
        return sequence_blocks(self.groups(setup), setup.max_model_len, chunk, setup.block_size)

    def group_blocks(self, setup: Setup) -> tuple[int, ...]:
        """`sequence_blocks`, group by group."""
        length, chunk = setup.max_model_len, setup.max_num_batched_tokens
        return tuple(group.peak(length, chunk, setup.block_size) for group in self.groups(setup))

    def _layer_bytes(self, setup: Setup) -> LayerBytes:
        return cache_layer_bytes(self._library, kept_types(self._spec, setup.cache_types), setup.block_size)

    def _packed(self, part: Slice) -> int:
        """The torch backend expands block formats to float32."""
        code = format_code(part.format)
        if self._library is not None and code is not None:
            return max(0, self._library.packed_bytes(code, part.rows, part.columns))  # a misfit is told when packing
        format = FORMATS[part.format]
        return part.rows * (format.row_bytes(part.columns) if format.role == "float" else part.columns * _FLOAT)

    @cached_property
    def _program(self) -> Sequence[Instruction]:
        """What a step executes. The torch backend's activations are taken to be the same."""
        recorder = _ShapeRecorder(self._library)
        ropes = {rope: RopeTable(rope.width, _NO_VALUES, _NO_VALUES) for rope in self._spec.ropes}
        decoder = Decoder(
            self._spec, assemble(self._spec, _Shapes()), layer_caches(self._spec, groups_for(self._spec)), ropes
        )
        decoder.forward(recorder, RecordedStep())
        return fuse(recorder.instructions)


_NO_VALUES = np.empty((0, 0), np.float32)
_NO_VALUES.flags.writeable = False


class _Shapes:
    """A Take of weights without data."""

    def matrix(self, place: str, name: str, parts: Sequence[Part], columns: int) -> PackedWeight:
        """See Take."""
        return PackedWeight((sum(rows for _, rows in parts), columns), ())

    def heads(self, place: str, name: str, part: HeadPart, columns: int) -> PackedWeight:
        """See Take."""
        rows, depth = (columns, part.rows) if part.turned else (part.rows, columns)
        return PackedWeight((part.heads * rows, depth), (Segment("", rows, None),) * part.heads)

    def gain(self, place: str, name: str, width: int) -> NDArray[np.float32]:
        """See Take."""
        return _empty_vector(width)

    def bias(self, place: str, name: str, parts: Sequence[Part]) -> NDArray[np.float32]:
        """See Take."""
        return _empty_vector(sum(rows for _, rows in parts))

    def parameters(self, place: str, name: str, parts: Sequence[Part]) -> NDArray[np.float32]:
        """See Take."""
        return self.bias(place, name, parts)

    def taps(self, place: str, name: str, width: int, taps: int) -> NDArray[np.float32]:
        """See Take."""
        return _empty_vector(width * taps)


@lru_cache(maxsize=64)
def _empty_vector(width: int) -> Vector:
    return np.empty(width, np.float32)


class _ShapeRecorder(ProgramRecorder):
    """Records for the sake of the buffers: what weights, tables and cache hold is not looked at."""

    def __init__(self, library: NativeLibrary | None) -> None:
        super().__init__(cast(NativeLibrary, library))  # only the checks below would use it

    def _check_matrix(self, weight: PackedWeight) -> None: ...

    def _check_place(self, at: LayerCache, kv_heads: int, key_width: int, value_width: int) -> tuple[int, int]:
        return 0, 0

    def _pieces(self, at: LayerCache, sizes: Sequence[int]) -> Places:
        return np.empty((0, 2), np.int64)

    def _check_rope(self, spec: RopeSpec | None, rope: RopeTable | None, width: int) -> None: ...


def require_fit(config: EngineConfig, source: ModelSource, model: ResolvedModel, available: int) -> Fit:
    """What the configuration comes to on this machine, before anything is loaded.

    Args:
        available: bytes that are free now.

    Raises:
        ConfigError: weights, buffers and one sequence of full length do not fit; lists flags with which they do.
    """
    footprint = HeaderFootprint(source, model, config.model.dtype)
    request = sizing_request(config, model, read_environment(), available)
    fit = measure(footprint, request)
    if fit.problem:
        files = smaller_files(source, config, model)
        found = alternatives(footprint, request, files)
        raise ConfigError(refusal(fit.problem, found, least(footprint, request, files)))
    return fit


def smaller_files(source: ModelSource, config: EngineConfig, model: ResolvedModel) -> list[tuple[str, Footprint]]:
    """Flags that make the weights smaller, and to what: rounding, and .gguf files of the same model beside this one."""
    return [*_rounded(source, config, model), *_other_files(source, config, model)]


def _rounded(source: ModelSource, config: EngineConfig, model: ResolvedModel) -> Iterator[tuple[str, Footprint]]:
    """The model as each scheme rounds it that takes less than what was asked for."""
    now = HeaderFootprint(source, model, config.model.dtype).weight_bytes
    for scheme in FORMAT_OF_SCHEME:
        try:
            rounded = replace(model, quantization=Choice(*choose_quantization(scheme, source.dtype, source.method)))
            footprint = HeaderFootprint(source, rounded, config.model.dtype)
            if footprint.weight_bytes < now:
                yield f"--quantization {scheme}", footprint
        except OctavoError:
            continue  # the file is quantized already


def _other_files(source: ModelSource, config: EngineConfig, model: ResolvedModel) -> list[tuple[str, Footprint]]:
    """Other .gguf files in the model's directory that hold the same model in fewer bytes."""
    folder = source.path if source.path.is_dir() else source.path.parent
    found: list[tuple[str, Footprint]] = []
    for path in sorted(folder.glob("*.gguf"))[:_MAX_FILES]:
        try:
            if path == source.path or path.stat().st_size >= source.file_bytes:
                continue
            other = open_model(path)
            choice = Choice(*choose_quantization(config.model.quantization, other.dtype, other.method))
            rounded = replace(model, quantization=choice)
            if _shape(other.spec) == _shape(source.spec):
                found.append((f"--model {path}", HeaderFootprint(other, rounded, config.model.dtype)))
        except (OctavoError, OSError):
            continue  # not one to recommend
    return found


def _shape(spec: DecoderSpec) -> Mapping[str, int]:
    return {"hidden": spec.hidden, "layers": len(spec.layers), "vocab": spec.vocab}
