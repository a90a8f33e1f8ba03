"""A recorded program computes what its ops compute one by one, fused or not; it can be read, and its buffers hold."""

import ctypes

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.errors import InternalError
from octavo.execution.slots import SlotTable
from octavo.execution.step_inputs import build_inputs
from octavo.flow.plan import PlannedRow, SlotArrival, StepPlan
from octavo.flow.request import Sampling
from octavo.kernels.cpu.describe import describe
from octavo.kernels.cpu.fusion import fuse
from octavo.kernels.cpu.instruction import Axis, Ids, RecordedStep
from octavo.kernels.cpu.memory import plan_memory, tail_start
from octavo.kernels.cpu.ops import NativeOps
from octavo.kernels.cpu.packer import NativePacker
from octavo.kernels.cpu.program import NativeProgram, ProgramLimits
from octavo.kernels.cpu.recorder import ProgramRecorder
from octavo.kernels.cpu.step import NativeStep
from octavo.kernels.cpu.structs import Coding, Opcode
from octavo.ops.conformance import CacheShape, numbers, stored, tables_for
from octavo.ops.interface import LayerCache, RopeTable
from octavo.ops.weight import PackedWeight, Segment, StoredTensor
from octavo.spec.decoder import AttentionSpec, RopeSpec
from tests.conformance.devices import ISAS, library, native_cache, team
from tests.conformance.tiny import SPECS, decoder, groups_of, native_runner, page_size, prompt, slot_table, torch_runner

BEST = ISAS[0]


