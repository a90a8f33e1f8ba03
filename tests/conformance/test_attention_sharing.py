"""Sequences that begin with the same blocks: nobody's result tells who else was there, and it is the reference's."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from octavo.ops.conformance import CacheShape, Scene, numbers, spans_of
from octavo.ops.interface import LayerCache
from octavo.spec.decoder import AttentionSpec
from tests.conformance.devices import ISAS, NativeDevice, ReferenceDevice, library

AT = LayerCache(0, 0)
OWN, FLOATS, PAIRS = -1, 0, 1  # how bf16 is multiplied
LONGEST = 800
TOLERANCE = {"float32": 2e-5, "float16": 2e-3, "bfloat16": 1.5e-2, "int8": 3e-4, "int4": 3e-4}
SLOPES = tuple(2.0**-head for head in range(1, 7))
PLAIN = AttentionSpec(6, 2, 32, 32**-0.5, None)
CASES = {
    "float32": (PLAIN, "float32", 16),
    "odd blocks": (PLAIN, "float16", 24),
    "window": (replace(PLAIN, window=300), "float16", 16),
    "chunk": (replace(PLAIN, chunk=350), "fp8_e4m3", 16),
    "ALiBi, sinks, softcap": (replace(PLAIN, alibi=SLOPES, sinks=True, softcap=8.0), "bfloat16", 32),
    "int8": (replace(PLAIN, sinks=True), "int8", 16),
    "int4": (replace(PLAIN, head_dim=20, heads=8, kv_heads=1, scale=0.2), "int4", 64),
    "e5m2": (replace(PLAIN, heads=2), "fp8_e5m2", 8),
    "many rows": (replace(PLAIN, heads=14), "float16", 16),
    "many rows, e4m3, window": (replace(PLAIN, heads=16, window=200), "fp8_e4m3", 32),
    "many rows, bfloat16": (replace(PLAIN, heads=14, head_dim=48), "bfloat16", 16),
}


@dataclass(frozen=True)
class Family:
    """Sequences with block tables that branch off each other; `first_own`: where a sequence's own blocks begin."""

    tables: np.ndarray
    first_own: list[int]
    rows: list[tuple[int, int, int]]  # of the step: (slot, start, count)


