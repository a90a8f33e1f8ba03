"""Matrices in every weight format, what they mean, and single LINEAR and EMBED instructions on every library."""

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

from octavo.kernels.cpu import library as native_library
from octavo.kernels.cpu.allocate import aligned_bytes
from octavo.kernels.cpu.library import NativeLibrary, load_library, open_library
from octavo.kernels.cpu.packer import NativePacker
from octavo.kernels.cpu.structs import (
    Coding,
    OctavoInstruction,
    OctavoProgram,
    OctavoSegment,
    OctavoStep,
    Opcode,
    format_code,
)
from octavo.kernels.cpu.team import ThreadTeam
from octavo.ops.weight import PackedWeight, StoredTensor
from tests.conformance.devices import ISAS, VARIANTS

Floats = NDArray[np.float32]

# Where each block keeps its f16 numbers; everything else in a block may be any bits.
HALVES = {
    "q4_0": (0,), "q4_1": (0, 2), "q5_0": (0,), "q5_1": (0, 2), "q8_0": (0,), "iq4_nl": (0,), "mxfp4": (),
    "q2_k": (80, 82), "q3_k": (108,), "q4_k": (0, 2), "q5_k": (0, 2), "q6_k": (208,),
}  # fmt: skip
BLOCK_FORMATS = tuple(HALVES)
DENSE_FORMATS = ("f32", "f16", "bf16")
FORMATS = DENSE_FORMATS + BLOCK_FORMATS
# Where there is no AMX its library emulates it, which is never chosen, but can be tested.
AMX = ("amx",) if "avx512" in ISAS and (native_library.NATIVE_DIRECTORY / "liboctavo_amx.so").is_file() else ()
DENSE_ISAS = ISAS + AMX
CODED_ISAS = DENSE_ISAS + tuple(isa for isa in native_library.supported_isas() if isa in VARIANTS and isa not in AMX)


@dataclass(frozen=True, slots=True)
class Machine:
    """One library with teams of one, two and three threads."""

    library: NativeLibrary
    teams: tuple[ThreadTeam, ...]

    @property
    def packer(self) -> NativePacker:
        """Packs on the largest team."""
        return NativePacker(self.library, self.teams[-1])


@contextmanager
def machine_of(isa: str) -> Iterator[Machine]:
    """The library of one instruction set."""
    supported = isa in native_library.supported_isas()
    library = load_library(isa) if supported else open_library(native_library.NATIVE_DIRECTORY / f"liboctavo_{isa}.so")
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
    coding: Coding = Coding.EXACT,
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
    code.i[2] = coding if opcode == Opcode.LINEAR else 0
    code.p[0] = ctypes.addressof(segments)
    code.p[1] = None if bias is None else bias.ctypes.data
    pointers = (ctypes.c_void_p * len(buffers))(*(buffer.ctypes.data for buffer in buffers))
    program = OctavoProgram(ctypes.addressof(code), 1, len(buffers), ctypes.addressof(pointers), None)
    step = OctavoStep(tokens=tokens, token_ids=None if ids is None else ids.ctypes.data)
    machine.library.call.octavo_run(team.handle, ctypes.addressof(program), ctypes.addressof(step))


def linear(
    machine: Machine,
    team: ThreadTeam,
    weight: PackedWeight,
    x: Floats,
    bias: Floats | None = None,
    coding: Coding = Coding.EXACT,
) -> Floats:
    """x @ weight^T + bias."""
    inputs, out = buffer(x.shape), buffer((len(x), weight.shape[0]))
    inputs[:] = x
    run(machine, team, Opcode.LINEAR, weight, (inputs, out), len(x), bias=bias, coding=coding)
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
