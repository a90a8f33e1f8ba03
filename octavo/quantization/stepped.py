"""Rows of 4-bit codes with two levels of scales: code * step + start is a byte, one float32 a row makes a number of it.

Two levels, a small integer for a group below a float for the row, are those of QServe (arXiv 2405.04532, 4.1); here
groups have 32 inputs and start at any byte. Codes of a row meet 8-bit inputs without a float in between.
"""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]
Integers = NDArray[np.int32]

GROUP = 32  # inputs that share a step and a start
_LEVELS = 15  # steps of a code
_LARGEST = 127  # magnitude of a byte that stands for a row's largest number
_FINE = 16  # parts of a byte that rounding looks at
_STEPS = 3  # that are tried for a group: the one that spans it, and the next smaller ones
_STARTS = (0, -2, -1, 1, 2)  # that are tried for each: fifths of a step from where the group lies in the middle
_CHUNK = 1 << 15  # groups rounded together: bounds the memory


def write_stepped(values: Floats) -> Bytes:
    """[rows, columns] -> stored rows; columns a multiple of 32.

    A row: codes (the even column's in the low half), float32 scale, steps, starts (signed).
    A group's step and start are those of the tried ones that leave the least squared error; of equal ones the first.
    Every number here is exact but for the scale and the sixteenths, so all implementations find the same.
    """
    rows, columns = values.shape
    scales = (np.abs(values).max(axis=1) / np.float32(_LARGEST)).astype(np.float32)
    scales = np.where(scales > 0, scales, np.float32(1)).astype(np.float32)
    fine = np.rint(values / scales[:, None] * np.float32(_FINE)).astype(np.float32).reshape(-1, GROUP)
    parts = [_best(fine[at : at + _CHUNK]) for at in range(0, len(fine), _CHUNK)]
    codes, steps, starts = (np.concatenate(found) for found in zip(*parts, strict=True))
    codes = codes.reshape(rows, columns)
    packed = np.bitwise_or(codes[:, ::2], np.left_shift(codes[:, 1::2], np.uint8(4)), dtype=np.uint8)
    groups = (steps.reshape(rows, -1), starts.view(np.uint8).reshape(rows, -1))
    return np.concatenate([packed, scales[:, None].view(np.uint8), *groups], axis=1)


def read_stepped(stored: Bytes, columns: int) -> tuple[NDArray[np.int8], Floats]:
    """Stored rows -> bytes [rows, columns] and scales [rows]; a number is their product."""
    half, groups = columns // 2, columns // GROUP
    packed, rest = stored[:, :half], stored[:, half + 4 :]
    codes = np.stack([packed & np.uint8(15), packed >> np.uint8(4)], axis=2).reshape(-1, groups, GROUP)
    steps, starts = rest[:, :groups].astype(np.int16), rest[:, groups:].view(np.int8).astype(np.int16)
    numbers = (codes * steps[:, :, None] + starts[:, :, None]).astype(np.int8)
    scales = np.ascontiguousarray(stored[:, half : half + 4]).view(np.float32)[:, 0]
    return numbers.reshape(len(stored), columns), scales


def _best(fine: Floats) -> tuple[Bytes, Bytes, NDArray[np.int8]]:
    """[groups, 32] sixteenths of bytes -> codes, steps, starts."""
    least, most = fine.min(axis=1).astype(np.int32), fine.max(axis=1).astype(np.int32)
    widest = np.clip(-(-(most - least) // (_LEVELS * _FINE)), 1, 17)
    best: tuple[Integers, Integers] = (widest, widest)
    best_error = np.full(len(fine), np.inf, np.float32)
    for smaller in range(_STEPS):
        step = np.maximum(widest - smaller, 1)
        middle = (most + least - _LEVELS * _FINE * step + _FINE) >> 5
        for fifths in _STARTS:
            start = np.clip(middle + (2 * fifths * step + 5) // 10, -128, _LARGEST - _LEVELS * step)
            error = np.square(fine - _FINE * (_codes(fine, step, start) * step[:, None] + start[:, None])).sum(axis=1)
            better = error < best_error
            best = (np.where(better, step, best[0]), np.where(better, start, best[1]))
            best_error = np.where(better, error, best_error).astype(np.float32)
    step, start = best
    return _codes(fine, step, start).astype(np.uint8), step.astype(np.uint8), start.astype(np.int8)


def _codes(fine: Floats, step: Integers, start: Integers) -> Floats:
    """The nearest ones: [groups, 32]."""
    inverse = (np.float32(1) / (_FINE * step).astype(np.float32)).astype(np.float32)
    return np.clip(np.rint((fine - (_FINE * start).astype(np.float32)[:, None]) * inverse[:, None]), 0, _LEVELS)
