"""Runs a model on texts layer by layer: one layer's weights at a time, the hidden states of all texts kept."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from octavo.cache.layout import groups_for, layer_caches, page_layout
from octavo.compression.parameters import Parameters
from octavo.compression.tapped_ops import Call, Heard, Listener, TappedOps, array_weight
from octavo.errors import UnsupportedError
from octavo.kernels.cpu.allocate import mapped_bytes
from octavo.kernels.cpu.cache import CachePart, NativeCache
from octavo.kernels.cpu.instruction import Ids, RecordedStep
from octavo.kernels.cpu.library import NativeLibrary
from octavo.kernels.cpu.ops import NativeOps
from octavo.kernels.cpu.packer import NativePacker
from octavo.kernels.cpu.step import NativeStep
from octavo.kernels.cpu.structs import CACHE_FORMAT_OF_DTYPE
from octavo.kernels.cpu.team import ThreadTeam
from octavo.model.assembly import HeadPart, Part, assemble_layer
from octavo.model.blocks.norm import NormWeights
from octavo.model.decoder import Decoder, DecoderWeights, LayerWeights
from octavo.model.weights import build_ropes
from octavo.ops.interface import Ops
from octavo.ops.weight import PackedWeight
from octavo.quantization.integers import Floats
from octavo.spec.decoder import CacheNeed, DecoderSpec

Integers = NDArray[np.int32]

_STEP_TOKENS = 2048  # computed at a time
_BLOCK_SIZE = 16
_CACHE = "float32"  # nothing is lost between a layer's ops
_TRACED = 8  # tokens of the forward whose ops are noted


@dataclass(frozen=True, slots=True)
class LoadedLayer:
    """A layer's weights, and the names of all of them by id()."""

    index: int
    weights: LayerWeights[Any]
    names: dict[int, str]


