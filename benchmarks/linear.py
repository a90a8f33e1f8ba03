"""How fast the native matrix kernels read weights (one row) and multiply (many rows), beside what the machine can read.

    python benchmarks/linear.py --formats bf16 q4_1 q8_0 --rows 4096 --cols 1536 --tokens 1 8 64 256

GB/s count packed weight bytes; GFLOP/s count 2 * rows * cols * tokens. Each figure is the best of --repeats runs over
--megabytes of different matrices, so that one row reads memory and not a cache. Ceilings are probed in the same run.
"""

import argparse
import ctypes
import time
from dataclasses import dataclass

import numpy as np

from octavo.kernels.cpu.allocate import aligned_bytes
from octavo.kernels.cpu.library import NativeLibrary, load_library
from octavo.kernels.cpu.structs import Format, OctavoInstruction, OctavoProgram, OctavoSegment, OctavoStep, Opcode
from octavo.kernels.cpu.team import ThreadTeam

# f16 numbers in a block of each format; the rest of a block may be any bits.
HALVES = {
    Format.Q4_0: (0,), Format.Q4_1: (0, 2), Format.Q5_0: (0,), Format.Q5_1: (0, 2), Format.Q8_0: (0,),
    Format.Q2_K: (80, 82), Format.Q3_K: (108,), Format.Q4_K: (0, 2), Format.Q5_K: (0, 2), Format.Q6_K: (208,),
    Format.IQ4_NL: (0,),
}  # fmt: skip
SUPERBLOCK = 256


@dataclass(frozen=True, slots=True)
class Bench:
    """One library with one team."""

    library: NativeLibrary
    team: ThreadTeam
    repeats: int

    def best_seconds(self, program: OctavoProgram, step: OctavoStep) -> float:
        """Least time of one run."""
        times: list[float] = []
        for _ in range(self.repeats):
            start = time.perf_counter()
            self.library.call.octavo_run(self.team.handle, ctypes.addressof(program), ctypes.addressof(step))
            times.append(time.perf_counter() - start)
        return min(times)

    def read_gigabytes_per_second(self, megabytes: int) -> float:
        """Read bandwidth of the team over memory that no cache holds."""
        data = aligned_bytes(megabytes * 2**20)
        data[:] = 1
        times: list[float] = []
        for _ in range(self.repeats):
            start = time.perf_counter()
            self.library.call.octavo_read_bytes(self.team.handle, data.ctypes.data, data.nbytes)
            times.append(time.perf_counter() - start)
        return data.nbytes / min(times) / 1e9

    def operations_per_second(self, coded: bool) -> float:
        """Multiplications and additions of the team in registers, in floats or in numbers of 8 bits."""
        rates: list[float] = []
        for _ in range(self.repeats):
            start = time.perf_counter()
            operations = self.library.call.octavo_multiply(self.team.handle, int(coded), 1_000_000)
            rates.append(operations / (time.perf_counter() - start))
        return max(rates)


def packed_matrix(bench: Bench, code: Format, rows: int, cols: int) -> np.ndarray:
    """A packed matrix of random finite weights."""
    call = bench.library.call
    source = np.random.default_rng(0).integers(0, 256, call.octavo_source_bytes(code, rows, cols), np.uint8)
    if code in HALVES:
        size = call.octavo_source_bytes(code, 1, SUPERBLOCK)
        blocks = source.reshape(-1, size if "K" in code.name else size // (SUPERBLOCK // 32))
        for offset in HALVES[code]:
            blocks[:, offset : offset + 2] = np.frombuffer(np.float16(0.01).tobytes(), np.uint8)
    elif code in (Format.F32, Format.F16, Format.BF16):
        high = 1 if code != Format.F32 else 3
        source.reshape(-1, high + 1)[:, high] = 0x3C  # about 0.01 to 1
    packed = aligned_bytes(call.octavo_packed_bytes(code, rows, cols))
    call.octavo_pack(bench.team.handle, code, source.ctypes.data, rows, cols, packed.ctypes.data)
    return packed


def measure(
    bench: Bench, code: Format, shape: tuple[int, int], tokens: int, megabytes: int, coded: bool
) -> tuple[float, float]:
    """(GB/s of weights, GFLOP/s) of linear on `tokens` rows."""
    rows, cols = shape
    first = packed_matrix(bench, code, rows, cols)
    copies = max(1, int(megabytes * 2**20) // first.nbytes)
    weights = aligned_bytes(copies * first.nbytes).reshape(copies, first.nbytes)
    weights[:] = first
    x, out = (aligned_bytes(4 * tokens * width).view(np.float32) for width in (cols, rows))
    x[:] = np.random.default_rng(1).standard_normal(x.size, np.float32)
    segments = (OctavoSegment * copies)()
    instructions = (OctavoInstruction * copies)()
    for segment, instruction, weight in zip(segments, instructions, weights, strict=True):
        segment.format, segment.rows, segment.cols, segment.data = code, rows, cols, weight.ctypes.data
        instruction.opcode, instruction.in0, instruction.in1, instruction.out = Opcode.LINEAR, 0, -1, 1
        instruction.width, instruction.depth, instruction.i[1] = rows, cols, 1
        instruction.i[2] = coded
        instruction.p[0] = ctypes.addressof(segment)
    pointers = (ctypes.c_void_p * 2)(x.ctypes.data, out.ctypes.data)
    program = OctavoProgram(ctypes.addressof(instructions), copies, 2, ctypes.addressof(pointers), None)
    seconds = bench.best_seconds(program, OctavoStep(tokens=tokens))
    return weights.nbytes / seconds / 1e9, 2 * rows * cols * tokens * copies / seconds / 1e9


def main() -> None:
    """Print one line a format and token count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isa", default="auto")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--formats", nargs="+", default=["bf16", "q8_0", "q4_0", "q4_1", "q4_k", "q5_k", "q6_k"])
    parser.add_argument("--compute", nargs="+", default=["exact", "int8"], help="inputs as floats, or in 8 bits")
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--cols", type=int, default=1536)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 4, 64, 256])
    parser.add_argument("--megabytes", type=int, default=512, help="of weights, for one row; eight times less for more")
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    library = load_library(options.isa)
    bench = Bench(library, ThreadTeam(library, options.threads), options.repeats)
    print(f"{library.isa}, {options.threads} threads, {options.rows} x {options.cols}")
    peaks = {"exact": bench.operations_per_second(False) / 1e9, "int8": bench.operations_per_second(True) / 1e9}
    reading = bench.read_gigabytes_per_second(options.megabytes)
    print(f"reading: {reading:.1f} GB/s; registers: {peaks['exact']:.0f} GFLOP/s, {peaks['int8']:.0f} GOP/s in 8 bits")
    for name in options.formats:
        for tokens in options.tokens:
            megabytes = options.megabytes if tokens == 1 else options.megabytes // 8
            shape = (options.rows, options.cols)
            for compute in options.compute:
                speed, product = measure(bench, Format[name.upper()], shape, tokens, megabytes, compute == "int8")
                peak = peaks["exact" if name in ("f32", "f16", "bf16") else compute]
                shares = f"{speed / reading:4.0%} of reading, {product / peak:4.0%} of the peak"
                print(
                    f"{name:7} {compute:6} {tokens:5} rows {speed:7.1f} GB/s {product:8.0f} GFLOP/s: {shares}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
