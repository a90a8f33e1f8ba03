"""Rounds matrices to GGUF's block formats, each block so that its error, weighted by what inputs say, is least.

The inverse of gguf_blocks.py. Scales are found by trying several and fitting each by weighted least squares; weights
are the mean squares of the inputs, so that minimized is the error of products (the diagonal of arXiv:2210.17323's H).
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
from numpy.typing import NDArray

from octavo.quantization.format import FORMATS

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]
Writer = Callable[[Floats, Floats], Bytes]  # values and weights [blocks, elements] -> [blocks, bytes]

_CHUNK = 1 << 19  # elements rounded together: what the fits need stays in the caches
_THREADS = 2  # numpy lets go of the interpreter, so two chunks at a time are quicker
# By how many steps the end of the range may be beyond a block's peak; below 0 the peak is cut off.
_ENDS = (-1.0, -0.75, -0.5, -0.25, 0.0, 0.25, 0.5, 0.75)
_RANGES = (1.0, 0.97, 0.94, 0.9, 0.85, 0.8, 0.7)
_FITS = 2
_SUPER = 256
_SIX_BITS = np.float32(63)


def round_matrix(format: str, values: Floats, importance: Floats | None = None) -> Bytes:
    """A matrix [rows, columns] as the bytes of a block format, [rows * bytes of a row].

    Args:
        importance: weight of each column's squared error, [columns]; None: all alike.
    """
    rows, columns = values.shape
    elements = FORMATS[format].elements
    step = max(_CHUNK // columns, 1)
    write = partial(_round_rows, _WRITERS[format], elements, _weights(importance, columns).reshape(-1, elements))
    pieces = [values[start : start + step] for start in range(0, rows, step)]
    with ThreadPoolExecutor(_THREADS) as pool:
        return np.concatenate(list(pool.map(write, pieces)))


def _weights(importance: Floats | None, columns: int) -> Floats:
    """Weights around 1, [columns]; a channel that calibration hardly reached still has to be stored."""
    if importance is None or not importance.any():
        return np.ones(columns, np.float32)
    return (importance / importance.mean() + 0.01).astype(np.float32)


def _round_rows(write: Writer, elements: int, weights: Floats, rows: Floats) -> Bytes:
    blocks = np.ascontiguousarray(rows).reshape(-1, elements)
    return write(blocks, np.tile(weights, (len(rows), 1))).reshape(-1)


# --- fits ------------------------------------------------------------------------------------------------------------


def _symmetric(values: Floats, weights: Floats, low: int) -> Floats:
    """Signed steps d [blocks] of codes from `low` to -low - 1, so that sum w (x - d q)^2 is least of those tried.

    The peak takes the code `low`, which has one step more than the other side; so the sign of d is its, turned round.
    """
    peak = np.take_along_axis(values, np.abs(values).argmax(axis=1)[:, None], axis=1)[:, 0]
    best: Floats = (peak / np.float32(low)).astype(np.float32)
    gained = np.full(len(values), -np.inf, np.float32)
    weighted = weights * values
    for end in _ENDS:
        codes = _codes(values, (peak / np.float32(low - end)).astype(np.float32), low, -low - 1)
        square = (weights * codes * codes).sum(axis=1)
        product = (weighted * codes).sum(axis=1)
        fitted = np.divide(product, square, out=np.zeros_like(product), where=square > 0)
        gain = fitted * product  # by how much the error is below that of all zeros
        better = gain > gained
        best = np.where(better, fitted, best)
        gained = np.where(better, gain, gained)
    return best.astype(np.float32)


def _with_least(values: Floats, weights: Floats, top: int, below_zero: bool) -> tuple[Floats, Floats]:
    """Steps d and smallest values m [blocks] of x = d q + m, q from 0 to `top`, by weighted least squares.

    Args:
        below_zero: m may not be above 0.
    """
    low = values.min(axis=1)
    if below_zero:
        low = np.minimum(low, 0)
    span = values.max(axis=1) - low
    best = (span / np.float32(top), low)
    least = np.full(len(values), np.inf, np.float32)
    sums = (weights.sum(axis=1), (weights * values).sum(axis=1))
    for share in _RANGES:
        d = span * np.float32(share) / np.float32(top)
        m = low + np.float32(0.5 * (1 - share)) * span
        for _ in range(_FITS):
            codes = _codes(values - m[:, None], d, 0, top)
            d, m = _line(values, weights, codes, sums, (d, m))
            if below_zero:
                m = np.minimum(m, 0)
            error = (weights * np.square(values - d[:, None] * codes - m[:, None])).sum(axis=1)
            better = error < least
            best = (np.where(better, d, best[0]), np.where(better, m, best[1]))
            least = np.where(better, error, least)
    return best


def _line(
    values: Floats, weights: Floats, codes: Floats, sums: tuple[Floats, Floats], instead: tuple[Floats, Floats]
) -> tuple[Floats, Floats]:
    """d and m of the least sum w (x - d q - m)^2; `instead` where all codes of a block are the same."""
    total, x = sums
    weighted = weights * codes
    q, qq, qx = weighted.sum(axis=1), (weighted * codes).sum(axis=1), (weighted * values).sum(axis=1)
    spread = total * qq - q * q
    fits = spread > np.float32(1e-6) * total * qq
    d = np.divide(total * qx - q * x, spread, out=instead[0].copy(), where=fits)
    m = np.where(fits, (x - d * q) / total, instead[1])
    usable = d > 0
    return np.where(usable, d, instead[0]), np.where(usable, m, instead[1])


def _codes(values: Floats, d: Floats, low: int, top: int) -> Floats:
    inverse = np.divide(np.float32(1), d, out=np.zeros_like(d), where=d != 0)
    return np.clip(np.rint(values * inverse[:, None]), low, top)


# --- blocks of 32 ----------------------------------------------------------------------------------------------------


def _halves(values: Floats) -> tuple[Bytes, Floats]:
    """As float16: the bytes [n, 2], and what they read back as."""
    with np.errstate(over="ignore"):
        stored = np.ascontiguousarray(values.astype(np.float16))
    return stored.reshape(-1, 1).view(np.uint8), stored.astype(np.float32)


def _nibbles(codes: Bytes) -> Bytes:
    """[n, 32] -> [n, 16]: element i low, element i + 16 high."""
    return codes[:, :16] | (codes[:, 16:] << np.uint8(4))


def _fifths(codes: Bytes) -> Bytes:
    """Bit 4 of 32 codes, element 0 lowest: [n, 4]."""
    return np.packbits(codes >> np.uint8(4), axis=1, bitorder="little")


def _q8_0(values: Floats, weights: Floats) -> Bytes:
    stored, d = _halves(np.asarray(np.abs(values).max(axis=1) / np.float32(127), np.float32))
    return np.concatenate([stored, _codes(values, d, -127, 127).astype(np.int8).view(np.uint8)], axis=1)


def _q_0(values: Floats, weights: Floats, bits: int) -> Bytes:
    middle = 1 << (bits - 1)
    stored, d = _halves(_symmetric(values, weights, -middle))
    codes = (_codes(values, d, -middle, middle - 1) + np.float32(middle)).astype(np.uint8)
    high = [] if bits == 4 else [_fifths(codes)]
    return np.concatenate([stored, *high, _nibbles(codes & np.uint8(15))], axis=1)


def _q_1(values: Floats, weights: Floats, bits: int) -> Bytes:
    top = (1 << bits) - 1
    step, least = _with_least(values, weights, top, below_zero=False)
    (stored, d), (stored_least, m) = _halves(step), _halves(least)
    codes = _codes(values - m[:, None], d, 0, top).astype(np.uint8)
    high = [] if bits == 4 else [_fifths(codes)]
    return np.concatenate([stored, stored_least, *high, _nibbles(codes & np.uint8(15))], axis=1)


# --- super-blocks of 256 ---------------------------------------------------------------------------------------------


def _q45_k(values: Floats, weights: Floats, bits: int) -> Bytes:
    """x = d scale q - dmin minimum: eight runs of 32, scales and minima of 6 bits."""
    top, blocks = (1 << bits) - 1, len(values)
    runs, run_weights = values.reshape(-1, 32), weights.reshape(-1, 32)
    step, least = (each.reshape(blocks, 8) for each in _with_least(runs, run_weights, top, below_zero=True))
    stored, d = _halves(step.max(axis=1) / _SIX_BITS)
    stored_least, dmin = _halves((-least).max(axis=1) / _SIX_BITS)
    scales, minima = _codes(step, d, 0, 63), _codes(-least, dmin, 0, 63)
    shifted = (runs + (dmin[:, None] * minima).reshape(-1, 1)).astype(np.float32)
    codes = _codes(shifted, (d[:, None] * scales).reshape(-1), 0, top).astype(np.uint8).reshape(blocks, 8, 32)
    low = codes & np.uint8(15)
    nibbles = (low[:, 0::2] | (low[:, 1::2] << np.uint8(4))).reshape(blocks, 128)
    head = [stored, stored_least, _six_bit_pairs(scales.astype(np.uint8), minima.astype(np.uint8))]
    if bits == 5:
        fifths = (codes >> np.uint8(4)) << np.arange(8, dtype=np.uint8).reshape(1, 8, 1)
        head.append(np.bitwise_or.reduce(fifths, axis=1))
    return np.concatenate([*head, nibbles], axis=1)


def _six_bit_pairs(scales: Bytes, minima: Bytes) -> Bytes:
    """Eight scales and eight minima of 6 bits, [n, 8] each, in 12 bytes: the last four of each are split."""
    high = np.uint8(0x30)
    return np.concatenate(
        [
            scales[:, :4] | ((scales[:, 4:] & high) << np.uint8(2)),
            minima[:, :4] | ((minima[:, 4:] & high) << np.uint8(2)),
            (scales[:, 4:] & np.uint8(15)) | ((minima[:, 4:] & np.uint8(15)) << np.uint8(4)),
        ],
        axis=1,
    )


def _q6_k(values: Floats, weights: Floats) -> Bytes:
    """x = d scale q: sixteen runs of 16, scales of 8 bits, codes from -32 to 31."""
    blocks = len(values)
    runs = values.reshape(-1, 16)
    step = _symmetric(runs, weights.reshape(-1, 16), -32).reshape(blocks, 16)
    stored, d = _halves(np.abs(step).max(axis=1) / np.float32(127))
    scales = _codes(step, d, -127, 127)
    codes = _codes(runs, (d[:, None] * scales).reshape(-1), -32, 31).reshape(blocks, 256)
    codes = (codes + np.float32(32)).astype(np.uint8)
    halves = codes.reshape(blocks, 2, 4, 32)  # each half: four runs of 32
    low, high = halves & np.uint8(15), halves >> np.uint8(4)
    nibbles = (low[:, :, :2] | (low[:, :, 2:] << np.uint8(4))).reshape(blocks, 128)
    shifts = np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1)
    pairs = np.bitwise_or.reduce(high << shifts, axis=2).reshape(blocks, 64)
    return np.concatenate([nibbles, pairs, scales.astype(np.int8).view(np.uint8), stored], axis=1)


_WRITERS: dict[str, Writer] = {
    "q4_0": partial(_q_0, bits=4),
    "q5_0": partial(_q_0, bits=5),
    "q4_1": partial(_q_1, bits=4),
    "q5_1": partial(_q_1, bits=5),
    "q8_0": _q8_0,
    "q4_k": partial(_q45_k, bits=4),
    "q5_k": partial(_q45_k, bits=5),
    "q6_k": _q6_k,
}
