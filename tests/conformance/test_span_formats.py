"""The formats of quantized checkpoints on every instruction set: against codes, scales and zero points taken singly."""

import numpy as np
import pytest

from octavo.errors import CheckpointError
from octavo.kernels.cpu.structs import Coding, Opcode
from octavo.ops.weight import StoredTensor
from octavo.quantization.format import FORMATS
from octavo.quantization.gguf_blocks import dequantize, first_invalid_row
from octavo.quantization.span_rows import in_order
from tests.conformance.matrices import CODED_ISAS, buffer, inputs_of, linear, machine_of, run
from tests.conformance.spans import SPAN_FORMATS, random_spans
from tests.conformance.test_linear_coded import SPAN, rounded

# Every format's codes, and every span, scale and order, but not all of their combinations.
SOME = tuple(
    name
    for index, name in enumerate(SPAN_FORMATS)
    if index % 4 == 0 or name in ("e4m3_row_f32", "int4_g128_f16", "int4z_g128_f16", "int8z_g64_bf16")
)
CODED = tuple(name for name in SOME if not name.startswith("e4m3"))
DAMAGE = {"f16": 0x7C01, "bf16": 0x7F80, "f32": 0x7F800000, "shared": 0x7FC00000}


@pytest.fixture(scope="module", params=CODED_ISAS)
def machine(request):
    with machine_of(request.param) as made:
        yield made


def assert_close(actual, x, values):
    """Within a few roundings of float32 for each product that is summed."""
    weight, exact = values.astype(np.float64), x.astype(np.float64)
    size = np.abs(exact) @ (np.abs(weight).T + np.abs(weight).max())
    assert np.all(np.abs(actual - exact @ weight.T) <= 1e-6 * size)


def test_all_kinds_are_tried():
    kinds = [FORMATS[name].spans for name in SOME]
    for part in ("codes", "inputs", "scale", "ordered"):
        assert {getattr(k, part) for k in kinds} == {getattr(FORMATS[n].spans, part) for n in SPAN_FORMATS}


@pytest.mark.parametrize("format", SPAN_FORMATS)
def test_numpy_reads_the_values(format):
    made = random_spans(format, 21, 384)
    read = in_order(dequantize(format, made.stored.data, made.stored.shape), made.stored.order)
    np.testing.assert_array_equal(read, made.values)


@pytest.mark.parametrize("format", SOME)
def test_packing_loses_nothing(machine, format):
    made = random_spans(format, 37, 384)
    weight = machine.packer.matrix([made.stored])
    assert weight.segments[0].data.nbytes <= 1.01 * (made.stored.data.nbytes * 48 / 37 + 4 * 384 + 64)
    ids = np.random.default_rng(1).permutation(37).astype(np.int32)
    out = buffer((37, 384))
    run(machine, machine.teams[1], Opcode.EMBED, weight, (out, out), 37, ids=ids)
    np.testing.assert_array_equal(out, made.values[ids])


@pytest.mark.parametrize("format", SOME)
@pytest.mark.parametrize(("rows", "cols"), [(1, 128), (75, 768), (130, 1408)])
def test_linear_is_the_product(machine, format, rows, cols):
    made = random_spans(format, rows, cols)
    weight = machine.packer.matrix([made.stored])
    for tokens in (1, 2, 5, 33):
        x = inputs_of(tokens, cols)
        assert_close(linear(machine, machine.teams[1], weight, x), x, made.values)


@pytest.mark.parametrize("coding", [Coding.INT8, Coding.INT16])
@pytest.mark.parametrize("format", CODED)
def test_the_product_of_rounded_inputs(machine, format, coding):
    made = random_spans(format, 75, 640)
    weight = machine.packer.matrix([made.stored])
    for tokens in (1, 3, 7, 40):
        x = inputs_of(tokens, 640)
        x = x if made.stored.order is None else x[:, np.argsort(made.stored.order)]
        taken = x if made.stored.order is None else x[:, made.stored.order]
        whole = coding == Coding.INT8 and format.startswith("int8_row")
        expected = rounded(taken, coding, 640 if whole else SPAN[coding])
        values = made.values if made.stored.order is None else made.values[:, made.stored.order]
        assert_close(linear(machine, machine.teams[1], weight, x, coding=coding), expected, values)


@pytest.mark.parametrize("format", [name for name in SOME if name.startswith("e4m3")])
def test_floats_of_8_bits_take_no_rounded_inputs(machine, format):
    weight = machine.packer.matrix([random_spans(format, 75, 640).stored])
    for tokens in (1, 20):
        x = inputs_of(tokens, 640)
        exact = linear(machine, machine.teams[0], weight, x)
        for coding in (Coding.INT8, Coding.INT16):
            np.testing.assert_array_equal(linear(machine, machine.teams[0], weight, x, coding=coding), exact)


