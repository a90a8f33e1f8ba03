"""GPTQ checkpoints: codes packed along the inputs, zero points along the outputs, groups perhaps in another order.

Layout: AutoGPTQ's and GPTQModel's linear modules. qweight int32 [in * bits / 32, out], qzeros int32
[groups, out * bits / 32], scales [groups, out], g_idx [in]. checkpoint_format "gptq" stores zero points less one,
"gptq_v2" as they are.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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
from octavo.ops.weight import Bytes, StoredTensor
from octavo.quantization.span_rows import pack_codes

_BITS = (2, 3, 4, 8)
_FORMATS = ("gptq", "gptq_v2")
_FLOATS = ("f16", "bf16", "f32")


def describe(config: QuantizationConfig) -> str:
    """The quantization in words."""
    group = config.integer("group_size", -1)
    parts = [f"{config.integer('bits')} bits", f"groups of {group}" if group > 0 else "one scale a row"]
    parts.append("symmetric" if config.flag("sym", True) else "with zero points")
    return f"GPTQ: {', '.join(parts)}{', by activation order' if config.flag('desc_act', False) else ''}"


def read_modules(config: QuantizationConfig, tensors: Mapping[str, StoredTensor]) -> list[Module]:
    """Every module that has a qweight.

    Raises:
        UnsupportedError: bits or a checkpoint_format that Octavo does not have.
        CheckpointError: tensors are missing, misshapen or contradict the configuration; names them.
    """
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
    names = [name.removesuffix(".qweight") for name in tensors if name.endswith(".qweight")]
    symmetric, less_one = config.flag("sym", True), stored == "gptq"
    return [_module(ModuleTensors(name, tensors), bits, group, symmetric, less_one) for name in names]


@dataclass(frozen=True, slots=True)
class _Tensors:
    """The arrays of a module, and their numbers row by row."""

    bits: int
    symmetric: bool
    less_one: bool  # zero points are stored so
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
        return len(self.codes) * 32 // self.bits

    def packed(self, start: int, count: int) -> Bytes:
        """Codes as ModuleParts has them."""
        words = np.ascontiguousarray(self.codes[:, start : start + count].T)
        if self.bits == 4:  # a word holds eight codes in the order of rows
            return words.view(np.uint8).reshape(count, -1)
        numbers = unpack_bits(words, self.bits, self.columns)
        if self.bits == 8:
            return numbers ^ np.uint8(128)  # unsigned, around 128: signed
        return pack_codes(numbers + np.uint8(8 - (1 << (self.bits - 1)) if self.symmetric else 0), 4)

    def zeros(self, start: int, count: int) -> Bytes:
        """Zero points as ModuleParts has them."""
        points: Bytes = np.ascontiguousarray(self._points()[:, start : start + count].T)
        return np.bitwise_xor(points, 128, dtype=np.uint8) if self.bits == 8 else points

    def scales(self, start: int, count: int) -> NDArray[Any]:
        """Scales as ModuleParts has them.

        Raises:
            CheckpointError: zero points that should all be the middle are not.
        """
        middle = 1 << (self.bits - 1)
        if self.symmetric and start == 0 and (self._points() != middle).any():
            raise CheckpointError(
                f"{self.points_name} holds zero points other than {middle}, but the configuration says sym: set sym to "
                "false there, or checkpoint_format to what the file was saved as"
            )
        return np.ascontiguousarray(self.factors[:, start : start + count].T)

    def _points(self) -> Bytes:
        """[groups, out]."""
        points = unpack_bits(self.points, self.bits, self.rows).astype(np.int16) + np.int16(1 if self.less_one else 0)
        return (points % np.int16(1 << self.bits)).astype(np.uint8)


def _module(module: ModuleTensors, bits: int, group: int, symmetric: bool, less_one: bool) -> Module:
    qweight = module.find("qweight")
    assert qweight is not None
    words, rows = shape_of(qweight)
    columns = words * 32 // bits
    group = columns if group < 0 else min(group, columns)
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
    read = _Tensors(bits, symmetric, less_one, *arrays, qzeros.name)
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
