"""How AWQ and GPTQ checkpoints lay out codes in 32-bit words: packing, and the way back.

Layouts are those that vLLM and Transformers read: AWQ "gemm" (eight columns to a word, in the order 0 2 4 6 1 3 5 7)
and GPTQ (rows of the transposed matrix to a word; zero points are stored less one in "v1", as they are in "v2").
"""

import numpy as np
from numpy.typing import NDArray

from octavo.quantization.integers import Coded

Words = NDArray[np.int32]
Small = NDArray[np.uint8]

_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # the column whose code is at bits 4 i


def awq_tensors(coded: Coded) -> dict[str, NDArray[np.generic]]:
    """qweight [in, out / 8], qzeros [groups, out / 8], scales [groups, out] of a 4-bit matrix [out, in]."""
    return {
        "qweight": pack_columns(coded.codes.T, _AWQ_ORDER),
        "qzeros": pack_columns(coded.zeros.T.astype(np.uint8), _AWQ_ORDER),
        "scales": np.ascontiguousarray(coded.scales.T).astype(np.float16),
    }


def gptq_tensors(coded: Coded, bits: int, less: int = 1) -> dict[str, NDArray[np.generic]]:
    """qweight [in * bits / 32, out], qzeros [groups, out * bits / 32], scales [groups, out], g_idx [in].

    less: what stored zero points lack: 1 in v1, 0 in v2.
    """
    plain = tuple(range(32 // bits))
    return {
        "qweight": np.ascontiguousarray(pack_columns(coded.codes, plain).T),
        "qzeros": pack_columns(coded.zeros.T.astype(np.int32) - less, plain),
        "scales": np.ascontiguousarray(coded.scales.T).astype(np.float16),
        "g_idx": coded.group_of,
    }


def read_awq(tensors: dict[str, NDArray[np.generic]], group: int) -> Coded:
    """The inverse of `awq_tensors`."""
    codes = unpack_columns(tensors["qweight"].astype(np.int32), _AWQ_ORDER)
    zeros = unpack_columns(tensors["qzeros"].astype(np.int32), _AWQ_ORDER)
    group_of = (np.arange(len(codes)) // group).astype(np.int32)
    return Coded(_turned(codes), _floats(tensors["scales"]), _floats(zeros), group_of)


def read_gptq(tensors: dict[str, NDArray[np.generic]], bits: int, less: int = 1) -> Coded:
    """The inverse of `gptq_tensors`."""
    plain = tuple(range(32 // bits))
    codes = unpack_columns(tensors["qweight"].astype(np.int32).T, plain)
    zeros = unpack_columns(tensors["qzeros"].astype(np.int32), plain).astype(np.int32)
    zeros = (zeros + less) & ((1 << bits) - 1)
    return Coded(codes, _floats(tensors["scales"]), _floats(zeros), tensors["g_idx"].astype(np.int32))


def pack_columns(codes: NDArray[np.integer], order: tuple[int, ...]) -> Words:
    """[rows, n] -> [rows, n / len(order)]: of each run of columns, number order[i] goes to the i-th lowest bits."""
    count, bits = len(order), 32 // len(order)
    runs = codes.reshape(len(codes), -1, count).astype(np.int64) & ((1 << bits) - 1)
    words = np.zeros(runs.shape[:2], np.uint32)
    for place, column in enumerate(order):
        words |= runs[:, :, column].astype(np.uint32) << np.uint32(bits * place)
    return words.view(np.int32)


def unpack_columns(words: Words, order: tuple[int, ...]) -> Small:
    """The inverse of `pack_columns`."""
    count, bits = len(order), 32 // len(order)
    plain = np.ascontiguousarray(words).view(np.uint32)
    codes = np.empty((*plain.shape, count), np.uint8)
    for place, column in enumerate(order):
        codes[:, :, column] = (plain >> np.uint32(bits * place)) & np.uint32((1 << bits) - 1)
    return codes.reshape(len(plain), -1)


def _turned(codes: Small) -> Small:
    return np.ascontiguousarray(codes.T)


def _floats(values: NDArray[np.generic]) -> NDArray[np.float32]:
    """[groups, out] -> [out, groups]."""
    return np.ascontiguousarray(values.T).astype(np.float32)
