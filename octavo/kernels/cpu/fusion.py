"""Peephole rules: which neighbouring instructions become one. Families stay plain; programs get short.

Each rule keeps the numbers: the fused instruction does the same float operations in the same order. Buffers are written
once, so an instruction may move down to its only reader.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from octavo.kernels.cpu.instruction import Buffer, Instruction
from octavo.kernels.cpu.structs import Opcode


def fuse(instructions: Sequence[Instruction]) -> list[Instruction]:
    """An equivalent, shorter list."""
    return _fuse_add_norm(_fuse_linear(_fuse_linear(list(instructions), _with_gate), _with_residual))


_Fusion = tuple[Buffer | None, Callable[[Instruction], Instruction]]  # a product, and what its LINEAR becomes


def _fuse_linear(code: list[Instruction], fusions: Callable[[Instruction], Iterable[_Fusion]]) -> list[Instruction]:
    """LINEARs whose only reader has a fusion with them -> that, where the reader stood; the first one counts."""
    readers = _readers(code)
    producers = {ins.out: ins for ins in code if ins.opcode is Opcode.LINEAR and ins.in1 is None}
    replaced: dict[int, Instruction] = {}
    dropped: set[int] = set()
    for position, reader in enumerate(code):
        for product, fused in fusions(reader):
            linear = producers.get(product)
            if linear is not None and readers[product] == 1:
                replaced[position] = fused(linear)
                dropped.add(id(linear))
                break
    return list(_rewritten(code, replaced, dropped))


def _with_gate(gate: Instruction) -> Iterator[_Fusion]:
    """ACT_MUL -> GATED_LINEAR."""
    if gate.opcode is Opcode.ACT_MUL:
        yield (
            gate.in0,
            lambda linear: replace(
                linear,
                opcode=Opcode.GATED_LINEAR,
                width=gate.width,
                out=gate.out,
                out2=linear.out,
                integers=(*linear.integers, *gate.integers),
                fused=(Opcode.LINEAR, Opcode.ACT_MUL),
            ),
        )


def _with_residual(add: Instruction) -> Iterator[_Fusion]:
    """ADD -> LINEAR with a residual."""
    if add.opcode is Opcode.ADD and add.in0 != add.in1:
        fused = (Opcode.LINEAR, Opcode.ADD)
        yield add.in1, lambda linear: replace(linear, out=add.out, in1=add.in0, fused=fused)
        yield add.in0, lambda linear: replace(linear, out=add.out, in1=add.in1, fused=fused)


def _fuse_add_norm(code: list[Instruction]) -> list[Instruction]:
    """ADD followed by the RMS_NORM of its sum -> ADD_RMS_NORM, which writes both."""
    norms: dict[Buffer | None, Instruction] = {}
    for ins in code:
        if ins.opcode is Opcode.RMS_NORM:
            norms.setdefault(ins.in0, ins)
    replaced: dict[int, Instruction] = {}
    dropped: set[int] = set()
    for position, add in enumerate(code):
        norm = norms.get(add.out) if add.opcode is Opcode.ADD else None
        if norm is None:
            continue
        replaced[position] = replace(
            norm,
            opcode=Opcode.ADD_RMS_NORM,
            out2=add.out,
            in0=add.in0,
            in1=add.in1,
            fused=(Opcode.ADD, Opcode.RMS_NORM),
        )
        dropped.add(id(norm))
    return list(_rewritten(code, replaced, dropped))


def _readers(code: Sequence[Instruction]) -> Counter[Buffer | None]:
    """How often each buffer is read."""
    return Counter(buffer for ins in code for buffer in ins.reads)


def _rewritten(
    code: Sequence[Instruction], replaced: dict[int, Instruction], dropped: set[int]
) -> Iterator[Instruction]:
    for position, ins in enumerate(code):
        if id(ins) not in dropped:
            yield replaced.get(position, ins)
