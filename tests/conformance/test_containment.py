"""A row that holds NaN, infinities or numbers too large to square changes no bit of its neighbours, in any kernel."""

import numpy as np
import pytest

from octavo.cache.layout import state_pages
from octavo.flow.request import Sampling, Shaping
from octavo.kernels.cpu.packer import NativePacker
from octavo.kernels.cpu.program import NativeProgram, ProgramLimits
from octavo.kernels.cpu.recorder import ProgramRecorder
from octavo.kernels.cpu.step import NativeStep
from octavo.kernels.cpu.structs import Coding
from octavo.ops.conformance import FORMATS, QUANTIZED, CacheShape, Scene, numbers, spans_of, stored, tables_for
from octavo.ops.interface import LayerCache, RowRules
from octavo.spec.decoder import AttentionSpec
from tests.conformance.devices import ISAS, NativeDevice, library, team
from tests.conformance.tiny import SPECS, VOCAB, groups_of, native_worker, prompt
from tests.execution.engine import Driver

POISONS = {"nan": np.nan, "inf": np.inf, "-inf": -np.inf, "huge": 3e38}
TOKENS, SPOILT = 37, (0, 5, 17, 36)  # the first and the last row of tiles, and some between


def poisoned(clean, value):
    spoilt = clean.copy()
    spoilt[list(SPOILT), ::3] = value
    return spoilt


def assert_rows_equal(left, right, spoilt=SPOILT):
    others = [row for row in range(len(left)) if row not in spoilt]
    np.testing.assert_array_equal(left[others].view(np.int32), right[others].view(np.int32))


@pytest.mark.parametrize("coding", list(Coding))
@pytest.mark.parametrize("isa", ISAS)
def test_products(isa, coding):
    native, threads = library(isa), team(isa, 2)
    packer = NativePacker(native, threads)
    clean = numbers(3, TOKENS, 256)
    for format in FORMATS:
        recorder = ProgramRecorder(native, coding=coding)
        x = recorder.input(256)
        out = recorder.linear(x, packer.matrix([stored(format, 40, 256, 1)]))
        program = NativeProgram(native, threads, recorder.instructions, ProgramLimits(TOKENS, 1))
        step = NativeStep(1)
        zeros = np.zeros(TOKENS, np.int32)
        step.set_tokens(zeros, zeros, np.array([0, TOKENS], np.int32), zeros[:1])

        def product(values, program=program, step=step, x=x, out=out):
            program.view(x, TOKENS)[:] = values
            program.run(step)
            return program.view(out, TOKENS).copy()

        wanted = product(clean)
        for name, value in POISONS.items():
            got = product(poisoned(clean, value))
            assert_rows_equal(got, wanted)
            if name == "nan":
                assert not np.isfinite(got[list(SPOILT)]).any(), format


@pytest.mark.parametrize("isa", ISAS)
def test_norms_and_activations(isa):
    device = NativeDevice(isa, CacheShape())
    ops, _ = device.begin(Scene())
    clean, gain = numbers(1, TOKENS, 96), numbers(2, 96)
    run = {
        "rms": lambda x: ops.rms_norm(x, gain, 1e-6),
        "layer": lambda x: ops.layer_norm(x, gain, None, 1e-6),
        "act_mul": lambda x: ops.act_mul(x, "silu"),
        "gelu": lambda x: ops.act(x, "gelu_tanh"),
        "softcap": lambda x: ops.softcap(x, 30.0),
        "add": lambda x: ops.add(x, clean),
    }
    for op in run.values():
        wanted = op(clean)
        for value in POISONS.values():
            assert_rows_equal(op(poisoned(clean, value)), wanted)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", *QUANTIZED])
