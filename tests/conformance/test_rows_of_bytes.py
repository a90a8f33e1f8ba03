"""Products of 8-bit weights and inputs with one scale a row, on every instruction set: bit for bit what numpy says."""

import numpy as np
import pytest

from octavo.kernels.cpu.structs import Coding, Opcode
from octavo.ops.weight import StoredTensor
from octavo.quantization.gguf_blocks import dequantize
from octavo.quantization.quantize import quantize
from octavo.quantization.span_rows import rotate
from tests.conformance.matrices import CODED_ISAS, buffer, inputs_of, linear, machine_of, run
from tests.conformance.spans import random_spans

ROTATED = "int8_row_f32_rotated"
FORMATS = pytest.mark.parametrize("format", [ROTATED, "int8_row_f32"])


@pytest.fixture(scope="module", params=CODED_ISAS)
def machine(request):
    with machine_of(request.param) as made:
        yield made


def source(format, rows, cols):
    """Every code and scale at random; -128 is among the codes."""
    return random_spans(format, rows, cols).stored


def coded(x):
    """Codes of rows, and a scale for each."""
    most = np.abs(x).max(axis=1, keepdims=True)
    largest = np.float32(127)
    inverse = np.divide(largest, most, out=np.zeros_like(most), where=most > 0)
    return np.rint(x * inverse).astype(np.float64), most / largest


def product(stored, x):
    """input scale * (weight scale * sum), each rounded; float64 holds the sums exactly."""
    rows, cols = stored.shape
    parts = stored.data.reshape(rows, cols + 4)
    weights = parts[:, :cols].view(np.int8).astype(np.float64)
    scales = np.ascontiguousarray(parts[:, cols:]).view(np.float32)[:, 0]
    codes, input_scales = coded(rotate(x) if stored.format == ROTATED else x)
    return input_scales * (scales * (codes @ weights.T).astype(np.float32))


@FORMATS
@pytest.mark.parametrize(("rows", "cols"), [(1, 64), (37, 192), (75, 768), (130, 1344), (211, 4864)])
def test_every_bit(machine, format, rows, cols):
    stored = source(format, rows, cols)
    weight = machine.packer.matrix([stored])
    for tokens in (1, 2, 3, 4, 5, 33, 73):
        x = inputs_of(tokens, cols)
        actual = linear(machine, machine.teams[tokens % 3], weight, x, coding=Coding.INT8)
        np.testing.assert_array_equal(actual, product(stored, x))


@FORMATS
def test_every_number_of_rows_that_may_be_one_tile(machine, format):
    stored = source(format, 75, 768)
    weight, x = machine.packer.matrix([stored]), inputs_of(30, 768)
    expected = product(stored, x)
    for tokens in range(4, 31):
        actual = linear(machine, machine.teams[tokens % 3], weight, x[:tokens], coding=Coding.INT8)
        np.testing.assert_array_equal(actual, expected[:tokens])


def test_values_of_rotated_rows(machine):
    """As numpy reads them and as a Hadamard matrix makes them; a row of a table has numpy's bits."""
    made = random_spans(ROTATED, 37, 384)
    read = dequantize(ROTATED, made.stored.data, made.stored.shape)
    np.testing.assert_allclose(read, made.values, rtol=0, atol=1e-6 * np.abs(made.values).max())
    ids = np.random.default_rng(1).permutation(37).astype(np.int32)
    out = buffer((37, 384))
    run(machine, machine.teams[1], Opcode.EMBED, machine.packer.matrix([made.stored]), (out, out), 37, ids=ids)
    np.testing.assert_array_equal(out, read[ids])


@pytest.mark.parametrize("cols", [32, 96, 224])
def test_widths_that_are_no_multiple_of_64(machine, cols):
    stored = source("int8_row_f32", 35, cols)
    weight = machine.packer.matrix([stored])
    for tokens in (1, 3, 19):
        x = inputs_of(tokens, cols)
        actual = linear(machine, machine.teams[1], weight, x, coding=Coding.INT8)
        np.testing.assert_array_equal(actual, product(stored, x))


