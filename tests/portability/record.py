"""Not a test: writes what the conformance cases run as one file, which `replay.cpp` runs on another machine.

    python -m tests.portability.record FILE [--only TEXT] [--isa ISA]

Every program that a case runs is kept with its instructions, its weights as in a model's file (the other machine packs
them), inputs, steps and results; the results are those of one build of this machine (the scalar one, unless told),
which the conformance suite compares with the reference. What a record is, replay.cpp says. Integers must be equal
there, floats within twice the case's tolerance of the largest: once for each of the two builds.
"""

import argparse
import ctypes
import struct
from contextlib import contextmanager
from itertools import product
from pathlib import Path

import numpy as np

from octavo.kernels.cpu.packer import NativePacker
from octavo.kernels.cpu.program import NativeProgram, ProgramLimits
from octavo.kernels.cpu.recorder import ProgramRecorder
from octavo.kernels.cpu.step import NativeStep
from octavo.kernels.cpu.structs import (
    SAMPLING_RECORD,
    Coding,
    OctavoCache,
    OctavoInstruction,
    OctavoProgram,
    OctavoSegment,
    OctavoStep,
    Opcode,
    format_code,
)
from octavo.ops.conformance import FORMATS, numbers, stored
from octavo.ops.weight import PackedWeight
from octavo.quantization.format import FORMATS as QUANTIZED
from octavo.quantization.format import STEPPED
from tests.conformance.devices import NativeDevice, library, team
from tests.conformance.spans import SPAN_FORMATS, random_spans
from tests.conformance.test_ops import CASES
from tests.conformance.test_program import inputs_of
from tests.conformance.tiny import SPECS, native_runner, slot_table

MAGIC = b"OCTAVO1\0"
CASE, BLOB, FILL, POINT, PACK, RUN, FLOATS, INTEGERS = range(1, 9)
_POINTERS_OF_RULES = {
    "bias_ids": ("bias_count", 4),
    "bias_values": ("bias_count", 4),
    "allowed_ids": ("allowed_count", 4),
    "history": ("history_len", 4),
    "dry_breakers": ("dry_breaker_count", 4),
    "bad_words": ("bad_words_size", 4),
}
_POINTERS = [field[0] for field in OctavoStep._fields_ if field[1] is ctypes.c_void_p]
_FIELD = {field[0]: getattr(OctavoStep, field[0]).offset for field in OctavoStep._fields_}