@pytest.mark.parametrize("isa", ISAS)
def test_attention_of_sequences_in_the_same_steps(isa, dtype):
    """Slot 1 is spoilt in every step; at last its blocks become slot 0's."""
    spec = AttentionSpec(6, 2, 32, 32**-0.5, None)
    tables = tables_for(1, 3, 8)
    shape = CacheShape(dtype, 16, tables.size, spec.kv_heads, spec.head_dim, 1, tables)
    steps = (((1, 0, 40), (0, 0, 37)), ((0, 37, 1), (1, 40, 20), (2, 0, 9)), ((2, 9, 60), (1, 60, 1), (0, 38, 1)))
    width = (spec.heads + 2 * spec.kv_heads) * spec.head_dim

    def run(value):
        device, results = NativeDevice(isa, shape), []
        shape.tables[:] = tables_for(1, 3, 8)
        for number, rows in enumerate(steps):
            spans = spans_of(rows)
            results += run_step(device, spans, numbers(number, sum(span.count for span in spans), width), value)
        device._cache.tables[0, [0, 1]] = device._cache.tables[0, [1, 0]]  # the spoilt one's blocks are recycled
        results += run_step(device, spans_of(((0, 0, 21),)), numbers(9, 21, width), value)
        return results

    def run_step(device, spans, qkv, value):
        ops, step = device.begin(Scene(spans))
        healthy = []
        for span in spans:
            if span.slot == 1 and value is not None:
                qkv[span.first : span.first + span.count] = value
        q = ops.qkv_rope_cache(qkv, spec, LayerCache(0, 0), step.positions, None, None, None)
        out = ops.paged_attention(q, spec, LayerCache(0, 0))
        for span in spans:
            if span.slot != 1:
                healthy.append(out[span.first : span.first + span.count].copy())
        return healthy

    wanted = run(None)
    assert all(np.isfinite(part).all() for part in wanted)
    for value in POISONS.values():
        for got, want in zip(run(value), wanted, strict=True):
            np.testing.assert_array_equal(got.view(np.int32), want.view(np.int32))


@pytest.mark.parametrize("isa", ISAS)
def test_draws(isa):
    kinds = [
        {"temperature": 0.0},
        {},
        {"top_k": 5},
        {"top_p": 0.7},
        {"min_p": 0.1},
        {"shaping": Shaping(typical_p=0.5)},
        {"repetition_penalty": 1.3, "logit_bias": ((3, 2.0),)},
    ]
    rules = [
        RowRules(Sampling(**{"seed": row, "logprobs": 2, **kinds[row % len(kinds)]}), (1, 2), (3,), 0)
        for row in range(TOKENS)
    ]
    clean = numbers(4, TOKENS, 517, scale=2.0)

    def draw(values):
        device = NativeDevice(isa, CacheShape())
        ops, _ = device.begin(Scene(sampled_rows=tuple(range(TOKENS)), rows=tuple(rules)))
        ops.sample(ops.process_logits(values), values)
        return device.drawn()

    wanted = draw(clean)
    assert not wanted.invalid.any()
    for name, value in POISONS.items():
        if name == "-inf":
            continue  # a rule may ban tokens: a row of some -inf can be drawn from
        got = draw(poisoned(clean, value))
        for field in ("tokens", "logprobs", "ranks", "top_ids", "top_logprobs"):
            assert_rows_equal(getattr(got, field), getattr(wanted, field))
        marked = set(np.flatnonzero(got.invalid).tolist())
        assert marked == (set() if name == "huge" else set(SPOILT)), name


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("isa", ISAS)
def test_whole_programs(isa, name):
    """A sequence beside others, its state and cache poisoned between two steps: the others' numbers stay."""
    spec = SPECS[name]

    groups = groups_of(spec)

    def run(spoil):
        worker = native_worker(isa, spec)
        driver = Driver(worker, len(groups), state_pages=state_pages(groups))
        params = Sampling(temperature=0.0, logprobs=1)
        healthy = [driver.add(slot, prompt(slot, length), params) for slot, length in ((0, 21), (2, 33))]
        bad = driver.add(1, prompt(7, 30), params)
        plans, run_step = [], worker.run_step
        worker.run_step = lambda plan: (plans.append(plan), run_step(plan))[1]
        driver.step(healthy[0], bad, healthy[1])
        if spoil:
            (row,) = (row for row in plans[0].rows if row.slot == 1)
            worker._runner._storage.page(slice(None))[[page for pages in row.new_blocks for page in pages]] = 0xFF
        results = [driver.step(healthy[0], bad, healthy[1]) for _ in range(3)]
        drawn = [[(entry.token_ids, entry.logprobs) for entry in line.outputs] for line in healthy]
        return drawn, [result.invalid for result in results]

    wanted, marks = run(False)
    assert not any(map(any, marks))
    drawn, marks = run(True)
    assert drawn == wanted
    assert all(0 <= token < VOCAB for line in drawn for entry in line for token in entry[0])
    assert all(mark == (False, True, False) for mark in marks)
