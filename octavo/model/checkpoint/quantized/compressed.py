"""compressed-tensors checkpoints: packed or plain integers and 8-bit floats, each module by the scheme that targets it.

Layout: the compressed-tensors library. Packed codes are offset to be unsigned: weight_packed int32
[out, in * bits / 32] and, along the outputs, weight_zero_point; weight_scale [out, groups], [out, 1] or [1];
weight_g_idx [in]. Codes of 3, 5, 6 and 7 bits follow each other without gaps since its 0.18 or 0.19; before, as many as
a word holds whole were in it, and its highest bits empty.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from octavo.errors import CheckpointError, UnsupportedError
from octavo.model.checkpoint.quantized.config import QuantizationConfig
from octavo.model.checkpoint.quantized.float8 import float8_module, read_block
from octavo.model.checkpoint.quantized.module import (
    Module,
    ModuleTensors,
    array_of,
    build_module,
    read_groups,
    shape_of,
    unpack_bits,
)
from octavo.model.checkpoint.quantized.patterns import Patterns
from octavo.ops.weight import Bytes, StoredTensor
from octavo.quantization.span_rows import pack_codes

_FORMATS = (
    "pack-quantized", "int-quantized", "float-quantized", "mxfp8-quantized", "naive-quantized", "mixed-precision",
    "dense",
)  # fmt: skip
_STRATEGIES = ("tensor", "channel", "group", "block")
_FLOATS = ("f16", "bf16", "f32")


@dataclass(frozen=True, slots=True)
class Scheme:
    """How the weights of some modules were quantized."""

    targets: tuple[str, ...]
    bits: int
    is_float: bool
    symmetric: bool
    strategy: str
    group: int  # of strategy "group"
    block: tuple[int, int] | None  # of strategy "block"

    @property
    def float_block(self) -> tuple[int, int] | None:
        """Rows and inputs that share the scale of 8-bit floats; None: all of a row, or of the matrix."""
        return (1, self.group) if self.strategy == "group" else self.block

    @property
    def text(self) -> str:
        """In words."""
        scope = {
            "tensor": "a scale a matrix", "channel": "a scale a row", "group": f"groups of {self.group}",
            "block": f"a scale for {self.block}",
        }[self.strategy]  # fmt: skip
        zeros = "" if self.symmetric else ", with zero points"
        return f"{self.bits}-bit {'floats' if self.is_float else 'integers'}, {scope}{zeros}"


def describe(config: QuantizationConfig) -> str:
    """The quantization in words."""
    texts = dict.fromkeys(scheme.text for scheme in _schemes(config))
    return f"compressed-tensors: {'; '.join(texts) or 'of inputs alone, which are not rounded here'}"


def read_modules(config: QuantizationConfig, tensors: Mapping[str, StoredTensor]) -> list[Module]:
    """Every module with packed codes, plain integers or 8-bit floats.

    Raises:
        UnsupportedError: a format or scheme that Octavo does not have.
        CheckpointError: tensors are missing, misshapen or contradict the configuration; names them.
    """
    schemes, patterns = _schemes(config), Patterns(f"{config.where}: target", "re:")
    modules: list[Module] = []
    for tensor in tensors.values():
        name, _, ending = tensor.name.rpartition(".")
        module = ModuleTensors(name, tensors)
        if ending == "weight_packed":
            modules.append(_packed(module, _scheme_of(config, schemes, patterns, name)))
        elif ending == "weight" and tensor.format == "i8":
            modules.append(_plain(module, _scheme_of(config, schemes, patterns, name)))
        elif ending == "weight" and tensor.format.startswith("f8_e"):
            modules.append(float8_module(module, _scheme_of(config, schemes, patterns, name).float_block))
    return modules


def _schemes(config: QuantizationConfig) -> list[Scheme]:
    stored = config.text("format", "dense")
    if stored not in _FORMATS:
        raise UnsupportedError(
            f"{config.where}: compressed-tensors format {stored} is not supported; there are {', '.join(_FORMATS)}"
        )
    sparsity = config.fields.get("sparsity_config")
    if isinstance(sparsity, dict) and cast(dict[str, Any], sparsity).get("format", "dense") != "dense":
        raise UnsupportedError(f"{config.where}: sparse weights are not supported; save the model with dense ones")
    transforms = config.fields.get("transform_config")
    if isinstance(transforms, dict) and cast(dict[str, Any], transforms).get("config_groups"):
        raise UnsupportedError(
            f"{config.where}: transform_config turns inputs while the model runs (QuIP, SpinQuant), which is not "
            "supported; use a checkpoint quantized without transforms"
        )
    groups = config.fields.get("config_groups")
    if not isinstance(groups, dict) or not groups:
        raise CheckpointError(f"{config.where} has no config_groups")
    found = [_scheme(config, key, group) for key, group in cast(dict[str, Any], groups).items()]
    return [scheme for scheme in found if scheme is not None]


def _scheme(config: QuantizationConfig, key: str, group: Any) -> Scheme | None:
    """What an entry says of weights; None: it is of inputs alone (attention's, a cache's)."""
    where = f"{config.where}: config_groups.{key}"
    if not isinstance(group, dict):
        raise CheckpointError(f"{where} is no object")
    fields = cast(dict[str, Any], group)
    weights = fields.get("weights")
    if weights is None:
        return None
    if not isinstance(weights, dict):
        raise CheckpointError(f"{where}.weights is no object")
    said = QuantizationConfig(config.method, cast(dict[str, Any], weights), f"{where}.weights")
    strategy = said.text("strategy", "group" if weights.get("group_size") else "tensor")  # pyright: ignore[reportUnknownMemberType]
    if strategy not in _STRATEGIES:
        raise UnsupportedError(f"{said.where}: strategy {strategy} is not supported; {', '.join(_STRATEGIES)} are")
    kind, bits = said.text("type", "int"), said.integer("num_bits", 8)
    if (kind == "float" and bits != 8) or kind not in ("int", "float") or not 2 <= bits <= 8:
        raise UnsupportedError(f"{said.where}: {bits}-bit {kind} is not supported; integers of 2 to 8 bits and fp8 are")
    targets = fields.get("targets")
    size = said.integer("group_size", -1) if said.fields.get("group_size") is not None else -1
    if strategy == "group" and size < 1:
        raise CheckpointError(f"{said.where}: group_size {size}; a positive number is needed")
    return Scheme(
        targets=tuple(str(target) for target in cast(list[Any], targets)) if isinstance(targets, list) else (),
        bits=bits,
        is_float=kind == "float",
        symmetric=said.flag("symmetric", True),
        strategy=strategy,
        group=size,
        block=read_block(said.fields.get("block_structure"), said.where) if strategy == "block" else None,
    )


def _scheme_of(config: QuantizationConfig, schemes: Sequence[Scheme], patterns: Patterns, name: str) -> Scheme:
    """The first scheme that targets a module by name, else one that targets a class."""
    for scheme in schemes:
        if any(
            patterns.begins(target, name) if target.startswith("re:") else target == name for target in scheme.targets
        ):
            return scheme
    by_class = [scheme for scheme in schemes if any(target in ("Linear", "Embedding") for target in scheme.targets)]
    if not by_class:
        raise CheckpointError(f"{config.where}: no config_groups entry targets the quantized module {name}")
    return by_class[0]


def _packed(module: ModuleTensors, scheme: Scheme) -> Module:
    weight = module.find("weight_packed")
    assert weight is not None
    rows, words = shape_of(weight)
    columns = _columns(module, rows, words, scheme)
    whole = words != _words(columns, scheme.bits)
    group, groups = _scope(module.name, columns, scheme)
    module.take("weight_packed", (rows, words), ("i32",))
    scales = _scales(module, rows, groups, scheme)
    bits, wide, matrix, middle = scheme.bits, scheme.bits > 4, array_of(weight), 1 << (scheme.bits - 1)

    def raised(numbers: Bytes) -> Bytes:
        """Unsigned numbers as the kernels' codes: signed, around 8, or less a zero point."""
        if wide:
            return numbers - np.uint8(middle)
        return numbers + np.uint8(8 - middle if scheme.symmetric else 0)

    def packed(start: int, count: int) -> Bytes:
        if bits == 4:
            return np.ascontiguousarray(matrix[start : start + count]).view(np.uint8)[:, : columns // 2]
        numbers = _unpack(matrix[start : start + count], bits, columns, whole)
        return pack_codes(raised(numbers), 8 if wide else 4)

    points = None if scheme.symmetric else _packed_zeros(module, rows, groups, scheme, whole)

    def zeros(start: int, count: int) -> Bytes:
        assert points is not None
        return raised(np.ascontiguousarray(points[:, start : start + count].T))

    return build_module(
        module.parts(
            shape=(rows, columns),
            codes=("int8" if wide else "int4") + ("" if scheme.symmetric else "z"),
            group=group,
            packed=packed,
            scale=_scale_type(module),
            scales=lambda start, count: scales[start : start + count],
            data=weight.data,
            zeros=None if points is None else zeros,
            groups=_order(module, columns, groups),
        )
    )


def _order(module: ModuleTensors, columns: int, groups: int) -> NDArray[np.int32] | None:
    """The group of each input, where that is said."""
    if module.find("weight_g_idx") is None:
        return None
    order = module.take("weight_g_idx", (columns,), ("i32", "i64"))
    if (array_of(order) < 0).all():  # what the library writes where there is no order
        return None
    return read_groups(order, groups)


def _words(count: int, bits: int, whole: bool = False) -> int:
    """Words that codes take, as a stream or as many `whole` ones as a word holds."""
    return -(-count // (32 // bits)) if whole else -(-count * bits // 32)


def _unpack(words: NDArray[Any], bits: int, count: int, whole: bool) -> Bytes:
    """The first `count` codes of each row."""
    if not whole:
        return unpack_bits(words, bits, count)
    shifts = np.arange(32 // bits, dtype=np.uint32) * np.uint32(bits)
    plain = np.ascontiguousarray(words).view(np.uint32)[:, :, None]
    return (plain >> shifts & np.uint32((1 << bits) - 1)).astype(np.uint8).reshape(len(words), -1)[:, :count]


def _columns(module: ModuleTensors, rows: int, words: int, scheme: Scheme) -> int:
    """Inputs of packed rows, as weight_shape says."""
    shape = array_of(module.take("weight_shape", (2,), ("i64", "i32"))).tolist()
    fitting = [_words(max(shape[1], 0), scheme.bits, whole) for whole in (False, True)]
    if shape[0] != rows or shape[1] < 1 or words not in fitting:
        raise CheckpointError(
            f"{module.name}.weight_shape says {shape}, but weight_packed holds {rows} rows of {words} words of "
            f"{scheme.bits}-bit codes: file and configuration do not belong together"
        )
    return shape[1]


def _plain(module: ModuleTensors, scheme: Scheme) -> Module:
    """A byte for each weight."""
    weight = module.find("weight")
    assert weight is not None
    rows, columns = shape_of(weight)
    group, groups = _scope(module.name, columns, scheme)
    scales = _scales(module, rows, groups, scheme)
    codes = array_of(weight).view(np.uint8)
    points = None if scheme.symmetric else _plain_zeros(module, rows, groups)

    def zeros(start: int, count: int) -> Bytes:
        assert points is not None
        return np.ascontiguousarray(points[start : start + count])

    return build_module(
        module.parts(
            shape=(rows, columns),
            codes="int8" if scheme.symmetric else "int8z",
            group=group,
            packed=lambda start, count: codes[start : start + count],
            scale=_scale_type(module),
            scales=lambda start, count: scales[start : start + count],
            data=weight.data,
            zeros=None if points is None else zeros,
            groups=_order(module, columns, groups),
        )
    )


def _scope(name: str, columns: int, scheme: Scheme) -> tuple[int, int]:
    """Inputs that share a scale, and how many scales a row has."""
    if scheme.strategy == "block" or scheme.is_float:
        raise UnsupportedError(f"{name}: integers with {scheme.text} are not supported")
    if scheme.strategy != "group":
        return columns, 1
    if columns % scheme.group:
        raise CheckpointError(f"{name}: {columns} inputs are no whole number of groups of {scheme.group}")
    return scheme.group, columns // scheme.group


def _scale_type(module: ModuleTensors) -> str:
    found = module.find("weight_scale")
    return "" if found is None else found.format


def _scales(module: ModuleTensors, rows: int, groups: int, scheme: Scheme) -> NDArray[Any]:
    """[rows, groups]; those of a whole matrix are repeated."""
    found = module.find("weight_scale")
    shapes: list[tuple[int, ...]] = [(1,), (), (1, 1)] if scheme.strategy == "tensor" else [(rows, groups)]
    shapes += [(rows,)] if scheme.strategy == "channel" else []
    shape = found.shape if found is not None and found.shape in shapes else shapes[0]
    scales = array_of(module.take("weight_scale", shape, _FLOATS))
    return np.broadcast_to(scales.reshape(-1, groups), (rows, groups))


def _packed_zeros(module: ModuleTensors, rows: int, groups: int, scheme: Scheme, whole: bool) -> Bytes:
    """[groups, rows]: they are packed along the rows, as the weights are; that of a whole matrix is not."""
    if scheme.strategy == "tensor":
        return np.ascontiguousarray(_plain_zeros(module, rows, groups).T) + np.uint8(1 << (scheme.bits - 1))
    words = _words(rows, scheme.bits, whole)
    matrix = array_of(module.take("weight_zero_point", (words, groups), ("i32",)))
    return _unpack(np.ascontiguousarray(matrix.T), scheme.bits, rows, whole)


def _plain_zeros(module: ModuleTensors, rows: int, groups: int) -> Bytes:
    """[rows, groups] signed bytes; that of a whole matrix is repeated."""
    found = module.find("weight_zero_point")
    shape = found.shape if found is not None and found.shape in ((1,), (), (1, 1)) else (rows, groups)
    points = array_of(module.take("weight_zero_point", shape, ("i8",))).view(np.uint8)
    return np.broadcast_to(points.reshape(-1, groups), (rows, groups))
