"""Every weight format of the native library against the gguf package, on every instruction set this machine runs."""

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

from octavo.errors import CheckpointError
from octavo.kernels.cpu.allocate import aligned_bytes
from octavo.kernels.cpu.library import NativeLibrary, load_library, supported_isas
from octavo.kernels.cpu.packer import NativePacker
from octavo.kernels.cpu.structs import OctavoInstruction, OctavoProgram, OctavoSegment, OctavoStep, Opcode, format_code
from octavo.kernels.cpu.team import ThreadTeam
from octavo.ops.weight import PackedWeight, StoredTensor

Floats = NDArray[np.float32]

# Where each block keeps its f16 numbers; everything else in a block may be any bits.
HALVES = {
    "q4_0": (0,), "q4_1": (0, 2), "q5_0": (0,), "q5_1": (0, 2), "q8_0": (0,), "iq4_nl": (0,), "mxfp4": (),
    "q2_k": (80, 82), "q3_k": (108,), "q4_k": (0, 2), "q5_k": (0, 2), "q6_k": (208,),
}  # fmt: skip
BLOCK_FORMATS = tuple(HALVES)
DENSE_FORMATS = ("f32", "f16", "bf16")
FORMATS = DENSE_FORMATS + BLOCK_FORMATS
ISAS = supported_isas()


@dataclass(frozen=True, slots=True)
class Machine:
    """One library with teams of one, two and three threads."""

    library: NativeLibrary
    teams: tuple[ThreadTeam, ...]

    @property
    def packer(self) -> NativePacker:
        """Packs on the largest team."""
        return NativePacker(self.library, self.teams[-1])


@pytest.fixture(scope="module", params=ISAS)
def machine(request: pytest.FixtureRequest) -> Iterator[Machine]:
    library = load_library(request.param)
    teams = tuple(ThreadTeam(library, threads) for threads in (1, 2, 3))
    yield Machine(library, teams)
    for team in teams:
        team.close()


def random_source(format: str, rows: int, cols: int, seed: int = 0) -> StoredTensor:
    """A matrix with every code, scale and min at random."""
    rng = np.random.default_rng([seed, rows, cols, FORMATS.index(format)])
    if format in DENSE_FORMATS:
        values = rng.standard_normal((rows, cols), np.float32)
        data = {"f32": values, "f16": values.astype(np.float16), "bf16": (values.view(np.uint32) >> 16).astype("<u2")}
        return StoredTensor("weight", format, (rows, cols), data[format].view(np.uint8).reshape(-1))
    block, size = GGML_QUANT_SIZES[GGMLQuantizationType[format.upper()]]
    blocks = rng.integers(0, 256, (rows * cols // block, size), np.uint8)
    for offset in HALVES[format]:
        scales = rng.uniform(-0.05, 0.05, len(blocks)).astype(np.float16)
        blocks[:, offset : offset + 2] = scales[:, None].view(np.uint8)
    if format == "mxfp4":
        blocks[:, 0] = rng.integers(118, 128, len(blocks))
        blocks[0, 0] = rows % 2  # the two smallest scales are subnormal
    return StoredTensor("weight", format, (rows, cols), blocks.reshape(-1))


def values_of(stored: StoredTensor) -> Floats:
    """[rows, cols] as the gguf package reads them."""
    if stored.format == "bf16":
        return (stored.data.view(np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(stored.shape)
    rows = stored.data.reshape(stored.shape[0], -1)
    return dequantize(rows, GGMLQuantizationType[stored.format.upper()]).reshape(stored.shape)


def round_bf16(values: Floats) -> Floats:
    """To nearest even."""
    bits = values.view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16).astype(np.uint32).view(np.float32)


def run(
    machine: Machine,
    team: ThreadTeam,
    opcode: Opcode,
    weight: PackedWeight,
    buffers: Sequence[Floats],
    tokens: int,
    *,
    bias: Floats | None = None,
    residual: int = -1,
    out: int = 1,
    ids: NDArray[np.int32] | None = None,
) -> None:
    """One instruction on buffers[0], into buffers[out]."""
    segments = (OctavoSegment * len(weight.segments))()
    for segment, packed in zip(segments, weight.segments, strict=True):
        code = format_code(packed.format)
        assert code is not None
        assert isinstance(packed.data, np.ndarray)
        segment.format, segment.rows, segment.cols = code, packed.rows, weight.shape[1]
        segment.data = packed.data.ctypes.data
    code = OctavoInstruction(opcode=opcode, out=out, out2=-1, in0=0, in1=residual)
    code.width, code.depth = weight.shape if opcode == Opcode.LINEAR else (weight.shape[1], 0)
    code.i[1] = len(segments)
    code.p[0] = ctypes.addressof(segments)
    code.p[1] = None if bias is None else bias.ctypes.data
    pointers = (ctypes.c_void_p * len(buffers))(*(buffer.ctypes.data for buffer in buffers))
    program = OctavoProgram(ctypes.addressof(code), 1, len(buffers), ctypes.addressof(pointers), None)
    step = OctavoStep(tokens=tokens, token_ids=None if ids is None else ids.ctypes.data)
    machine.library.call.octavo_run(team.handle, ctypes.addressof(program), ctypes.addressof(step))


def linear(machine: Machine, team: ThreadTeam, weight: PackedWeight, x: Floats, bias: Floats | None = None) -> Floats:
    """x @ weight^T + bias."""
    inputs, out = buffer(x.shape), buffer((len(x), weight.shape[0]))
    inputs[:] = x
    run(machine, team, Opcode.LINEAR, weight, (inputs, out), len(x), bias=bias)
    return out


def buffer(shape: tuple[int, ...]) -> Floats:
    """Aligned memory that holds NaN where nothing is written."""
    count = int(np.prod(shape))
    values = aligned_bytes(4 * count).view(np.float32)
    values[:] = np.nan
    return values.reshape(shape)


def inputs_of(rows: int, cols: int) -> Floats:
    """Activations with an outlier channel, as real ones have."""
    x = np.random.default_rng([rows, cols]).standard_normal((rows, cols), np.float32)
    x[:, cols // 3] *= 30
    return x


def assert_close(actual: Floats, x: Floats, stored: Sequence[StoredTensor]) -> None:
    """Within a few roundings of float32 for each product that is summed."""
    start = 0
    for part in stored:
        weight = values_of(part).astype(np.float64)
        exact_x = (round_bf16(x) if part.format == "bf16" else x).astype(np.float64)
        size = np.abs(exact_x) @ (np.abs(weight).T + np.abs(weight).max())
        error = np.abs(actual[:, start : start + len(weight)] - exact_x @ weight.T)
        assert np.all(error <= 1e-6 * size), f"{part.format}: {np.max(error / size):.1e}"
        start += len(weight)
    assert actual.shape[1] == start


def test_there_is_a_library() -> None:
    """Without one, everything below would have no parameters and prove nothing."""
    assert ISAS


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
@pytest.mark.parametrize("cols", [1, 2, 31, 65, 257, 515])
def test_dense_widths(machine: Machine, format: str, cols: int) -> None:
    stored = random_source(format, 35, cols)
    weight = machine.packer.matrix([stored])
    for tokens in (1, 3):
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
    for unknown in (-1, 15, 99):
        assert call.octavo_source_bytes(unknown, 1, 256) == -1
        assert call.octavo_packed_bytes(unknown, 1, 256) == -1
        assert call.octavo_pack(machine.teams[0].handle, unknown, None, 1, 256, None) == -1