class LayerRunner:
    """Owns the hidden states [texts, length, hidden] between two layers. The texts are of one length.

    Raises:
        UnsupportedError: a layer reads what another one keeps.
    """

    def __init__(
        self, spec: DecoderSpec, parameters: Parameters, ids: Integers, library: NativeLibrary, team: ThreadTeam
    ) -> None:
        if any(need.shares is not None for need in _needs(spec)):
            raise UnsupportedError(
                "calibration runs one layer at a time, and this model's layers read each other's keys and values; "
                "use a method that needs none: fp8, or gguf with --no-calibration"
            )
        self._spec, self._parameters, self._ids = spec, parameters, ids
        self._library, self._team = library, team
        self._packer = NativePacker(library, team)
        self._ropes = build_ropes(spec, ids.shape[1], self._packer)
        self._hidden = np.empty((*ids.shape, spec.hidden), np.float32)

    @property
    def tokens(self) -> int:
        """Of all texts."""
        return self._ids.size

    @property
    def hidden(self) -> Floats:
        """Hidden states of all texts, [texts, length, hidden], as they go into the layer at hand."""
        return self._hidden

    def embed(self) -> None:
        """Hidden states before the first layer."""
        taken, ids = np.unique(self._ids, return_inverse=True)
        ids = ids.reshape(self._ids.shape)
        take = _Take(self._parameters, self._packer)
        embedding, length = self._spec.embedding, self._ids.shape[1]
        table = array_weight([self._parameters.rows("embed", taken.astype(np.int64))])
        places = None
        if embedding.positions is not None:
            places = array_weight([self._parameters.rows("positions", np.arange(length))])
        norm = embedding.norm
        weights: DecoderWeights[Any] = DecoderWeights(
            embed=table,
            layers=(),
            head=table,
            positions=places,
            project_in=take.matrix("", "project_in", [], 0) if embedding.project else None,
            embed_norm=None
            if norm is None
            else NormWeights(
                take.gain("", "embed_norm", 0) if norm.weight else None,
                take.bias("", "embed_norm", []) if norm.bias else None,
            ),
        )
        decoder: Decoder[Any] = Decoder(self._spec, weights, {}, self._ropes)
        for texts in self._batches():
            count = len(self._ids[texts])
            known = {Ids.TOKEN_IDS: ids[texts].reshape(-1), Ids.POSITIONS: np.tile(np.arange(length), count)}
            ops = TappedOps(NativeOps(self._library, self._team), take.names, ids=known)
            x = decoder.embed(cast(Ops[Any, Any, Any], ops), RecordedStep())
            self._hidden[texts] = x.reshape(count, length, -1)

    def load(self, index: int) -> LoadedLayer:
        """A layer's weights as they are now."""
        take = _Take(self._parameters, self._packer)
        weights = assemble_layer(self._spec.layers[index], take, index, self._spec.hidden)
        return LoadedLayer(index, weights, take.names)

    def trace(self, layer: LoadedLayer) -> list[Call]:
        """What the layer computes, op by op."""
        calls: list[Call] = []
        x = np.ascontiguousarray(self._hidden[0, :_TRACED])
        self._forward(layer, x[None], None, calls)
        return calls

    def listen(self, layer: LoadedLayer, listener: Listener) -> None:
        """Run all texts through a layer for what its products take in."""
        for texts in self._batches():
            with suppress(Heard):  # the last product itself is not needed
                self._forward(layer, self._hidden[texts], listener, None)

    def advance(self, layer: LoadedLayer, listener: Listener | None = None) -> None:
        """Run all texts through a layer; its results are the hidden states from now on."""
        for texts in self._batches():
            self._hidden[texts] = self._forward(layer, self._hidden[texts], listener, None)

    def _batches(self) -> Iterator[slice]:
        count, length = self._ids.shape
        step = max(_STEP_TOKENS // length, 1)
        return (slice(first, min(first + step, count)) for first in range(0, count, step))

    def _forward(
        self, layer: LoadedLayer, hidden: Floats, listener: Listener | None, calls: list[Call] | None
    ) -> Floats:
        """One layer over texts [n, length, hidden], each from its beginning."""
        texts, length, width = hidden.shape
        only = replace(self._spec, layers=(self._spec.layers[layer.index],))
        cache, places, states = _cache_for(only, self._library, texts, length)
        step = NativeStep(1)
        positions = np.tile(np.arange(length, dtype=np.int32), texts)
        starts = np.arange(0, (texts + 1) * length, length, dtype=np.int32)
        step.set_tokens(np.zeros_like(positions), positions, starts, np.arange(texts, dtype=np.int32))
        step.set_states(np.full_like(states, -1), states)
        ops = TappedOps(NativeOps(self._library, self._team, step, cache), layer.names, listener, calls)
        nothing = PackedWeight((0, 0), ())
        weights: DecoderWeights[Any] = DecoderWeights(embed=nothing, layers=(layer.weights,), head=nothing)
        decoder: Decoder[Any] = Decoder(only, weights, places, self._ropes)
        x = np.ascontiguousarray(hidden).reshape(-1, width)
        x = decoder.layer(cast(Ops[Any, Any, Any], ops), RecordedStep(), x, 0)
        ops.end(x)
        return x.reshape(texts, length, width)


def _needs(spec: DecoderSpec) -> Iterator[CacheNeed]:
    for layer in dict.fromkeys(spec.layers):
        for block in layer.blocks:
            for branch in block.branches:
                yield from getattr(branch.body, "cache_needs", ())


def _cache_for(
    spec: DecoderSpec, library: NativeLibrary, texts: int, length: int
) -> tuple[NativeCache | None, dict[int, Any], Integers]:
    """Memory for what one layer keeps of texts, where that is, and the pages of its states [pages, texts]."""
    code = CACHE_FORMAT_OF_DTYPE[_CACHE]

    def layer_bytes(layer: int, need: CacheNeed) -> int:
        return library.cache_layer_bytes(code, need.kv_heads, need.key_width, _BLOCK_SIZE, need.value_width)

    needs = list(_needs(spec))
    if not needs:
        return None, {}, np.zeros((0, texts), np.int32)
    groups = groups_for(spec, layer_bytes)
    kept = {0: _CACHE} if needs[0].kind != "state" else {}
    layout = page_layout(spec, groups, layer_bytes, kept)
    (group,) = groups
    count = group.pages if group.is_state else -(-length // _BLOCK_SIZE)
    blocks = np.arange(texts * count, dtype=np.int32).reshape(1, texts, count)
    parts = {place: CachePart(code, part.offset) for place, part in layout.layers.items()}
    pool = mapped_bytes(texts * count * layout.page_bytes)
    cache = NativeCache(code, _BLOCK_SIZE, layout.page_bytes, pool, blocks, parts)
    states = np.ascontiguousarray(blocks[0].T) if group.is_state else np.zeros((0, texts), np.int32)
    return cache, layer_caches(spec, groups), states


class _Take:
    """A Take that reads weights as plain arrays and remembers their names."""

    def __init__(self, parameters: Parameters, packer: NativePacker) -> None:
        self._parameters = parameters
        self._packer = packer
        self.names: dict[int, str] = {}

    def matrix(self, place: str, name: str, parts: Sequence[Part], columns: int) -> PackedWeight:
        return self._named(array_weight([self._parameters.matrix(f"{place}{name}")]), f"{place}{name}")

    def heads(self, place: str, name: str, part: HeadPart, columns: int) -> PackedWeight:
        return self._named(array_weight(self._parameters.heads(f"{place}{name}")), f"{place}{name}")

    def gain(self, place: str, name: str, width: int) -> Any:
        return self._vector(f"{place}{name}.weight")

    def bias(self, place: str, name: str, parts: Sequence[Part]) -> Any:
        return self._vector(f"{place}{name}.bias")

    def parameters(self, place: str, name: str, parts: Sequence[Part]) -> Any:
        return self._vector(f"{place}{name}")

    def taps(self, place: str, name: str, width: int, taps: int) -> Any:
        return self._vector(f"{place}{name}.weight")

    def _vector(self, name: str) -> Any:
        return self._named(self._packer.vector(self._parameters.vector(name)), name)

    def _named(self, value: Any, name: str) -> Any:
        self.names[id(value)] = name
        return value
