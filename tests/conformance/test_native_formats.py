"""Every weight format of the native library against the gguf package, on every instruction set this machine runs."""

from collections.abc import Iterator

import numpy as np
import pytest

from octavo.errors import CheckpointError
from octavo.kernels.cpu.structs import Opcode, format_code
from octavo.ops.weight import StoredTensor
from tests.conformance.matrices import (
    BLOCK_FORMATS,
    DENSE_FORMATS,
    DENSE_ISAS,
    FORMATS,
    HALVES,
    Machine,
    assert_close,
    buffer,
    inputs_of,
    linear,
    machine_of,
    random_source,
    run,
    values_of,
)


@pytest.fixture(scope="module", params=DENSE_ISAS)
def machine(request: pytest.FixtureRequest) -> Iterator[Machine]:
    with machine_of(request.param) as made:
        yield made


def test_there_is_a_library() -> None:
    """Without one, everything below would have no parameters and prove nothing."""
    assert DENSE_ISAS


@pytest.mark.parametrize("format", FORMATS)
def test_packing_loses_nothing(machine: Machine, format: str) -> None:
    """Every value of the packed table, read back by embed, is the one the gguf package reads, to the bit."""
    stored = random_source(format, 37, 768)
    weight = machine.packer.matrix([stored])
    ids = np.random.default_rng(1).permutation(37).astype(np.int32)
    out = buffer((37, 768))
    run(machine, machine.teams[1], Opcode.EMBED, weight, (out, out), 37, ids=ids)
    np.testing.assert_array_equal(out, values_of(stored)[ids])


@pytest.mark.parametrize("format", BLOCK_FORMATS)
def test_packed_blocks_stay_small(machine: Machine, format: str) -> None:
    stored = random_source(format, 160, 1536)
    packed = machine.packer.packed_bytes(format, 160, 1536)
    assert packed <= 1.04 * stored.data.nbytes


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(("rows", "cols"), [(1, 256), (16, 256), (75, 768), (130, 1536)])
def test_linear_is_the_product(machine: Machine, format: str, rows: int, cols: int) -> None:
    stored = random_source(format, rows, cols)
    weight = machine.packer.matrix([stored])
    for tokens in (1, 2, 5, 33):
        x = inputs_of(tokens, cols)
        assert_close(linear(machine, machine.teams[1], weight, x), x, [stored])


@pytest.mark.parametrize("format", ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "iq4_nl", "mxfp4"])
@pytest.mark.parametrize("cols", [32, 96, 224])
def test_few_blocks(machine: Machine, format: str, cols: int) -> None:
    stored = random_source(format, 35, cols)
    weight = machine.packer.matrix([stored])
    for tokens in (1, 3):
        x = inputs_of(tokens, cols)
        assert_close(linear(machine, machine.teams[0], weight, x), x, [stored])


@pytest.mark.parametrize("format", DENSE_FORMATS)
@pytest.mark.parametrize("cols", [1, 2, 31, 65, 257, 641, 1283])
def test_dense_widths(machine: Machine, format: str, cols: int) -> None:
    stored = random_source(format, 35, cols)
    weight = machine.packer.matrix([stored])
    for tokens in (1, 3, 19):
        x = inputs_of(tokens, cols)
        assert_close(linear(machine, machine.teams[0], weight, x), x, [stored])
    out = buffer((3, cols))
    ids = np.array([34, 0, 16], np.int32)
    run(machine, machine.teams[0], Opcode.EMBED, weight, (out, out), 3, ids=ids)
    np.testing.assert_array_equal(out, values_of(stored)[ids])


@pytest.mark.parametrize("format", FORMATS)
def test_bits_depend_on_nothing_but_the_row(machine: Machine, format: str) -> None:
    """The same row gives the same bits alone and in any batch, on any number of threads."""
    weight = machine.packer.matrix([random_source(format, 211, 768)])
    x = inputs_of(200, 768)
    expected = linear(machine, machine.teams[0], weight, x)
    alone = np.concatenate([linear(machine, machine.teams[0], weight, x[t : t + 1]) for t in range(0, 200, 7)])
    np.testing.assert_array_equal(alone.view(np.uint32), expected[::7].view(np.uint32))
    for tokens in (1, 2, 5, 11, 33, 61, 200):
        for team in machine.teams:
            actual = linear(machine, team, weight, x[-tokens:])
            np.testing.assert_array_equal(actual.view(np.uint32), expected[-tokens:].view(np.uint32))


