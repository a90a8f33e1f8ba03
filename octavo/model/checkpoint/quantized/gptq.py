"""GPTQ checkpoints: codes packed along the inputs, zero points along the outputs, groups perhaps in another order.

Layout: AutoGPTQ's and GPTQModel's linear modules. qweight int32 [in * bits / 32, out], qzeros int32
[groups, out * bits / 32], scales [groups, out], g_idx [in]. checkpoint_format "gptq" stores zero points less one,
"gptq_v2" as they are. GPTQModel's "dynamic" has other bits and groups for modules that a pattern matches.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from octavo.errors import CheckpointError, UnsupportedError
from octavo.model.checkpoint.quantized.config import QuantizationConfig
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

_BITS = (2, 3, 4, 8)
_FORMATS = ("gptq", "gptq_v2")
_FLOATS = ("f16", "bf16", "f32")


@dataclass(frozen=True, slots=True)
class _Layout:
    """How modules are stored. group: -1 for whole rows. less_one: zero points are."""

    bits: int
    group: int
    symmetric: bool
    less_one: bool

    @property
    def text(self) -> str:
        """In words."""
        scope = f"groups of {self.group}" if self.group > 0 else "one scale a row"
        return f"{self.bits} bits, {scope}, {'symmetric' if self.symmetric else 'with zero points'}"


def describe(config: QuantizationConfig) -> str:
    """The quantization in words."""
    others = [_layout(entry).text for pattern, entry in _overrides(config).items() if not pattern.startswith("-:")]
    order = ", by activation order" if config.flag("desc_act", False) else ""
    some = f"; some modules {' or '.join(dict.fromkeys(others))}" if others else ""
    return f"GPTQ: {_layout(config).text}{order}{some}"


def read_modules(config: QuantizationConfig, tensors: Mapping[str, StoredTensor]) -> list[Module]:
    """Every module that has a qweight.

    Raises:
        UnsupportedError: bits or a checkpoint_format that Octavo does not have.
        CheckpointError: tensors are missing, misshapen or contradict the configuration; names them.
    """
    common, overrides = _layout(config), _overrides(config)
    layouts = {pattern: _layout(entry) for pattern, entry in overrides.items() if not pattern.startswith("-:")}
    names = [name.removesuffix(".qweight") for name in tensors if name.endswith(".qweight")]
    patterns = Patterns(f"{config.where}: dynamic", "+:")
    return [_module(ModuleTensors(name, tensors), _layout_of(patterns, layouts, name) or common) for name in names]


def _layout(config: QuantizationConfig) -> _Layout:
    """What a configuration, or an override in it, says."""
    bits, group = config.integer("bits"), config.integer("group_size", -1)
    stored = config.text("checkpoint_format", config.text("format", "gptq"))
    if bits not in _BITS:
        raise UnsupportedError(f"{config.where}: GPTQ with {bits} bits is not supported; 2, 3, 4 and 8 are")
    if stored not in _FORMATS:
        raise UnsupportedError(
            f"{config.where}: checkpoint_format {stored} is not supported; save the model as gptq or gptq_v2"
        )
    if group == 0 or group < -1:
        raise CheckpointError(f"{config.where}: group_size {group}; a positive number is needed, or -1 for whole rows")
    return _Layout(bits, group, config.flag("sym", True), stored == "gptq")


def _overrides(config: QuantizationConfig) -> dict[str, QuantizationConfig]:
    """What "dynamic" says by pattern, with what it leaves open as for all modules."""
    said = config.fields.get("dynamic") or {}
    if not isinstance(said, dict):
        raise CheckpointError(f"{config.where}: dynamic should be an object of patterns, not {said!r}")
    found: dict[str, QuantizationConfig] = {}
    for pattern, fields in cast(dict[str, Any], said).items():
        where = f"{config.where}: dynamic {pattern!r}"
        if not isinstance(fields, dict):
            raise CheckpointError(f"{where} is no object")
        found[pattern] = QuantizationConfig(config.method, {**config.fields, **cast(dict[str, Any], fields)}, where)
    return found


def _layout_of(patterns: Patterns, layouts: Mapping[str, _Layout], name: str) -> _Layout | None:
    """That of the first pattern that a module's name begins with."""
    return next((layout for pattern, layout in layouts.items() if patterns.begins(pattern, name)), None)


