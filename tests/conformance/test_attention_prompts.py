"""Rows of a prompt go through wide tiles, a few tokens do not: both give the same bits, whatever the cut."""

from dataclasses import replace

import numpy as np
import pytest

from octavo.ops.conformance import CacheShape, numbers
from octavo.spec.decoder import AttentionSpec
from tests.conformance.devices import ISAS, NativeDevice, library
from tests.conformance.test_attention_sharing import FLOATS, OWN, PAIRS, SLOPES, attend

LENGTH = 330  # more than a part of 256 keys, and no multiple of anything
PLAIN = AttentionSpec(6, 2, 32, 32**-0.5, None)
CASES = {
    "float32": (PLAIN, "float32", 16),
    "float16 in odd blocks": (PLAIN, "float16", 24),
    "bfloat16, window": (replace(PLAIN, window=100), "bfloat16", 16),
    "bfloat16 in odd blocks": (PLAIN, "bfloat16", 8),
    "chunk": (replace(PLAIN, chunk=130), "fp8_e4m3", 16),
    "ALiBi, sinks, softcap": (replace(PLAIN, alibi=SLOPES, sinks=True, softcap=8.0), "float16", 32),
    "int8": (replace(PLAIN, head_dim=64), "int8", 16),
    "odd width": (replace(PLAIN, head_dim=20, heads=8, kv_heads=1), "fp8_e5m2", 16),
    "a head a group": (replace(PLAIN, heads=2), "float16", 16),
    "int4": (replace(PLAIN, head_dim=64), "int4", 16),
    "bfloat16, chunk": (replace(PLAIN, head_dim=80, heads=3, kv_heads=1, chunk=77), "bfloat16", 16),
    "bfloat16, odd width": (replace(PLAIN, head_dim=20, heads=8, kv_heads=1), "bfloat16", 32),
    "bfloat16, ALiBi, softcap": (replace(PLAIN, head_dim=128, alibi=SLOPES, softcap=8.0), "bfloat16", 32),
}


def run(isa: str, name: str, cuts: list[int], inputs: np.ndarray, threads: int, way: int = OWN) -> np.ndarray:
    """The outputs of a prompt whose tokens are computed in steps that end at `cuts`; `way`: how bf16 is multiplied."""
    spec, dtype, block = CASES[name]
    blocks = -(-LENGTH // block)
    table = np.random.default_rng(1).permutation(blocks).astype(np.int32).reshape(1, 1, blocks)
    device = NativeDevice(
        isa, CacheShape(dtype, block, blocks, spec.kv_heads, spec.head_dim, 1, table), threads=threads
    )
    pieces = zip([0, *cuts], [*cuts, LENGTH], strict=True)
    library(isa).call.octavo_bf16_force(way)
    try:
        return np.concatenate(
            [attend(device, spec, [(0, first, last - first)], {0: inputs[first:last]})[0] for first, last in pieces]
        )
    finally:
        library(isa).call.octavo_bf16_force(OWN)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("isa", ISAS)
def test_a_prompt_at_once_is_the_prompt_in_pieces(isa, name):
    spec = CASES[name][0]
    inputs = numbers(3, LENGTH, (spec.heads + 2 * spec.kv_heads) * spec.head_dim)
    whole = run(isa, name, [], inputs, 1)
    narrow = run(isa, name, list(range(2, LENGTH, 2)), inputs, 1)
    np.testing.assert_array_equal(whole.view(np.uint32), narrow.view(np.uint32))
    np.testing.assert_array_equal(run(isa, name, [], inputs, 2), whole)
    np.testing.assert_array_equal(run(isa, name, [37, 290], inputs, 2), whole)


@pytest.mark.parametrize("name", [name for name in CASES if CASES[name][1] == "bfloat16"])
@pytest.mark.parametrize("isa", ISAS)
def test_bf16_has_the_same_bits_however_it_is_multiplied(isa, name):
    spec = CASES[name][0]
    inputs = numbers(5, LENGTH, (spec.heads + 2 * spec.kv_heads) * spec.head_dim)
    inputs[280:, -1] = np.inf  # a value that the rows before do not see
    floats = run(isa, name, [], inputs, 1, FLOATS)
    assert np.isfinite(floats[:280]).all()
    for cuts in ([], [41, 290], [100, 101, 102, 280]):
        np.testing.assert_array_equal(run(isa, name, cuts, inputs, 2, PAIRS).view(np.uint32), floats.view(np.uint32))


@pytest.mark.parametrize("isa", ISAS)
def test_no_row_meets_an_infinite_value_that_it_does_not_see(isa):
    spec = CASES["float32"][0]
    inputs = numbers(3, LENGTH, (spec.heads + 2 * spec.kv_heads) * spec.head_dim)
    before = run(isa, "float32", [], inputs, 2)
    inputs[300:] = np.inf
    after = run(isa, "float32", [], inputs, 2)
    np.testing.assert_array_equal(after[:300], before[:300])
    assert not np.isfinite(after[300:]).any()
