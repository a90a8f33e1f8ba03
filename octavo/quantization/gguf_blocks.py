"""What each block format means: stored bytes to float32, in numpy, for tests, small tensors and the torch backend.

Layouts are those of ggml's quantized blocks (little endian; `qs` are packed low nibbles first). A block of 256 is a
"super-block" of 8 x 32 or 16 x 16 elements whose own scales are small integers. MXFP4: OCP Microscaling Formats 1.0.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from octavo.ops.weight import StoredTensor
from octavo.quantization import span_rows
from octavo.quantization.format import Format, check_computable

Blocks = NDArray[np.uint8]  # [blocks, bytes of a block]
Values = NDArray[np.float32]  # [blocks, elements of a block]

# The 16 levels of IQ4_NL (ggml's non-linear 4-bit code book).
IQ4_LEVELS = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)
_CHUNK = 1 << 20  # blocks looked at together: bounds the memory of a check
# E2M1, OCP Microscaling Formats 1.0, table 5.
FP4_LEVELS = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def dequantize(format: str, data: NDArray[np.uint8], shape: tuple[int, ...]) -> Values:
    """The float32 values of stored bytes, in `shape`.

    Raises:
        UnsupportedError, CheckpointError: as `check_computable`.
    """
    checked = check_computable(StoredTensor("(unnamed)", format, shape, data))
    if checked.spans is not None:
        return span_rows.values(checked, data, shape)
    blocks = np.ascontiguousarray(data).reshape(-1, checked.block_bytes)
    return _READERS[checked.name](blocks).reshape(shape)


def first_invalid_row(tensor: StoredTensor) -> int | None:
    """Index of the first row that holds a NaN or an infinity, in a block's scales too; None when all is finite.

    Raises:
        UnsupportedError, CheckpointError: as `check_computable`.
    """
    format = check_computable(tensor)
    columns = tensor.shape[-1] if tensor.shape else 1
    if format.spans is not None:
        return span_rows.first_invalid(format, tensor.data, columns)
    blocks = tensor.data.reshape(-1, format.block_bytes)
    for start in range(0, len(blocks), _CHUNK):
        hits = np.flatnonzero(_invalid(format, blocks[start : start + _CHUNK]))
        if len(hits):
            return (start + int(hits[0])) * format.elements // columns
    return None


def _invalid(format: Format, blocks: Blocks) -> NDArray[np.bool_]:
    """Which blocks hold a value or scale whose exponent bits are all ones."""
    if format.role == "float":
        kind, mask = {"f32": (np.uint32, 0x7F800000), "f16": (np.uint16, 0x7C00), "bf16": (np.uint16, 0x7F80)}[
            format.name
        ]
        return (blocks.view(kind)[:, 0] & kind(mask)) == mask
    if format.name == "mxfp4":
        return blocks[:, 0] == 255
    bad = np.zeros(len(blocks), np.bool_)
    for offset in format.scales:
        bad |= (blocks[:, offset + 1] & 0x7C) == 0x7C
    return bad


def bf16_from_f32(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Round to bfloat16, to nearest even; NaN stays NaN."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded)


def _half(blocks: Blocks, offset: int) -> Values:
    """The float16 at a byte offset of each block, [blocks, 1]."""
    return np.ascontiguousarray(blocks[:, offset : offset + 2]).view(np.float16).astype(np.float32)


def _nibbles(packed: Blocks) -> Blocks:
    """Low nibbles of all bytes, then the high ones: [blocks, n] -> [blocks, 2n]."""
    return np.concatenate([packed & np.uint8(15), packed >> np.uint8(4)], axis=1)


def _f32(blocks: Blocks) -> Values:
    return blocks.view(np.float32).copy()


def _f16(blocks: Blocks) -> Values:
    return blocks.view(np.float16).astype(np.float32)


def _bf16(blocks: Blocks) -> Values:
    return (blocks.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def _q4_0(blocks: Blocks) -> Values:
    return _half(blocks, 0) * (_nibbles(blocks[:, 2:]).astype(np.float32) - np.float32(8))


def _q4_1(blocks: Blocks) -> Values:
    return _half(blocks, 0) * _nibbles(blocks[:, 4:]).astype(np.float32) + _half(blocks, 2)


def _five_bits(high: Blocks, low: Blocks) -> Values:
    """`high` [blocks, 4] holds bit 4 of each of the 32 elements, element 0 in the lowest bit."""
    fifth = np.unpackbits(high, axis=1, bitorder="little")
    return (_nibbles(low) | (fifth << 4)).astype(np.float32)


def _q5_0(blocks: Blocks) -> Values:
    return _half(blocks, 0) * (_five_bits(blocks[:, 2:6], blocks[:, 6:]) - np.float32(16))


def _q5_1(blocks: Blocks) -> Values:
    return _half(blocks, 0) * _five_bits(blocks[:, 4:8], blocks[:, 8:]) + _half(blocks, 2)


def _q8_0(blocks: Blocks) -> Values:
    return _half(blocks, 0) * blocks[:, 2:].view(np.int8).astype(np.float32)


def _iq4_nl(blocks: Blocks) -> Values:
    return _half(blocks, 0) * IQ4_LEVELS[_nibbles(blocks[:, 2:])]


def _mxfp4(blocks: Blocks) -> Values:
    scale = np.ldexp(np.float32(1), blocks[:, :1].astype(np.int32) - 127).astype(np.float32)
    return scale * FP4_LEVELS[_nibbles(blocks[:, 1:])]


def _two_bit_planes(packed: Blocks) -> Blocks:
    """[blocks, 64] bytes -> [blocks, 256]: each 32 bytes hold four planes of 32 elements, lowest bits first."""
    halves = packed.reshape(-1, 2, 1, 32)
    shifts = np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1)
    return ((halves >> shifts) & np.uint8(3)).reshape(-1, 256)


def _scaled(scales: Values, values: Values, minima: Values | None = None) -> Values:
    """Each run of elements times its scale, less its minimum: [blocks, runs] twice, and values [blocks, 256]."""
    runs = values.reshape(len(values), scales.shape[1], -1) * scales[:, :, None]
    if minima is not None:
        runs -= minima[:, :, None]
    return runs.reshape(len(values), -1)


def _q2_k(blocks: Blocks) -> Values:
    packed = blocks[:, :16]
    scales = _half(blocks, 80) * (packed & 15).astype(np.float32)
    minima = _half(blocks, 82) * (packed >> 4).astype(np.float32)
    values = _two_bit_planes(blocks[:, 16:80]).astype(np.float32)
    return _scaled(scales, values, minima)


def _q3_k(blocks: Blocks) -> Values:
    high = blocks[:, :32].reshape(-1, 1, 32) >> np.arange(8, dtype=np.uint8).reshape(1, 8, 1)
    codes = _two_bit_planes(blocks[:, 32:96]) | ((high & 1).reshape(-1, 256) << 2)
    packed = blocks[:, 96:108]
    low = _nibbles(packed[:, :8])  # 16 scales' low 4 bits
    top = (packed[:, 8:12].reshape(-1, 1, 4) >> np.array([0, 2, 4, 6], np.uint8).reshape(1, 4, 1)) & 3
    scales = (low | (top.reshape(-1, 16) << 4)).astype(np.float32) - np.float32(32)
    return _scaled(_half(blocks, 108) * scales, codes.astype(np.float32) - np.float32(4))


def _six_bit_pairs(packed: Blocks) -> tuple[Values, Values]:
    """Eight scales and eight minima of 6 bits each, from 12 bytes (Q4_K, Q5_K)."""
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate([first & 63, (third & 15) | (first >> 6 << 4)], axis=1)
    minima = np.concatenate([second & 63, (third >> 4) | (second >> 6 << 4)], axis=1)
    return scales.astype(np.float32), minima.astype(np.float32)


def _chunked_nibbles(packed: Blocks) -> Blocks:
    """[blocks, 128] -> [blocks, 256]: each 32 bytes give 32 low nibbles, then 32 high ones."""
    return _nibbles(packed.reshape(-1, 32)).reshape(-1, 256)


def _q4_k(blocks: Blocks) -> Values:
    scales, minima = _six_bit_pairs(blocks[:, 4:16])
    values = _chunked_nibbles(blocks[:, 16:]).astype(np.float32)
    return _scaled(_half(blocks, 0) * scales, values, _half(blocks, 2) * minima)


def _q5_k(blocks: Blocks) -> Values:
    scales, minima = _six_bit_pairs(blocks[:, 4:16])
    fifth = (blocks[:, 16:48].reshape(-1, 1, 32) >> np.arange(8, dtype=np.uint8).reshape(1, 8, 1)) & 1
    values = (_chunked_nibbles(blocks[:, 48:]) | (fifth.reshape(-1, 256) << 4)).astype(np.float32)
    return _scaled(_half(blocks, 0) * scales, values, _half(blocks, 2) * minima)


def _q6_k(blocks: Blocks) -> Values:
    low = _nibbles(blocks[:, :128].reshape(-1, 64)).reshape(-1, 256)
    high = _two_bit_planes(blocks[:, 128:192])
    scales = blocks[:, 192:208].view(np.int8).astype(np.float32)
    return _scaled(_half(blocks, 208) * scales, (low | (high << 4)).astype(np.float32) - np.float32(32))


_READERS: dict[str, Callable[[Blocks], Values]] = {
    "f32": _f32,
    "f16": _f16,
    "bf16": _bf16,
    "q4_0": _q4_0,
    "q4_1": _q4_1,
    "q5_0": _q5_0,
    "q5_1": _q5_1,
    "q8_0": _q8_0,
    "q2_k": _q2_k,
    "q3_k": _q3_k,
    "q4_k": _q4_k,
    "q5_k": _q5_k,
    "q6_k": _q6_k,
    "iq4_nl": _iq4_nl,
    "mxfp4": _mxfp4,
}
