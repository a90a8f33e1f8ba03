"""Turns a RopeSpec into the cos and sin of every position: all scalings end here, kernels see only the tables."""

import math

import numpy as np
from numpy.typing import NDArray

from octavo.errors import CheckpointError
from octavo.spec.decoder import LinearScaling, Llama3Scaling, RopeSpec, TableScaling, YarnScaling

_STRIDE = 256  # positions that share one coarse angle


def inverse_frequencies(spec: RopeSpec) -> tuple[NDArray[np.float64], float]:
    """Angle per position of each pair, [width / 2], and the factor of both cos and sin.

    Source: Su et al. 2021, arXiv:2104.09864, section 3.2.2; scalings as named in spec/decoder.py.
    """
    plain = spec.theta ** (-np.arange(0, spec.width, 2, dtype=np.float64) / spec.width)
    scaling = spec.scaling
    if scaling is None:
        return plain, 1.0
    if isinstance(scaling, LinearScaling):
        return plain / scaling.factor, 1.0
    if isinstance(scaling, Llama3Scaling):
        return _llama3(plain, scaling), 1.0
    if isinstance(scaling, YarnScaling):
        return _yarn(plain, spec, scaling), scaling.attention_factor
    return _table(plain, scaling), scaling.attention_factor


def rope_tables(spec: RopeSpec, positions: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """cos and sin, [positions, width / 2] each: computed in float64, stored in float32.

    Position = 256 i + j, so that cos and sin are taken of few angles and the rest is the addition theorem.
    """
    frequencies, factor = inverse_frequencies(spec)
    width = len(frequencies)
    cos = np.empty((positions, width), np.float32)
    sin = np.empty((positions, width), np.float32)
    fine = np.outer(np.arange(min(_STRIDE, positions), dtype=np.float64), frequencies)
    fine_cos, fine_sin = np.cos(fine), np.sin(fine)
    for start in range(0, positions, _STRIDE):
        count = min(_STRIDE, positions - start)
        coarse = start * frequencies
        c, s = factor * np.cos(coarse), factor * np.sin(coarse)
        cos[start : start + count] = fine_cos[:count] * c - fine_sin[:count] * s
        sin[start : start + count] = fine_sin[:count] * c + fine_cos[:count] * s
    return cos, sin


def _llama3(plain: NDArray[np.float64], scaling: Llama3Scaling) -> NDArray[np.float64]:
    """Long wavelengths scaled, short ones kept, between them a mix (Llama 3.1's reference code)."""
    turns = scaling.original_max_positions * plain / (2 * math.pi)  # in the original context
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    keep = np.clip((turns - low) / (high - low), 0.0, 1.0) if high > low else (turns >= high).astype(np.float64)
    return (1 - keep) * plain / scaling.factor + keep * plain


def _yarn(plain: NDArray[np.float64], spec: RopeSpec, scaling: YarnScaling) -> NDArray[np.float64]:
    """arXiv:2309.00071, section 3.2: pairs that turn often are kept, those that turn rarely are interpolated."""

    def pair_that_turns(times: float) -> float:
        ratio = scaling.original_max_positions / (times * 2 * math.pi)
        return spec.width * math.log(ratio) / (2 * math.log(spec.theta))

    low, high = pair_that_turns(scaling.beta_fast), pair_that_turns(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, spec.width - 1)
    if low == high:
        high += 0.001
    interpolate = np.clip((np.arange(len(plain)) - low) / (high - low), 0.0, 1.0)
    return plain / scaling.factor * interpolate + plain * (1 - interpolate)


def _table(plain: NDArray[np.float64], scaling: TableScaling) -> NDArray[np.float64]:
    if len(scaling.factors) != len(plain):
        raise CheckpointError(f"rope has {len(scaling.factors)} factors for {len(plain)} frequencies")
    return plain / np.array(scaling.factors, np.float64)