@pytest.mark.parametrize("format", ["int4z_g32_f32", "int8z_row_bf16", "int8_row_f32", "e4m3_g32_f32"])
@pytest.mark.parametrize("cols", [32, 96, 224])
def test_few_inputs(machine, format, cols):
    made = random_spans(format, 35, cols)
    weight = machine.packer.matrix([made.stored])
    for tokens in (1, 3):
        x = inputs_of(tokens, cols)
        assert_close(linear(machine, machine.teams[0], weight, x), x, made.values)


@pytest.mark.parametrize("format", ["int4_g64_bf16_ordered", "int4z_g128_f16", "int8z_g32_f16", "e4m3_g128_shared"])
@pytest.mark.parametrize("coding", list(Coding))
def test_bits_depend_on_nothing_but_the_row(machine, format, coding):
    weight = machine.packer.matrix([random_spans(format, 211, 768).stored])
    x = inputs_of(150, 768)
    expected = linear(machine, machine.teams[0], weight, x, coding=coding)
    for tokens in (1, 2, 5, 11, 33, 61, 150):
        for team in machine.teams:
            actual = linear(machine, team, weight, x[-tokens:], coding=coding)
            np.testing.assert_array_equal(actual.view(np.uint32), expected[-tokens:].view(np.uint32))


@pytest.mark.parametrize("tokens", [1, 4, 70])
def test_segments_of_unlike_orders(machine, tokens):
    """Each takes the inputs in its own order; bias and residual come to the right columns."""
    kinds = [("int4_g128_f16_ordered", 83), ("int4_g128_f16_ordered", 19), ("int8_row_f32", 32)]
    kinds += [("int4z_g64_f16_ordered", 7), ("e4m3_g64_f32", 64)]
    made = [random_spans(name, rows, 512, seed) for seed, (name, rows) in enumerate(kinds)]
    weight = machine.packer.matrix([part.stored for part in made])
    values = np.concatenate([part.values for part in made])
    rng = np.random.default_rng(3)
    bias = rng.standard_normal(weight.shape[0], np.float32)
    x = inputs_of(tokens, 512)
    for team in machine.teams:
        plain = linear(machine, team, weight, x)
        assert_close(plain, x, values)
        inputs, out = buffer(x.shape), buffer(plain.shape)
        inputs[:] = x
        out[:] = residual = rng.standard_normal(plain.shape, np.float32)
        run(machine, team, Opcode.LINEAR, weight, (inputs, out), tokens, bias=bias, residual=1)
        np.testing.assert_array_equal(out, plain + bias + residual)


@pytest.mark.parametrize("format", SOME)
def test_damaged_scales_are_found(machine, format):
    """The first damaged row is named, whichever of its scales it is; and the code of a NaN."""
    made, spans = random_spans(format, 90, 256), FORMATS[format].spans
    rows = made.stored.data.copy().reshape(90, -1)
    last = rows.shape[1] - (spans.count(256) if spans.zeros else 0)
    width = 4 if spans.scale in ("f32", "shared") else 2
    places = [(71, 256 * spans.bits // 8), (33, last - width)]
    for row, at in places:
        rows[row, at : at + width] = np.frombuffer(DAMAGE[spans.scale].to_bytes(width, "little"), np.uint8)
        refuse(machine, made.stored, rows, row)
    if spans.codes == "e4m3":
        rows[12, 255] = 0xFF
        refuse(machine, made.stored, rows, 12)


def refuse(machine, stored, rows, row):
    damaged = StoredTensor("layers.0.weight", stored.format, stored.shape, rows.reshape(-1), order=stored.order)
    assert first_invalid_row(damaged) == row
    with pytest.raises(CheckpointError, match=f"layers.0.weight.*row {row} "):
        machine.packer.matrix([damaged])


def test_every_float_of_8_bits(machine):
    """All codes, with and without exponents, alone in a row of like ones."""
    codes = np.array([code for code in range(256) if code & 127 != 127], np.uint8)
    rows = np.concatenate([np.repeat(codes[:, None], 32, axis=1), np.ones((254, 4), np.uint8)], axis=1)
    rows[:, 32:] = np.frombuffer(np.float32(1).tobytes(), np.uint8)
    stored = StoredTensor("weight", "e4m3_row_f32", (254, 32), rows.reshape(-1))
    weight = machine.packer.matrix([stored])
    x = np.zeros((3, 32), np.float32)
    x[0, 0], x[1, 5], x[2, 31] = 1, 1, 1
    expected = dequantize("e4m3_row_f32", stored.data, (254, 32))[:, 0]
    for tokens in (1, 3):
        actual = linear(machine, machine.teams[0], weight, x[:tokens])
        np.testing.assert_array_equal(actual, np.tile(expected, (tokens, 1)))
