"""Rounds plain numbers to block formats while a model loads: which format a matrix gets, and what rounding means.

The meaning is numpy's here; native/src/quantize.cpp does the same on all threads.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from octavo.ops.weight import StoredTensor
from octavo.quantization.format import FORMATS, STEPPED
from octavo.quantization.gguf_blocks import dequantize
from octavo.quantization.span_rows import E4M3_LARGEST, e4m3_codes, rotate, write_rows
from octavo.quantization.stepped import write_stepped

Floats = NDArray[np.float32]
Codes = NDArray[np.uint8]  # [blocks, bytes of a block]

# What --quantization means: the format of the layers' matrices, and of the embedding and the head, whose errors reach
# the logits without anything to level them.
SCHEMES: dict[str, tuple[str, str]] = {
    "int8": ("int8_row_f32_rotated", "int8_row_f32_rotated"),
    "int4": (STEPPED, "int8_row_f32_rotated"),
    "fp8": ("e4m3_row_f32", "e4m3_row_f32"),
}
# What widths that do not fit take instead.
_NARROW = {"int8_row_f32_rotated": "q8_0", STEPPED: "q4_1"}
# Ranges that are tried for a block of q4_1, as shares of its own: narrower ones cut off its extremes.
_RANGES = (1.0, 0.95, 0.9, 0.85, 0.8, 0.7)
_FITS = 2  # times that d and m are fitted to the codes
_LEVELS = np.float32(15)
_CHUNK = 1 << 16  # blocks rounded together: bounds the memory


def target_format(scheme: str, name: str, columns: int, sample: Callable[[], Floats] | None = None) -> str | None:
    """The format that a matrix of plain numbers gets; None when its rows are no whole number of blocks.

    Args:
        name: canonical, as "embed" or "layers.3.mlp.down".
        sample: reads some of its rows. Numbers that were rounded to 4 bits before stay on their grid in q4_1, which
            finds it again without loss; rotated rows have none.
    """
    inside, outside = SCHEMES[scheme]
    target = inside if name.startswith("layers.") else outside
    if columns % FORMATS[target].elements:
        target = _NARROW.get(target, target)
    if target == STEPPED and sample is not None and has_grid(sample()):
        target = "q4_1"
    return None if columns % FORMATS[target].elements else target


def has_grid(values: Floats) -> bool:
    """Whether no 32 neighbours of [rows, columns] hold more than the 16 numbers that 4 bits can tell apart."""
    ordered = np.sort(values.reshape(-1, 32), axis=1)
    return int((np.diff(ordered, axis=1) != 0).sum(axis=1).max()) < 16


def quantize(stored: StoredTensor, target: str) -> StoredTensor:
    """Plain numbers as blocks of `target`."""
    floats = dequantize(stored.format, stored.data, stored.shape)
    if target == "e4m3_row_f32":
        return StoredTensor(stored.name, target, stored.shape, _e4m3(floats).reshape(-1))
    if target == "int8_row_f32_rotated":
        return StoredTensor(stored.name, target, stored.shape, _rotated(floats, _int8, stored.shape[1]).reshape(-1))
    if target == STEPPED:
        return StoredTensor(
            stored.name, target, stored.shape, _rotated(floats, write_stepped, stored.shape[1] // 2).reshape(-1)
        )
    values = floats.reshape(-1, FORMATS[target].elements)
    write = _WRITERS[target]
    parts = [write(values[start : start + _CHUNK]) for start in range(0, len(values), _CHUNK)]
    return StoredTensor(stored.name, target, stored.shape, np.concatenate(parts).reshape(-1))


def _q8_0(values: Floats) -> Codes:
    """[blocks, 32] -> f16 d = largest / 127, then 32 signed bytes."""
    with np.errstate(over="ignore"):  # infinite scales are found when the matrix is packed
        d = _halves(np.abs(values).max(axis=1) / np.float32(127))
    inverse = _inverse(d.astype(np.float32))
    codes = np.clip(np.rint(values * inverse[:, None]), -127, 127).astype(np.int8)
    return np.concatenate([d[:, None].view(np.uint8), codes.view(np.uint8)], axis=1)


def _e4m3(values: Floats) -> Codes:
    """[rows, columns] -> codes, then f32 scale = largest / 448."""
    largest = np.abs(values).max(axis=1)
    scales = np.where(largest > 0, largest / E4M3_LARGEST, np.float32(1)).astype(np.float32)[:, None]
    return write_rows(e4m3_codes(np.clip(values / scales, -E4M3_LARGEST, E4M3_LARGEST)), scales, None)


def _rotated(values: Floats, write: Callable[[Floats], Codes], scale_at: int) -> Codes:
    """[rows, columns] -> stored rows of their rotation, a scale `scale_at` bytes from their start; it is NaN, which is
    found when the row is packed, where numbers are too large to be rotated."""
    with np.errstate(over="ignore", invalid="ignore"):
        turned = rotate(values)
    lost = np.logical_not(np.isfinite(turned).all(axis=1, keepdims=True))[:, 0]
    rows = write(np.where(lost[:, None], np.float32(0), turned))
    rows[lost] = 0
    rows[lost, scale_at : scale_at + 4] = np.array([np.nan], np.float32).view(np.uint8)
    return rows


def _int8(turned: Floats) -> Codes:
    """[rows, columns], rotated -> signed codes, then f32 scale = largest / 127."""
    largest = np.abs(turned).max(axis=1, keepdims=True)
    scales = np.where(largest > 0, largest / np.float32(127), np.float32(1)).astype(np.float32)
    inverse = np.divide(np.float32(127), largest, out=np.zeros_like(largest), where=largest > 0)
    codes = np.clip(np.rint(turned * inverse), -127, 127).astype(np.int8)
    return write_rows(codes.view(np.uint8), scales, None)


def _q4_1(values: Floats) -> Codes:
    """[blocks, 32] -> f16 d, f16 m, then 32 codes: the d and m tried that leave the least squared error."""
    least = values.min(axis=1)
    span = values.max(axis=1) - least
    best = [_rounded(span / _LEVELS), _rounded(least)]
    best_error = np.full(len(values), np.inf, np.float32)
    for share in _RANGES:
        d, m = span * np.float32(share) / _LEVELS, least + np.float32(0.5) * span * np.float32(1 - share)
        for _ in range(_FITS + 1):
            d16, m16 = _rounded(d), _rounded(m)
            codes = _codes(values, d16, m16)
            error = np.square(values - (codes * d16[:, None] + m16[:, None])).sum(axis=1)
            better = error < best_error
            best = [np.where(better, new, old) for new, old in zip((d16, m16), best, strict=True)]
            best_error = np.where(better, error, best_error)
            d, m = _fitted(values, codes, d, m)
    codes = _codes(values, *best).astype(np.uint8)
    numbers = [_halves(number)[:, None].view(np.uint8) for number in best]
    pairs = np.bitwise_or(codes[:, :16], np.left_shift(codes[:, 16:], np.uint8(4)), dtype=np.uint8)
    return np.concatenate([*numbers, pairs], axis=1)


def _fitted(values: Floats, codes: Floats, d: Floats, m: Floats) -> tuple[Floats, Floats]:
    """Least squares of values = d codes + m; d and m where all codes of a block are the same."""
    count = np.float32(values.shape[1])
    q, v = codes.sum(axis=1), values.sum(axis=1)
    spread = count * np.square(codes).sum(axis=1) - q * q
    slope = (count * (codes * values).sum(axis=1) - q * v) / np.where(spread > 0, spread, 1)
    fitted = (slope, (v - slope * q) / count)
    return np.where(spread > 0, fitted[0], d).astype(np.float32), np.where(spread > 0, fitted[1], m).astype(np.float32)


def _codes(values: Floats, d: Floats, m: Floats) -> Floats:
    return np.clip(np.rint((values - m[:, None]) * _inverse(d)[:, None]), 0, _LEVELS)


def _inverse(d: Floats) -> Floats:
    return np.divide(np.float32(1), d, out=np.zeros_like(d), where=d != 0)


def _halves(values: Floats) -> NDArray[np.float16]:
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(values.astype(np.float16))


def _rounded(values: Floats) -> Floats:
    """As float16 holds them."""
    return _halves(values).astype(np.float32)


_WRITERS: dict[str, Callable[[Floats], Codes]] = {"q8_0": _q8_0, "q4_1": _q4_1}
