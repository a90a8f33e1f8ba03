"""Plans become the arrays they describe, and the slot table remembers what it must."""

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.errors import InternalError
from octavo.execution.slots import SlotTable
from octavo.execution.step_inputs import StepInputs, StepInputsBuilder, build_inputs, rules_of
from octavo.flow.plan import PlannedRow, SlotArrival, StepPlan
from octavo.flow.request import Sampling
from octavo.kernels.cpu.structs import SAMPLING_RECORD
from tests.calls import count_calls

PLAIN = Sampling(temperature=0.5, top_k=7, seed=-1)
RULED = Sampling(
    temperature=0.0, logit_bias=((4, 1.5), (9, -2.0)), allowed_token_ids=(4, 9, 11), repetition_penalty=1.3, logprobs=3
)


@pytest.fixture
def table():
    return SlotTable(slots=4, max_len=40, groups=2, block_size=16)


def arrival(slot, tokens, sampling=PLAIN, stop_ids=()):
    return SlotArrival(slot, 100 + slot, tuple(tokens), len(tokens), sampling, stop_ids)


def row(slot, start, count, samples=True, blocks=((), ()), **fields):
    return PlannedRow(100 + slot, slot, start, count, blocks, samples, **fields)


def pointed(address, count, dtype):
    """Values at an address."""
    import ctypes

    return np.frombuffer(ctypes.string_at(int(address), count * np.dtype(dtype).itemsize), dtype).tolist()


def test_mixed_rows_become_flat_arrays(table):
    arrivals = (arrival(2, range(10, 30)), arrival(0, range(50, 53)))
    rows = (row(2, 4, 5, samples=False), row(0, 2, 1), row(2, 9, 11))
    plan = StepPlan(1, rows, arrivals)
    table.apply(plan)
    inputs = build_inputs(plan, table)
    assert inputs.token_ids.tolist() == [14, 15, 16, 17, 18, 52, *range(19, 30)]
    assert inputs.positions.tolist() == [4, 5, 6, 7, 8, 2, *range(9, 20)]
    assert inputs.query_starts.tolist() == [0, 5, 6, 17]
    assert inputs.slots.tolist() == [2, 0, 2]
    assert inputs.sampled_rows.tolist() == [5, 16]
    assert inputs.row_sequences.tolist() == [1, 2]
    assert (inputs.tokens, inputs.sequences, inputs.rows, inputs.drawn) == (17, 3, 2, 2)
    for array in (inputs.token_ids, inputs.positions, inputs.query_starts, inputs.slots, inputs.sampled_rows):
        assert array.dtype == np.int32
        assert array.flags.c_contiguous


def test_decode_reads_the_token_that_was_drawn(table):
    table.apply(StepPlan(0, (), (arrival(1, [5, 6]), arrival(3, [7]))))
    table.append_tokens(np.array([3, 1], np.int32), np.array([77, 66], np.int32))
    plan = StepPlan(1, (row(1, 2, 1, output_index=1), row(3, 1, 1, output_index=1)))
    inputs = build_inputs(plan, table)
    assert inputs.token_ids.tolist() == [66, 77]
    assert inputs.sampling["output_index"].tolist() == [1, 1]
    assert inputs.sampling["history_len"].tolist() == [3, 2]
    assert pointed(inputs.sampling["history"][0], 3, np.int32) == [5, 6, 66]


def test_records_hold_the_rules(table):
    plan = StepPlan(0, (row(2, 0, 3, output_index=5),), (arrival(2, [1, 2, 3], RULED, stop_ids=(8,)),))
    table.apply(plan)
    (record,) = build_inputs(plan, table).sampling
    assert record.dtype == SAMPLING_RECORD
    assert record["repetition_penalty"] == np.float32(1.3)
    assert (record["logprobs"], record["output_index"], record["prompt_len"]) == (3, 5, 3)
    assert pointed(record["bias_ids"], record["bias_count"], np.int32) == [4, 9]
    assert pointed(record["bias_values"], record["bias_count"], np.float32) == [1.5, -2.0]
    assert pointed(record["allowed_ids"], record["allowed_count"], np.int32) == [4, 9, 11]
    suppressed = replace(plan, rows=(row(2, 0, 3, suppress_stop=True),), arrivals=())
    (record,) = build_inputs(suppressed, table).sampling
    assert pointed(record["bias_ids"], record["bias_count"], np.int32) == [4, 9, 8]
    assert pointed(record["bias_values"], record["bias_count"], np.float32)[2] == -np.inf


def test_negative_seeds_are_64_bits(table):
    plan = StepPlan(0, (row(0, 0, 1),), (arrival(0, [1]),))
    table.apply(plan)
    assert int(build_inputs(plan, table).sampling["seed"][0]) == 2**64 - 1


def test_plain_rules_are_the_same_rules(table):
    plan = StepPlan(
        0, (row(2, 0, 3, output_index=1, suppress_stop=True),), (SlotArrival(2, 9, (1, 2, 3), 2, RULED, (8, 6)),)
    )
    table.apply(plan)
    rules = rules_of(build_inputs(plan, table), 0)
    assert rules.sampling is RULED
    assert (rules.prompt, rules.output) == ([1, 2], [3])
    assert (rules.output_index, rules.banned) == (1, (8, 6))


