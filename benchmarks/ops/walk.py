"""A step of a whole model, one token or a few: how fast each of its products reads, where no cache holds them all.

    python -m benchmarks.ops walk [--models 135M 0.5B 1B] [--formats bf16 q8_0 q4_0] [--compute int8] [--rows 1]
                                  [--json walk.json]

Models have real shapes and random weights, made here. The floor of a step is its weights' bytes at the bandwidth that
is probed before each of its runs, or its products at the register peak, whichever is more; a model that a cache holds
(135M in few bits) may be faster than that.
"""

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks.ops.curves import SHAPES, Model
from benchmarks.ops.linear import COMPUTE, DENSE, FORMATS
from benchmarks.ops.measure import Bench, benches
from octavo.config.machine import read_machine
from octavo.kernels.cpu.instruction import Instruction
from octavo.kernels.cpu.structs import Opcode
from octavo.ops.weight import PackedWeight

_CONTEXT = 128


@dataclass(frozen=True, slots=True)
class Part:
    """All products of one shape, or (width 0) all that is no product. Seconds and bytes of one step."""

    depth: int
    width: int
    count: int
    seconds: float
    bytes: int


@dataclass(frozen=True, slots=True)
class Walk:
    """A step of `rows` sequences.

    Attributes:
        compute: what becomes of inputs where weights are codes.
        bandwidth: bytes a second, the best probe of the same run.
        computing: seconds of its products at the register peak.
    """

    model: str
    format: str
    compute: str
    rows: int
    seconds: float
    bytes: int
    bandwidth: float
    computing: float
    parts: tuple[Part, ...]

    @property
    def reading(self) -> float:
        """Seconds of its weights' bytes at the full bandwidth."""
        return self.bytes / self.bandwidth

    @property
    def share(self) -> float:
        """Of the floor; 1: nothing but what bounds it."""
        return max(self.reading, self.computing) / self.seconds


def walk(bench: Bench, model: Model, names: tuple[str, str, str], rows: int, rounds: int) -> Walk:
    """The least times of `rounds` steps, and of as many whose instructions are timed one by one.

    names: of the model, the format and what is computed with.
    """
    step = model.step(rows, _CONTEXT)
    model.program.run(step)
    whole: list[float] = []
    probes: list[float] = []
    each = np.full(len(model.program.instructions), np.inf)
    for _ in range(rounds):
        probes.append(bench.probe())
        for _ in range(2):  # the first one after the probe finds its small inputs cold
            start = time.perf_counter()
            model.program.run(step)
            whole.append(time.perf_counter() - start)
        each = np.minimum(each, model.program.run_timed(step))
    parts = tuple(_parts(model.program.instructions, each.tolist()))
    return Walk(*names, rows, min(whole), model.weight_bytes, max(probes), model.computing(rows), parts)


def _parts(instructions: Sequence[Instruction], seconds: Sequence[float]) -> Iterator[Part]:
    found: dict[tuple[int, int], Part] = {}
    for ins, taken in zip(instructions, seconds, strict=True):
        width = {Opcode.LINEAR: ins.width, Opcode.GATED_LINEAR: 2 * ins.width}.get(ins.opcode, 0)
        read = sum(map(_bytes_of, ins.operands)) if width else 0
        key = (ins.depth, width) if read else (0, 0)
        old = found.get(key, Part(*key, 0, 0.0, 0))
        found[key] = Part(*key, old.count + 1, old.seconds + taken, old.bytes + read)
    yield from sorted(found.values(), key=lambda part: -part.seconds)


def _bytes_of(operand: object) -> int:
    if not isinstance(operand, PackedWeight):
        return 0
    return sum(segment.data.nbytes for segment in operand.segments if isinstance(segment.data, np.ndarray))


def main(arguments: Sequence[str]) -> None:
    """Measure and print; with --json also keep."""
    options = _parser().parse_args(arguments)
    (bench,) = benches(options.isa, [options.threads], 1)
    walks: list[Walk] = []
    for name in options.models:
        for format in options.formats:
            for compute in options.compute if format not in DENSE else ("exact",):
                model = Model(bench, name, format, max(options.rows) * _CONTEXT, compute)
                for rows in options.rows:
                    walks.append(walk(bench, model, (name, format, compute), rows, options.repeats))
                    print("\n".join(_lines(walks[-1])), flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(each) | {"share": each.share} for each in walks], indent=1))


def _lines(found: Walk) -> Iterator[str]:
    bound = "reading" if found.reading >= found.computing else "registers"
    yield (
        f"{found.model:5} {found.format:6} {found.compute:5} {found.rows} rows: {1e3 * found.seconds:8.2f} ms; "
        f"{found.bytes / 1e6:.0f} MB of weights, {found.bandwidth / 1e9:.1f} GB/s: {1e3 * found.reading:.2f} ms, "
        f"in registers {1e3 * found.computing:.2f}: {found.share:.0%} of {bound}"
    )
    for part in found.parts:
        what = f"{part.depth} -> {part.width}" if part.width else "no products"
        rate = f"{part.bytes / part.seconds / 1e9:6.1f} GB/s" if part.bytes else ""
        yield f"    {what:16} x {part.count:<4} {1e3 * part.seconds:8.3f} ms {rate}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.ops walk",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--isa", default="auto")
    parser.add_argument("--threads", type=int, default=len(read_machine().cores))
    parser.add_argument("--repeats", type=int, default=6)
    parser.add_argument("--models", nargs="+", default=list(SHAPES), choices=SHAPES)
    parser.add_argument("--formats", nargs="+", default=["bf16", "q8_0", "q4_0"], choices=FORMATS)
    parser.add_argument("--compute", nargs="+", default=["int8"], choices=COMPUTE, help="inputs of coded weights")
    parser.add_argument("--rows", type=int, nargs="+", default=[1], help="sequences in a step")
    parser.add_argument("--json", type=Path, help="write the figures here, too")
    return parser
