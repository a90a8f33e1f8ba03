"""Products of 4-bit codes with steps and starts: the bits that integers give, on every instruction set."""

from collections.abc import Iterator

import numpy as np
import pytest

from octavo.kernels.cpu.structs import Coding, Opcode
from octavo.ops.weight import StoredTensor
from octavo.quantization.format import STEPPED
from octavo.quantization.gguf_blocks import dequantize
from octavo.quantization.span_rows import rotate
from octavo.quantization.stepped import read_stepped
from tests.conformance.matrices import CODED_ISAS, Floats, Machine, buffer, inputs_of, linear, machine_of, run
from tests.conformance.spans import random_spans

TOKENS = (1, 2, 3, 4, 5, 7, 12, 13, 20, 26, 27, 33, 73)


@pytest.fixture(scope="module", params=CODED_ISAS)
def machine(request: pytest.FixtureRequest) -> Iterator[Machine]:
    with machine_of(request.param) as made:
        yield made


def expected(stored: StoredTensor, x: Floats) -> Floats:
    """linear_rows.h and code_row.h in numpy: integers over the whole depth, and one closing."""
    numbers, scales = read_stepped(stored.data.reshape(stored.shape[0], -1), stored.shape[1])
    turned = rotate(x) * np.float32(8)
    most = np.abs(turned).max(axis=1, keepdims=True)
    inverse = np.divide(np.float32(127), most, out=np.zeros_like(most), where=most > 0)
    sums = np.rint(turned * inverse).astype(np.int64) @ numbers.T.astype(np.int64)
    return (most / np.float32(127) * np.float32(0.125)) * (scales * sums.astype(np.float32))


@pytest.mark.parametrize(("rows", "cols"), [(1, 64), (16, 192), (75, 640), (130, 1536)])
def test_the_product_is_that_of_integers(machine: Machine, rows: int, cols: int) -> None:
    stored = random_spans(STEPPED, rows, cols).stored
    weight = machine.packer.matrix([stored])
    for tokens in TOKENS:
        x = inputs_of(tokens, cols)
        x[0, cols // 3] = 60.0  # an outlier
        x[tokens // 2] *= np.float32(1e-3)
        for team in machine.teams:
            found = linear(machine, team, weight, x, coding=Coding.INT8)
            np.testing.assert_array_equal(found.view(np.uint32), expected(stored, x).view(np.uint32))


@pytest.mark.parametrize("byte", [0x00, 0xFF, 0xF0])
def test_largest_numbers_do_not_overflow(machine: Machine, byte: int) -> None:
    stored = random_spans(STEPPED, 20, 2048).stored
    rows = stored.data.reshape(20, -1)
    rows[:, :1024], rows[:, 1028:1092], rows[:, 1092:] = byte, 17, 128
    x = np.full((9, 2048), -3.0, np.float32)
    x[1::2] *= -1
    for tokens in (1, 9):
        found = linear(machine, machine.teams[0], machine.packer.matrix([stored]), x[:tokens], coding=Coding.INT8)
        np.testing.assert_array_equal(found.view(np.uint32), expected(stored, x[:tokens]).view(np.uint32))


@pytest.mark.parametrize("coding", [Coding.EXACT, Coding.INT16])
def test_finer_inputs_meet_the_same_numbers(machine: Machine, coding: Coding) -> None:
    stored = random_spans(STEPPED, 35, 320).stored
    numbers, scales = read_stepped(stored.data.reshape(35, -1), 320)
    weight = machine.packer.matrix([stored])
    for tokens in (1, 3, 19, 70):
        x = inputs_of(tokens, 320)
        wanted = rotate(x).astype(np.float64) @ (numbers * scales[:, None].astype(np.float64)).T
        found = linear(machine, machine.teams[1], weight, x, coding=coding)
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-4 * np.abs(wanted).max())


def test_rows_are_read_in_the_inputs_own_basis(machine: Machine) -> None:
    """Packing loses nothing: an embedding's rows are those that numpy reads."""
    stored = random_spans(STEPPED, 37, 384).stored
    weight = machine.packer.matrix([stored])
    ids = np.random.default_rng(1).permutation(37).astype(np.int32)
    out = buffer((37, 384))
    run(machine, machine.teams[1], Opcode.EMBED, weight, (out, out), 37, ids=ids)
    np.testing.assert_array_equal(out, dequantize(STEPPED, stored.data, stored.shape)[ids])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_row_that_is_not_finite_spoils_no_other(machine: Machine, bad: float) -> None:
    stored = random_spans(STEPPED, 33, 192).stored
    weight = machine.packer.matrix([stored])
    for tokens in (2, 3, 40):
        x = inputs_of(tokens, 192)
        clean = linear(machine, machine.teams[1], weight, x, coding=Coding.INT8)
        x[1, 77] = bad
        found = linear(machine, machine.teams[1], weight, x, coding=Coding.INT8)
        assert np.isnan(found[1]).all()
        np.testing.assert_array_equal(np.delete(found, 1, axis=0), np.delete(clean, 1, axis=0))
