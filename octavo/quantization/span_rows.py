"""What formats with spans mean: codes, scales and zero points to stored rows and to float32, in numpy.

E4M3 is that of the OCP 8-bit floating point specification 1.0, table 1: no infinities, one NaN of each sign.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.quantization.format import ROTATED, SCALE_BYTES, Format, Spans
from octavo.quantization.stepped import read_stepped

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

E4M3_LARGEST = np.float32(448)


def _e4m3_values() -> Floats:
    code = np.arange(128)
    exponent, fraction = code >> 3, code & 7
    size = np.where(exponent > 0, (8 + fraction) * 2.0 ** (exponent - 10), fraction * 2.0**-9)
    size[127] = np.nan
    return np.concatenate([size, -size]).astype(np.float32)


E4M3_VALUES = _e4m3_values()
E4M3_VALUES.flags.writeable = False


def pack_codes(codes: Bytes, bits: int) -> Bytes:
    """[rows, columns] codes of a byte each, as rows hold them: of 4 bits the even column in the low half."""
    if bits == 8:
        return codes
    return np.bitwise_or(codes[:, ::2], codes[:, 1::2] << np.uint8(4))


def unpack_codes(packed: Bytes, bits: int) -> Bytes:
    """The reverse of pack_codes."""
    if bits == 8:
        return packed
    return np.stack([packed & np.uint8(15), packed >> np.uint8(4)], axis=2).reshape(len(packed), -1)


def write_rows(packed: Bytes, scales: NDArray[Any], zeros: Bytes | None) -> Bytes:
    """Stored rows.

    Args:
        packed: as pack_codes makes them.
        scales: [rows, spans] in the format's type; bfloat16 as 16-bit integers.
        zeros: [rows, spans], for formats that have them.
    """
    parts = [packed, np.ascontiguousarray(scales).view(np.uint8)]
    return np.concatenate(parts if zeros is None else [*parts, zeros], axis=1)


def value_of_codes(codes: str, numbers: Bytes) -> Floats:
    """What codes stand for before zero point and scale, as format `codes` has them."""
    if codes == "e4m3":
        return E4M3_VALUES[numbers]
    if codes.startswith("int8"):
        return numbers.view(np.int8).astype(np.float32)
    return numbers.astype(np.float32) - np.float32(8 if codes == "int4" else 0)


def scale_values(scale: str, raw: NDArray[Any]) -> Floats:
    """Scales as float32, from their type."""
    if scale == "bf16":
        return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return raw.view(np.float16 if scale == "f16" else np.float32).astype(np.float32)


def values(format: Format, data: Bytes, shape: tuple[int, ...]) -> Floats:
    """The float32 values of stored rows, column by column as stored: scale * (code - zero point), rounded once; then
    rotated back."""
    spans = _spans(format)
    if spans.codes == "int4s":
        numbers, scales = read_stepped(np.ascontiguousarray(data).reshape(shape[0], -1), shape[-1])
        return rotate(numbers * scales[:, None])
    packed, scales, zeros = _split(format, spans, data, shape[-1])
    numbers = value_of_codes(spans.codes, unpack_codes(packed, spans.bits)).reshape(*scales.shape, -1)
    if zeros is not None:
        points = zeros.view(np.int8) if spans.bits == 8 else zeros
        numbers -= points.astype(np.float32)[:, :, None]
    read = (numbers * scales[:, :, None]).reshape(shape)
    return rotate(read) if spans.rotated else read


def rotate(values: Floats) -> Floats:
    """[rows, columns] times H / 8 for each ROTATED columns, H Sylvester's Hadamard matrix: its own inverse.

    Butterflies of elements that are half, a quarter, ... of ROTATED apart, in the order of native/src/simd/hadamard.h.
    """
    turned = np.array(values, np.float32)
    half = ROTATED // 2
    while half:
        pairs = turned.reshape(-1, 2, half)
        turned = np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1)
        half //= 2
    return (turned * np.float32(ROTATED**-0.5)).reshape(values.shape)


def in_order(values: Floats, order: NDArray[np.int32] | None) -> Floats:
    """Columns at the inputs that they belong to."""
    if order is None:
        return values
    placed = np.empty_like(values)
    placed[:, order] = values
    return placed


def first_invalid(format: Format, data: Bytes, columns: int) -> int | None:
    """Index of the first row with a scale that is not finite, or with the code of a NaN."""
    spans = _spans(format)
    packed, scales, _ = _split(format, spans, data, columns)
    bad = ~np.isfinite(scales).all(axis=1)
    if spans.codes == "e4m3":
        bad |= ((packed & 127) == 127).any(axis=1)
    hits = np.flatnonzero(bad)
    return int(hits[0]) if len(hits) else None


def e4m3_codes(values: Floats) -> Bytes:
    """The nearest of the format's numbers, ties to even; |values| <= 448."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    size = bits & np.uint32(0x7FFFFFFF)
    # Below 2^-6 numbers are multiples of 2^-9; above, 3 bits of the fraction are kept and the exponent's bias is 7.
    small = np.rint(np.abs(values) * np.float32(512)).astype(np.uint32)
    kept = ((size + np.uint32(0x7FFFF) + ((size >> 20) & 1)) >> 20).astype(np.int64) - (120 << 3)
    return (np.where(size < 0x3C800000, small, kept) | (bits >> 31 << 7)).astype(np.uint8)


def _spans(format: Format) -> Spans:
    if format.spans is None:
        raise ValueError(f"{format.name} has no spans")
    return format.spans


def _split(format: Format, spans: Spans, data: Bytes, columns: int) -> tuple[Bytes, Floats, Bytes | None]:
    """Packed codes, scales and zero points of stored rows; steps and starts are left out."""
    rows = np.ascontiguousarray(data).reshape(-1, format.row_bytes(columns))
    coded = columns * spans.bits // 8
    scaled = coded + spans.count(columns) * SCALE_BYTES[spans.scale]
    scales = scale_values(spans.scale, np.ascontiguousarray(rows[:, coded:scaled]))
    return rows[:, :coded], scales, np.ascontiguousarray(rows[:, scaled:]) if spans.zeros else None
