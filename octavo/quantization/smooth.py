"""8-bit weights with a scale a row: SmoothQuant's factors, whole numbers, and float8.

Sources: Xiao et al. 2022, arXiv:2211.10438, equation 4; Micikevicius et al. 2022, arXiv:2209.05433, table 1 (E4M3).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

_LEAST = np.float32(1e-5)
INT8_TOP = np.float32(127)
E4M3_TOP = np.float32(448)
_E4M3_BIAS, _E4M3_BITS = 7, 3


@dataclass(frozen=True, slots=True)
class Rows:
    """A matrix [out, in] as codes of one byte, [out, in] int8 or float8's bits as uint8, and a scale a row [out]."""

    codes: NDArray[np.int8] | NDArray[np.uint8]
    scales: Floats

    def values(self) -> Floats:
        """What it stands for."""
        whole = self.codes.dtype == np.int8
        numbers = self.codes.astype(np.float32) if whole else e4m3_values(self.codes.view(np.uint8))
        return numbers * self.scales[:, None]


def smoothing(peaks: Floats, weights: Sequence[Floats], alpha: float, gather: Callable[[Floats], Floats]) -> Floats:
    """s_j = max|X_j|^alpha / max|W_j|^(1 - alpha), equation 4: what weights are multiplied by and inputs divided by.

    Args:
        peaks: max|X_j|, of each channel, or of each set of channels that must have one factor.
        weights: [out_i, in], all with the same inputs.
        gather: [in] -> as many as `peaks` has, the largest of each set.
    """
    largest = gather(np.max([np.abs(weight).max(axis=0) for weight in weights], axis=0))
    factors = np.maximum(peaks, _LEAST) ** np.float32(alpha) / np.maximum(largest, _LEAST) ** np.float32(1 - alpha)
    return np.maximum(factors, _LEAST).astype(np.float32)


def int8_rows(weight: Floats, keep: Callable[[Floats], Floats]) -> Rows:
    """Symmetric whole numbers, the largest of a row is 127.

    Args:
        keep: scales as the file will hold them.
    """
    scales = _scales(weight, INT8_TOP, keep)
    codes = np.clip(np.rint(weight / scales[:, None]), -INT8_TOP, INT8_TOP).astype(np.int8)
    return Rows(codes, scales)


def e4m3_rows(weight: Floats, keep: Callable[[Floats], Floats]) -> Rows:
    """float8 E4M3, the largest of a row is 448."""
    scales = _scales(weight, E4M3_TOP, keep)
    return Rows(e4m3_codes(weight / scales[:, None]), scales)


def e4m3_codes(values: Floats) -> NDArray[np.uint8]:
    """The bits of the nearest E4M3 numbers, ties to even; what is beyond the largest becomes the largest."""
    magnitude = np.minimum(np.abs(values), E4M3_TOP)
    # Below 2^-6 numbers are spaced as at 2^-6.
    exponent = np.maximum(np.frexp(magnitude)[1] - 1, 1 - _E4M3_BIAS)
    steps = np.rint(np.ldexp(magnitude, _E4M3_BITS - exponent))  # 8 to 16 of normal numbers
    exponent = np.where(steps == 16, exponent + 1, exponent)
    steps = np.where(steps == 16, 8, steps)
    normal = steps >= 8
    bits = np.where(normal, ((exponent + _E4M3_BIAS) << _E4M3_BITS) + (steps.astype(np.int32) - 8), steps)
    return (bits.astype(np.uint8) | (np.signbit(values).astype(np.uint8) << 7)).astype(np.uint8)


def e4m3_values(codes: NDArray[np.uint8]) -> Floats:
    """The numbers that bits stand for; the two NaNs are NaN."""
    return _e4m3_table()[codes]


def _e4m3_table() -> Floats:
    bits = np.arange(128)
    exponent, steps = bits >> _E4M3_BITS, bits & 7
    normal = np.ldexp(1 + steps / 8, exponent - _E4M3_BIAS)
    values = np.where(exponent > 0, normal, np.ldexp(steps / 8, 1 - _E4M3_BIAS))
    values[127] = np.nan
    return np.concatenate([values, -values]).astype(np.float32)


def _scales(weight: Floats, top: np.float32, keep: Callable[[Floats], Floats]) -> Floats:
    largest = np.abs(weight).max(axis=1)
    return keep(np.where(largest > 0, largest / top, 1).astype(np.float32))
