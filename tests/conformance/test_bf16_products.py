"""Products of bf16, as floats and in pairs by VDPBF16PS: as Intel defines them, equal bits for any number of rows."""

from collections.abc import Iterator

import numpy as np
import pytest

from octavo.kernels.cpu.library import NativeLibrary
from octavo.kernels.cpu.structs import Opcode
from octavo.ops.weight import StoredTensor
from tests.conformance.devices import ISAS
from tests.conformance.matrices import (
    Floats,
    Machine,
    buffer,
    inputs_of,
    linear,
    machine_of,
    random_source,
    round_bf16,
    run,
    values_of,
)

FLOATS, PAIRS, OWN = 0, 1, -1
GROUP = 640  # most inputs that one chain of sums takes up
EDGES = (0.0, -0.0, 1.0, -1.0, 2.0**-126, 2.0**-127, -(2.0**-133), 2.0**-60, -(2.0**-66), 3e38)


@pytest.fixture(scope="module", params=[isa for isa in ISAS if isa != "scalar"])  # scalar adds with two roundings
def machine(request: pytest.FixtureRequest) -> Iterator[Machine]:
    with machine_of(request.param) as made:
        yield made
        made.library.call.octavo_bf16_force(OWN)


def ways(library: NativeLibrary) -> list[int]:
    """What this processor can be told to do; whoever takes one leaves it for the next."""
    return [way for way in (FLOATS, PAIRS) if library.call.octavo_bf16_force(way) == way]


def bf16(values: Floats) -> StoredTensor:
    data = (round_bf16(values).view(np.uint32) >> 16).astype("<u2").view(np.uint8).reshape(-1)
    return StoredTensor("weight", "bf16", (values.shape[0], values.shape[1]), data)


def fused(a: Floats, b: Floats, c: Floats) -> Floats:
    """a * b + c, rounded once to float32: float64 holds the product of two bf16 exactly."""
    return (a.astype(np.float64) * b + c).astype(np.float32)


def product(x: Floats, weight: Floats) -> Floats:
    """x [tokens, cols] times weight [rows, cols]: in groups of inputs, of each two inputs the second first."""
    cols = x.shape[1] + x.shape[1] % 2
    left, right = (np.pad(a, ((0, 0), (0, cols - a.shape[1]))) for a in (round_bf16(x), weight))
    groups = -(-cols // GROUP)
    size = -(-cols // groups) + 1 & ~1
    total = np.zeros((len(x), len(weight)), np.float32)
    for start in range(0, cols, size):
        chain = np.zeros_like(total)
        for k in range(start, min(start + size, cols), 2):
            for one in (k + 1, k):
                chain = fused(left[:, one : one + 1], right[:, one], chain)
        total = chain + total
    return total


def same(actual: Floats, expected: Floats) -> bool:
    """Bit by bit, but that a NaN is a NaN."""
    both = np.isnan(actual) & np.isnan(expected)
    return bool(np.all(both | (actual.view(np.uint32) == expected.view(np.uint32))))


@pytest.mark.parametrize(("rows", "cols"), [(1, 1), (16, 2), (75, 95), (33, 641), (101, 1300)])
def test_every_number_of_rows_has_the_bits_that_are_defined(machine: Machine, rows: int, cols: int) -> None:
    stored = random_source("bf16", rows, cols)
    weight = machine.packer.matrix([stored])
    x = inputs_of(40, cols)
    expected = product(x, values_of(stored))
    for way in ways(machine.library):
        machine.library.call.octavo_bf16_force(way)
        for tokens in range(1, 41):
            actual = linear(machine, machine.teams[tokens % 2], weight, x[-tokens:])
            assert same(actual, expected[-tokens:]), (way, tokens)


def test_blocks_of_rows_bias_and_residual(machine: Machine) -> None:
    """Where rows are many blocks and strips are cut short; the rest is added after the products, in place."""
    stored = [random_source("bf16", 117, 700, seed) for seed in range(2)]
    weight = machine.packer.matrix(stored)
    rng = np.random.default_rng(5)
    bias = rng.standard_normal(weight.shape[0], np.float32)
    x = inputs_of(601, 700)
    residual = rng.standard_normal((601, weight.shape[0]), np.float32)
    expected = np.concatenate([product(x, values_of(each)) for each in stored], axis=1) + bias + residual
    for way in ways(machine.library):
        machine.library.call.octavo_bf16_force(way)
        for tokens in (1, 5, 281, 601):
            inputs, out = buffer((tokens, 700)), buffer((tokens, weight.shape[0]))
            inputs[:], out[:] = x[-tokens:], residual[-tokens:]
            run(machine, machine.teams[2], Opcode.LINEAR, weight, (inputs, out), tokens, bias=bias, residual=1)
            assert same(out, expected[-tokens:]), (way, tokens)


def test_edges_have_the_same_bits_both_ways_where_the_probe_says_so(machine: Machine) -> None:
    """Subnormal numbers, zeros, infinities, NaN: whatever they give, few rows and many agree."""
    rng = np.random.default_rng(7)
    values, x = (np.array(EDGES, np.float32)[rng.integers(0, len(EDGES), (rows, 6))] for rows in (64, 37))
    x[1::3, :2] = np.array([np.inf, -np.inf, np.nan, 1.0], np.float32)[rng.integers(0, 4, (12, 2))]
    weight = machine.packer.matrix([bf16(values)])
    found: list[Floats] = []
    for way in ways(machine.library):
        machine.library.call.octavo_bf16_force(way)
        found.append(linear(machine, machine.teams[0], weight, x))
        alone = np.concatenate([linear(machine, machine.teams[0], weight, x[t : t + 1]) for t in range(len(x))])
        assert same(alone, found[-1])
    assert np.isnan(found[0]).any()
    assert np.isfinite(found[0]).any()
    if machine.library.bf16_products().same_bits:
        assert len(found) == 2
        assert same(found[0], found[1])


def test_a_choice_has_its_reasons(machine: Machine) -> None:
    call = machine.library.call
    products = machine.library.bf16_products()
    floats, pairs = products.floats, products.pairs
    possible = ways(machine.library)
    assert call.octavo_bf16_force(OWN) == call.octavo_bf16_way()
    assert (PAIRS in possible) == (pairs > 0) == (floats > 0)
    assert call.octavo_bf16_way() == (PAIRS if pairs > 1.4 * floats else FLOATS)
    assert products.same_bits <= (PAIRS in possible)
    assert (call.octavo_multiply(machine.teams[0].handle, 2, 50) > 0) == (PAIRS in possible)
