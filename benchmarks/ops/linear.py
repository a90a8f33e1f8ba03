"""Products of matrices: every format, few rows (which read weights) and many (which multiply)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.ops.measure import Bench, Kind, Work
from octavo.kernels.cpu.allocate import aligned_bytes
from octavo.kernels.cpu.program import NativeProgram, ProgramLimits
from octavo.kernels.cpu.recorder import ProgramRecorder
from octavo.kernels.cpu.step import NativeStep
from octavo.kernels.cpu.structs import Coding, Format, format_code
from octavo.ops.weight import PackedWeight, Segment

DENSE = ("f32", "f16", "bf16")
# One of each kind that quantized checkpoints have, and what --quantization int8 and int4 make.
_SPANS = ("int4z_g128_f16", "int8_row_f32", "int8_row_f32_rotated", "int4s_row_f32_rotated", "e4m3_row_f32")
FORMATS = (*(code.name.lower() for code in Format if code < Format.INT4), *_SPANS)
# f16 numbers in a block of each format; the rest of a block may be any bits.
HALVES = {
    Format.Q4_0: (0,), Format.Q4_1: (0, 2), Format.Q5_0: (0,), Format.Q5_1: (0, 2), Format.Q8_0: (0,),
    Format.Q2_K: (80, 82), Format.Q3_K: (108,), Format.Q4_K: (0, 2), Format.Q5_K: (0, 2), Format.Q6_K: (208,),
    Format.IQ4_NL: (0,),
}  # fmt: skip
COMPUTE = ("exact", "int16", "int8")
_SUPERBLOCK = 256
_SCALE_BYTES = dict.fromkeys((name for name in _SPANS if "_row_" in name), 4)  # of a row, behind its codes
_EXPONENT = 121  # of MXFP4's scale: 2^-6


@dataclass(frozen=True, slots=True)
class Products:
    """What is multiplied. `megabytes`: of different weights in one run of few rows; eight times less for many."""

    formats: Sequence[str] = FORMATS
    compute: Sequence[str] = COMPUTE
    rows: int = 4096
    cols: int = 1536
    tokens: Sequence[int] = (1, 8, 64, 256)
    megabytes: int = 512


def random_weight(bench: Bench, name: str, rows: int, cols: int) -> PackedWeight:
    """A packed matrix of random finite weights."""
    call, code = bench.library.call, format_code(name)
    assert code is not None, f"{name} is no format"
    size = call.octavo_source_bytes(code, rows, cols)
    source = np.random.default_rng(0).integers(0, 256, size, np.uint8)
    _make_finite(source, name, rows, call.octavo_source_bytes(code, 1, _SUPERBLOCK))
    packed = aligned_bytes(call.octavo_packed_bytes(code, rows, cols))
    failed = call.octavo_pack(bench.team.handle, code, source.ctypes.data, rows, cols, packed.ctypes.data)
    assert not failed, f"{name} cannot be packed: {failed}"
    return PackedWeight((rows, cols), (Segment(name, rows, packed),))


def _make_finite(source: NDArray[np.uint8], name: str, rows: int, superblock: int) -> None:
    """Give random bytes ordinary scales. superblock: bytes of 256 elements."""
    half = np.frombuffer(np.float16(0.01).tobytes(), np.uint8)
    if name in _SPANS:
        row = source.reshape(rows, -1)
        if name.startswith("e4m3"):
            row &= 0xF7  # no NaN
        scales = row.shape[1] - _SCALE_BYTES[name] if name in _SCALE_BYTES else 0
        if name.startswith("int4s"):  # 16 bytes of codes for 2 of steps and starts, which stand behind the scale
            scales = scales * 8 // 9
        if scales:
            row[:, scales : scales + 4] = np.frombuffer(np.float32(0.01).tobytes(), np.uint8)
        else:  # groups of 128: 64 bytes of codes each, then a scale each, then a zero point each
            groups = row.shape[1] // 67
            row[:, 64 * groups : 66 * groups] = np.tile(half, groups)
            row[:, 66 * groups :] = 8
        return
    code = Format[name.upper()]
    if code in HALVES or code is Format.MXFP4:
        blocks = source.reshape(-1, superblock if "K" in code.name else superblock // (_SUPERBLOCK // 32))
        for offset in HALVES.get(code, ()):
            blocks[:, offset : offset + 2] = half
        if code is Format.MXFP4:
            blocks[:, 0] = _EXPONENT
    else:
        high = 1 if code != Format.F32 else 3
        source.reshape(-1, high + 1)[:, high] = 0x3C  # about 0.01 to 1


def copies_of(weight: PackedWeight, megabytes: int) -> list[PackedWeight]:
    """So many equal matrices in places of their own."""
    (segment,) = weight.segments
    data = segment.data
    assert isinstance(data, np.ndarray)
    count = max(1, (megabytes << 20) // data.nbytes)
    room: NDArray[np.uint8] = aligned_bytes(count * data.nbytes).reshape(count, -1)
    room[:] = data
    return [PackedWeight(weight.shape, (Segment(segment.format, segment.rows, place),)) for place in room]


def product_of(bench: Bench, weights: Sequence[PackedWeight], tokens: int, compute: str, op: str = "linear") -> Work:
    """`tokens` rows times each of the weights, one after the other."""
    rows, cols = weights[0].shape
    (segment,) = weights[0].segments
    recorder = ProgramRecorder(bench.library, coding=Coding[compute.upper()])
    x = recorder.input(cols)
    for weight in weights:
        recorder.linear(x, weight)
    program = NativeProgram(bench.library, bench.team, recorder.instructions, ProgramLimits(tokens, 1))
    program.view(x, tokens)[:] = np.random.default_rng(1).standard_normal((tokens, cols), np.float32)
    step = token_step(tokens)
    data = segment.data
    assert isinstance(data, np.ndarray)
    kind = kind_of(bench, segment.format, compute)
    products = 2 if compute == "int16" and kind == "int8" else 1  # an instruction has half as many of 16 bits
    inputs = 4 * tokens * (rows + cols)
    return Work(
        op,
        f"{segment.format} {compute if kind == 'int8' else 'exact'} {tokens} x {cols} -> {rows}",
        lambda: program.run(step),
        len(weights),
        data.nbytes + inputs,
        2 * tokens * rows * cols * products,
        len(weights) * data.nbytes + inputs,
        kind,
    )


def kind_of(bench: Bench, format: str, compute: str) -> Kind:
    """What such a product is computed with. AMX's rate is not probed."""
    if format == "bf16" and bench.library.bf16_products().way == "pairs":
        return "bf16"
    return "f32" if compute == "exact" or format in DENSE else "int8"


def token_step(tokens: int) -> NativeStep:
    """A step of one sequence of so many tokens."""
    step = NativeStep(1)
    positions = np.arange(tokens, dtype=np.int32)
    step.set_tokens(positions, positions, np.array([0, tokens], np.int32), np.zeros(1, np.int32))
    return step


def works(benches: Sequence[Bench], asked: Products) -> Iterator[tuple[Bench, Work]]:
    """Every format, compute and number of rows, with every team; weights are made once."""
    for name in asked.formats:
        weight = random_weight(benches[-1], name, asked.rows, asked.cols)
        many = copies_of(weight, asked.megabytes)
        few = many[: max(1, len(many) // 8)]
        for tokens in asked.tokens:
            for compute in asked.compute:
                if name in DENSE and compute != "exact":
                    continue  # such products are always exact
                for bench in benches:
                    yield bench, product_of(bench, many if tokens <= 4 else few, tokens, compute)
