"""A product and its gate in one instruction: the bits of one after the other, on every build and number of rows."""

from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from octavo.kernels.cpu.program import NativeProgram, ProgramLimits
from octavo.kernels.cpu.recorder import ProgramRecorder
from octavo.kernels.cpu.step import NativeStep
from octavo.kernels.cpu.structs import Coding, Opcode
from octavo.ops.conformance import numbers, stored
from octavo.ops.weight import PackedWeight, StoredTensor
from octavo.spec.decoder import Activation
from tests.conformance.matrices import CODED_ISAS, Floats, Machine, machine_of
from tests.conformance.spans import SPAN_FORMATS, random_spans

DEPTH = 1280  # of K formats whole blocks, of dense ones more than one group
MOST = 70
# Few rows, the fewest that are many, whole tiles and not, blocks of several tiles.
ROWS = (1, 2, 5, 9, 20, 33, MOST)
FORMATS: tuple[tuple[str, ...], ...] = (
    ("f32", "f32"),
    ("f16", "f16"),
    ("bf16", "bf16"),
    ("q8_0", "q8_0"),
    ("q4_1", "q4_1"),
    ("q4_k", "q4_k"),
    ("q6_k", "q6_k"),
    ("bf16",),
    ("q8_0",),
    ("q4_0", "q8_0"),  # each with its own kernels
    ("bf16", "q8_0"),
    ("int8_row_f32", "int8_row_f32"),
    ("int8_row_f32_rotated", "int8_row_f32_rotated"),
    ("int8_row_f32_rotated",),
    ("int4s_row_f32_rotated", "int4s_row_f32_rotated"),
    ("int4s_row_f32_rotated",),
    ("int4s_row_f32_rotated", "q4_1"),
    ("int8_row_f32", "int8_row_f32_rotated"),  # each with its own inputs
    ("int4z_g128_f16", "int4z_g128_f16"),
    ("e4m3_g128_shared", "e4m3_g128_shared"),
    ("int4_g64_bf16_ordered", "int4_g64_bf16_ordered"),
)


@pytest.fixture(scope="module", params=CODED_ISAS)
def machine(request: pytest.FixtureRequest) -> Iterator[Machine]:
    with machine_of(request.param) as made:
        yield made
        made.library.call.octavo_bf16_force(-1)


def weight_of(machine: Machine, formats: Sequence[str], width: int) -> PackedWeight:
    rows = 2 * width // len(formats)
    return machine.packer.matrix([source_of(format, rows, 7 + at) for at, format in enumerate(formats)])


def source_of(format: str, rows: int, seed: int) -> StoredTensor:
    spans = format in SPAN_FORMATS or format.endswith("_rotated")
    return random_spans(format, rows, DEPTH, seed).stored if spans else stored(format, rows, DEPTH, seed)


def step_of(tokens: int) -> NativeStep:
    step, positions = NativeStep(1), np.arange(tokens, dtype=np.int32)
    step.set_tokens(positions, positions, np.array([0, tokens], np.int32), np.zeros(1, np.int32))
    return step


def results(
    machine: Machine,
    weight: PackedWeight,
    x: Floats,
    coding: Coding = Coding.EXACT,
    bias: Floats | None = None,
    kind: Activation = "silu",
) -> Iterator[tuple[int, Floats, Floats]]:
    """(rows, in one instruction, one after the other) for all ROWS, with one, two and three threads in turn."""
    recorder = ProgramRecorder(machine.library, coding=coding)
    inputs = recorder.input(x.shape[1])
    gated = recorder.act_mul(recorder.linear(inputs, weight, bias), kind)
    limits = ProgramLimits(MOST, MOST)
    for turn, rows in enumerate(ROWS):
        team, found = machine.teams[turn % len(machine.teams)], []
        for fused in (True, False):
            program = NativeProgram(machine.library, team, recorder.instructions, limits, fused=fused)
            assert len(program.instructions) == (1 if fused else 2)
            assert program.instructions[0].opcode is (Opcode.GATED_LINEAR if fused else Opcode.LINEAR)
            program.view(gated, rows)[:] = np.nan
            program.view(inputs, rows)[:] = x[:rows]
            program.run(step_of(rows))
            found.append(program.view(gated, rows).copy())
        yield rows, found[0], found[1]


def assert_same(rows: int, one: Floats, other: Floats) -> None:
    assert one.shape == other.shape
    assert one.shape[0] == rows
    np.testing.assert_array_equal(one.view(np.int32), other.view(np.int32))


@pytest.mark.parametrize("coding", list(Coding))
@pytest.mark.parametrize("formats", FORMATS, ids="+".join)
def test_gates_have_the_bits_of_product_and_activation(
    machine: Machine, formats: tuple[str, ...], coding: Coding
) -> None:
    x = numbers(1, MOST, DEPTH)
    for width, bias in ((48, None), (112, numbers(2, 224)), (40, None)):  # 40: panels that both share
        weight = weight_of(machine, formats, width)
        for rows, one, other in results(machine, weight, x, coding, bias):
            assert np.isfinite(other).all()
            assert_same(rows, one, other)


@pytest.mark.parametrize("kind", ["silu", "gelu", "gelu_tanh", "relu", "relu2", "quick_gelu"])
def test_every_activation(machine: Machine, kind: Activation) -> None:
    weight = weight_of(machine, ("bf16", "bf16"), 32)
    for rows, one, other in results(machine, weight, numbers(3, MOST, DEPTH), kind=kind):
        assert_same(rows, one, other)


@pytest.mark.parametrize("way", [0, 1])
def test_gates_of_bf16_keep_numbers_that_its_products_flush(machine: Machine, way: int) -> None:
    machine.library.call.octavo_bf16_force(way)
    weight = weight_of(machine, ("bf16", "bf16"), 32)
    small = 0
    for rows, one, other in results(machine, weight, numbers(4, MOST, DEPTH) * np.float32(3e-20)):
        assert_same(rows, one, other)
        small += int(((other != 0) & (np.abs(other) < 2.0**-126)).sum())
    machine.library.call.octavo_bf16_force(-1)
    assert small > 0


@pytest.mark.parametrize("coding", list(Coding))
@pytest.mark.parametrize("format", ["bf16", "q8_0", "int8_row_f32_rotated"])
def test_a_row_that_is_no_number_spoils_no_other(machine: Machine, format: str, coding: Coding) -> None:
    weight = weight_of(machine, (format, format), 48)
    clean = numbers(5, MOST, DEPTH)
    spoilt = clean.copy()
    spoilt[1, 3] = np.nan
    spoilt[4, 9] = np.inf
    for (rows, one, other), (_, expected, _) in zip(
        results(machine, weight, spoilt, coding), results(machine, weight, clean, coding), strict=True
    ):
        keep = [row for row in range(rows) if row not in (1, 4)]
        np.testing.assert_array_equal(one[keep].view(np.int32), expected[keep].view(np.int32))
        assert all(not np.isfinite(one[row]).all() for row in (1, 4) if row < rows)
        assert_same(rows, np.isfinite(one).astype(np.float32), np.isfinite(other).astype(np.float32))
