"""Products whose inputs are rounded to 8 or 16 bits, against the same rounding done here, on every instruction set."""

from collections.abc import Iterator

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from octavo.kernels.cpu.program import NativeProgram, ProgramLimits
from octavo.kernels.cpu.recorder import ProgramRecorder
from octavo.kernels.cpu.step import NativeStep
from octavo.kernels.cpu.structs import Coding, Opcode
from tests.conformance.matrices import (
    BLOCK_FORMATS,
    CODED_ISAS,
    DENSE_FORMATS,
    HALVES,
    Floats,
    Machine,
    assert_close,
    buffer,
    inputs_of,
    linear,
    machine_of,
    random_source,
    run,
)

LARGEST = {Coding.INT8: 127, Coding.INT16: 32767}
SPAN = {Coding.INT8: 32, Coding.INT16: 128}  # inputs that share a scale
CODINGS = pytest.mark.parametrize("coding", list(SPAN))
LEGACY = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "iq4_nl", "mxfp4")


@pytest.fixture(scope="module", params=CODED_ISAS)
def machine(request: pytest.FixtureRequest) -> Iterator[Machine]:
    with machine_of(request.param) as made:
        yield made


def rounded(x: Floats, coding: Coding, span: int = 0) -> Floats:
    """x as codes times the scale of their span, or of `span` inputs: what linear_quantize.h says."""
    span = span or SPAN[coding]
    largest, parts = np.float32(LARGEST[coding]), []
    for start in range(0, x.shape[1], span):
        part = x[:, start : start + span]
        most = np.abs(part).max(axis=1, keepdims=True)
        inverse = np.divide(largest, most, out=np.zeros_like(most), where=most > 0)
        parts.append(np.rint(part * inverse) * (most / largest))
    return np.concatenate(parts, axis=1)


@CODINGS
@pytest.mark.parametrize("format", BLOCK_FORMATS)
@pytest.mark.parametrize(("rows", "cols"), [(1, 256), (16, 512), (75, 768), (130, 1280)])
def test_the_product_of_rounded_inputs(machine: Machine, coding: Coding, format: str, rows: int, cols: int) -> None:
    stored = random_source(format, rows, cols)
    weight = machine.packer.matrix([stored])
    for tokens in (1, 2, 3, 4, 7, 73):
        x = inputs_of(tokens, cols)
        assert_close(linear(machine, machine.teams[1], weight, x, coding=coding), rounded(x, coding), [stored])


@CODINGS
@pytest.mark.parametrize("format", LEGACY)
@pytest.mark.parametrize("cols", [32, 96, 224, 288])
def test_few_blocks(machine: Machine, coding: Coding, format: str, cols: int) -> None:
    stored = random_source(format, 35, cols)
    weight = machine.packer.matrix([stored])
    for tokens in (1, 3, 19):
        x = inputs_of(tokens, cols)
        assert_close(linear(machine, machine.teams[0], weight, x, coding=coding), rounded(x, coding), [stored])


