"""Turns a StepPlan into the flat arrays of one step: tokens, positions, spans, sampled rows and their rules.

Everything is computed with whole arrays; only reading the plan's fields costs Python time a row.
"""

from dataclasses import dataclass, replace

import numpy as np

from octavo.execution.slots import Integers, Records, SlotOccupant, SlotTable
from octavo.flow.logits_rules import in_effect
from octavo.flow.plan import PlannedRow, StepPlan
from octavo.flow.request import Sampling
from octavo.kernels.cpu.structs import SAMPLING_RECORD
from octavo.ops.interface import RowRules

_INT32 = 4  # bytes


@dataclass(slots=True)
class StepInputs:
    """One step, as every runner takes it. T tokens of S sequences; R rows whose logits are wanted.

    Sequence s owns the tokens query_starts[s] .. query_starts[s + 1]; they stand at consecutive positions from
    starts[s]. P pages hold one sequence's recurrent state; without recurrent layers P is 0. The first `drawn` rows draw
    a token, in the plan's order; the others ask for the log-probability of a prompt token: they allow that token alone.
    """

    token_ids: Integers  # [T]
    positions: Integers  # [T]
    query_starts: Integers  # [S + 1]
    starts: Integers  # [S]
    slots: Integers  # [S]
    sampled_rows: Integers  # [R], indices into tokens
    row_sequences: Integers  # [R], which sequence of the step a row belongs to
    sampling: Records  # [R], OctavoSampling
    drawn: int
    top_count: int  # likeliest tokens to list, the most that any row asks for
    whole_rows: tuple[int, ...]  # rows that ask for the whole vocabulary's log-probabilities
    table: SlotTable  # block tables [groups, slots, max_blocks] and token history, by slot
    planned: tuple[PlannedRow, ...]
    state_reads: Integers  # [P, S], pages with the state before the step's tokens; -1: there is none, it is zero
    state_writes: Integers  # [P, S], pages that take the state after them

    @property
    def tokens(self) -> int:
        """T."""
        return len(self.token_ids)

    @property
    def sequences(self) -> int:
        """S."""
        return len(self.slots)

    @property
    def rows(self) -> int:
        """R."""
        return len(self.sampled_rows)


def build_inputs(plan: StepPlan, table: SlotTable) -> StepInputs:
    """The arrays of `plan`; `table` has taken over the plan already."""
    rows = plan.rows
    count = len(rows)
    slots = np.fromiter((row.slot for row in rows), np.int32, count)
    starts = np.fromiter((row.start for row in rows), np.int32, count)
    counts = np.fromiter((row.count for row in rows), np.int32, count)
    query_starts = np.zeros(count + 1, np.int32)
    np.cumsum(counts, out=query_starts[1:])
    if int(query_starts[-1]) == count:  # decode: one token a sequence
        positions, token_ids = starts, table.history[slots, starts]
    else:
        positions = np.repeat(starts - query_starts[:-1], counts) + np.arange(query_starts[-1], dtype=np.int32)
        token_ids = table.history[np.repeat(slots, counts), positions]
    samples = np.fromiter((row.samples for row in rows), np.bool_, count)
    drawing = np.flatnonzero(samples).astype(np.int32)
    sampling = _sampling_of(rows, drawing, slots[drawing], table)
    state_reads, state_writes = table.states_of(slots, starts)
    inputs = StepInputs(
        token_ids=token_ids,
        positions=positions,
        query_starts=query_starts,
        starts=starts,
        slots=slots,
        sampled_rows=query_starts[1:][drawing] - 1,
        row_sequences=drawing,
        sampling=sampling,
        drawn=len(drawing),
        top_count=max(0, int(sampling["logprobs"].max(initial=0))),
        whole_rows=(),
        table=table,
        planned=rows,
        state_reads=state_reads,
        state_writes=state_writes,
    )
    _add_wide_rows(inputs)
    return inputs


class StepInputsBuilder:
    """The inputs of one step after another. Owns the last ones: most steps add one token to the same sequences."""

    def __init__(self, table: SlotTable) -> None:
        self._table = table
        self._last: StepInputs | None = None

    def build(self, plan: StepPlan) -> StepInputs:
        """As `build_inputs`; what it gave for the last step is not changed."""
        last = self._last
        goes_on = last is not None and _goes_on(last, plan.rows)
        self._last = _one_token_later(last, plan.rows) if last and goes_on else build_inputs(plan, self._table)
        return self._last


def _goes_on(last: StepInputs, rows: tuple[PlannedRow, ...]) -> bool:
    """Whether every sequence of the last step drew a token, and computes that one now."""
    if len(rows) != len(last.planned) or last.rows != len(rows):
        return False
    for row, before in zip(rows, last.planned, strict=True):
        if row.sequence != before.sequence or row.start != before.start + 1 or row.slot != before.slot:
            return False
        if row.count != 1 or before.count != 1 or not row.samples or not before.samples:
            return False
        if row.suppress_stop or before.suppress_stop or row.output_index != before.output_index + 1:
            return False
    return True


def _one_token_later(last: StepInputs, rows: tuple[PlannedRow, ...]) -> StepInputs:
    """What `build_inputs` would find; all that depends on who is there alone stays."""
    table, slots = last.table, last.slots
    starts = last.starts + np.int32(1)
    sampling = table.sampling[slots]
    sampling["output_index"] = last.sampling["output_index"] + 1
    sampling["history_len"] = table.lengths[slots]
    reads, writes = (
        (last.state_reads, last.state_writes) if not len(last.state_reads) else table.states_of(slots, starts)
    )
    return StepInputs(
        token_ids=table.history[slots, starts],
        positions=starts,
        query_starts=last.query_starts,
        starts=starts,
        slots=slots,
        sampled_rows=last.sampled_rows,
        row_sequences=last.row_sequences,
        sampling=sampling,
        drawn=last.drawn,
        top_count=last.top_count,
        whole_rows=last.whole_rows,
        table=table,
        planned=rows,
        state_reads=reads,
        state_writes=writes,
    )


