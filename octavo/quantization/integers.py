"""Groups of weights as whole numbers with a scale and a zero point: how they are fitted, rounded and read back.

A weight is (code - zero) * scale, codes from 0 to 2^bits - 1; symmetric grids have their zero in the middle. Scales are
rounded to float16 before anything is coded with them, because files hold them so.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Codes = NDArray[np.uint8]

_LEAST_SCALE = np.float32(6e-8)  # the smallest float16 above zero: a group of zeros has a scale, too
# Shares of a group's range that are tried when a grid is fitted by error: narrower ones cut off its extremes.
SHARES = (1.0, 0.97, 0.94, 0.91, 0.88, 0.85, 0.8, 0.75, 0.7)


@dataclass(frozen=True, slots=True)
class Grid:
    """Which numbers a group may take. `group`: weights of a row that share a scale; 0: the whole row."""

    bits: int
    symmetric: bool
    group: int

    @property
    def top(self) -> int:
        """The largest code."""
        return (1 << self.bits) - 1

    def size(self, columns: int) -> int:
        """Weights in a group of a row of `columns`."""
        return self.group or columns


@dataclass(frozen=True, slots=True)
class Coded:
    """A matrix as codes [out, in], scales and zeros [out, groups]; `group_of` [in] names each column's group."""

    codes: Codes
    scales: Floats
    zeros: Floats
    group_of: NDArray[np.int32]

    def values(self) -> Floats:
        """What it stands for, [out, in]."""
        zeros, scales = self.zeros[:, self.group_of], self.scales[:, self.group_of]
        return (self.codes.astype(np.float32) - zeros) * scales


def fit(
    grid: Grid, groups: Floats, shares: tuple[float, ...] = (1.0,), weights: Floats | None = None
) -> tuple[Floats, Floats]:
    """Scale and zero of each group, [..., n] -> [...] twice: of the shares of the range that which errs least.

    Args:
        weights: of the squared errors, broadcast over groups; None: all alike.
    """
    if len(shares) == 1:
        return _of_range(grid, groups, np.float32(shares[0]))

    def error_of(scale: Floats, zero: Floats) -> Floats:
        square = np.square(read(encode(grid, groups, scale, zero), scale, zero) - groups)
        return (square if weights is None else square * weights).sum(axis=-1)

    return fit_by(grid, groups, shares, error_of)


def fit_by(
    grid: Grid, groups: Floats, shares: Sequence[float], error_of: Callable[[Floats, Floats], Floats]
) -> tuple[Floats, Floats]:
    """Likewise, by a measure of one's own: `error_of` takes scale and zero and returns errors, all [...]."""
    scale, zero = _of_range(grid, groups, np.float32(shares[0]))
    least = error_of(scale, zero)
    for share in shares[1:]:
        other_scale, other_zero = _of_range(grid, groups, np.float32(share))
        error = error_of(other_scale, other_zero)
        better = error < least
        scale, zero = np.where(better, other_scale, scale), np.where(better, other_zero, zero)
        least = np.where(better, error, least)
    return scale, zero


def encode(grid: Grid, groups: Floats, scale: Floats, zero: Floats) -> Floats:
    """Codes, as floats: [..., n] with scale and zero [...]."""
    return np.clip(np.rint(groups / scale[..., None]) + zero[..., None], 0, grid.top)


def read(codes: Floats, scale: Floats, zero: Floats) -> Floats:
    """The inverse of `encode`, up to rounding."""
    return (codes - zero[..., None]) * scale[..., None]


def round_to_nearest(grid: Grid, weight: Floats, shares: tuple[float, ...] = (1.0,)) -> Coded:
    """A matrix [out, in], each group fitted and rounded on its own."""
    out, columns = weight.shape
    size = grid.size(columns)
    groups = weight.reshape(out, columns // size, size)
    scale, zero = fit(grid, groups, shares)
    codes = encode(grid, groups, scale, zero).astype(np.uint8).reshape(out, columns)
    return Coded(codes, scale, zero, (np.arange(columns) // size).astype(np.int32))


def nearest_values(grid: Grid, weight: Floats) -> Floats:
    """What is left of a matrix [out, in] when each group is rounded on its own."""
    groups = weight.reshape(len(weight), -1, grid.size(weight.shape[1]))
    scale, zero = fit(grid, groups)
    return read(encode(grid, groups, scale, zero), scale, zero).reshape(weight.shape)


def half(values: Floats) -> Floats:
    """As float16 holds them."""
    return values.astype(np.float16).astype(np.float32)


def _of_range(grid: Grid, groups: Floats, share: np.float32) -> tuple[Floats, Floats]:
    """Scale and zero for a share of each group's range; the range always holds 0, so that zeros stay zeros."""
    high, low = np.maximum(groups.max(axis=-1), 0) * share, np.minimum(groups.min(axis=-1), 0) * share
    top = np.float32(grid.top)
    if grid.symmetric:
        scale = _scale(np.maximum(high, -low) * np.float32(2) / top)
        return scale, np.full_like(scale, (grid.top + 1) // 2)
    scale = _scale((high - low) / top)
    return scale, np.clip(np.rint(-low / scale), 0, top).astype(np.float32)


def _scale(values: Floats) -> Floats:
    return np.maximum(half(values), _LEAST_SCALE)