@pytest.mark.parametrize("format", DENSE_FORMATS)
@pytest.mark.parametrize("cols", [601, 1283])
def test_dense_bits_whatever_the_tiles(machine: Machine, format: str, cols: int) -> None:
    """Rows in tiles of every height, in one and in three blocks; one group of inputs and three; strips cut short."""
    weight = machine.packer.matrix([random_source(format, 181, cols), random_source(format, 37, cols)])
    bias = np.random.default_rng(1).standard_normal(weight.shape[0], np.float32)
    x = inputs_of(590, cols)
    expected = linear(machine, machine.teams[0], weight, x, bias)
    alone = np.concatenate([linear(machine, machine.teams[1], weight, x[t : t + 1], bias) for t in range(0, 590, 31)])
    np.testing.assert_array_equal(alone.view(np.uint32), expected[::31].view(np.uint32))
    for tokens in (3, 4, 6, 7, 8, 9, 10, 13, 14, 15, 24, 29, 281, 590):
        actual = linear(machine, machine.teams[tokens % 3], weight, x[-tokens:], bias)
        np.testing.assert_array_equal(actual.view(np.uint32), expected[-tokens:].view(np.uint32))


@pytest.mark.parametrize("tokens", [1, 5, 70])
def test_segments_bias_and_residual(machine: Machine, tokens: int) -> None:
    """Segments of unlike formats stand side by side; then the bias is added, then the residual, in place."""
    stored = [
        random_source(format, rows, 512, seed)
        for seed, (format, rows) in enumerate([("q6_k", 83), ("q4_1", 19), ("bf16", 32), ("q2_k", 7), ("f16", 64)])
    ]
    weight = machine.packer.matrix(stored)
    rng = np.random.default_rng(3)
    bias = rng.standard_normal(weight.shape[0], np.float32)
    x = inputs_of(tokens, 512)
    for team in machine.teams:
        plain = linear(machine, team, weight, x)
        assert_close(plain, x, stored)
        np.testing.assert_array_equal(linear(machine, team, weight, x, bias), plain + bias)
        inputs, out = buffer(x.shape), buffer(plain.shape)
        inputs[:] = x
        out[:] = residual = rng.standard_normal(plain.shape, np.float32)
        run(machine, team, Opcode.LINEAR, weight, (inputs, out), tokens, bias=bias, residual=1)
        np.testing.assert_array_equal(out, plain + bias + residual)


def test_tables_of_two_segments(machine: Machine) -> None:
    stored = [random_source("q8_0", 21, 64), random_source("f16", 40, 64)]
    weight = machine.packer.matrix(stored)
    ids = np.array([0, 20, 21, 60, 37], np.int32)
    out = buffer((5, 64))
    run(machine, machine.teams[0], Opcode.EMBED, weight, (out, out), 5, ids=ids)
    np.testing.assert_array_equal(out, np.concatenate([values_of(part) for part in stored])[ids])


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("poison", ["nan", "inf"])
def test_damaged_rows_are_found(machine: Machine, format: str, poison: str) -> None:
    """The first damaged row is named, whichever number of a block is damaged."""
    stored = random_source(format, 300, 256)
    machine.packer.matrix([stored])
    rows = stored.data.copy().reshape(300, -1)
    width = 4 if format == "f32" else 2
    mask = {"f32": 0x7F800000, "bf16": 0x7F80}.get(format, 0x7C00) | (poison == "nan")
    pattern = np.frombuffer(int(mask).to_bytes(width, "little"), np.uint8)
    offsets = (0, 252) if format in DENSE_FORMATS else HALVES[format]
    if format == "mxfp4":
        offsets, width, pattern = (0,), 1, np.array([255], np.uint8)
    for row, offset in zip((251, 131), (*offsets, *offsets), strict=False):
        rows[row, offset : offset + width] = pattern
        damaged = StoredTensor("blk.0.weight", format, stored.shape, rows.reshape(-1))
        with pytest.raises(CheckpointError, match=f"blk.0.weight.*row {row} "):
            machine.packer.matrix([damaged])


def test_sizes_that_do_not_fit(machine: Machine) -> None:
    call = machine.library.call
    for format, block in (("q4_0", 32), ("q6_k", 256)):
        assert call.octavo_source_bytes(format_code(format), 3, block + 1) == -2
        assert call.octavo_packed_bytes(format_code(format), 3, block - 1) == -2
    for unknown in (-1, 21, 99, 15 + 4096 * 6, 16 + 256 * 3):
        assert call.octavo_source_bytes(unknown, 1, 256) == -1
        assert call.octavo_packed_bytes(unknown, 1, 256) == -1
        assert call.octavo_pack(machine.teams[0].handle, unknown, None, 1, 256, None) == -1
