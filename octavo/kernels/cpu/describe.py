"""Shows a program to a person: what runs, on which buffers, made of what, and what it costs a token."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from octavo.kernels.cpu.instruction import Axis, Buffer, Instruction
from octavo.kernels.cpu.program import NativeProgram
from octavo.kernels.cpu.structs import ActivationCode, CacheType, Coding, Opcode
from octavo.ops.weight import PackedWeight

_FLOAT = 4  # bytes

_ACTIVATION = {Opcode.ACT: 0, Opcode.ACT_MUL: 0, Opcode.GATED_LINEAR: 2}  # which of its integers it is


@dataclass(frozen=True, slots=True)
class InstructionCost:
    """weight_bytes: read once a step. flops: a token (or sampled row), without attention's share of the context."""

    weight_bytes: int
    flops: int


def cost(ins: Instruction) -> InstructionCost:
    """What an instruction reads and computes."""
    if ins.opcode is Opcode.GATED_LINEAR:
        return InstructionCost(_operand_bytes(ins), 4 * ins.width * ins.depth)
    if ins.opcode in (Opcode.LINEAR, Opcode.HEAD_LINEAR):
        return InstructionCost(_operand_bytes(ins), 2 * ins.width * ins.depth)
    if ins.opcode is Opcode.EMBED:
        return InstructionCost(0, 0)  # one row of the table a token
    return InstructionCost(_operand_bytes(ins), ins.width)


def describe(program: NativeProgram) -> Iterator[str]:
    """One line an instruction, then totals."""
    yield f"{'':>5} {'opcode':<17} {'output':<22} {'input':<13} {'weight':<34} {'bytes':>9} {'flops':>9}  notes"
    for position, ins in enumerate(program.instructions):
        yield _line(program, position, ins)
    costs = [(ins.axis, cost(ins)) for ins in program.instructions]
    weights = sum(each.weight_bytes for _, each in costs)
    token_flops = sum(each.flops for axis, each in costs if axis is Axis.TOKENS)
    row_flops = sum(each.flops for axis, each in costs if axis is Axis.ROWS)
    memory = program.memory
    yield f"{len(program.instructions)} instructions"
    yield f"weights read by a step: {amount(weights)}B"
    yield f"work: {amount(token_flops)}FLOP a token, {amount(row_flops)}FLOP a sampled row, and attention's context"
    yield (
        f"buffers: {len(memory.arena)} in {len(memory.sizes)} arenas, at most {amount(memory.total)}B "
        f"for {program.limits.tokens} tokens and {program.limits.rows} rows"
    )


def amount(number: float) -> str:
    """A number with a decimal prefix: 1234 -> '1.23 k'."""
    for prefix in ("", "k", "M", "G", "T"):
        if abs(number) < 1000:
            digits = 0 if prefix == "" else 2
            return f"{number:.{digits}f} {prefix}"
        number /= 1000
    return f"{number:.2f} P"


def _line(program: NativeProgram, position: int, ins: Instruction) -> str:
    outputs = " ".join(_buffer(program, buffer) for buffer in ins.writes)
    inputs = " ".join(f"a{program.memory.arena[buffer.index]}" for buffer in ins.reads)
    each = cost(ins)
    return (
        f"{position:>5} {ins.opcode.name:<17} {outputs:<22} {inputs:<13} {_weight(ins):<34} "
        f"{amount(each.weight_bytes):>9} {amount(each.flops):>9}  {_notes(ins)}"
    ).rstrip()


def _buffer(program: NativeProgram, buffer: Buffer) -> str:
    rows = "T" if buffer.axis is Axis.TOKENS else "R"
    return f"a{program.memory.arena[buffer.index]}[{rows}, {buffer.width}]"


def _weight(ins: Instruction) -> str:
    """Shape and formats of the instruction's matrix."""
    for operand in ins.operands:
        if isinstance(operand, PackedWeight):
            rows, cols = operand.shape
            return f"[{rows}, {cols}] {'+'.join(operand.formats)}"
    return ""