def plan_of(spec, *sequences: tuple[int, tuple[int, ...]]) -> StepPlan:
    """Whole prompts of (slot, tokens)."""
    groups, block = groups_of(spec), iter(range(256))
    greedy = Sampling(temperature=0.0)
    rows = tuple(
        PlannedRow(
            slot,
            slot,
            0,
            len(tokens),
            tuple(
                tuple(next(block) for _ in range(group.pages if group.is_state else -(-len(tokens) // 16)))
                for group in groups
            ),
            True,
        )
        for slot, tokens in sequences
    )
    return StepPlan(0, rows, tuple(SlotArrival(slot, slot, tokens, len(tokens), greedy) for slot, tokens in sequences))


def inputs_of(spec, table: SlotTable):
    return inputs_for(spec, table, (3, prompt(1, 40)), (0, prompt(2, 1)), (1, prompt(3, 23)))


def inputs_for(spec, table: SlotTable, *sequences: tuple[int, tuple[int, ...]]):
    plan = plan_of(spec, *sequences)
    table.apply(plan)
    return build_inputs(plan, table)


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("isa", ISAS)
def test_logits_are_near_the_reference_and_fusion_changes_no_bit(isa, name):
    spec = SPECS[name]
    table = slot_table(spec)
    inputs = inputs_of(spec, table)
    reference = torch_runner(spec).logits(inputs)
    fused = native_runner(isa, spec, table).logits(inputs)
    plain = native_runner(isa, spec, table, fused=False).logits(inputs)
    np.testing.assert_array_equal(fused.view(np.int32), plain.view(np.int32))
    np.testing.assert_allclose(fused, reference, atol=5e-3 * np.abs(reference).max())


@pytest.mark.parametrize("name", SPECS)
def test_a_program_is_its_ops_one_by_one(name):
    spec = SPECS[name]
    table = slot_table(spec)
    inputs = inputs_of(spec, table)
    whole = native_runner(BEST, spec, table).logits(inputs)
    native = library(BEST)
    cache = native_cache(
        native, CacheShape("float16", 16, 256, tables=table.tables, page_bytes=page_size(native, spec))
    )
    step = NativeStep(8)
    step.set_tokens(inputs.token_ids, inputs.positions, inputs.query_starts, inputs.slots)
    step.set_states(inputs.state_reads, inputs.state_writes)
    step.set_rows(inputs.sampled_rows, inputs.sampling)
    ops = NativeOps(native, team(BEST), step, cache)
    apart = decoder(spec, NativePacker(native, team(BEST))).logits(ops, RecordedStep())
    np.testing.assert_array_equal(whole.view(np.int32), apart.view(np.int32))


def test_fusion_finds_what_it_is_for():
    spec = SPECS["gemma"]
    program = native_runner(BEST, spec, slot_table(spec)).program
    opcodes = [ins.opcode for ins in program.instructions]
    assert opcodes.count(Opcode.ADD_RMS_NORM) == 5
    assert opcodes.count(Opcode.ADD) == 1  # the last block's: its norm comes after the selection of rows
    spec = SPECS["llama"]
    program = native_runner(BEST, spec, slot_table(spec)).program
    residual = [ins for ins in program.instructions if ins.opcode is Opcode.LINEAR and ins.in1 is not None]
    assert len(residual) == 4
    assert Opcode.ADD not in [ins.opcode for ins in program.instructions]


def test_a_program_can_be_read():
    spec = SPECS["gemma"]
    program = native_runner(BEST, spec, slot_table(spec)).program
    text = "\n".join(describe(program))
    for part in ("QKV_ROPE_CACHE", "window 20", "qk-norm", "softcap 20", "fused from ADD + RMS_NORM", "[301, 64]"):
        assert part in text
    assert f"{len(program.instructions)} instructions" in text


@pytest.mark.parametrize(
    ("coding", "words"), [(Coding.EXACT, None), (Coding.INT8, "inputs in 8 bits"), (Coding.INT16, "inputs in 16 bits")]
)
def test_a_reader_sees_which_products_round_their_inputs(coding, words):
    packer = NativePacker(library(BEST), team(BEST))
    values = np.random.default_rng(0).standard_normal((16, 64), np.float32)
    exact = StoredTensor("w", "f32", values.shape, values.view(np.uint8).reshape(-1))
    weights = [packer.matrix([exact]), packer.matrix([packer.quantize(exact, "q8_0")])]
    recorder = ProgramRecorder(library(BEST), coding=coding)
    x = recorder.input(64)
    for weight in weights:
        recorder.linear(x, weight)
        recorder.head_linear(x, weight)
    program = NativeProgram(library(BEST), team(BEST), recorder.instructions, ProgramLimits(1, 1))
    for line in describe(program):
        if "LINEAR" in line:
            assert ("inputs in" in line) == (words is not None and "q8_0" in line)
            assert words is None or (words in line) == ("q8_0" in line)


def test_each_instruction_is_timed():
    spec = SPECS["llama"]
    table = slot_table(spec)
    runner = native_runner(BEST, spec, table)
    inputs = inputs_of(spec, table)
    tokens = runner.run(inputs).token_ids.copy()
    step = NativeStep(8)
    step.set_tokens(inputs.token_ids, inputs.positions, inputs.query_starts, inputs.slots)
    step.set_rows(inputs.sampled_rows, inputs.sampling)
    seconds = runner.program.run_timed(step)
    assert len(seconds) == len(runner.program.instructions)
    assert (seconds >= 0).all()
    assert seconds.sum() > 0
    np.testing.assert_array_equal(step.tokens[:3], tokens)


def test_a_step_beyond_the_limits_is_refused():
    spec = SPECS["llama"]
    table = slot_table(spec)
    runner = native_runner(BEST, spec, table, tokens=63)
    with pytest.raises(InternalError, match="64 tokens"):
        runner.run(inputs_of(spec, table))


# --- the recorder's checks -------------------------------------------------------------------------------------------


@pytest.fixture
def packer():
    return NativePacker(library(BEST), team(BEST))


@pytest.fixture
def recorder():
    shape = CacheShape("float16", 16, 8, 2, 16, 1, tables_for(1, 2, 4))
    return ProgramRecorder(library(BEST), native_cache(library(BEST), shape), max_len=64)


ATTENTION = AttentionSpec(4, 2, 16, 0.25, RopeSpec(1e4, 16))


def test_the_recorder_refuses_what_does_not_fit(recorder, packer):
    x = recorder.input(32)
    weight = packer.matrix([stored("f32", 8, 16, 1)])
    table = np.zeros((64, 8), np.float32)
    rope = RopeTable(16, table, table)
    qkv, rows = recorder.input(128), recorder.input(16, Axis.ROWS)
    at = LayerCache(0, 0)
    refused = [
        (lambda: recorder.linear(x, weight), "16 inputs"),
        (lambda: recorder.linear(recorder.input(16), weight, np.zeros(9, np.float32)), "8 elements"),
        (lambda: recorder.linear(recorder.input(16), weight, np.zeros(8, np.float64)), "float32"),
        (lambda: recorder.embed(Ids.SAMPLED_ROWS, weight), "token ids, positions or token types"),
        (lambda: recorder.embed(Ids.POSITIONS, weight), "64 positions"),
        (lambda: recorder.rms_norm(x, np.zeros(31, np.float32), 1e-5), "32 elements"),
        (lambda: recorder.add(x, recorder.input(31)), "cannot add"),
        (lambda: recorder.add(recorder.input(16), rows), "cannot add"),
        (lambda: recorder.act_mul(recorder.input(31), "silu"), "odd"),
        (lambda: recorder.softcap(x, 0.0), "positive"),
        (lambda: recorder.select_rows(rows, Ids.SAMPLED_ROWS), "already"),
        (lambda: recorder.process_logits(x), "sampled rows"),
        (lambda: recorder.sample(rows, x), "sampled rows"),
        (lambda: recorder.qkv_rope_cache(x, ATTENTION, at, Ids.POSITIONS, rope, None, None), "128 wide"),
        (lambda: recorder.qkv_rope_cache(qkv, ATTENTION, at, Ids.POSITIONS, None, None, None), "rope table"),
        (lambda: recorder.qkv_rope_cache(qkv, ATTENTION, LayerCache(1, 0), Ids.POSITIONS, rope, None, None), "group"),
        (lambda: recorder.qkv_rope_cache(qkv, ATTENTION, LayerCache(0, 1), Ids.POSITIONS, rope, None, None), "page"),
        (lambda: recorder.paged_attention(x, ATTENTION, at), "64 wide"),
    ]
    short = RopeTable(16, table[:63], table[:63])
    refused.append((lambda: recorder.qkv_rope_cache(qkv, ATTENTION, at, Ids.POSITIONS, short, None, None), "64, 8"))
    for record, message in refused:
        with pytest.raises(InternalError, match=message):
            record()
    assert recorder.instructions == []


def test_the_recorder_refuses_weights_that_are_not_as_packed(recorder, packer):
    good = packer.matrix([stored("q8_0", 32, 64, 1)])
    (segment,) = good.segments
    x = recorder.input(64)
    for data in (segment.data[:-1], segment.data[1:], segment.data.view(np.int8), "bytes"):
        with pytest.raises(InternalError, match="bytes"):
            recorder.linear(x, PackedWeight(good.shape, (Segment("q8_0", 32, data),)))
    for format in ("q4_0", "f32"):
        with pytest.raises(InternalError, match="aligned bytes"):
            recorder.linear(x, PackedWeight(good.shape, (Segment(format, 32, segment.data),)))
    with pytest.raises(InternalError, match="rows"):
        recorder.linear(x, PackedWeight((48, 64), good.segments))
    with pytest.raises(InternalError, match="no native kernel"):
        recorder.linear(x, PackedWeight(good.shape, (Segment("q9_9", 32, segment.data),)))
    assert recorder.linear(x, good).width == 32


def test_attention_without_a_cache_is_refused():
    recorder = ProgramRecorder(library(BEST))
    with pytest.raises(InternalError, match="cache"):
        recorder.paged_attention(recorder.input(64), ATTENTION, LayerCache(0, 0))


# --- fusion and buffers, on random programs --------------------------------------------------------------------------


@st.composite
def recordings(draw):
    """A recorder with a random program of norms, sums, matrices and products, one selection of rows, and more."""
    recorder = ProgramRecorder(library(BEST))
    packer = NativePacker(library(BEST), team(BEST))
    weight = packer.matrix([stored("f32", 16, 16, 3)])
    gain = numbers(4, 16)
    alive = [recorder.input(16)]

    def some():
        return alive[draw(st.integers(0, len(alive) - 1))]

    def grow():
        choice = draw(st.integers(0, 4))
        if choice == 0:
            alive.append(recorder.add(some(), some()))
        elif choice == 1:
            alive.append(recorder.rms_norm(some(), gain, 1e-5))
        elif choice == 2:
            alive.append(recorder.linear(some(), weight))
        elif choice == 3:
            alive.append(recorder.scale(some(), 0.5))
        else:
            alive.append(recorder.act(some(), "silu"))

    for _ in range(draw(st.integers(1, 14))):
        grow()
    alive[:] = [recorder.select_rows(some(), Ids.SAMPLED_ROWS), recorder.select_rows(some(), Ids.SAMPLED_ROWS)]
    for _ in range(draw(st.integers(0, 8))):
        grow()
    return recorder, alive[-1]


@settings(max_examples=60, deadline=None)
@given(recordings())
def test_fused_and_planned_programs_compute_the_same(recording):
    recorder, result = recording
    x = numbers(5, 9, 16)
    step = NativeStep(4)
    sequences = np.zeros(1, np.int32)
    step.set_tokens(np.zeros(9, np.int32), np.arange(9, dtype=np.int32), np.array([0, 9], np.int32), sequences)
    found = []
    for fused in (True, False):
        program = NativeProgram(library(BEST), team(BEST), recorder.instructions, ProgramLimits(9, 4), fused=fused)
        written = {buffer.index for ins in program.instructions for buffer in ins.writes}
        for buffer in {buffer for ins in program.instructions for buffer in ins.reads if buffer.index not in written}:
            program.view(buffer, 9)[:] = x
        for runs, rows in ((program.run, [8, 0]), (program.run_tail, [3, 4, 5])):
            step.set_rows(np.array(rows, np.int32), np.zeros(0, np.uint8))
            runs(step)
            found.append(program.view(result, len(rows)).copy())
    np.testing.assert_array_equal(found[0].view(np.int32), found[2].view(np.int32))
    np.testing.assert_array_equal(found[1].view(np.int32), found[3].view(np.int32))


@settings(max_examples=60, deadline=None)
@given(recordings())
def test_buffers_that_are_alive_together_never_share(recording):
    recorder, _ = recording
    code = fuse(recorder.instructions)
    assert len(code) <= len(recorder.instructions)
    plan = plan_memory(code, 9, 4)
    holder: dict[int, int] = {}  # arena -> buffer whose values it holds
    for position, ins in enumerate(code):
        for buffer in ins.reads:
            assert holder.setdefault(plan.arena[buffer.index], buffer.index) == buffer.index
        arenas = [plan.arena[buffer.index] for buffer in ins.reads + ins.writes]
        assert len(set(arenas)) == len({buffer.index for buffer in ins.reads + ins.writes})
        for buffer in ins.writes:
            holder[plan.arena[buffer.index]] = buffer.index
            rows = 9 if buffer.axis is Axis.TOKENS else 4
            assert plan.sizes[plan.arena[buffer.index]] >= rows * buffer.width * ctypes.sizeof(ctypes.c_float)
        assert position < tail_start(code) or all(b.axis is Axis.ROWS for b in ins.writes)
