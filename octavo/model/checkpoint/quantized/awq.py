"""AWQ checkpoints: 4-bit codes with zero points, in the packings of AutoAWQ's gemm and gemv kernels.

Layout: AutoAWQ's linear modules. gemm: qweight int32 [in, out / 8], qzeros [groups, out / 8], scales [groups, out]; a
word's nibbles are the columns 0, 2, 4, 6, 1, 3, 5, 7 of its eight. gemv: qweight [out, in / 8], qzeros and scales a row
each, padded, nibbles in order.
"""

from collections.abc import Mapping
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
    shape_of,
    unpack_bits,
)
from octavo.ops.weight import Bytes, StoredTensor
from octavo.quantization.span_rows import pack_codes

# Where each of a word's eight columns stands among its nibbles: the inverse of 0, 2, 4, 6, 1, 3, 5, 7.
_PLACES = np.array([0, 4, 1, 5, 2, 6, 3, 7])
_GEMM, _GEMV = ("gemm", "exllama"), ("gemv",)
_FLOATS = ("f16", "bf16", "f32")


def describe(config: QuantizationConfig) -> str:
    """The quantization in words."""
    group = _group(config)
    scope = f"groups of {group}" if group > 0 else "one scale a row"
    return f"AWQ: 4 bits, {scope}, with zero points ({_version(config)})"


def read_modules(config: QuantizationConfig, tensors: Mapping[str, StoredTensor]) -> list[Module]:
    """Every module that has a qweight.

    Raises:
        UnsupportedError: bits or a version that Octavo does not have.
        CheckpointError: tensors are missing, misshapen or contradict the configuration; names them.
    """
    bits = config.integer("bits", config.integer("w_bit", 4))
    if bits != 4:
        raise UnsupportedError(f"{config.where}: AWQ with {bits} bits is not supported; 4 are")
    version, group = _version(config), _group(config)
    if version not in (*_GEMM, *_GEMV):
        raise UnsupportedError(
            f"{config.where}: AWQ version {version} is not supported; save the model as gemm or gemv"
        )
    if group == 0 or group < -1:
        raise CheckpointError(f"{config.where}: group_size {group}; a positive number is needed, or -1 for whole rows")
    names = [name.removesuffix(".qweight") for name in tensors if name.endswith(".qweight")]
    read = _gemv if version in _GEMV else _gemm
    return [read(ModuleTensors(name, tensors), group) for name in names]


def _version(config: QuantizationConfig) -> str:
    return config.text("version", config.text("format", config.text("checkpoint_format", "gemm")))


def _group(config: QuantizationConfig) -> int:
    return config.integer("group_size", config.integer("q_group_size", 128))


def _groups(name: str, columns: int, group: int) -> tuple[int, int]:
    """Inputs of a group, and how many groups."""
    group = columns if group < 0 else min(group, columns)
    if columns % group:
        raise CheckpointError(f"{name}: {columns} inputs are no whole number of groups of {group}")
    return group, columns // group


def _gemm(module: ModuleTensors, group: int) -> Module:
    qweight = module.find("qweight")
    assert qweight is not None
    columns, words = shape_of(qweight)
    rows = 8 * words
    group, groups = _groups(qweight.name, columns, group)
    module.take("qweight", (columns, words), ("i32",))
    scales = module.take("scales", (groups, rows), _FLOATS)
    qzeros = module.take("qzeros", (groups, words), ("i32",))
    matrix, zero_words, wide = array_of(qweight), array_of(qzeros), array_of(scales)

    def numbers(packed: NDArray[Any], start: int, count: int) -> Bytes:
        """Of rows of words: [rows, columns `start .. start + count`]."""
        first, last = start // 8, -(-(start + count) // 8)
        nibbles = unpack_bits(packed[:, first:last], 4, 8 * (last - first)).reshape(len(packed), -1, 8)
        return nibbles[:, :, _PLACES].reshape(len(packed), -1)[:, start - 8 * first :][:, :count]

    return build_module(
        module.parts(
            shape=(rows, columns),
            codes="int4z",
            group=group,
            packed=lambda start, count: pack_codes(np.ascontiguousarray(numbers(matrix, start, count).T), 4),
            scale=scales.format,
            scales=lambda start, count: np.ascontiguousarray(wide[:, start : start + count].T),
            data=qweight.data,
            zeros=lambda start, count: np.ascontiguousarray(numbers(zero_words, start, count).T),
        )
    )


def _gemv(module: ModuleTensors, group: int) -> Module:
    qweight = module.find("qweight")
    assert qweight is not None
    rows, words = shape_of(qweight)
    columns = 8 * words
    group, groups = _groups(qweight.name, columns, group)
    module.take("qweight", (rows, words), ("i32",))
    found = module.find("qzeros")
    width = found.shape[1] if found is not None and len(found.shape) == 2 else 0
    if found is not None and 8 * width < groups:
        raise CheckpointError(f"{found.name} has room for {8 * width} zero points a row, but there are {groups} groups")
    qzeros = module.take("qzeros", (rows, width), ("i32",))
    scales = module.take("scales", (rows, 8 * width), _FLOATS)
    matrix, zero_words, wide = array_of(qweight), array_of(qzeros), array_of(scales)
    return build_module(
        module.parts(
            shape=(rows, columns),
            codes="int4z",
            group=group,
            packed=lambda start, count: matrix[start : start + count].view(np.uint8).reshape(count, -1),
            scale=scales.format,
            scales=lambda start, count: wide[start : start + count, :groups],
            data=qweight.data,
            zeros=lambda start, count: unpack_bits(zero_words[start : start + count], 4, groups),
        )
    )