def _notes(ins: Instruction) -> str:
    """What distinguishes it: sizes of heads, window, activation, bias, what it was fused from."""
    notes = _attention_notes(ins)
    if ins.opcode is Opcode.CAUSAL_CONV:
        notes.append(f"{ins.integers[1]} taps")
        notes += [name for bit, name in ((1, "gated"), (2, "silu")) if ins.integers[4] & bit]
    if ins.opcode is Opcode.STATE_SCAN:
        heads, head_dim, state, groups = ins.integers[:4]
        notes.append(f"{heads} heads of {head_dim}, state {state}, {groups} groups")
    if ins.opcode is Opcode.HEAD_LINEAR:
        notes.append(f"{ins.integers[0]} heads")
        notes += _coding_notes(ins, ins.integers[2])
    if ins.opcode in _ACTIVATION:
        notes.append(ActivationCode(ins.integers[_ACTIVATION[ins.opcode]]).name.lower())
    if ins.opcode is Opcode.SCALE_BY_POSITION:
        notes.append(f"{ins.floats[0]:g} every {ins.floats[1]:g} positions")
    if ins.opcode in (Opcode.SCALE, Opcode.SOFTCAP):
        notes.append(f"{ins.floats[0]:g}")
    if ins.opcode in (Opcode.LINEAR, Opcode.GATED_LINEAR):
        notes += ["bias"] if ins.operands[1] is not None else []
        notes += _coding_notes(ins, ins.integers[1])
    if ins.opcode is Opcode.EMBED:
        notes.append("of positions" if ins.integers[1] else "of token ids")
    if ins.fused:
        notes.append("fused from " + " + ".join(opcode.name for opcode in ins.fused))
    return "; ".join(notes)


def _attention_notes(ins: Instruction) -> list[str]:
    """Of what reads or writes the cache."""
    notes: list[str] = []
    if ins.opcode in (Opcode.QKV_ROPE_CACHE, Opcode.PAGED_ATTENTION):
        heads, kv_heads, head_dim, special = ins.integers[:4]
        notes.append(f"{heads}/{kv_heads} heads of {head_dim}, {_kept(ins)}")
        name = "rotary" if ins.opcode is Opcode.QKV_ROPE_CACHE else "window"
        notes += [f"{name} {special}"] if special else []
        if ins.opcode is Opcode.QKV_ROPE_CACHE and ins.operands[2] is not None:
            notes.append("qk-norm")
        if ins.opcode is Opcode.PAGED_ATTENTION:
            notes += [f"chunk {ins.integers[6]}"] if ins.integers[6] else []
            notes.append(f"scale {ins.floats[0]:.4g}")
            notes += [f"softcap {ins.floats[1]:g}"] if ins.floats[1] else []
            names = zip(("ALiBi", "sinks", "distances"), ins.operands, strict=False)
            notes += [name for name, operand in names if operand is not None]
    if ins.opcode in (Opcode.LATENT_CACHE, Opcode.LATENT_ATTENTION):
        heads, nope, rotary, rank = ins.integers[:4]
        notes.append(f"{heads} heads of {nope} + {rotary}, latent {rank}, {_kept(ins)}")
        notes += [f"scale {ins.floats[0]:.4g}"] if ins.opcode is Opcode.LATENT_ATTENTION else []
    return notes


def _coding_notes(ins: Instruction, coding: int) -> list[str]:
    bits = {Coding.INT8: 8, Coding.INT16: 16}.get(Coding(coding))
    return [f"inputs in {bits} bits"] if bits and _has_blocks(ins) else []


def _has_blocks(ins: Instruction) -> bool:
    """Whether some of its matrix is in a block format: float formats take exact inputs."""
    weight = ins.operands[0]
    return isinstance(weight, PackedWeight) and not {"f32", "f16", "bf16"}.issuperset(weight.formats)


def _kept(ins: Instruction) -> str:
    """Where in the cache, and how."""
    return f"cache {ins.integers[4]}.{ins.integers[5]} in {CacheType(ins.integers[7]).name.lower()}"


def _operand_bytes(ins: Instruction) -> int:
    """Bytes of weights, gains and biases; rope tables are read a row a token and don't count."""
    if ins.opcode in (Opcode.QKV_ROPE_CACHE, Opcode.LATENT_CACHE):
        return 0
    total = 0
    for operand in ins.operands:
        if isinstance(operand, PackedWeight):
            total += sum(s.data.nbytes for s in operand.segments if isinstance(s.data, np.ndarray))
        elif operand is not None and operand.dtype == np.float32:
            total += operand.size * _FLOAT
    return total
