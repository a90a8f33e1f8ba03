"""Products in AMX's tile registers: what Intel defines, step by step; emulated where the processor has none."""

from collections.abc import Iterator

import numpy as np
import pytest

from octavo.kernels.cpu.structs import Coding
from octavo.ops.weight import StoredTensor
from tests.conformance.matrices import (
    AMX,
    BLOCK_FORMATS,
    Floats,
    Machine,
    inputs_of,
    linear,
    machine_of,
    random_source,
    round_bf16,
    values_of,
)

STEP = 32  # inputs that one instruction takes up


@pytest.fixture(scope="module", params=AMX)
def machine(request: pytest.FixtureRequest) -> Iterator[Machine]:
    with machine_of(request.param) as made:
        yield made


@pytest.fixture(scope="module")
def without() -> Iterator[Machine]:
    with machine_of("avx512") as made:
        yield made


def flushed(values: Floats) -> Floats:
    """Subnormal numbers as 0."""
    return np.where(np.abs(values) < np.finfo(np.float32).tiny, np.float32(0), values)


def fused(a: Floats, b: Floats, c: Floats) -> Floats:
    """a * b + c, rounded once to float32: float64 holds the product of two bf16 exactly."""
    return flushed((a.astype(np.float64) * b + c).astype(np.float32))


def tdpbf16ps(x: Floats, weight: Floats) -> Floats:
    """The sums as the Software Developer's Manual gives them, with x [tokens, cols] and weight [rows, cols]."""
    cols = -(-x.shape[1] // STEP) * STEP
    left, right = (flushed(np.pad(a, ((0, 0), (0, cols - a.shape[1])))) for a in (round_bf16(x), weight))
    total = np.zeros((len(x), len(weight)), np.float32)
    for start in range(0, cols, STEP):
        chains = [np.zeros_like(total), np.zeros_like(total)]
        for k in range(start, start + STEP):
            chains[k % 2] = fused(left[:, k : k + 1], right[:, k], chains[k % 2])
        total = flushed(total + flushed(chains[0] + chains[1]))
    return total


@pytest.mark.parametrize("cols", [1, 30, 32, 95, 1300])
def test_bf16_is_summed_as_defined(machine: Machine, cols: int) -> None:
    stored = random_source("bf16", 75, cols)
    weight = machine.packer.matrix([stored])
    for tokens in (1, 4, 5, 16, 17, 33):
        x = inputs_of(tokens, cols)
        actual = linear(machine, machine.teams[1], weight, x)
        np.testing.assert_array_equal(actual, tdpbf16ps(x, values_of(stored)))


def test_subnormal_numbers_count_as_nothing(machine: Machine) -> None:
    """Of the inputs, of the weights and of the sums; a number that is just normal counts."""
    rows, cols = 16, 64
    values = np.full((rows, cols), 1.0, np.float32)
    values[1] = 2.0**-127
    values[2] = 2.0**-126
    data = (values.view(np.uint32) >> 16).astype("<u2").view(np.uint8).reshape(-1)
    stored = StoredTensor("weight", "bf16", (rows, cols), data)
    weight = machine.packer.matrix([stored])
    x = np.zeros((3, cols), np.float32)
    x[0, :3] = 2.0**-127  # would be normal in sum
    x[1, 0] = 2.0**100
    x[2, 0] = 0.5
    actual = linear(machine, machine.teams[0], weight, x)
    np.testing.assert_array_equal(actual, tdpbf16ps(x, values))
    assert not actual[0].any()
    assert list(actual[1, :3]) == [2.0**100, 0.0, 2.0**-26]
    assert list(actual[2, :3]) == [0.5, 0.0, 0.0]


@pytest.mark.parametrize("coding", [Coding.INT8, Coding.INT16])
@pytest.mark.parametrize("format", BLOCK_FORMATS)
def test_coded_products_have_the_bits_of_avx512(
    machine: Machine, without: Machine, coding: Coding, format: str
) -> None:
    stored = random_source(format, 139, 1280)
    weights = [each.packer.matrix([stored]) for each in (machine, without)]
    for tokens in (9, 16, 73):
        x = inputs_of(tokens, 1280)
        tiles, plain = (
            linear(each, each.teams[1], weight, x, coding=coding)
            for each, weight in zip((machine, without), weights, strict=True)
        )
        np.testing.assert_array_equal(tiles.view(np.uint32), plain.view(np.uint32))