@CODINGS
@pytest.mark.parametrize("format", BLOCK_FORMATS)
@pytest.mark.parametrize("byte", [0x80, 0xFF, 0x77])
def test_largest_numbers_do_not_overflow(machine: Machine, coding: Coding, format: str, byte: int) -> None:
    """All inputs and all codes equal, as large as they can be: sums of pairs reach what 16 bits hold."""
    stored = random_source(format, 24, 256)
    blocks = stored.data.reshape(24 * 256 // GGML_QUANT_SIZES[GGMLQuantizationType[format.upper()]][0], -1)
    kept = {at: blocks[:, at].copy() for offset in HALVES[format] for at in (offset, offset + 1)}
    blocks[:] = byte
    for at, values in (kept or {0: np.full(len(blocks), 120, np.uint8)}).items():  # mxfp4: an exponent
        blocks[:, at] = values
    weight = machine.packer.matrix([stored])
    for tokens in (1, 9):
        x = np.full((tokens, 256), -3.0, np.float32)
        assert_close(linear(machine, machine.teams[0], weight, x, coding=coding), rounded(x, coding), [stored])


@CODINGS
@pytest.mark.parametrize("format", DENSE_FORMATS)
def test_dense_formats_stay_exact(machine: Machine, coding: Coding, format: str) -> None:
    weight = machine.packer.matrix([random_source(format, 35, 65)])
    x = inputs_of(5, 65)
    np.testing.assert_array_equal(
        linear(machine, machine.teams[0], weight, x, coding=coding), linear(machine, machine.teams[0], weight, x)
    )


@CODINGS
@pytest.mark.parametrize("format", BLOCK_FORMATS)
def test_bits_depend_on_nothing_but_the_row(machine: Machine, coding: Coding, format: str) -> None:
    """The same row gives the same bits alone and in any batch, on any number of threads."""
    weight = machine.packer.matrix([random_source(format, 211, 768)])
    x = inputs_of(150, 768)
    expected = linear(machine, machine.teams[0], weight, x, coding=coding)
    alone = np.concatenate([linear(machine, machine.teams[0], weight, x[t : t + 1], coding=coding) for t in range(20)])
    np.testing.assert_array_equal(alone.view(np.uint32), expected[:20].view(np.uint32))
    for tokens in (2, 3, 4, 5, 11, 33, 61, 150):
        for team in machine.teams:
            actual = linear(machine, team, weight, x[-tokens:], coding=coding)
            np.testing.assert_array_equal(actual.view(np.uint32), expected[-tokens:].view(np.uint32))


@CODINGS
@pytest.mark.parametrize("tokens", [1, 5, 70])
def test_segments_bias_and_residual(machine: Machine, coding: Coding, tokens: int) -> None:
    """Segments that need unlike preparations of one input stand side by side."""
    kinds = [("q6_k", 83), ("q4_1", 19), ("bf16", 32), ("q2_k", 7), ("q8_0", 16), ("q3_k", 40), ("q4_0", 5)]
    stored = [random_source(format, rows, 512, seed) for seed, (format, rows) in enumerate(kinds)]
    weight = machine.packer.matrix(stored)
    rng = np.random.default_rng(3)
    bias = rng.standard_normal(weight.shape[0], np.float32)
    x = inputs_of(tokens, 512)
    for team in machine.teams:
        plain = linear(machine, team, weight, x, coding=coding)
        start = 0
        for part in stored:
            part_x = x if part.format == "bf16" else rounded(x, coding)
            assert_close(plain[:, start : start + part.shape[0]], part_x, [part])
            start += part.shape[0]
        inputs, out = buffer(x.shape), buffer(plain.shape)
        inputs[:] = x
        out[:] = residual = rng.standard_normal(plain.shape, np.float32)
        run(machine, team, Opcode.LINEAR, weight, (inputs, out), tokens, bias=bias, residual=1, coding=coding)
        np.testing.assert_array_equal(out, plain + bias + residual)


@CODINGS
@pytest.mark.parametrize("tokens", [1, 3, 70])
def test_one_matrix_a_head_is_the_same_arithmetic(machine: Machine, coding: Coding, tokens: int) -> None:
    heads = [random_source(format, 35, 96, seed) for seed, format in enumerate(("q8_0", "q4_1", "iq4_nl"))]
    x = inputs_of(tokens, 3 * 100)
    recorder = ProgramRecorder(machine.library, coding=coding)
    given = recorder.input(x.shape[1])
    out = recorder.head_linear(given, machine.packer.matrix(heads))
    program = NativeProgram(machine.library, machine.teams[1], recorder.instructions, ProgramLimits(tokens, 1))
    program.view(given, tokens)[:] = x
    step = NativeStep(1)
    zeros = np.zeros(tokens, np.int32)
    step.set_tokens(zeros, zeros, np.array([0, tokens], np.int32), zeros[:1])
    program.run(step)
    actual = program.view(out, tokens)
    for head, stored in enumerate(heads):
        own = np.ascontiguousarray(x[:, 100 * head : 100 * head + 96])
        expected = linear(machine, machine.teams[0], machine.packer.matrix([stored]), own, coding=coding)
        np.testing.assert_array_equal(actual[:, 35 * head : 35 * (head + 1)], expected)


@CODINGS
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_not_finite_shows_it(machine: Machine, coding: Coding, poison: float) -> None:
    """Its results are all NaN; its neighbours keep their bits."""
    weight = machine.packer.matrix([random_source("q4_k", 40, 512)])
    for tokens in (3, 20):
        x = inputs_of(tokens, 512)
        clean = linear(machine, machine.teams[0], weight, x, coding=coding)
        x[1, 300] = poison
        actual = linear(machine, machine.teams[0], weight, x, coding=coding)
        assert np.isnan(actual[1]).all()
        np.testing.assert_array_equal(np.delete(actual, 1, axis=0), np.delete(clean, 1, axis=0))


@CODINGS
@pytest.mark.parametrize("size", [0.0, 1e-38, 1e-30, 1e30])
def test_zero_and_extreme_inputs(machine: Machine, coding: Coding, size: float) -> None:
    """Units too small to be divided by count as zero; nothing overflows on the way."""
    stored = random_source("q8_0", 40, 64)
    weight = machine.packer.matrix([stored])
    x = (inputs_of(2, 64) * np.float32(size)).astype(np.float32)
    x[:, 32:] = 1.0
    kept = x.copy()
    if size < 1e-30:
        kept[:, :32] = 0.0
    assert_close(linear(machine, machine.teams[0], weight, x, coding=coding), rounded(kept, coding), [stored])


def test_the_probe_of_the_peak_counts_what_it_does(machine: Machine) -> None:
    call = machine.library.call
    for team in machine.teams:
        floats = call.octavo_multiply(team.handle, 0, 50)
        assert floats > 0
        assert call.octavo_multiply(team.handle, 0, 100) == 2 * floats
        assert call.octavo_multiply(team.handle, 1, 50) == 4 * floats
