"""Quantizers for block formats that the gguf package only reads, or rounds slowly: no search for better scales.

Each is the inverse of `gguf.quants.dequantize`. Only exact operations are used, so the bits are the same everywhere.
"""

import gguf
import numpy as np

IQ4_NL_VALUES = np.array(
    (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113), np.float32
)  # the codebook of ggml's IQ4_NL
MXFP4_VALUES = np.array((0, 1, 2, 3, 4, 6, 8, 12), np.float32)


def quantize(values, format):
    """[rows, columns] float32 -> [rows, bytes] in a format of any name that GGUF has ("q4_k", "bf16", ...)."""
    own = _OWN.get(format)
    if own is None:
        return gguf.quants.quantize(values, gguf.GGMLQuantizationType[format.upper()])
    elements = 256 if format.endswith("_k") else 32
    return own(values.reshape(-1, elements)).reshape(len(values), -1)


def _half(values):
    """float32 -> float16, the bytes and what they read back as."""
    halves = values.astype(np.float16)
    return halves.reshape(-1, 1).view(np.uint8), halves.astype(np.float32).reshape(-1, 1)


def _over(values, scales):
    """values / scales, zero where a scale is zero."""
    return np.divide(
        values, scales, out=np.zeros(np.broadcast_shapes(values.shape, scales.shape), np.float32), where=scales != 0
    )


def _round(values, low, high):
    return np.clip(np.rint(values), low, high).astype(np.int32)


def _with_minimum(blocks, group, largest, largest_scale):
    """x = d * scale * q - dmin * minimum. The bytes of d and dmin, scales and minima [n, groups], q [n, 256]."""
    grouped = blocks.reshape(len(blocks), -1, group)
    low = np.minimum(grouped.min(axis=2), 0)
    step = (grouped.max(axis=2) - low) / np.float32(largest)
    step = np.maximum(step, 0)
    d_bytes, d = _half(step.max(axis=1) / np.float32(largest_scale))
    m_bytes, dmin = _half((-low).max(axis=1) / np.float32(largest_scale))
    scales, minima = _round(_over(step, d), 0, largest_scale), _round(_over(-low, dmin), 0, largest_scale)
    codes = _over(grouped + (dmin * minima)[:, :, None], (d * scales)[:, :, None])
    return d_bytes, m_bytes, scales, minima, _round(codes, 0, largest).reshape(len(blocks), -1)


def _symmetric(blocks, lowest, largest_scale):
    """x = d * scale * q with q from `lowest` to -lowest - 1, groups of 16. The bytes of d, scales, q [n, 256]."""
    grouped = blocks.reshape(len(blocks), 16, 16)
    peak = np.take_along_axis(grouped, np.abs(grouped).argmax(axis=2)[:, :, None], axis=2)[:, :, 0]
    step = peak / np.float32(lowest)
    d_bytes, d = _half(np.abs(step).max(axis=1) / np.float32(largest_scale))
    scales = _round(_over(step, d), -largest_scale, largest_scale)
    codes = _over(grouped, (d * scales)[:, :, None])
    return d_bytes, scales, _round(codes, lowest, -lowest - 1).reshape(len(blocks), -1)


def _joined(*parts):
    return np.concatenate([np.asarray(part).astype(np.uint8) for part in parts], axis=1)


def _packed(codes, width, bits):
    """Codes [n, 256] by runs of `width`: as many consecutive runs as fit into a byte lie over one another."""
    runs = codes.reshape(len(codes), -1, 8 // bits, width)
    shifts = np.arange(0, 8, bits).reshape(1, 1, -1, 1)
    return (runs << shifts).sum(axis=2).reshape(len(codes), -1)


def _six_bit_pairs(scales, minima):
    """Eight scales and eight minima of 6 bits in 12 bytes."""
    return _joined(
        scales[:, :4] | (scales[:, 4:] & 0x30) << 2,
        minima[:, :4] | (minima[:, 4:] & 0x30) << 2,
        (scales[:, 4:] & 0x0F) | (minima[:, 4:] & 0x0F) << 4,
    )


def _q2_k(blocks):
    d, dmin, scales, minima, codes = _with_minimum(blocks, 16, 3, 15)
    return _joined(scales | minima << 4, _packed(codes, 32, 2), d, dmin)


def _q3_k(blocks):
    d, scales, codes = _symmetric(blocks, -4, 31)
    scales, codes = scales + 32, codes + 4
    low = (scales[:, :8] & 0x0F) | (scales[:, 8:] & 0x0F) << 4
    high = ((scales >> 4).reshape(-1, 4, 4) << np.arange(0, 8, 2).reshape(1, 4, 1)).sum(axis=1)
    return _joined(_packed(codes >> 2, 32, 1), _packed(codes & 3, 32, 2), low, high, d)


def _q4_k(blocks):
    d, dmin, scales, minima, codes = _with_minimum(blocks, 32, 15, 63)
    return _joined(d, dmin, _six_bit_pairs(scales, minima), _packed(codes, 32, 4))


def _q5_k(blocks):
    d, dmin, scales, minima, codes = _with_minimum(blocks, 32, 31, 63)
    return _joined(d, dmin, _six_bit_pairs(scales, minima), _packed(codes >> 4, 32, 1), _packed(codes & 15, 32, 4))


def _q6_k(blocks):
    d, scales, codes = _symmetric(blocks, -32, 127)
    codes = codes + 32
    return _joined(_packed(codes & 15, 64, 4), _packed(codes >> 4, 32, 2), scales.astype(np.int8).view(np.uint8), d)


def _iq4_nl(blocks):
    peak = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=1)[:, None], axis=1)[:, 0]
    d_bytes, d = _half(peak / IQ4_NL_VALUES[0])
    between = (IQ4_NL_VALUES[1:] + IQ4_NL_VALUES[:-1]) / 2
    codes = np.searchsorted(between, _over(blocks, d)).astype(np.int32)
    return _joined(d_bytes, codes[:, :16] | codes[:, 16:] << 4)


def _mxfp4(blocks):
    """Twice the values of E2M1 numbers, times a power of two of which half is stored (OCP MX, version 1.0)."""
    peak = np.abs(blocks).max(axis=1)
    exponent = np.clip(np.frexp(peak)[1] - 1 - 2 + 127, 2, 254)  # the largest E2M1 number is 6: two octaves above 1
    scale = np.ldexp(np.float32(1), exponent - 128)[:, None]
    between = (MXFP4_VALUES[1:] + MXFP4_VALUES[:-1]) / 2
    codes = np.searchsorted(between, np.abs(blocks) / scale).astype(np.int32) | (blocks < 0) << 3
    return _joined(exponent[:, None], codes[:, :16] | codes[:, 16:] << 4)


_OWN = {
    "q2_k": _q2_k,
    "q3_k": _q3_k,
    "q4_k": _q4_k,
    "q5_k": _q5_k,
    "q6_k": _q6_k,
    "iq4_nl": _iq4_nl,
    "mxfp4": _mxfp4,
}
