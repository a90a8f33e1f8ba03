"""Codes of 4 bits with a step and a start for 32 inputs and one scale a row: what they mean, who gets them."""

import numpy as np
import pytest

from octavo.kernels.cpu.packer import NativePacker
from octavo.ops.weight import StoredTensor
from octavo.quantization.format import FORMATS, STEPPED
from octavo.quantization.gguf_blocks import bf16_from_f32, dequantize, first_invalid_row
from octavo.quantization.quantize import has_grid, quantize, target_format
from octavo.quantization.span_rows import rotate
from octavo.quantization.stepped import read_stepped, write_stepped
from tests.conformance.devices import ISAS, library, team


def weights(rows=40, columns=192, seed=0):
    """Rows of unlike size with outliers; one of zeros, one that is constant, one with a single number far out."""
    random = np.random.default_rng(seed)
    values = random.standard_normal((rows, columns)) * random.uniform(0.01, 2, (rows, 1))
    values[random.random(values.shape) < 0.01] *= 8
    values[0] = 0.0
    values[1] = -3.0
    values[2, 5] = 1000.0
    values[3, :32] = 0.25
    return values.astype(np.float32)


def stored(values, format="f32"):
    data = bf16_from_f32(values) if format == "bf16" else values.astype({"f32": np.float32, "f16": np.float16}[format])
    return StoredTensor("w", format, values.shape, np.ascontiguousarray(data).view(np.uint8).reshape(-1))


def test_a_row_takes_four_and_a_half_bits_a_number_and_its_scale():
    assert FORMATS[STEPPED].bits_per_weight == 4.5
    assert write_stepped(weights()).shape == (40, FORMATS[STEPPED].row_bytes(192)) == (40, 96 + 4 + 12)


def test_bytes_fit_and_the_extremes_of_a_row_are_met():
    values = weights()
    numbers, scales = read_stepped(write_stepped(values), 192)
    np.testing.assert_array_equal(scales[1:], np.abs(values[1:]).max(axis=1) / np.float32(127))
    np.testing.assert_array_equal(numbers[0], 0)
    np.testing.assert_array_equal(numbers[1], -127)  # all numbers of a group the same: exact
    assert np.abs(numbers[2, 32:]).max() <= 1
    assert numbers[2, 5] == 127
    widest = np.array([[-127.0, 127.0] * 16], np.float32)
    assert read_stepped(write_stepped(widest), 32)[0].min() == -128  # 15 steps of 17


def test_an_error_is_at_most_what_the_tried_step_leaves():
    """Between the extremes of a group no number is further from its code than half of a step of 15, and a byte."""
    random = np.random.default_rng(3)
    values = random.uniform(-1, 1, (16, 256)).astype(np.float32)
    numbers, scales = read_stepped(write_stepped(values), 256)
    read = numbers * scales[:, None]
    relative = np.square(read - values).sum() / np.square(values).sum()
    step = 2 / 15
    assert relative < 1.05 * (step**2 / 12) / (1 / 3)
    gaussian = random.standard_normal((64, 576)).astype(np.float32)
    numbers, scales = read_stepped(write_stepped(gaussian), 576)
    ours = np.square(numbers * scales[:, None] - gaussian).sum()
    plain = quantize(stored(gaussian), "q4_1")
    theirs = np.square(dequantize("q4_1", plain.data, gaussian.shape) - gaussian).sum()
    assert ours < 1.05 * theirs  # half a bit less a number


def test_a_stored_matrix_is_read_in_the_inputs_own_basis():
    values = weights(seed=1)[4:]
    rounded = quantize(stored(values), STEPPED)
    turned, scales = read_stepped(rounded.data.reshape(36, -1), 192)
    np.testing.assert_array_equal(dequantize(STEPPED, rounded.data, values.shape), rotate(turned * scales[:, None]))
    assert np.abs(dequantize(STEPPED, rounded.data, values.shape) - values).mean() < 0.1 * np.abs(values).mean()
    assert first_invalid_row(rounded) is None
    rounded.data.reshape(36, -1)[3, 108:112] = 255  # starts of -1, which are no floats
    assert first_invalid_row(rounded) is None
    rounded.data.reshape(36, -1)[7, 96:100] = 255  # the scale of a row
    assert first_invalid_row(rounded) == 7


@pytest.mark.parametrize("format", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("isa", ISAS)
def test_native_code_rounds_bit_for_bit(isa, format):
    packer = NativePacker(library(isa), team(isa))
    for shape in ((40, 192), (5, 64), (17, 576)):  # fewer groups than lanes, as many and a few more
        tensor = stored(weights(*shape, seed=shape[0]), format)
        np.testing.assert_array_equal(packer.quantize(tensor, STEPPED).data, quantize(tensor, STEPPED).data)


def test_a_matrix_that_was_rounded_to_4_bits_before_keeps_its_grid():
    values = weights(16, 256, seed=2)[4:]
    for format, size in (("q4_0", 18), ("q4_1", 20)):
        blocks = np.random.default_rng(5).integers(0, 256, (12 * 8, size), np.uint8)
        blocks[:, 1] = 0x21  # scales of ordinary size
        if format == "q4_1":
            blocks[:, 3] = 0xA2
        grid = dequantize(format, blocks.reshape(-1), values.shape)
        assert has_grid(grid)
        assert target_format("int4", "layers.0.mlp.up", 256, lambda grid=grid: grid) == "q4_1"
        rounded = quantize(stored(grid), "q4_1")
        relative = np.square(dequantize("q4_1", rounded.data, grid.shape) - grid).sum() / np.square(grid).sum()
        assert relative < 1e-3  # of numbers without a grid 5e-3 is left
    assert not has_grid(values)
    bf16 = dequantize("bf16", bf16_from_f32(values).view(np.uint8).reshape(-1), values.shape)
    assert target_format("int4", "layers.0.mlp.up", 256, lambda: bf16) == STEPPED
    mixed = np.where(np.arange(12)[:, None] < 11, grid, values)
    assert not has_grid(mixed)
