"""The types that keys and values are kept in, in plain PyTorch: the meaning that native kernels reproduce bit by bit.

Every token is encoded by itself: nothing that comes later changes what is kept.
Why so: docs/decisions/0015-quantized-cache.md
"""

from dataclasses import dataclass

import torch
from torch import Tensor

_GROUP = 32  # elements of a scale of int4
_ROTATED = ("int8", "int4")
_LARGEST = {"int8": 127.0, "fp8_e4m3": 448.0, "fp8_e5m2": 57344.0, "int4": 8.0}


@dataclass(frozen=True, slots=True)
class Coded:
    """Rows [..., width] as they are kept: codes in a byte or a float each, scales [..., groups], none for floats."""

    codes: Tensor
    scales: Tensor


def code_dtype(type: str) -> torch.dtype:
    """Of the codes; int4 takes a byte here."""
    return {"fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2, "int4": torch.int8}.get(
        type, getattr(torch, type, torch.int8)
    )


def scale_groups(type: str, width: int) -> int:
    """Scales of a row; one of no elements has none."""
    if not width:
        return 0
    return {"int8": 1, "fp8_e4m3": 1, "int4": -(-width // _GROUP)}.get(type, 0)


def encode(x: Tensor, type: str) -> Coded:
    """Keep rows x [..., width], float32; int8 and int4 keep them rotated.

    int8 and fp8_e4m3: x / scale, to nearest even; scale = the largest magnitude of the row / 127 (448), rounded to
    bf16. fp8_e5m2: no scale; finite numbers beyond 57344 become that. int4: groups of 32 elements
    have scale = the number farthest from 0 / -8 (the positive one of two), codes are -8 .. 7. A row or group that holds
    what is not finite gets the scale NaN and reads as NaN. 8-bit floats: OCP 8-bit floating point specification 1.0.
    """
    groups = scale_groups(type, x.shape[-1])
    if type == "fp8_e5m2":
        bounded = torch.where(x.isfinite(), x.clamp(-_LARGEST[type], _LARGEST[type]), x)
        return Coded(bounded.to(torch.float8_e5m2), _no_scales(x))
    if not groups:
        return Coded(x.to(code_dtype(type)), _no_scales(x))
    if type in _ROTATED:
        x = rotate(x)
    if type != "int4":
        most = x.abs().amax(dim=-1, keepdim=True)
        return _divided(x, most / _LARGEST[type], type)
    parts = [_int4_group(part) for part in x.split(_GROUP, dim=-1)]
    return Coded(torch.cat([part.codes for part in parts], -1), torch.cat([part.scales for part in parts], -1))


def decode(coded: Coded, type: str) -> Tensor:
    """What is read, float32, rotated back."""
    kept = read(coded)
    return rotate(kept) / _rotation_size(kept.shape[-1]) if type in _ROTATED else kept


def read(coded: Coded) -> Tensor:
    """Codes times scales, float32: exact."""
    codes, scales = coded.codes.float(), coded.scales.float()
    if not scales.shape[-1]:
        return codes
    width = codes.shape[-1]
    size = width if scales.shape[-1] == 1 else _GROUP
    return codes * scales.repeat_interleave(size, dim=-1)[..., :width]


def rotate(x: Tensor) -> Tensor:
    """H x for each run of as many elements as the largest power of two that divides the width, H the Hadamard matrix in
    Sylvester's order; H H x = size x.  Outliers spread over a run: QuaRot, arXiv:2404.00456, section 3."""
    size, half = _rotation_size(x.shape[-1]), 1
    while half < size:
        pairs = x.reshape(*x.shape[:-1], -1, 2, half)
        left, right = pairs[..., 0, :], pairs[..., 1, :]
        x = torch.stack([left + right, left - right], dim=-2).reshape(x.shape)
        half *= 2
    return x


def _no_scales(x: Tensor) -> Tensor:
    return torch.empty((*x.shape[:-1], 0), dtype=torch.bfloat16)


def _rotation_size(width: int) -> int:
    return width & -width


def _int4_group(x: Tensor) -> Coded:
    high, low = x.amax(dim=-1, keepdim=True).clamp(min=0), x.amin(dim=-1, keepdim=True).clamp(max=0)
    return _divided(x, torch.where(high >= -low, high, low) / -_LARGEST["int4"], "int4")


def _divided(x: Tensor, exact_scale: Tensor, type: str) -> Coded:
    """x / scale as codes, the scale rounded to bf16."""
    scale = exact_scale.bfloat16()
    finite = x.isfinite().all(dim=-1, keepdim=True) & scale.isfinite()
    wide = scale.float()
    divisor = torch.where(finite & (wide != 0), wide, 1.0)
    bound = _LARGEST[type]
    quotient = (torch.where(finite, x, 0.0) / divisor).clamp(-bound, bound)
    if type != "fp8_e4m3":
        quotient = quotient.round().clamp(max=7.0 if type == "int4" else bound)
    return Coded(quotient.to(code_dtype(type)), torch.where(finite, scale, torch.nan))
