"""Every op of every native library agrees with the reference, and gives the same bits whatever else a step holds."""

from functools import cache

import numpy as np
import pytest

from octavo.ops.conformance import FORMATS, Case, Scene, cases, numbers, stored
from octavo.ops.conformance_attention import attention_cases
from octavo.ops.conformance_mixers import mixer_cases
from tests.conformance.devices import ISAS, NativeDevice, ReferenceDevice

CASES = [*cases(), *attention_cases(), *mixer_cases()]


@cache
def expected(index: int) -> list[np.ndarray]:
    case = CASES[index]
    return case.run(ReferenceDevice(case.cache))


def assert_near(actual: list[np.ndarray], wanted: list[np.ndarray], case: Case) -> None:
    assert len(actual) == len(wanted)
    for got, want in zip(actual, wanted, strict=True):
        assert got.shape == want.shape
        if want.dtype.kind != "f":
            np.testing.assert_array_equal(got, want)
            continue
        magnitude = float(np.max(np.abs(want[np.isfinite(want)]), initial=0.0))
        np.testing.assert_allclose(got, want, rtol=0, atol=case.tolerance * magnitude)


def test_machine_has_native_libraries():
    assert "scalar" in ISAS or "neon" in ISAS


@pytest.mark.parametrize("index", range(len(CASES)), ids=lambda index: str(CASES[index]))
@pytest.mark.parametrize("isa", ISAS)
def test_agrees_with_reference(isa, index):
    case = CASES[index]
    assert_near(case.run(NativeDevice(isa, case.cache)), expected(index), case)


@pytest.mark.parametrize("isa", ISAS)
def test_same_bits_on_any_number_of_threads(isa):
    for case in CASES:
        one, three = (case.run(NativeDevice(isa, case.cache, threads)) for threads in (1, 3))
        for left, right in zip(one, three, strict=True):
            np.testing.assert_array_equal(left.view(np.uint8), right.view(np.uint8), err_msg=str(case))


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("isa", ISAS)
def test_linear_gives_a_row_the_same_bits_in_any_batch(isa, format):
    device = NativeDevice(isa, CASES[0].cache)
    ops, _ = device.begin(Scene())
    weight = device.packer.matrix([stored(format, 40, 512, 1)])
    x = numbers(2, 67, 512)
    together = ops.linear(x, weight)
    for first, last in ((0, 1), (1, 3), (3, 8), (8, 24), (24, 41), (41, 67)):
        apart = ops.linear(np.ascontiguousarray(x[first:last]), weight)
        np.testing.assert_array_equal(apart, together[first:last])