def token_types(inputs: StepInputs) -> Integers:
    """Which text of its pair each token belongs to, [T]: 0, and 1 from where the second one begins."""
    begins = np.repeat(inputs.table.second_at[inputs.slots], np.diff(inputs.query_starts))
    return ((begins > 0) & (inputs.positions >= begins)).astype(np.int32)


def rules_of(inputs: StepInputs, row: int) -> RowRules:
    """The rules of sampled row `row` as plain values, for runners that have no use for native records."""
    sequence = int(inputs.row_sequences[row])
    planned = inputs.planned[sequence]
    occupant = inputs.table.occupant(planned.slot)
    history = inputs.table.history[planned.slot]
    prompt_len = occupant.arrival.prompt_len
    if row >= inputs.drawn:
        token = int(history[inputs.positions[inputs.sampled_rows[row]] + 1])
        known = occupant.sampling.known_tokens if token < occupant.sampling.known_tokens else 0
        asked = occupant.sampling.prompt_logprobs
        only = Sampling(temperature=0.0, logprobs=asked, allowed_token_ids=(token,), known_tokens=known)
        return RowRules(only, (), (), 0)
    tokens: list[int] = history[: inputs.table.lengths[planned.slot]].tolist()
    record = inputs.sampling[row]
    banned = occupant.arrival.stop_ids if planned.suppress_stop else ()
    permitted: list[int] = inputs.table.permitted[planned.slot].tolist() if record["permitted"] else []
    sampling = occupant.sampling
    if sampling.rules:
        effect = in_effect(sampling.rules, inputs.table.answer(planned.slot), sampling.allowed_token_ids)
        sampling = replace(
            sampling,
            logit_scale=tuple(effect.scale.items()),
            logit_bias=(*sampling.logit_bias, *effect.bias.items()),
            allowed_token_ids=tuple(effect.allowed),
        )
    output, mu = tokens[prompt_len:], float(record["mirostat_mu"])
    return RowRules(sampling, tokens[:prompt_len], output, planned.output_index, banned, permitted, mu)


def _sampling_of(rows: tuple[PlannedRow, ...], drawing: Integers, slots: Integers, table: SlotTable) -> Records:
    """Sampling records of the drawing rows, with what changes by step filled in."""
    sampling = table.sampling[slots]
    count = len(rows)
    sampling["output_index"] = np.fromiter((row.output_index for row in rows), np.int32, count)[drawing]
    sampling["history_len"] = table.lengths[slots]
    suppress = np.fromiter((row.suppress_stop for row in rows), np.bool_, count)[drawing]
    if suppress.any():
        sampling["bias_count"] = np.where(suppress, table.suppressed_bias_counts[slots], sampling["bias_count"])
    return sampling


def _add_wide_rows(inputs: StepInputs) -> None:
    """Rows for prompt log-probabilities, and the list of rows that want the whole vocabulary. Rare."""
    whole: list[int] = []
    extra: list[tuple[int, SlotOccupant, Integers]] = []
    asking = inputs.table.sampling["logprobs"][inputs.slots] >= 0
    for sequence in np.flatnonzero(asking | inputs.table.wants_prompt[inputs.slots]):
        occupant = inputs.table.occupant(int(inputs.slots[sequence]))
        if occupant.sampling.logprobs == -1:
            whole.extend(int(row) for row in np.flatnonzero(inputs.row_sequences == sequence))
        if occupant.sampling.prompt_logprobs is not None:
            first, last = inputs.query_starts[sequence : sequence + 2]
            tokens = np.arange(first, last, dtype=np.int32)
            predicting = tokens[inputs.positions[tokens] + 1 < occupant.arrival.prompt_len]
            extra.append((int(sequence), occupant, predicting))
    for sequence, occupant, tokens in extra:
        _add_prompt_rows(inputs, sequence, occupant, tokens, whole)
    inputs.whole_rows = tuple(whole)


def _add_prompt_rows(
    inputs: StepInputs, sequence: int, occupant: SlotOccupant, tokens: Integers, whole: list[int]
) -> None:
    """One row a token of a prompt that predicts another token of it: greedy among that token alone."""
    asked = occupant.sampling.prompt_logprobs
    assert asked is not None
    slot = int(inputs.slots[sequence])
    records = np.zeros(len(tokens), SAMPLING_RECORD)
    records["top_p"] = 1.0
    records["repetition_penalty"] = 1.0
    records["logprobs"] = max(asked, 0)
    # Somebody may have written an id that no token has.
    following, known = inputs.table.history[slot, inputs.positions[tokens] + 1], occupant.sampling.known_tokens
    records["known_tokens"] = np.where(following < known, known, 0)
    next_position = inputs.positions[tokens].astype(np.uint64) + np.uint64(1)
    records["allowed_ids"] = np.uint64(inputs.table.history[slot].ctypes.data) + next_position * np.uint64(_INT32)
    records["allowed_count"] = 1
    if asked == -1:
        whole.extend(range(inputs.rows, inputs.rows + len(tokens)))
    inputs.sampled_rows = np.concatenate([inputs.sampled_rows, tokens])
    inputs.row_sequences = np.concatenate([inputs.row_sequences, np.full(len(tokens), sequence, np.int32)])
    inputs.sampling = np.concatenate([inputs.sampling, records])
    inputs.top_count = max(inputs.top_count, asked)
