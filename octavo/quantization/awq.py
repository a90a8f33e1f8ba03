"""AWQ: scales input channels so that those which carry the largest activations lose least when weights are rounded.

Source: Lin et al. 2023, arXiv:2306.00978. Channel j of the weights is multiplied by s_j and its input divided by it,
which changes nothing but the rounding; s = mean|X|^a, with a found by search (equations 4 and 5). Then each group's
range is cut where that lowers the error (section "weight clipping" of the authors' report).
"""

from collections.abc import Callable, Sequence

import numpy as np

from octavo.quantization.integers import Coded, Floats, Grid, encode, fit_by, nearest_values, read, round_to_nearest

_STEPS = 20  # of the exponent, from 0 on
_LEAST = np.float32(1e-4)
_CLIPS = tuple(1.0 - 0.05 * step for step in range(10))


def search_scales(
    weights: Sequence[Floats], inputs: Floats, mean: Floats, grid: Grid, spread: Callable[[Floats], Floats]
) -> Floats:
    """The scales, as many as `mean` has, that let the products of `inputs` with the rounded weights err least.

    Args:
        weights: [out_i, in], all with the same inputs.
        inputs: a sample, [rows, in].
        mean: mean magnitude of each channel; of each set of channels where these must have one scale.
        spread: scales as many as `mean` has -> [in].
    """
    best, least = np.ones_like(mean), np.inf
    for step in range(_STEPS):
        scales = channel_scales(mean, step / _STEPS)
        wide = spread(scales)
        error = 0.0
        for weight in weights:
            rounded = nearest_values(grid, weight * wide) / wide
            error += float(np.square(inputs @ (rounded - weight).T).sum(dtype=np.float64))
        if error < least:
            best, least = scales, error
    return best


def channel_scales(mean: Floats, exponent: float) -> Floats:
    """mean^exponent, so divided that the largest times the smallest is 1: products stay in their range."""
    scales = np.maximum(mean, _LEAST) ** np.float32(exponent)
    return (scales / np.sqrt(scales.max() * scales.min())).astype(np.float32)


def round_clipped(grid: Grid, weight: Floats, inputs: Floats | None) -> Coded:
    """Round [out, in], each group with the share of its range that errs least on a sample of inputs [rows, in].

    Without inputs nothing is cut. The error of a group's product, (w - q) X_g, is summed over the sample by its moments
    X_g^T X_g.
    """
    if inputs is None:
        return round_to_nearest(grid, weight)
    out, columns = weight.shape
    size = grid.size(columns)
    groups = weight.reshape(out, -1, size)
    sample = inputs.reshape(len(inputs), -1, size).swapaxes(0, 1)  # [groups, rows, size]
    moments = sample.swapaxes(1, 2) @ sample

    def error_of(scale: Floats, zero: Floats) -> Floats:
        off = (read(encode(grid, groups, scale, zero), scale, zero) - groups).swapaxes(0, 1)
        return ((off @ moments) * off).sum(axis=-1).T

    scale, zero = fit_by(grid, groups, _CLIPS, error_of)
    codes = encode(grid, groups, scale, zero).astype(np.uint8).reshape(out, columns)
    return Coded(codes, scale, zero, (np.arange(columns) // size).astype(np.int32))
