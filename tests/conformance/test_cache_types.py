"""What native kernels keep of keys and values is what the reference keeps, to the bit, whatever the numbers are."""

import ctypes

import numpy as np
import pytest
import torch

from octavo.execution.torch.cache_types import decode, encode, read
from octavo.kernels.cpu.structs import CACHE_FORMAT_OF_DTYPE
from octavo.ops.conformance import QUANTIZED, CacheShape, Scene, numbers, tables_for
from octavo.ops.interface import LayerCache
from octavo.ops.reference import Span
from octavo.spec.decoder import AttentionSpec
from tests.conformance.devices import ISAS, NativeDevice, library

TOKENS = 40
# Of a whole row, one after the other: ordinary ones, then what is hard.
SPREADS = (1.0, 1e-3, 30.0, 1e-12, 1e12, 1e-30, 1e30, 1e-37, 1e-44, 1e38)
SHAPES = [(1, 64, 16), (2, 80, 8), (3, 96, 32), (1, 128, 128), (2, 256, 16), (1, 20, 16), (2, 7, 8), (1, 1, 64)]


def hard_rows(kv_heads, width):
    """[TOKENS, kv_heads, width]: every spread, outliers, ties, zeros, one number only, NaN and infinities."""
    rows = numbers(width, TOKENS, kv_heads, width)
    for index, spread in enumerate(SPREADS):
        rows[index] *= np.float32(spread)
    rows[10] = 0
    rows[11] = -0.0
    rows[12] = 3.7
    rows[13] = -1e-3
    rows[14, :, 0] = 1000.0
    rows[15, :, -1] = -1000.0
    rows[16] = np.round(rows[16]) * 0.5  # halves between codes
    rows[17] = np.where(rows[17] > 0, 2.5, -2.5)  # the farthest from 0 on both sides
    rows[18, 0, width // 2] = np.nan
    rows[19, 0, 0] = np.inf
    rows[20, 0, width - 1] = -np.inf
    rows[21] = np.float32(3.4e38)
    rows[22] = np.ldexp(1.0, np.arange(kv_heads * width).reshape(kv_heads, width) % 40 - 20)
    rows[23] = np.linspace(-448, 448, kv_heads * width).reshape(kv_heads, width)
    return rows.astype(np.float32)


def kept(isa, dtype, kv_heads, width, block_size):
    """What the library reads of every token that it wrote: keys and values [TOKENS, kv_heads, width]."""
    tables = tables_for(1, 1, -(-TOKENS // block_size))
    shape = CacheShape(dtype, block_size, tables.size, kv_heads, width, 2, tables)
    device = NativeDevice(isa, shape)
    ops, step = device.begin(Scene((Span(0, TOKENS, 0, 0),)))
    k, v = hard_rows(kv_heads, width), hard_rows(kv_heads, width)[::-1]
    q = np.zeros((TOKENS, kv_heads, width), np.float32)
    qkv = np.ascontiguousarray(np.concatenate([q, k, v], axis=1).reshape(TOKENS, -1))
    spec = AttentionSpec(kv_heads, kv_heads, width, 1.0, None)
    ops.qkv_rope_cache(qkv, spec, LayerCache(0, 1), step.positions, None, None, None)
    keys, values = np.empty((TOKENS, kv_heads, width), np.float32), np.empty((TOKENS, kv_heads, width), np.float32)
    native, code, cache = library(isa), CACHE_FORMAT_OF_DTYPE[dtype], device._cache
    layer = native.cache_layer_bytes(code, kv_heads, width, block_size)
    for token in range(TOKENS):
        page = int(tables[0, 0, token // block_size]) * cache.page_bytes + layer
        for head in range(kv_heads):
            native.call.octavo_cache_read(
                code, kv_heads, width, block_size, ctypes.c_void_p(cache.pool.ctypes.data + page), head,
                token % block_size, keys[token, head:].ctypes.data, values[token, head:].ctypes.data,
            )  # fmt: skip
    return keys, values


@pytest.mark.parametrize("dtype", QUANTIZED)
@pytest.mark.parametrize("isa", ISAS)
def test_every_number_is_kept_as_the_reference_keeps_it(isa, dtype):
    for kv_heads, width, block_size in SHAPES:
        keys, values = kept(isa, dtype, kv_heads, width, block_size)
        rows = torch.from_numpy(hard_rows(kv_heads, width))
        for found, wanted in ((keys, rows), (values, rows.flip(0))):
            np.testing.assert_array_equal(found, read(encode(wanted, dtype)).numpy(), err_msg=f"{width} {block_size}")


@pytest.mark.parametrize(
    ("dtype", "error"), [("int8", 0.02), ("fp8_e4m3", 2**-4 * 1.02), ("fp8_e5m2", 2**-3), ("int4", 0.36)]
)
def test_numbers_come_back_within_a_step(dtype, error):
    x = torch.from_numpy(numbers(3, 200, 64))
    back = decode(encode(x, dtype), dtype)
    assert float(((back - x).abs().amax(-1) / x.abs().amax(-1)).max()) < error


@pytest.mark.parametrize("dtype", QUANTIZED)
def test_a_row_that_is_not_finite_shows_and_harms_no_other(dtype):
    x = torch.from_numpy(numbers(4, 6, 64))
    x[2, 5], x[4, 63] = torch.nan, torch.inf
    back = decode(encode(x, dtype), dtype)
    assert [bool(row.isfinite().all()) for row in back] == [True, True, False, True, False, True]


@pytest.mark.parametrize("dtype", QUANTIZED)
def test_a_token_is_kept_the_same_whatever_comes_with_it(dtype):
    x = torch.from_numpy(numbers(5, 30, 2, 64))
    together = encode(x, dtype)
    for token in range(30):
        alone = encode(x[token : token + 1], dtype)
        assert torch.equal(alone.codes.float(), together.codes[token : token + 1].float())
        assert torch.equal(alone.scales, together.scales[token : token + 1])