class Writer:
    """Numbers blobs within a case; knows what was packed of what."""

    def __init__(self, file):
        self._file = file
        self._sources = {}
        self._kept = []  # while a case lasts, so that an address means one thing
        self._known = {}
        self._count = 0
        self._tolerance = 0.0
        self._outs = {}
        self.vocab = 0
        file.write(MAGIC)

    def begin(self, name, tolerance):
        self._known, self._kept, self._sources = {}, [], {}
        self._count, self._tolerance = 0, tolerance
        text = name.encode()
        self._put(CASE, struct.pack("<I", len(text)), text)

    def packed(self, stored_tensor, destination):
        self._kept.append((stored_tensor, destination))
        self._sources[destination.ctypes.data] = stored_tensor

    def blob(self, data):
        data = bytes(data)
        if len(data) > 1024 and data.count(data[:1]) == len(data):
            self._put(FILL, struct.pack("<QB", len(data), data[0]))
        else:
            self._put(BLOB, struct.pack("<Q", len(data)), data)
        self._count += 1
        return self._count - 1

    def point(self, at, offset, target):
        self._put(POINT, struct.pack("<IQIQ", at, offset, target, 0))

    def once(self, array):
        """A blob that later runs of the case find as the earlier ones left it."""
        key = (array.ctypes.data, array.nbytes)
        if key not in self._known:
            self._kept.append(array)
            self._known[key] = self.blob(array.tobytes())
        return self._known[key]

    def weight(self, data):
        key = data.ctypes.data
        if key not in self._known:
            tensor = self._sources[key]
            source = self.blob(np.ascontiguousarray(tensor.data).tobytes())
            self._put(PACK, struct.pack("<IIQQ", source, format_code(tensor.format), *tensor.shape))
            self._known[key] = self._count
            self._count += 1
        return self._known[key]

    def run(self, program, step, compute):
        """One call of octavo_run; `compute` does it here."""
        arenas = [self.blob(arena.tobytes()) for arena in program._arenas]
        native = self._program(program, arenas)
        taken = self._step(step)
        compute()
        self._put(RUN, struct.pack("<II", native, taken))
        last = program.instructions[-1]
        if last.opcode is not Opcode.SAMPLE:
            rows = step.struct.rows if last.out.axis == 1 else step.struct.tokens
            self._floats(arenas[program.memory.arena[last.out.index]], program.view(last.out, rows))
            return
        raw = program.raw_logits
        self._floats(arenas[program.memory.arena[raw.index]], program.view(raw, step.struct.rows))
        self._draws(step, taken)

    def _draws(self, step, taken):
        rows, stride = step.struct.rows, step.struct.top_stride
        records = (ctypes.c_uint8 * (rows * SAMPLING_RECORD.itemsize)).from_address(step.struct.sampling or 0)
        rules = np.frombuffer(records, SAMPLING_RECORD)
        asked = rules["logprobs"]
        sizes = {"out_tokens": rows, "out_invalid": rows}
        if (asked >= 0).all():
            sizes |= {"out_ranks": rows, "out_logprobs": rows}
        if (asked >= stride).all():
            sizes |= {"top_ids": rows * stride, "top_logprobs": rows * stride}
        if (rules["mirostat"] > 0).all():
            sizes |= {"out_mu": rows}
        for name, count in sizes.items():
            kind = np.float32 if name.endswith(("logprobs", "mu")) else np.int32
            values = np.frombuffer((ctypes.c_uint8 * (4 * count)).from_address(getattr(step.struct, name)), kind)
            (self._floats if kind is np.float32 else self._integers)(self._outs[name], values)

    def _program(self, program, arenas):
        code = self.blob(bytes(program._code))
        for number, ins in enumerate(program.instructions):
            for position, operand in enumerate(ins.operands):
                if operand is None:
                    continue
                target = self._weight(operand) if isinstance(operand, PackedWeight) else self.blob(operand.tobytes())
                offset = number * ctypes.sizeof(OctavoInstruction) + OctavoInstruction.p.offset + 8 * position
                self.point(code, offset, target)
        pointers = self.blob(bytes(8 * len(arenas)))
        for number, arena in enumerate(arenas):
            self.point(pointers, 8 * number, arena)
        native = self.blob(bytes(program._whole))
        self.point(native, OctavoProgram.code.offset, code)
        self.point(native, OctavoProgram.buffer.offset, pointers)
        if program._cache is not None:
            cache = self.blob(bytes(program._cache.struct()))
            self.point(cache, OctavoCache.pool.offset, self.once(program._cache.pool))
            self.point(cache, OctavoCache.tables.offset, self.blob(program._cache.tables.tobytes()))
            self.point(native, OctavoProgram.cache.offset, cache)
        return native

    def _weight(self, weight):
        segments = (OctavoSegment * len(weight.segments))()
        for native, segment in zip(segments, weight.segments, strict=True):
            native.format, native.rows, native.cols = format_code(segment.format), segment.rows, weight.shape[1]
        packed = [self.weight(segment.data) for segment in weight.segments]
        blob = self.blob(bytes(segments))
        for number, each in enumerate(packed):
            self.point(blob, number * ctypes.sizeof(OctavoSegment) + OctavoSegment.data.offset, each)
        return blob

    def _step(self, step):
        native = step.struct
        tokens, rows, sequences = native.tokens, native.rows, native.sequences
        sizes = {"token_ids": tokens, "positions": tokens, "query_starts": sequences + 1, "slots": sequences}
        sizes["token_types"] = tokens
        sizes |= {"sampled_rows": rows, "out_tokens": rows, "out_logprobs": rows, "out_ranks": rows}
        sizes |= {
            "out_invalid": rows,
            "out_mu": rows,
            "top_ids": rows * native.top_stride,
            "top_logprobs": rows * native.top_stride,
        }
        outs = {}
        pointers = {name: getattr(native, name) for name in sizes if getattr(native, name) and sizes[name]}
        for name, address in pointers.items():
            outs[name] = self.blob(ctypes.string_at(address, 4 * sizes[name]))
        for name, room in (("state_reads", step._reads), ("state_writes", step._writes)):
            if getattr(native, name):
                outs[name] = self.blob(room._array.tobytes())
        if native.sampling and rows:
            outs["sampling"] = self._rules(native.sampling, rows)
        missed = [name for name in _POINTERS if getattr(native, name) and name not in outs and sizes.get(name, rows)]
        assert not missed, f"the step points to what is not recorded: {missed}"
        taken = self.blob(bytes(native))
        for name, target in outs.items():
            self.point(taken, _FIELD[name], target)
        self._outs = outs
        return taken

    def _rules(self, address, rows):
        size = SAMPLING_RECORD.itemsize
        raw = ctypes.string_at(address, rows * size)
        records = np.frombuffer(raw, SAMPLING_RECORD)
        blob = self.blob(raw)
        for row in range(rows):
            lengths = {name: int(records[row][count]) * each for name, (count, each) in _POINTERS_OF_RULES.items()}
            lengths["permitted"] = (self.vocab + 31) // 32 * 4
            for name, length in lengths.items():
                if records[row][name] and length:
                    place = row * size + SAMPLING_RECORD.fields[name][1]
                    self.point(blob, place, self.blob(ctypes.string_at(int(records[row][name]), length)))
        return blob

    def _floats(self, blob, values):
        finite = np.abs(values[np.isfinite(values)])
        allowed = 2 * self._tolerance * float(finite.max(initial=0.0))
        self._put(FLOATS, struct.pack("<IQd", blob, values.size, allowed), values.tobytes())

    def _integers(self, blob, values):
        self._put(INTEGERS, struct.pack("<IQ", blob, values.size), values.tobytes())

    def _put(self, kind, *parts):
        self._file.write(struct.pack("<I", kind) + b"".join(parts))


