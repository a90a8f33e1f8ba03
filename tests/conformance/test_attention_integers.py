"""Attention over int8 and int4 caches is the arithmetic that docs/decisions/0021 tells, and the same on every build."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from octavo.execution.torch.cache_types import encode, rotate
from octavo.ops.conformance import CacheShape, numbers, tables_for
from octavo.spec.decoder import AttentionSpec
from tests.conformance.devices import ISAS, NativeDevice
from tests.conformance.test_attention_prompts import CASES
from tests.conformance.test_attention_prompts import run as run_prompt
from tests.conformance.test_attention_sharing import attend

LARGEST = 32512  # of a rounded query or weight
SPEC = AttentionSpec(4, 2, 64, 64**-0.5, None)
SPECS = {
    "one of a group": replace(SPEC, heads=2),
    "seven of a group": replace(SPEC, heads=14),
    "plain": SPEC,
    "narrow": replace(SPEC, head_dim=20),
    "wide": replace(SPEC, head_dim=160),
}
FUSED = tuple(isa for isa in ISAS if isa != "scalar")  # scalar code multiplies and adds with two roundings


def rounded(x: np.ndarray) -> np.ndarray:
    """Rows as the nearest multiples of their largest magnitude / LARGEST."""
    unit = np.abs(x).max(axis=-1, keepdims=True) / LARGEST
    return np.rint(x / unit) * unit


def expected(spec: AttentionSpec, dtype: str, qkv: np.ndarray, *, exact: bool = False) -> np.ndarray:
    """[heads * head_dim] of the last of up to 256 tokens, in float64."""
    width, group = spec.head_dim, spec.heads // spec.kv_heads
    heads = torch.from_numpy(qkv).view(len(qkv), -1, width)
    size, cut = width & -width, (lambda x: x) if exact else rounded
    out = np.empty((spec.heads, width))
    for head in range(spec.heads):
        query = rotate(heads[-1, head]).double().numpy() * spec.scale * np.log2(np.e) / size
        key, value = (
            encode(heads[:, first + head // group], dtype) for first in (spec.heads, spec.heads + spec.kv_heads)
        )
        scales = [part.scales.double().numpy().repeat(32, axis=1)[:, :width] for part in (key, value)]
        if dtype == "int8":
            scales = [part.scales.double().numpy().repeat(width, axis=1) for part in (key, value)]
        scores = (cut(query) * key.codes.double().numpy() * scales[0]).sum(axis=1)
        weights = np.exp2(scores - scores.max())
        scaled = cut((weights[:, None] * scales[1]).T).T  # a row of weights for each group of dimensions
        turned = (scaled * value.codes.double().numpy()).sum(axis=0) / weights.sum()
        out[head] = rotate(torch.from_numpy(turned)).numpy() / size
    return out.reshape(-1)


def native(isa: str, spec: AttentionSpec, dtype: str, qkv: np.ndarray) -> np.ndarray:
    """The same token's output of a build."""
    blocks = tables_for(1, 1, -(-len(qkv) // 16))
    device = NativeDevice(isa, CacheShape(dtype, 16, blocks.size, spec.kv_heads, spec.head_dim, 1, blocks))
    return attend(device, spec, [(0, 0, len(qkv))], {0: qkv})[0][-1]


@pytest.mark.parametrize("dtype", ["int8", "int4"])
@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("isa", ISAS)
def test_queries_and_weights_are_rounded_to_sixteen_bits(isa, name, dtype):
    spec = SPECS[name]
    qkv = numbers(7, 203, (spec.heads + 2 * spec.kv_heads) * spec.head_dim)
    qkv[:, : spec.heads * spec.head_dim] *= 3
    wanted, found = expected(spec, dtype, qkv), native(isa, spec, dtype, qkv)
    most, apart = np.abs(wanted).max(), np.abs(found - wanted)
    assert np.median(apart) < 3e-6 * most
    assert apart.max() < 5e-5 * most  # where a number half way between two was rounded to the other one
    assert np.abs(expected(spec, dtype, qkv, exact=True) - wanted).max() < 3e-4 * most


@pytest.mark.parametrize("name", CASES)
def test_builds_that_fuse_give_the_same_bits(name):
    spec = CASES[name][0]
    inputs = numbers(3, 330, (spec.heads + 2 * spec.kv_heads) * spec.head_dim)
    first, *others = [run_prompt(isa, name, [37, 290], inputs, 2) for isa in FUSED]
    for other in others:
        np.testing.assert_array_equal(other.view(np.uint32), first.view(np.uint32))


@pytest.mark.parametrize("dtype", ["int8", "int4"])
@pytest.mark.parametrize("isa", ISAS)
def test_numbers_of_every_size_meet(isa, dtype):
    """Queries, keys and values that are tiny or huge, none at all, and the largest that are kept."""
    qkv = numbers(9, 64, (SPEC.heads + 2 * SPEC.kv_heads) * 64).reshape(64, -1, 64)
    for number, size in enumerate((0.0, 1e-38, 1e-20, 1e15)):
        qkv[-1, number] *= np.float32(size)
    qkv[5, SPEC.heads + 2], qkv[6, SPEC.heads + 2] = 1e-30, 0.0
    found = native(isa, SPEC, dtype, qkv.reshape(64, -1)).reshape(SPEC.heads, 64)
    assert np.isfinite(found).all()
    evenly = expected(SPEC, dtype, qkv.reshape(64, -1), exact=True).reshape(SPEC.heads, 64)[1:3]
    np.testing.assert_allclose(found[1:3], evenly, rtol=0, atol=1e-4 * np.abs(evenly).max())
    np.testing.assert_allclose(found[0], found[1], rtol=0, atol=1e-4 * np.abs(evenly).max())


@pytest.mark.parametrize("dtype", ["int8", "int4"])
@pytest.mark.parametrize("isa", ISAS)
def test_only_who_sees_a_row_that_is_not_finite_is_told(isa, dtype):
    inputs = numbers(3, 60, (SPEC.heads + 2 * SPEC.kv_heads) * 64)
    tables = tables_for(1, 1, 4)
    outs = []
    for value in (0.5, np.inf):
        inputs[40, -64:] = value  # the second kv head's value
        device = NativeDevice(isa, CacheShape(dtype, 16, 4, 2, 64, 1, tables))
        outs.append(attend(device, SPEC, [(0, 0, 60)], {0: inputs})[0].reshape(60, 4, 64))
    np.testing.assert_array_equal(outs[1][:40], outs[0][:40])
    np.testing.assert_array_equal(outs[1][:, :2], outs[0][:, :2])
    assert np.isnan(outs[1][40:, 2:]).all()
