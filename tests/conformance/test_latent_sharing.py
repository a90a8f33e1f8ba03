"""Latent attention over blocks that sequences have in common: nobody's result tells who else was there."""

from dataclasses import dataclass

import numpy as np
import pytest

from octavo.ops.conformance import CacheShape, Scene, numbers, spans_of
from octavo.ops.interface import LayerCache
from octavo.spec.decoder import LatentSpec, NormSpec
from tests.conformance.devices import ISAS, NativeDevice
from tests.conformance.test_attention_sharing import Family, family_of

AT = LayerCache(0, 0)
NORM = NormSpec("rms", 1e-6, weight=False)


def latents(heads: int, rank: int, rope: int) -> LatentSpec:
    return LatentSpec(heads, 8, rope, 16, rank, 0.2, None, NORM)


CASES = {
    "float32": (latents(5, 32, 8), "float32", 16),
    "float16, odd blocks": (latents(16, 32, 16), "float16", 24),
    "bfloat16, odd width": (latents(3, 21, 6), "bfloat16", 16),
    "int8": (latents(16, 32, 16), "int8", 16),
    "e4m3, many heads": (latents(40, 48, 8), "fp8_e4m3", 32),
    "e5m2": (latents(7, 16, 4), "fp8_e5m2", 8),
    "int4": (latents(4, 64, 32), "int4", 64),
}


@dataclass(frozen=True)
class Inputs:
    """Of a row of the step: queries, what is kept, and queries in the latent space."""

    q: np.ndarray
    kv: np.ndarray
    latent: np.ndarray

    @staticmethod
    def of(spec: LatentSpec, seed: int, count: int) -> "Inputs":
        widths = spec.heads * spec.head_dim, spec.width, spec.heads * spec.rank
        return Inputs(*(numbers(1000 * at + seed, count, width) for at, width in enumerate(widths)))


def attend(device: NativeDevice, spec: LatentSpec, rows, inputs: dict[int, Inputs]) -> dict[int, np.ndarray]:
    """One step of these rows; the outputs of each slot."""
    ops, step = device.begin(Scene(spans_of(rows)))
    of_rows = [inputs[slot] for slot, _, _ in rows]
    q, kv, latent = (
        device.put(np.concatenate([getattr(one, name) for one in of_rows])) for name in ("q", "kv", "latent")
    )
    q = ops.latent_cache(q, kv, spec, AT, step.positions, None, None)
    out = device.get(ops.latent_attention(latent, q, spec, AT)).copy()
    ends = np.cumsum([count for _, _, count in rows])
    return {slot: out[end - count : end] for (slot, _, count), end in zip(rows, ends, strict=True)}


def filled(isa: str, name: str, family: Family, threads: int = 2) -> NativeDevice:
    """A device that has all contexts, each block as the sequence that it belongs to first wrote it."""
    spec, dtype, block = CASES[name]
    shape = CacheShape(dtype, block, family.tables.size, 1, spec.width, 1, family.tables, value_dim=0)
    device = NativeDevice(isa, shape, threads=threads)
    for slot, start, _ in sorted(family.rows):
        first = family.first_own[slot]
        if first < start:
            attend(device, spec, [(slot, first, start - first)], {slot: Inputs.of(spec, 100 + slot, start - first)})
    return device


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("isa", ISAS)
def test_a_row_is_the_same_whoever_shares_its_blocks(isa, name):
    spec, _, block = CASES[name]
    family = family_of(1, block)
    inputs = {slot: Inputs.of(spec, slot, count) for slot, _, count in family.rows}
    device = filled(isa, name, family)
    together = attend(device, spec, family.rows, inputs)
    for row in family.rows:
        np.testing.assert_array_equal(attend(device, spec, [row], inputs)[row[0]], together[row[0]], err_msg=str(row))
    for slot, out in attend(device, spec, family.rows[::2], inputs).items():
        np.testing.assert_array_equal(out, together[slot])
    for slot, out in attend(filled(isa, name, family, threads=1), spec, family.rows, inputs).items():
        np.testing.assert_array_equal(out, together[slot])


@pytest.mark.parametrize("isa", ISAS)
def test_a_prompt_at_once_is_the_prompt_in_pieces(isa):
    spec, dtype, block = CASES["e4m3, many heads"]
    length = 300
    table = np.arange(-(-length // block), dtype=np.int32)[None, None]
    inputs = Inputs.of(spec, 3, length)
    results = []
    for cuts in ([], [37, 290], list(range(20, length, 20))):
        device = NativeDevice(isa, CacheShape(dtype, block, table.size, 1, spec.width, 1, table, value_dim=0))
        pieces = zip([0, *cuts], [*cuts, length], strict=True)
        parts = [
            attend(device, spec, [(0, a, b - a)], {0: Inputs(inputs.q[a:b], inputs.kv[a:b], inputs.latent[a:b])})[0]
            for a, b in pieces
        ]
        results.append(np.concatenate(parts))
    for other in results[1:]:
        np.testing.assert_array_equal(other.view(np.uint32), results[0].view(np.uint32))


@pytest.mark.parametrize("isa", ISAS)
def test_what_is_not_finite_stays_with_its_sequence(isa):
    spec, _, block = CASES["float32"]
    family = family_of(4, block)
    inputs = {slot: Inputs.of(spec, slot, count) for slot, _, count in family.rows}
    device = filled(isa, "float32", family)
    before = attend(device, spec, family.rows, inputs)
    slot = family.rows[3][0]
    bad = Inputs.of(spec, slot, family.rows[3][2])
    bad.latent[0, :] = np.nan
    bad.kv[0, -1] = np.inf
    after = attend(device, spec, family.rows, {**inputs, slot: bad})
    assert np.isnan(after[slot]).any()
    for other in set(before) - {slot}:
        np.testing.assert_array_equal(after[other], before[other])
