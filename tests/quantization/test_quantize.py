"""Rounding while loading: numpy's meaning, the native code that does the same, and which matrix gets what."""

import gguf
import numpy as np
import pytest
import torch

from octavo.errors import CheckpointError
from octavo.kernels.cpu.packer import NativePacker
from octavo.ops.weight import StoredTensor
from octavo.quantization.format import STEPPED
from octavo.quantization.gguf_blocks import bf16_from_f32, dequantize
from octavo.quantization.quantize import quantize, target_format
from tests.conformance.devices import ISAS, library, team

ROWS, COLUMNS = 40, 160
FP8 = "e4m3_row_f32"
INT8 = "int8_row_f32_rotated"


def weights(seed=0):
    """Like real ones: of unlike rows, with outliers, a block of zeros and one of equal numbers."""
    random = np.random.default_rng(seed)
    values = random.standard_normal((ROWS, COLUMNS)) * random.uniform(0.01, 2, (ROWS, 1))
    values[random.random(values.shape) < 0.01] *= 8
    values[0, :32] = 0.0
    values[1, 32:64] = 0.25
    return values.astype(np.float32)


def stored(values, format="f32"):
    data = bf16_from_f32(values) if format == "bf16" else values.astype({"f32": np.float32, "f16": np.float16}[format])
    return StoredTensor("w", format, values.shape, np.ascontiguousarray(data).view(np.uint8).reshape(-1))


def errors(rounded, values):
    """Squared error of each block of 32."""
    read = dequantize(rounded.format, rounded.data, rounded.shape)
    return np.square(read - values).reshape(-1, 32).sum(axis=1)