@FORMATS
def test_bits_depend_on_nothing_but_the_row(machine, format):
    weight = machine.packer.matrix([source(format, 211, 768)])
    x = inputs_of(150, 768)
    for coding in Coding:
        expected = linear(machine, machine.teams[0], weight, x, coding=coding)
        for tokens in (1, 2, 5, 11, 61, 150):
            for team in machine.teams:
                actual = linear(machine, team, weight, x[-tokens:], coding=coding)
                np.testing.assert_array_equal(actual.view(np.uint32), expected[-tokens:].view(np.uint32))


@FORMATS
@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_largest_numbers_do_not_overflow(machine, format, sign):
    stored = source(format, 24, 8192)
    stored.data.reshape(24, -1)[:, :8192] = 0x80
    weight = machine.packer.matrix([stored])
    for tokens in (1, 9):
        x = np.full((tokens, 8192), 3.0 * sign, np.float32)
        actual = linear(machine, machine.teams[0], weight, x, coding=Coding.INT8)
        np.testing.assert_array_equal(actual, product(stored, x))


@FORMATS
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_not_finite_spoils_no_other(machine, format, bad):
    weight = machine.packer.matrix([source(format, 75, 768)])
    for tokens in (2, 4, 33):
        x = inputs_of(tokens, 768)
        x[-1] = 0.0
        expected = linear(machine, machine.teams[1], weight, x, coding=Coding.INT8)
        np.testing.assert_array_equal(expected[-1], 0.0)
        x[0, 300] = bad
        actual = linear(machine, machine.teams[1], weight, x, coding=Coding.INT8)
        assert np.isnan(actual[0]).all()
        np.testing.assert_array_equal(actual[1:], expected[1:])


@pytest.mark.parametrize("tokens", [1, 5, 12, 20, 70])
def test_segments_that_take_unlike_inputs(machine, tokens):
    """Rotated or not, by rows or by groups, each against its own; bias and residual come to the right columns."""
    kinds = [(ROTATED, 83), (ROTATED, 19), ("int8_row_f32", 32), ("int8_g64_f16", 48), ("int4_g128_f16_ordered", 16)]
    parts = [random_spans(name, rows, 512, seed).stored for seed, (name, rows) in enumerate(kinds)]
    x = inputs_of(tokens, 512)
    rng = np.random.default_rng(3)
    for coding in Coding:
        alone = [linear(machine, machine.teams[0], machine.packer.matrix([p]), x, coding=coding) for p in parts]
        weight, plain = machine.packer.matrix(parts), np.concatenate(alone, axis=1)
        bias = rng.standard_normal(weight.shape[0], np.float32)
        inputs, out = buffer(x.shape), buffer(plain.shape)
        inputs[:] = x
        out[:] = residual = rng.standard_normal(plain.shape, np.float32)
        run(
            machine,
            machine.teams[1],
            Opcode.LINEAR,
            weight,
            (inputs, out),
            tokens,
            bias=bias,
            residual=1,
            coding=coding,
        )
        np.testing.assert_array_equal(out, plain + bias + residual)


def test_rotations_take_outliers_out(machine):
    """Of a row with one outlier rounding leaves a tenth of the error that it leaves without the rotation."""
    rng = np.random.default_rng(5)
    values = rng.standard_normal((48, 768)).astype(np.float32)
    stored = StoredTensor("w", "f32", values.shape, values.view(np.uint8).reshape(-1))
    x = rng.standard_normal((7, 768)).astype(np.float32)
    x[:, 300] = 200.0
    turned = quantize(stored, ROTATED)
    errors = []
    for part in (turned, source("int8_row_f32", 48, 768)):
        exact = x.astype(np.float64) @ dequantize(part.format, part.data, part.shape).astype(np.float64).T
        actual = linear(machine, machine.teams[0], machine.packer.matrix([part]), x, coding=Coding.INT8)
        errors.append(np.linalg.norm(actual - exact) / np.linalg.norm(exact))
    assert errors[0] < 0.02
    exact = x.astype(np.float64) @ values.astype(np.float64).T
    plain = linear(machine, machine.teams[0], machine.packer.matrix([turned]), x, coding=Coding.EXACT)
    assert np.linalg.norm(plain - exact) < 0.01 * np.linalg.norm(exact)
