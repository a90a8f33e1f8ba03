"""Matrices of 8-bit floats with scales: one for a matrix, for a row, or for a block of rows and inputs.

Layout: transformers' fine-grained fp8 and DeepSeek's files (weight_scale_inv, which multiplies in spite of its name),
vLLM's fp8, FBGEMM's, ModelOpt's and compressed-tensors' (weight_scale; of MXFP8 powers of two as bytes). Scales of
inputs are not needed: inputs are not rounded to 8-bit floats here.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.errors import CheckpointError, UnsupportedError
from octavo.model.checkpoint.quantized.config import QuantizationConfig
from octavo.model.checkpoint.quantized.module import Module, ModuleTensors, array_of, build_module, shape_of
from octavo.ops.weight import StoredTensor
from octavo.quantization.span_rows import scale_values

_SCALES = ("weight_scale_inv", "weight_scale")
_PANEL = 16  # rows that a "shared" scale must be the same for
_FLOATS = ("f16", "bf16", "f32", "f8_e8m0", "u8")
_POWERS = ("f8_e8m0", "u8")
# ModelOpt's names, and the rows and inputs that share a scale; None: those of a row, or of the matrix.
_ALGORITHMS: dict[str, tuple[int, int] | None] = {
    "fp8": None, "fp8_per_channel_per_token": None, "fp8_pb_wo": (128, 128), "fp8_block_scales": (128, 128),
    "mxfp8": (1, 32),
}  # fmt: skip


def describe(config: QuantizationConfig) -> str:
    """The quantization in words."""
    block = _block(config)
    scope = f"a scale for {block[0]} x {block[1]}" if block else "a scale for a matrix or a row"
    return f"{config.method}: 8-bit floats (e4m3), {scope}"


def read_modules(config: QuantizationConfig, tensors: Mapping[str, StoredTensor]) -> list[Module]:
    """Every matrix of 8-bit floats.

    Raises:
        UnsupportedError: another type of float.
        CheckpointError: a scale is missing or misshapen; names it.
    """
    block = _block(config)
    names = [t.name for t in tensors.values() if t.name.endswith(".weight") and t.format.startswith("f8_e")]
    return [float8_module(ModuleTensors(name.removesuffix(".weight"), tensors), block) for name in names]


def float8_module(module: ModuleTensors, block: tuple[int, int] | None) -> Module:
    """One matrix of 8-bit floats.

    Args:
        block: rows and inputs that share a scale; None: told by the scales' shape.
    """
    weight = module.find("weight")
    assert weight is not None
    if weight.format != "f8_e4m3":
        raise UnsupportedError(f"{weight.name} is {weight.format}; of 8-bit floats only e4m3 is supported")
    rows, columns = shape_of(weight)
    found = next((tensor for ending in _SCALES if (tensor := module.find(ending)) is not None), None)
    if found is None:
        raise CheckpointError(
            f"{weight.name} has no scale: {module.name}.{_SCALES[0]} or .{_SCALES[1]} is needed; "
            "download the checkpoint again"
        )
    if found.format not in _FLOATS:
        raise CheckpointError(f"{found.name} is {found.format}; {' or '.join(_FLOATS)} is needed")
    block_rows, group = _scope(found, rows, columns, block)
    scales = _floats(found).reshape(-1, -(-columns // group))
    shared = block_rows % _PANEL == 0 and group < columns
    codes = array_of(weight)

    def rows_of(start: int, count: int) -> NDArray[Any]:
        return np.ascontiguousarray(scales[np.arange(start, start + count) // block_rows])

    return build_module(
        module.parts(
            shape=(rows, columns),
            codes="e4m3",
            group=group,
            packed=lambda start, count: codes[start : start + count],
            scale="shared" if shared else "f32",
            scales=rows_of,
            data=weight.data,
        )
    )


def _block(config: QuantizationConfig) -> tuple[int, int] | None:
    algorithm = str(config.fields.get("quant_algo") or "fp8").lower()
    if algorithm not in _ALGORITHMS:
        there = ", ".join(_ALGORITHMS).upper()
        raise UnsupportedError(f"{config.where}: quant_algo {algorithm} is not supported; {there} are")
    sizes = config.fields.get("weight_block_size")
    return _ALGORITHMS[algorithm] if sizes is None else read_block(sizes, f"{config.where}: weight_block_size")


def read_block(sizes: Any, where: str) -> tuple[int, int]:
    """Rows and inputs of a block.

    Raises:
        CheckpointError: these are no two positive numbers.
    """
    if not isinstance(sizes, list) or [type(size) for size in sizes] != [int, int] or min(sizes) < 1:  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        raise CheckpointError(f"{where} should be two positive numbers, not {sizes!r}")
    return sizes[0], sizes[1]


def _scope(scale: StoredTensor, rows: int, columns: int, block: tuple[int, int] | None) -> tuple[int, int]:
    """Rows and inputs that share a scale."""
    count = int(np.prod(scale.shape))
    if count == 1:
        return rows, columns
    if block is not None:
        blocks = (-(-rows // block[0]), -(-columns // block[1]))
        if scale.shape in (blocks, (blocks[0], 1, blocks[1], 1)):  # ModelOpt keeps the axes it took maxima over
            return block
    if scale.shape in ((rows,), (rows, 1)) and block is None:
        return 1, columns
    wanted = f"blocks of {block[0]} x {block[1]}" if block else "one scale, or one a row"
    raise CheckpointError(
        f"{scale.name} is {list(scale.shape)}, which is not {wanted} of a matrix {rows} x {columns}: file and "
        "configuration do not belong together"
    )


def _floats(scale: StoredTensor) -> NDArray[np.float32]:
    raw = array_of(scale)
    if scale.format in _POWERS:  # OCP Microscaling Formats 1.0, 5.4.1; 255 is its NaN
        return np.where(raw == 255, np.nan, np.ldexp(np.float32(1), raw.astype(np.int32) - 127)).astype(np.float32)
    return scale_values(scale.format, raw)
