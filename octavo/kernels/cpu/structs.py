"""Mirrors native/include/octavo/instruction.h: the structs and enums that Python and native code exchange.

Class, field and member names are the header's; a test compares sizes, offsets and numbers with a compiled C program.
"""

import ctypes
import re
from enum import IntEnum
from typing import cast

import numpy as np


class Format(IntEnum):
    """How a matrix is stored; the lower-case name is the name in `StoredTensor.format` and `Segment.format`."""

    F32 = 0
    F16 = 1
    BF16 = 2
    Q4_0 = 3
    Q4_1 = 4
    Q5_0 = 5
    Q5_1 = 6
    Q8_0 = 7
    Q2_K = 8
    Q3_K = 9
    Q4_K = 10
    Q5_K = 11
    Q6_K = 12
    IQ4_NL = 13
    MXFP4 = 14
    INT4 = 15
    INT4Z = 16
    INT8 = 17
    INT8Z = 18
    E4M3 = 19
    INT4S = 20


class ScaleType(IntEnum):
    """Of formats with spans; the lower-case name is the one in a format's name."""

    F16 = 0
    BF16 = 1
    F32 = 2
    SHARED = 3


class Opcode(IntEnum):
    """What an instruction does; operands are described in the header."""

    EMBED = 0
    LINEAR = 1
    RMS_NORM = 2
    LAYER_NORM = 3
    ADD = 4
    SCALE = 5
    ACT = 6
    ACT_MUL = 7
    QKV_ROPE_CACHE = 8
    PAGED_ATTENTION = 9
    SOFTCAP = 10
    SELECT_ROWS = 11
    PROCESS_LOGITS = 12
    SAMPLE = 13
    ADD_RMS_NORM = 14
    LATENT_CACHE = 15
    LATENT_ATTENTION = 16
    HEAD_LINEAR = 17
    CAUSAL_CONV = 18
    STATE_SCAN = 19
    GATED_NORM = 20
    SCALE_BY_POSITION = 21
    GATED_LINEAR = 22


class CacheType(IntEnum):
    """How keys and values are kept: the header's OctavoCacheType."""

    F32 = 0
    F16 = 1
    BF16 = 2
    INT8 = 3
    FP8_E4M3 = 4
    FP8_E5M2 = 5
    INT4 = 6


class ActivationCode(IntEnum):
    """The header's OctavoActivation; the lower-case name is the spec's."""

    SILU = 0
    GELU = 1
    GELU_TANH = 2
    RELU = 3
    RELU2 = 4
    QUICK_GELU = 5


class Coding(IntEnum):
    """What inputs are rounded to: the header's OctavoCoding; the lower-case name is that of --linear-compute."""

    EXACT = 0
    INT8 = 1
    INT16 = 2


