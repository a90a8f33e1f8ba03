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
    """act_order: columns with the largest inputs first. damp: added to the diagonal, as a share of its mean."""

    act_order: bool = False
    damp: float = 0.01


def gptq(weight: Floats, hessian: Floats, grid: Grid, options: GptqOptions) -> Coded:
    """Round [out, in] with the inputs' second moments [in, in] (any multiple of X X^T).

    Algorithm 1 of the paper: columns in order; each one's error, divided by the diagonal of the Cholesky factor U of
    H^-1 = U^T U, is taken from the columns to its right in proportion to U's row.
    """
    columns = weight.shape[1]
    order = np.argsort(-np.diag(hessian), kind="stable") if options.act_order else np.arange(columns)
    turned = np.ascontiguousarray(weight[:, order].T)  # [in, out]: a column is contiguous
    moments = hessian[np.ix_(order, order)].astype(np.float32)
    dead = np.diag(moments) <= 0
    moments[dead, dead] = 1.0
    turned[dead] = 0.0  # what no input ever reaches
    factor = _inverse_factor(moments, options.damp)
    size = grid.size(columns)
    codes, scales, zeros = _round_columns(turned, factor, grid, size, np.diag(moments))
    group_of = np.empty(columns, np.int32)
    group_of[order] = np.arange(columns) // size
    ordered = np.empty_like(codes)
    ordered[order] = codes
    return Coded(np.ascontiguousarray(ordered.T), scales, zeros, group_of)


def _round_columns(
    turned: Floats, factor: Floats, grid: Grid, size: int, importance: Floats
) -> tuple[NDArray[np.uint8], Floats, Floats]:
    """Codes [in, out], scales and zeros [out, groups] of columns in order; changes `turned`."""
    columns, out = turned.shape
    codes = np.empty((columns, out), np.uint8)
    scales = np.empty((columns // size, out), np.float32)
    zeros = np.empty_like(scales)
    # A group's grid is fitted when its first column comes, to the weights as they are by then.
    block = max(_BLOCK // size, 1) * size if size <= _BLOCK else _BLOCK
    for first in range(0, columns, block):
        last = min(first + block, columns)
        errors = np.empty((last - first, out), np.float32)
        for column in range(first, last):
            group = column // size
            if column % size == 0:
                span = slice(column, column + size)
                scales[group], zeros[group] = fit(grid, turned[span].T, SHARES, importance[span])
            scale, zero = scales[group], zeros[group]
            code = encode(grid, turned[column, :, None], scale, zero)[:, 0]
            codes[column] = code
            error = (turned[column] - read(code[:, None], scale, zero)[:, 0]) / factor[column, column]
            turned[column:last] -= factor[column, column:last, None] * error
            errors[column - first] = error
        turned[last:] -= factor[first:last, last:].T @ errors
    return codes, np.ascontiguousarray(scales.T), np.ascontiguousarray(zeros.T)


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