@dataclass(frozen=True, slots=True)
class _Tensors:
    """The arrays of a module, and their numbers row by row."""

    layout: _Layout
    codes: NDArray[Any]  # words [in * bits / 32, out]
    points: NDArray[Any]  # words [groups, out * bits / 32]
    factors: NDArray[Any]  # [groups, out]
    points_name: str

    @property
    def rows(self) -> int:
        """Outputs."""
        return self.codes.shape[1]

    @property
    def columns(self) -> int:
        """Inputs."""
        return len(self.codes) * 32 // self.layout.bits

    def packed(self, start: int, count: int) -> Bytes:
        """Codes as ModuleParts has them."""
        words = np.ascontiguousarray(self.codes[:, start : start + count].T)
        if self.layout.bits == 4:  # a word holds eight codes in the order of rows
            return words.view(np.uint8).reshape(count, -1)
        numbers = unpack_bits(words, self.layout.bits, self.columns)
        if self.layout.bits == 8:
            return numbers ^ np.uint8(128)  # unsigned, around 128: signed
        return pack_codes(numbers + np.uint8(8 - (1 << (self.layout.bits - 1)) if self.layout.symmetric else 0), 4)

    def zeros(self, start: int, count: int) -> Bytes:
        """Zero points as ModuleParts has them."""
        points: Bytes = np.ascontiguousarray(self._points()[:, start : start + count].T)
        return np.bitwise_xor(points, 128, dtype=np.uint8) if self.layout.bits == 8 else points

    def scales(self, start: int, count: int) -> NDArray[Any]:
        """Scales as ModuleParts has them.

        Raises:
            CheckpointError: zero points that should all be the middle are not.
        """
        middle = 1 << (self.layout.bits - 1)
        if self.layout.symmetric and start == 0 and (self._points() != middle).any():
            raise CheckpointError(
                f"{self.points_name} holds zero points other than {middle}, but the configuration says sym: set sym to "
                "false there, or checkpoint_format to what the file was saved as"
            )
        return np.ascontiguousarray(self.factors[:, start : start + count].T)

    def _points(self) -> Bytes:
        """[groups, out]."""
        points = unpack_bits(self.points, self.layout.bits, self.rows).astype(np.int16) + np.int16(
            1 if self.layout.less_one else 0
        )
        return (points % np.int16(1 << self.layout.bits)).astype(np.uint8)


def _module(module: ModuleTensors, layout: _Layout) -> Module:
    bits, symmetric = layout.bits, layout.symmetric
    qweight = module.find("qweight")
    assert qweight is not None
    words, rows = shape_of(qweight)
    columns = words * 32 // bits
    group = columns if layout.group < 0 else min(layout.group, columns)
    if words * 32 % bits or columns % group:
        raise CheckpointError(
            f"{qweight.name}: {words} words of {bits}-bit codes are no whole number of groups of {group}: "
            "file and configuration do not belong together"
        )
    groups = columns // group
    module.take("qweight", (words, rows), ("i32",))
    scales = module.take("scales", (groups, rows), _FLOATS)
    qzeros = module.take("qzeros", (groups, -(-rows * bits // 32)), ("i32",))
    order = None if module.find("g_idx") is None else module.take("g_idx", (columns,), ("i32", "i64"))
    arrays = (array_of(qweight), array_of(qzeros), array_of(scales))
    read = _Tensors(layout, *arrays, qzeros.name)
    return build_module(
        module.parts(
            shape=(rows, columns),
            codes=("int8" if bits == 8 else "int4") + ("" if symmetric else "z"),
            group=group,
            packed=read.packed,
            scale=scales.format,
            scales=read.scales,
            data=qweight.data,
            zeros=None if symmetric else read.zeros,
            groups=None if order is None else read_groups(order, groups),
        )
    )