@contextmanager
def recording(writer):
    """Everything that runs inside is written."""
    run, pack = NativeProgram.run, NativePacker.pack_into

    def recorded(program, step):
        last = program.instructions[-1]
        writer.vocab = last.width if last.opcode is Opcode.SAMPLE else max(ins.width for ins in program.instructions)
        writer.run(program, step, lambda: run(program, step))

    def packed(packer, stored_tensor, destination):
        writer.packed(stored_tensor, destination)
        pack(packer, stored_tensor, destination)

    NativeProgram.run, NativePacker.pack_into = recorded, packed
    try:
        yield
    finally:
        NativeProgram.run, NativePacker.pack_into = run, pack


def record(path, only="", isa="scalar"):
    """Write every case whose name holds `only`, with the results of one build; returns their number."""
    written = 0
    with path.open("wb") as file:
        writer = Writer(file)
        with recording(writer):
            for name, tolerance, run in _everything(isa):
                if only in name:
                    writer.begin(name, tolerance)
                    run()
                    written += 1
    return written


def _everything(isa):
    """(name, tolerance, what runs it)"""
    for case in CASES:
        if case.op != "all_reduce":
            yield str(case), case.tolerance, lambda case=case: _run_case(case, isa)
    for format, coding in product(FORMATS, (Coding.INT8, Coding.INT16)):
        name = f"linear in {coding.name.lower()}-{format}"
        yield name, 2e-5, lambda format=format, coding=coding: _product(_matrices(format, 1), coding, isa)
        yield f"heads {name}", 2e-5, lambda format=format, coding=coding: _product(_matrices(format, 3), coding, isa)
    for format, coding in product(
        (*SPAN_FORMATS, "int8_row_f32_rotated", STEPPED), (Coding.EXACT, Coding.INT8, Coding.INT16)
    ):
        if not QUANTIZED[format].spans.ordered:  # the order is not part of a file's blocks
            matrix = random_spans(format, 40, 512).stored
            name = f"linear in {coding.name.lower()}-{format}"
            yield name, 2e-5, lambda matrix=matrix, coding=coding: _product([matrix], coding, isa)
    for name, spec in SPECS.items():
        yield f"program-{name}", 5e-3, lambda spec=spec: _whole_program(spec, isa)


def _run_case(case, isa):
    case.run(NativeDevice(isa, case.cache))


def _matrices(format, heads):
    """One of 512 inputs, or several; their number is no multiple of a run where blocks allow it."""
    cols = 512 if format in ("q2_k", "q3_k", "q4_k", "q5_k", "q6_k") else 480
    return [stored(format, 40, cols, head) for head in range(heads)]


def _product(matrices, coding, isa):
    """With few rows and many, and with odd numbers of them; several matrices take parts of the inputs."""
    native, threads = library(isa), team(isa, 2)
    packer = NativePacker(native, threads)
    for tokens in (1, 3, 5, 33, 97):
        recorder = ProgramRecorder(native, coding=coding)
        width = len(matrices) * matrices[0].shape[1]
        x = recorder.input(width)
        multiply = recorder.linear if len(matrices) == 1 else recorder.head_linear
        multiply(x, packer.matrix(matrices))
        program = NativeProgram(native, threads, recorder.instructions, ProgramLimits(tokens, 1))
        program.view(x, tokens)[:] = numbers(tokens, tokens, width)
        step, zeros = NativeStep(1), np.zeros(tokens, np.int32)
        step.set_tokens(zeros, zeros, np.array([0, tokens], np.int32), zeros[:1])
        program.run(step)


def _whole_program(spec, isa):
    table = slot_table(spec)
    native_runner(isa, spec, table).run(inputs_of(spec, table))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", default="", help="cases whose name holds this")
    parser.add_argument("--isa", default="scalar", help="the build whose results are kept")
    options = parser.parse_args()
    print(f"{record(options.file, options.only, options.isa)} cases, {options.file.stat().st_size / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