@pytest.mark.parametrize("format", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("isa", ISAS)
def test_native_code_rounds_to_q8_0_bit_for_bit(isa, format):
    tensor = stored(weights(), format)
    native = NativePacker(library(isa), team(isa)).quantize(tensor, "q8_0")
    assert (native.name, native.format, native.shape) == ("w", "q8_0", (ROWS, COLUMNS))
    np.testing.assert_array_equal(native.data, quantize(tensor, "q8_0").data)


@pytest.mark.parametrize("isa", ISAS)
def test_native_code_finds_blocks_of_q4_1_as_good_as_numpys(isa):
    """Sums are taken in another order, so a tie may be broken otherwise; the error is the same."""
    values = weights()
    native = NativePacker(library(isa), team(isa)).quantize(stored(values), "q4_1")
    expected = errors(quantize(stored(values), "q4_1"), values)
    np.testing.assert_allclose(errors(native, values), expected, rtol=1e-3, atol=1e-12)


@pytest.mark.parametrize("format", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("isa", ISAS)
def test_a_block_of_q4_1_is_the_same_whatever_is_rounded_beside_it(isa, format):
    """Many are rounded sixteen at a time, few one by one: 200 of them here, in rows of 5, and each block alone."""
    values, packer = weights(1), NativePacker(library(isa), team(isa))
    together = packer.quantize(stored(values, format), "q4_1").data.reshape(-1, 20)
    blocks = values.reshape(-1, 1, 32)
    alone = [packer.quantize(stored(block, format), "q4_1").data for block in blocks]
    np.testing.assert_array_equal(together, np.stack(alone))


def test_an_error_of_q8_0_is_half_a_step():
    values = weights()
    rounded = quantize(stored(values), "q8_0")
    step = np.abs(values).reshape(-1, 32).max(axis=1) / 127
    read = dequantize("q8_0", rounded.data, values.shape)
    assert np.all(np.abs(read - values).reshape(-1, 32).max(axis=1) <= 0.57 * step)  # d is a float16
    np.testing.assert_array_equal(read[0, :32], 0.0)


def test_q4_1_is_nearer_than_rounding_between_the_extremes():
    values = weights()
    plain = gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q4_1)
    ours = errors(quantize(stored(values), "q4_1"), values)
    theirs = errors(StoredTensor("w", "q4_1", values.shape, plain.reshape(-1)), values)
    assert ours.sum() < 0.85 * theirs.sum()
    assert np.all(ours <= theirs * 1.001 + 1e-9)
    np.testing.assert_array_equal(ours[[0, 6]], 0.0)  # zeros, and equal numbers


@pytest.mark.parametrize("format", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("isa", ISAS)
def test_native_code_rotates_rows_and_rounds_them_bit_for_bit(isa, format):
    tensor = stored(np.ascontiguousarray(weights()[:, :128]), format)
    native = NativePacker(library(isa), team(isa)).quantize(tensor, INT8)
    np.testing.assert_array_equal(native.data, quantize(tensor, INT8).data)


def test_rows_of_bytes_are_half_a_step_from_their_rotation():
    values = np.ascontiguousarray(weights()[:, :128])
    hadamard = np.ones((1, 1))
    while len(hadamard) < 64:
        hadamard = np.block([[hadamard, hadamard], [hadamard, -hadamard]])
    turn = np.kron(np.eye(2), hadamard / 8)
    rounded = quantize(stored(values), INT8)
    read = dequantize(INT8, rounded.data, values.shape)
    step = np.abs(values @ turn).max(axis=1, keepdims=True) / 127
    assert np.all(np.abs((read - values) @ turn) <= 0.501 * step)
    zeros = quantize(stored(np.zeros((3, 64), np.float32)), INT8)
    np.testing.assert_array_equal(dequantize(INT8, zeros.data, (3, 64)), 0.0)


@pytest.mark.parametrize("format", ["f32", "bf16"])
@pytest.mark.parametrize("isa", ISAS)
def test_native_code_rounds_to_8_bit_floats_bit_for_bit(isa, format):
    tensor = stored(weights(), format)
    native = NativePacker(library(isa), team(isa)).quantize(tensor, FP8)
    np.testing.assert_array_equal(native.data, quantize(tensor, FP8).data)


def test_8_bit_floats_are_torchs():
    """A row's largest number becomes the format's; the codes are torch's, ties and the smallest included."""
    values = weights()
    values[5] = 0.0
    values[7, :32] = np.arange(32) * 2.0**-10 * 448 / 448  # below the smallest with an exponent, halfway and not
    values[7, 32] = 448.0
    rows = quantize(stored(values), FP8).data.reshape(ROWS, COLUMNS + 4)
    largest = np.abs(values).max(axis=1)
    scales = np.where(largest > 0, largest / np.float32(448), np.float32(1)).astype(np.float32)
    np.testing.assert_array_equal(np.ascontiguousarray(rows[:, COLUMNS:]).view(np.float32)[:, 0], scales)
    expected = torch.from_numpy(values / scales[:, None]).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    np.testing.assert_array_equal(rows[:, :COLUMNS], expected)
    read = dequantize(FP8, rows.reshape(-1), values.shape)
    assert np.abs(read - values).max(axis=1).max() <= (largest / 28).max()  # 3 bits of a fraction: 1 / 16 at most


@pytest.mark.parametrize("target", [INT8, STEPPED])
@pytest.mark.parametrize("isa", ISAS)
def test_rows_too_large_to_be_rotated_are_named(isa, target):
    packer, values = NativePacker(library(isa), team(isa)), np.ascontiguousarray(weights()[:, :128])
    values[5, 70] = 3e37  # an outlier alone still fits
    tensor = packer.quantize(stored(values), target)
    np.testing.assert_array_equal(tensor.data, quantize(stored(values), target).data)
    packer.matrix([tensor])
    for row in ([3e38] * 128, [3e38, -3e38] * 64, [1.0] * 64 + [1e38] * 64):
        values[7] = row
        tensor = packer.quantize(stored(values), target)
        np.testing.assert_array_equal(tensor.data, quantize(stored(values), target).data)
        with pytest.raises(CheckpointError, match="w: row 7 holds"):
            packer.matrix([tensor])


@pytest.mark.parametrize("target", ["q8_0", "q4_1", FP8])
@pytest.mark.parametrize("isa", ISAS)
def test_what_cannot_be_rounded_is_named(isa, target):
    packer = NativePacker(library(isa), team(isa))
    damaged = weights()
    damaged[3, 5] = np.nan
    with pytest.raises(CheckpointError, match="w: row 3 holds a NaN"):
        packer.quantize(stored(damaged), target)
    with pytest.raises(CheckpointError, match=r"w: cannot round \(40, 150\)"):
        packer.quantize(stored(np.ascontiguousarray(weights()[:, :150])), target)
    with pytest.raises(CheckpointError, match="w: cannot round"):
        packer.quantize(packer.quantize(stored(weights()), "q8_0"), target)
    if target == FP8:
        return  # its scales are float32
    huge = weights()
    huge[7, 3], huge[7, 4] = 3e38, -3e38  # no float16 holds the scale: found when the blocks are packed
    with pytest.raises(CheckpointError, match="w: row 7 holds"):
        packer.matrix([packer.quantize(stored(huge), target)])


def test_which_matrix_gets_what():
    assert target_format("int8", "layers.3.mlp.down", 64) == INT8
    assert target_format("int8", "head", 128) == INT8
    assert target_format("int8", "layers.3.mlp.down", 96) == "q8_0"
    assert target_format("int8", "layers.3.mlp.down", 100) is None
    assert target_format("int4", "layers.3.mlp.down", 64) == STEPPED
    assert target_format("int4", "layers.3.mlp.down", 96) == "q4_1"
    assert target_format("int4", "embed", 64) == INT8
    assert target_format("fp8", "layers.0.mixer.qkv", 96) == FP8
    assert target_format("int4", "head", 96) == "q8_0"
    assert target_format("int4", "layers.0.mixer.qkv", 48) is None