class OctavoSegment(ctypes.Structure):
    """Consecutive output rows of a matrix in one packed format."""

    _fields_ = (
        ("format", ctypes.c_int32),
        ("rows", ctypes.c_int32),
        ("cols", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
        ("data", ctypes.c_void_p),
    )


class OctavoInstruction(ctypes.Structure):
    """One operation on buffers."""

    _fields_ = (
        ("opcode", ctypes.c_int32),
        ("out", ctypes.c_int32),
        ("out2", ctypes.c_int32),
        ("in0", ctypes.c_int32),
        ("in1", ctypes.c_int32),
        ("width", ctypes.c_int32),
        ("depth", ctypes.c_int32),
        ("i", ctypes.c_int32 * 11),
        ("f", ctypes.c_float * 4),
        ("p", ctypes.c_void_p * 4),
    )


class OctavoCache(ctypes.Structure):
    """The page pool and its block tables."""

    _fields_ = (
        ("format", ctypes.c_int32),
        ("block_size", ctypes.c_int32),
        ("groups", ctypes.c_int32),
        ("slots", ctypes.c_int32),
        ("max_blocks", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
        ("page_bytes", ctypes.c_int64),
        ("blocks", ctypes.c_int64),
        ("pool", ctypes.c_void_p),
        ("tables", ctypes.c_void_p),
    )


class OctavoSampling(ctypes.Structure):
    """One sampled row's rules. Pointers are plain 64-bit integers here, so that numpy can hold arrays of it."""

    _fields_ = (
        ("temperature", ctypes.c_float),
        ("top_p", ctypes.c_float),
        ("min_p", ctypes.c_float),
        ("repetition_penalty", ctypes.c_float),
        ("presence_penalty", ctypes.c_float),
        ("frequency_penalty", ctypes.c_float),
        ("top_k", ctypes.c_int32),
        ("logprobs", ctypes.c_int32),
        ("seed", ctypes.c_uint64),
        ("output_index", ctypes.c_int32),
        ("bias_count", ctypes.c_int32),
        ("bias_ids", ctypes.c_uint64),
        ("bias_values", ctypes.c_uint64),
        ("allowed_ids", ctypes.c_uint64),
        ("allowed_count", ctypes.c_int32),
        ("prompt_len", ctypes.c_int32),
        ("history_len", ctypes.c_int32),
        ("scale_count", ctypes.c_int32),
        ("history", ctypes.c_uint64),
        ("permitted", ctypes.c_uint64),
        ("typical_p", ctypes.c_float),
        ("top_n_sigma", ctypes.c_float),
        ("xtc_probability", ctypes.c_float),
        ("xtc_threshold", ctypes.c_float),
        ("dynatemp_range", ctypes.c_float),
        ("dynatemp_exponent", ctypes.c_float),
        ("dry_multiplier", ctypes.c_float),
        ("dry_base", ctypes.c_float),
        ("dry_allowed_length", ctypes.c_int32),
        ("dry_window", ctypes.c_int32),
        ("dry_breakers", ctypes.c_uint64),
        ("dry_breaker_count", ctypes.c_int32),
        ("bad_words_size", ctypes.c_int32),
        ("bad_words", ctypes.c_uint64),
        ("sampler_order", ctypes.c_uint32),
        ("mirostat", ctypes.c_int32),
        ("mirostat_tau", ctypes.c_float),
        ("mirostat_eta", ctypes.c_float),
        ("mirostat_mu", ctypes.c_float),
        ("known_tokens", ctypes.c_int32),
    )


class OctavoStep(ctypes.Structure):
    """One step's inputs and outputs."""

    _fields_ = (
        ("tokens", ctypes.c_int32),
        ("rows", ctypes.c_int32),
        ("sequences", ctypes.c_int32),
        ("top_stride", ctypes.c_int32),
        ("token_ids", ctypes.c_void_p),
        ("positions", ctypes.c_void_p),
        ("query_starts", ctypes.c_void_p),
        ("slots", ctypes.c_void_p),
        ("sampled_rows", ctypes.c_void_p),
        ("sampling", ctypes.c_void_p),
        ("out_tokens", ctypes.c_void_p),
        ("out_logprobs", ctypes.c_void_p),
        ("out_ranks", ctypes.c_void_p),
        ("out_invalid", ctypes.c_void_p),
        ("top_ids", ctypes.c_void_p),
        ("top_logprobs", ctypes.c_void_p),
        ("state_reads", ctypes.c_void_p),
        ("state_writes", ctypes.c_void_p),
        ("token_types", ctypes.c_void_p),
        ("out_mu", ctypes.c_void_p),
    )


class OctavoProgram(ctypes.Structure):
    """Instructions and the memory of their buffers."""

    _fields_ = (
        ("code", ctypes.c_void_p),
        ("count", ctypes.c_int32),
        ("buffers", ctypes.c_int32),
        ("buffer", ctypes.c_void_p),
        ("cache", ctypes.c_void_p),
    )


STRUCTS: tuple[type[ctypes.Structure], ...] = (
    OctavoSegment,
    OctavoInstruction,
    OctavoCache,
    OctavoSampling,
    OctavoStep,
    OctavoProgram,
)

# A numpy record of OctavoSampling: rows of rules are gathered and edited as arrays.
SAMPLING_RECORD = cast("np.dtype[np.void]", np.dtype(OctavoSampling))


# Of formats with spans, as the header's macros OCTAVO_SCALE_TYPE, OCTAVO_SPAN, OCTAVO_WHOLE_ROW, OCTAVO_ORDERED and
# OCTAVO_ROTATED.
SCALE_TYPE, SPAN, WHOLE_ROW, ORDERED, ROTATED = 256, 4096, 15, 65536, 131072
_SPANS = {"g32": 0, "g64": 1, "g128": 2, "g256": 3, "g512": 4, "g1024": 5, "row": WHOLE_ROW}
_SPAN_NAME = re.compile(r"(int4[zs]?|int8z?|e4m3)_(g\d+|row)_(f16|bf16|f32|shared)(_ordered|_rotated)?")


def format_code(name: str) -> int | None:
    """The number of the format named `name` ("bf16", "q4_k", "int4_g128_f16", ...), None when there is none."""
    spans = _SPAN_NAME.fullmatch(name)
    if spans is None:
        code = Format.__members__.get(name.upper())
        return None if code is None or code >= Format.INT4 else code.value
    codes, span, scale, turned = spans.groups()
    if span not in _SPANS:
        return None
    number = Format[codes.upper()] + SCALE_TYPE * ScaleType[scale.upper()] + SPAN * _SPANS[span]
    return number + {"_ordered": ORDERED, "_rotated": ROTATED}.get(turned or "", 0)


# How keys and values may be kept, by the configuration's names.
CACHE_FORMAT_OF_DTYPE = {
    "float32": CacheType.F32,
    "float16": CacheType.F16,
    "bfloat16": CacheType.BF16,
    "int8": CacheType.INT8,
    "fp8_e4m3": CacheType.FP8_E4M3,
    "fp8_e5m2": CacheType.FP8_E5M2,
    "int4": CacheType.INT4,
}