def test_prompt_logprobs_add_rows_that_allow_the_next_token(table):
    asking = replace(PLAIN, prompt_logprobs=2)
    plan = StepPlan(
        0, (row(1, 0, 4), row(0, 3, 4, samples=True)), (arrival(1, range(4)), arrival(0, range(20, 27), asking))
    )
    table.apply(plan)
    inputs = build_inputs(plan, table)
    assert (inputs.rows, inputs.drawn, inputs.top_count) == (5, 2, 2)
    assert inputs.sampled_rows.tolist() == [3, 7, 4, 5, 6]
    assert inputs.row_sequences.tolist() == [0, 1, 1, 1, 1]
    allowed = [pointed(r["allowed_ids"], r["allowed_count"], np.int32) for r in inputs.sampling[2:]]
    assert allowed == [[24], [25], [26]]
    assert [rules_of(inputs, i).sampling.allowed_token_ids for i in (2, 3, 4)] == [(24,), (25,), (26,)]


def test_block_tables_grow_row_by_row(table):
    first = StepPlan(0, (row(1, 0, 20, blocks=((7, 3), (9, 1))),), (arrival(1, range(20)),))
    table.apply(first)
    table.apply(StepPlan(1, (row(1, 20, 13, blocks=((5,), ())),)))
    assert table.tables[0, 1].tolist() == [7, 3, 5]
    assert table.tables[1, 1, :2].tolist() == [9, 1]
    assert table.table_lengths[:, 1].tolist() == [3, 2]
    table.apply(StepPlan(2, (row(1, 0, 1, blocks=((2,), (4,))),), (arrival(1, [1]),), released=(1,)))
    assert table.tables[:, 1, 0].tolist() == [2, 4]
    assert table.table_lengths[:, 1].tolist() == [1, 1]


def test_contradictions_are_refused(table):
    table.apply(StepPlan(0, (), (arrival(1, [1]),)))
    with pytest.raises(InternalError, match="taken"):
        table.apply(StepPlan(1, (), (arrival(1, [1]),)))
    with pytest.raises(InternalError, match="41 tokens"):
        table.apply(StepPlan(1, (), (arrival(2, range(41)),)))
    with pytest.raises(InternalError, match="blocks"):
        table.apply(StepPlan(1, (row(1, 0, 1, blocks=((1, 2, 3, 4), ())),)))
    with pytest.raises(InternalError, match="no sequence"):
        table.occupant(3)


def test_a_full_history_keeps_its_tokens(table):
    table.apply(StepPlan(0, (), (arrival(1, range(40)), arrival(0, [5]))))
    table.append_tokens(np.array([1, 0], np.int32), np.array([99, 88], np.int32))
    assert table.history[1].tolist() == list(range(40))
    assert table.lengths[[0, 1]].tolist() == [2, 40]


def calls_of(count: int) -> int:
    """Functions, Python's and C's, that are called for a step of so many rows of one token."""
    table = SlotTable(count, 64, 1, 16)
    table.apply(StepPlan(0, (), tuple(arrival(slot, range(8)) for slot in range(count))))
    plan = StepPlan(1, tuple(row(slot, 8, 1, blocks=((),)) for slot in range(count)))

    def step() -> None:
        table.apply(plan)
        build_inputs(plan, table)

    return count_calls(step)


def test_a_row_costs_few_calls():
    """The budget is 2 us a row, which is what some twenty calls take."""
    calls_of(2)  # whatever is made at the first time
    assert calls_of(258) - calls_of(2) <= 256 * 10


SAMPLINGS = (PLAIN, RULED, replace(PLAIN, logprobs=-1), replace(PLAIN, prompt_logprobs=1))


def as_plain(inputs: StepInputs) -> dict[str, object]:
    """Every field, arrays as bytes."""
    found = {field.name: getattr(inputs, field.name) for field in fields(inputs)}
    return {name: (v.dtype, v.shape, v.tobytes()) if isinstance(v, np.ndarray) else v for name, v in found.items()}


@given(st.data())
def test_steps_that_go_on_are_what_they_would_be_alone(data):
    """Sequences come, go, wait and are given their slot again; whatever a step was built from, it is the same."""
    pages = data.draw(st.integers(0, 2))  # of a recurrent state
    table = SlotTable(4, 40, 1, 16, state_pages=(pages,))
    builder, lengths, done, prompts = StepInputsBuilder(table), {}, {}, {}
    for number in range(data.draw(st.integers(2, 14))):
        released = tuple(slot for slot in lengths if data.draw(st.integers(0, 9)) == 0)
        for slot in released:
            del lengths[slot], done[slot]
        arrivals = tuple(
            arrival(slot, range(1, 1 + data.draw(st.integers(1, 5))), data.draw(st.sampled_from(SAMPLINGS)), (8,))
            for slot in range(4)
            if slot not in lengths and data.draw(st.integers(0, 2)) == 0
        )
        for one in arrivals:
            lengths[one.slot], done[one.slot], prompts[one.slot] = len(one.token_ids), 0, len(one.token_ids)
        rows = []
        for slot in lengths:
            if data.draw(st.integers(0, 9)) == 0:
                continue  # it waits
            left = lengths[slot] - done[slot]
            count, suppress = data.draw(st.integers(1, left)), data.draw(st.integers(0, 9)) == 0
            blocks = (tuple(range(2 * slot, 2 * slot + (pages or 2))) if done[slot] == 0 else (),)
            fields_of_draw = {"output_index": lengths[slot] - prompts[slot], "suppress_stop": suppress}
            rows.append(row(slot, done[slot], count, count == left, blocks, **fields_of_draw))
        plan = StepPlan(number, tuple(rows), arrivals, released=released)
        table.apply(plan)
        if not rows:
            continue
        inputs = builder.build(plan)
        assert as_plain(inputs) == as_plain(build_inputs(plan, table))
        inputs.sampling["bias_count"][: inputs.drawn] = 77  # as a request's own rules do
        drawing = np.array([one.slot for one in rows if one.samples], np.int32)
        table.append_tokens(drawing, drawing + 30)
        for one in rows:
            done[one.slot] += one.count
            lengths[one.slot] += one.samples
