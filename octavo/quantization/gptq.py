"""GPTQ: rounds a matrix column by column, and lets the columns that follow make up for each error.

Source: Frantar et al. 2022, arXiv:2210.17323. Minimized is |W X - Q X|^2, whose Hessian is H = 2 X X^T for every row.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from octavo.quantization.integers import SHARES, Coded, Floats, Grid, encode, fit, read

_BLOCK = 128  # columns between two updates of all that follow
_RAISES = 6  # times that damping is raised tenfold when the Hessian has no factors


@dataclass(frozen=True, slots=True)
class GptqOptions:
    """act_order: columns with the largest inputs first. damp: added to the diagonal, as a share of its mean.

    Groups are runs of columns either way ("static groups"): engines read them as any others, and vLLM has ended support
    for groups of columns that stand apart.
    """

    act_order: bool = False
    damp: float = 0.01


def gptq(weight: Floats, hessian: Floats, grid: Grid, options: GptqOptions) -> Coded:
    """Round [out, in] with the inputs' second moments [in, in] (any multiple of X X^T).

    Algorithm 1 of the paper: columns in order; each one's error, divided by the diagonal of the Cholesky factor U of
    H^-1 = U^T U, is taken from the columns to its right in proportion to U's row.
    """
    columns = weight.shape[1]
    diagonal = np.diag(hessian)
    dead = diagonal <= 0
    weight = np.where(dead, np.float32(0), weight)  # what no input ever reaches
    importance = np.where(dead, np.float32(1), diagonal).astype(np.float32)
    order = np.argsort(-diagonal, kind="stable") if options.act_order else np.arange(columns)
    turned = np.ascontiguousarray(weight[:, order].T)  # [in, out]: a column is contiguous
    moments = hessian[np.ix_(order, order)].astype(np.float32)
    np.fill_diagonal(moments, importance[order])
    factor = _inverse_factor(moments, options.damp)
    size = grid.size(columns)
    grids = _Grids.fitted(grid, weight, importance) if options.act_order else _Grids.empty(size, weight.shape)
    codes = _round_columns(turned, factor, grid, order // size, importance, grids)
    ordered = np.empty_like(codes)
    ordered[order] = codes
    group_of = (np.arange(columns) // size).astype(np.int32)
    scales, zeros = (np.ascontiguousarray(part.T) for part in (grids.scales, grids.zeros))
    return Coded(np.ascontiguousarray(ordered.T), scales, zeros, group_of)


@dataclass(frozen=True, slots=True)
class _Grids:
    """Scales and zeros [groups, out]. late: a group's are fitted when its first column comes."""

    scales: Floats
    zeros: Floats
    late: bool

    @classmethod
    def empty(cls, size: int, shape: tuple[int, ...]) -> "_Grids":
        scales = np.empty((shape[1] // size, shape[0]), np.float32)
        return cls(scales, np.empty_like(scales), late=True)

    @classmethod
    def fitted(cls, grid: Grid, weight: Floats, importance: Floats) -> "_Grids":
        """To the weights as they are, when columns of all groups come in turns."""
        out, columns = weight.shape
        shape = (columns // grid.size(columns), grid.size(columns))
        scales, zeros = fit(grid, weight.reshape(out, *shape), SHARES, importance.reshape(shape))
        return cls(np.ascontiguousarray(scales.T), np.ascontiguousarray(zeros.T), late=False)


def _round_columns(
    turned: Floats, factor: Floats, grid: Grid, group_of: NDArray[np.int_], importance: Floats, grids: _Grids
) -> NDArray[np.uint8]:
    """Codes [in, out] of columns as they come; changes `turned`, and `grids` when they are late."""
    columns, out = turned.shape
    size = grid.size(columns)
    codes = np.empty((columns, out), np.uint8)
    block = max(_BLOCK // size, 1) * size if size <= _BLOCK else _BLOCK
    for first in range(0, columns, block):
        last = min(first + block, columns)
        errors = np.empty((last - first, out), np.float32)
        for column in range(first, last):
            group = group_of[column]
            if grids.late and column % size == 0:
                span = slice(column, column + size)
                grids.scales[group], grids.zeros[group] = fit(grid, turned[span].T, SHARES, importance[span])
            scale, zero = grids.scales[group], grids.zeros[group]
            code = encode(grid, turned[column, :, None], scale, zero)[:, 0]
            codes[column] = code
            error = (turned[column] - read(code[:, None], scale, zero)[:, 0]) / factor[column, column]
            turned[column:last] -= factor[column, column:last, None] * error
            errors[column - first] = error
        turned[last:] -= factor[first:last, last:].T @ errors
    return codes


def _inverse_factor(moments: Floats, damp: float) -> Floats:
    """The upper U with U^T U = H^-1: with H = R R^T and R upper, it is R^-1. R is H's own factor, read backwards."""
    mean = float(np.diag(moments).mean())
    for _ in range(_RAISES):
        damped = moments[::-1, ::-1] + np.float32(damp * mean) * np.eye(len(moments), dtype=np.float32)
        try:
            lower = np.linalg.cholesky(damped)
        except np.linalg.LinAlgError:
            damp *= 10
            continue
        upper = np.ascontiguousarray(lower[::-1, ::-1])
        return np.triu(np.linalg.inv(upper)).astype(np.float32)
    return np.diag(1 / np.sqrt(np.diag(moments) + np.float32(mean))).astype(np.float32)  # each column for itself
