"""Random matrices in every format with spans, made here from codes, scales and zero points, and what they mean."""

from dataclasses import dataclass

import numpy as np
import torch

from octavo.ops.weight import StoredTensor
from octavo.quantization.format import FORMATS, STEPPED
from octavo.quantization.stepped import read_stepped, write_stepped

SPAN_FORMATS = tuple(name for name, format in FORMATS.items() if format.spans is not None and not format.spans.rotated)
_SCALES = {"f16": np.float16, "f32": np.float32, "shared": np.float32}


@dataclass(frozen=True, slots=True)
class Matrix:
    """A stored matrix, and its values [rows, columns] by input."""

    stored: StoredTensor
    values: np.ndarray


def random_spans(name, rows, cols, seed=0):
    """Every code at random (of E4M3 all but the NaNs), scales of either sign and unlike sizes."""
    if name == STEPPED:
        return _random_stepped(rows, cols, seed)
    spans = FORMATS[name].spans
    rng = np.random.default_rng([seed, rows, cols, SPAN_FORMATS.index(name.removesuffix("_rotated"))])
    count = cols // spans.inputs if spans.inputs else 1
    scales = rng.uniform(0.002, 0.05, (rows, count)) * rng.choice([-1, 1], (rows, count))
    if spans.scale == "shared":
        scales = np.repeat(scales[::16], 16, axis=0)[:rows]
    raw, exact = _scales(scales, spans.scale)
    codes = rng.integers(0, 16 if spans.bits == 4 else 256, (rows, cols), np.uint8)
    if spans.codes == "e4m3":
        codes = np.where((codes & 127) == 127, 5, codes).astype(np.uint8)
        numbers = torch.from_numpy(codes).view(torch.float8_e4m3fn).double().numpy()
    elif spans.bits == 8:
        numbers = codes.view(np.int8).astype(np.float64)
    else:
        numbers = codes - (0.0 if spans.zeros else 8.0)
    packed = codes if spans.bits == 8 else codes[:, 0::2] | (codes[:, 1::2] << 4)
    parts = [packed, np.ascontiguousarray(raw).view(np.uint8).reshape(rows, -1)]
    if spans.zeros:
        zeros = rng.integers(0, 16 if spans.bits == 4 else 256, (rows, count), np.uint8)
        parts.append(zeros)
        points = zeros.view(np.int8) if spans.bits == 8 else zeros
        numbers = numbers - np.repeat(points.astype(np.float64), cols // count, axis=1)
    values = (np.repeat(exact, cols // count, axis=1) * numbers).astype(np.float32)
    order = rng.permutation(cols).astype(np.int32) if spans.ordered else None
    if order is not None:
        placed = np.empty_like(values)
        for column, given in enumerate(order):
            placed[:, given] = values[:, column]
        values = placed
    if spans.rotated:
        values = (values.reshape(rows, -1, 64).astype(np.float64) @ _hadamard(64) / 8).reshape(rows, cols)
    data = np.concatenate(parts, axis=1).reshape(-1)
    return Matrix(StoredTensor("weight", name, (rows, cols), data, order=order), values)


def _random_stepped(rows, cols, seed):
    """Groups of unlike size and place, so that steps, starts and codes are."""
    rng = np.random.default_rng([seed, rows, cols])
    groups = rng.standard_normal((rows, cols // 32, 32)) * rng.uniform(0.01, 1, (rows, cols // 32, 1))
    groups += rng.uniform(-1, 1, (rows, cols // 32, 1))
    data = write_stepped(groups.reshape(rows, cols).astype(np.float32)).reshape(-1)
    numbers, scales = read_stepped(data.reshape(rows, -1), cols)
    values = (numbers * scales[:, None].astype(np.float64)).reshape(rows, -1, 64) @ _hadamard(64) / 8
    return Matrix(StoredTensor("weight", STEPPED, (rows, cols), data), values.reshape(rows, cols))


def _hadamard(size):
    """Sylvester's."""
    made = np.ones((1, 1))
    while len(made) < size:
        made = np.block([[made, made], [made, -made]])
    return made


def _scales(scales, kind):
    """As stored, and as float64."""
    if kind == "bf16":
        tensor = torch.from_numpy(scales).bfloat16()
        return tensor.view(torch.int16).numpy(), tensor.double().numpy()
    raw = scales.astype(_SCALES[kind])
    return raw, raw.astype(np.float64)