def family_of(seed: int, block: int, sequences: int = 14) -> Family:
    """A random tree: each sequence branches off an earlier one at any block, or begins anew; a few tokens a step."""
    rng = np.random.default_rng(seed)
    most = -(-LONGEST // block)
    ids = iter(rng.permutation(sequences * most).tolist())
    tables = np.array([[next(ids) for _ in range(most)] for _ in range(sequences)], np.int32)
    first_own, lengths = [0] * sequences, rng.integers(1, LONGEST - 8, sequences).tolist()
    for slot in range(1, sequences):
        parent = int(rng.integers(0, slot))
        if rng.random() < 0.85:
            common = int(rng.integers(0, lengths[parent] // block + 1))
            tables[slot, :common] = tables[parent, :common]
            first_own[slot] = common * block
            lengths[slot] = min(first_own[slot] + int(rng.integers(1, 300)), LONGEST - 8)
    counts = rng.choice([1, 1, 1, 3, 40], sequences).tolist()
    rows = [(slot, lengths[slot], min(counts[slot], LONGEST - lengths[slot])) for slot in rng.permutation(sequences)]
    return Family(tables[None], first_own, [(int(slot), start, count) for slot, start, count in rows])


def fill(device, spec: AttentionSpec, family: Family) -> None:
    """Keys and values of all contexts, each block's by the sequence that it belongs to first."""
    for slot, start, _ in sorted(family.rows):
        first = family.first_own[slot]
        if first < start:
            ops, step = device.begin(Scene(spans_of([(slot, first, start - first)])))
            qkv = device.put(numbers(100 + slot, start - first, (spec.heads + 2 * spec.kv_heads) * spec.head_dim))
            ops.qkv_rope_cache(qkv, spec, AT, step.positions, None, None, None)


def attend(device, spec: AttentionSpec, rows, inputs: dict[int, np.ndarray]) -> dict[int, np.ndarray]:
    """One step of these rows; the outputs of each slot."""
    ops, step = device.begin(Scene(spans_of(rows)))
    q = ops.qkv_rope_cache(
        device.put(np.concatenate([inputs[slot] for slot, _, _ in rows])), spec, AT, step.positions, None, None, None
    )
    sinks = device.put(numbers(5, spec.heads)) if spec.sinks else None
    out = device.get(ops.paged_attention(q, spec, AT, sinks)).copy()
    ends = np.cumsum([count for _, _, count in rows])
    return {slot: out[end - count : end] for (slot, _, count), end in zip(rows, ends, strict=True)}


def prepare(name: str, seed: int):
    spec, dtype, block = CASES[name]
    family = family_of(seed, block)
    shape = CacheShape(dtype, block, family.tables.size, spec.kv_heads, spec.head_dim, 1, family.tables)
    width = (spec.heads + 2 * spec.kv_heads) * spec.head_dim
    inputs = {slot: numbers(slot, count, width) for slot, _, count in family.rows}
    return spec, family, shape, inputs


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("isa", ISAS)
def test_a_row_is_the_same_whoever_shares_its_blocks(isa, name, seed):
    spec, family, shape, inputs = prepare(name, seed)
    device = NativeDevice(isa, shape)
    fill(device, spec, family)
    together = attend(device, spec, family.rows, inputs)
    for row in family.rows:
        np.testing.assert_array_equal(attend(device, spec, [row], inputs)[row[0]], together[row[0]], err_msg=str(row))
    some = family.rows[::2]
    for slot, out in attend(device, spec, some, inputs).items():
        np.testing.assert_array_equal(out, together[slot])
    one_thread = NativeDevice(isa, shape, threads=1)
    fill(one_thread, spec, family)
    for slot, out in attend(one_thread, spec, family.rows, inputs).items():
        np.testing.assert_array_equal(out, together[slot])


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("isa", ISAS)
def test_shared_blocks_give_what_the_reference_gives(isa, name):
    spec, family, shape, inputs = prepare(name, 3)
    results = []
    for device in (NativeDevice(isa, shape), ReferenceDevice(shape)):
        fill(device, spec, family)
        results.append(attend(device, spec, family.rows, inputs))
    for slot, wanted in results[1].items():
        most = float(np.abs(wanted).max())
        np.testing.assert_allclose(results[0][slot], wanted, rtol=0, atol=TOLERANCE.get(shape.dtype, 3e-5) * most)


@pytest.mark.parametrize("name", [name for name in CASES if CASES[name][1] == "bfloat16"])
@pytest.mark.parametrize("isa", ISAS)
def test_shared_blocks_in_bf16_have_the_same_bits_however_they_are_multiplied(isa, name):
    spec, family, shape, inputs = prepare(name, 5)
    device = NativeDevice(isa, shape)
    fill(device, spec, family)
    wanted = attend(device, spec, family.rows, inputs)
    for way in (FLOATS, PAIRS):
        library(isa).call.octavo_bf16_force(way)
        try:
            for slot, out in attend(device, spec, family.rows, inputs).items():
                np.testing.assert_array_equal(out.view(np.uint32), wanted[slot].view(np.uint32))
        finally:
            library(isa).call.octavo_bf16_force(OWN)


@pytest.mark.parametrize("isa", ISAS)
def test_more_states_than_are_kept_at_once(isa):
    """A context that is done in several turns, since states of all of its parts would take too much memory."""
    spec = AttentionSpec(64, 1, 256, 1 / 16, None)
    count, block, length = 10, 256, 8000
    tables = np.arange(count * 32, dtype=np.int32).reshape(1, count, 32)
    tables[0, :, :31] = tables[0, 0, :31]
    shape = CacheShape("fp8_e5m2", block, tables.size, 1, 256, 1, tables)
    device = NativeDevice(isa, shape)
    device.fill_cache(0x30)
    rows = [(slot, length + slot, 1) for slot in range(count)]
    inputs = {slot: numbers(slot, 1, 66 * 256) for slot in range(count)}
    together = attend(device, spec, rows, inputs)
    for row in rows[::4]:
        np.testing.assert_array_equal(attend(device, spec, [row], inputs)[row[0]], together[row[0]])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_what_is_not_finite_stays_with_its_sequence(isa, dtype):
    spec, family, shape, inputs = prepare("float32", 4)
    shape = replace(shape, dtype=dtype)
    device = NativeDevice(isa, shape)
    fill(device, spec, family)
    before = attend(device, spec, family.rows, inputs)
    slot, bad = family.rows[3][0], inputs[family.rows[3][0]].copy()
    bad[0, :] = np.nan
    bad[0, -1] = np.inf
    after = attend(device, spec, family.rows, {**inputs, slot: bad})
    assert np.isnan(after[slot]).any()
    for other in set(before) - {slot}:
        np.testing.assert_array_equal(after[other], before[other])
