"""Carries out step plans on one device: takes over what changed, runs the model, reports what was drawn."""

import time
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from octavo.errors import UnsupportedError
from octavo.execution.grammars import GrammarTable
from octavo.execution.pooling import StatePooler
from octavo.execution.rules import apply_rules
from octavo.execution.runner import Runner, StepOutputs
from octavo.execution.sleep import Part, SleepingMemory
from octavo.execution.slots import Integers, SlotTable
from octavo.execution.step_inputs import StepInputs, StepInputsBuilder
from octavo.execution.tiers.transfers import TierTransfers
from octavo.flow.plan import StepPlan
from octavo.flow.result import StepResult, TierEvent, TokenLogprobs


class Worker:
    """The device side of the engine. Owns the slot table; one caller at a time.

    Args:
        tiers: where blocks go from the device and come back from, if anywhere; closed by `close`.
        memory: what it lets go of when it sleeps; None: it never does.
        grammars: which tokens may come next; None: nothing is ever constrained.

    `runner` draws tokens; with a StatePooler in its place nothing is drawn, and prompts are answered by their states.
    """

    def __init__(
        self,
        runner: Runner | StatePooler,
        table: SlotTable,
        tiers: TierTransfers | None = None,
        memory: SleepingMemory | None = None,
        grammars: GrammarTable | None = None,
    ) -> None:
        self._runner = runner
        self._table = table
        self._inputs = StepInputsBuilder(table)
        self._tiers = tiers
        self._memory = memory
        self._grammars = grammars

    def run_step(self, plan: StepPlan) -> StepResult:
        """Releases, arrivals, spills, copies and fetches, then the forward of the plan's rows.

        Raises:
            InternalError: the plan contradicts what the slots hold.
        """
        if self._tiers is not None:
            self._tiers.spill(plan)  # first, since what is ordered here must happen even when the step fails
        self._table.apply(plan)
        if self._grammars is not None:
            self._grammars.apply(plan)
        for copy in plan.copies:
            self._runner.copy_block(copy.source, copy.target)
        if self._tiers is not None:
            self._tiers.fetch(plan)
        began = time.perf_counter()
        if not plan.rows:
            return StepResult(plan.step, (), tier_events=self._tier_events(plan))
        inputs = self._inputs.build(plan)
        if isinstance(self._runner, StatePooler):
            return self._pooled(plan, inputs, self._runner, began)
        faults = () if self._grammars is None else self._grammars.fill(inputs)
        ruled = apply_rules(inputs)
        outputs = self._runner.run(inputs)
        del ruled
        drawn = inputs.drawn
        slots = inputs.slots if drawn == inputs.sequences else inputs.slots[inputs.row_sequences[:drawn]]
        self._table.append_tokens(slots, outputs.token_ids[:drawn])
        if self._grammars is not None:
            self._grammars.advance(slots, outputs.token_ids[:drawn])
        return StepResult(
            step=plan.step,
            token_ids=tuple(outputs.token_ids[:drawn].tolist()),
            logprobs=_drawn_logprobs(inputs, outputs),
            invalid=tuple(outputs.invalid[:drawn].astype(np.bool_).tolist()),
            prompt_logprobs=_prompt_logprobs(inputs, outputs) if inputs.rows > drawn else (),
            seconds=time.perf_counter() - began,
            faults=faults,
            invalid_prompts=_invalid_prompts(inputs, outputs) if inputs.rows > drawn else (),
            tier_events=self._tier_events(plan),
            mirostat=self._keep_mirostat(inputs, outputs, slots),
        )

    def _keep_mirostat(self, inputs: StepInputs, found: StepOutputs, slots: Integers) -> tuple[tuple[int, float], ...]:
        """The states that draws with mirostat leave to the next ones, by drawn row. slots: of the drawn rows."""
        rows = inputs.sampling["mirostat"][: inputs.drawn].nonzero()[0]
        if not rows.size:
            return ()
        self._table.keep_mirostat(slots[rows], found.mu[rows])
        return tuple(zip(rows.tolist(), found.mu[rows].tolist(), strict=True))

    def _pooled(self, plan: StepPlan, inputs: StepInputs, pooler: StatePooler, began: float) -> StepResult:
        """A step of prompts that are answered by their states."""
        pooler.forget(self._table.sequences())
        found = pooler.run(inputs)
        drawing = inputs.row_sequences.tolist()
        return StepResult(
            step=plan.step,
            token_ids=(0,) * inputs.drawn,
            invalid=tuple(index in found.invalid for index in drawing) if found.invalid else (),
            seconds=time.perf_counter() - began,
            pooled=found.answers,
            tier_events=self._tier_events(plan),
        )

    def prepare(self, grammar: str, seconds: float) -> bool:
        """See Executor.

        Raises:
            UnsupportedError: this worker has no grammars.
        """
        if self._grammars is None:
            raise UnsupportedError("this engine has no structured output")
        return self._grammars.prepare(grammar, seconds)

    def sleep(self, level: int) -> None:
        """Let go of memory; nothing of what host memory holds for tiers is needed any more.

        Raises:
            UnsupportedError: it cannot.
        """
        if self._memory is None:
            raise UnsupportedError("this engine cannot sleep: start it with --enable-sleep-mode on the native backend")
        if self._tiers is not None:
            self._tiers.release()
        self._memory.sleep(level)

    def wake(self, parts: Iterable[Part]) -> frozenset[Part]:
        """Bring parts back; returns what still sleeps."""
        if self._memory is None:
            return frozenset()
        self._memory.wake(parts)
        return self._memory.asleep

    def close(self) -> None:
        """Let tiers finish what was begun."""
        if self._tiers is not None:
            self._tiers.close()

    def _tier_events(self, plan: StepPlan) -> tuple[TierEvent, ...]:
        return () if self._tiers is None else self._tiers.events(wait=plan.awaits)


def _drawn_logprobs(inputs: StepInputs, outputs: StepOutputs) -> tuple[TokenLogprobs | None, ...]:
    """Of every drawing row, None where none were asked for."""
    found: list[TokenLogprobs | None] = [None] * inputs.drawn
    for row in (inputs.sampling["logprobs"][: inputs.drawn] >= 0).nonzero()[0].tolist():
        found[row] = _row_logprobs(inputs, outputs, row)
    return tuple(found)


def _prompt_logprobs(inputs: StepInputs, outputs: StepOutputs) -> tuple[tuple[int, tuple[TokenLogprobs, ...]], ...]:
    """By planned row: one entry for each computed position that predicts a prompt token."""
    found: dict[int, list[TokenLogprobs]] = {}
    for row in range(inputs.drawn, inputs.rows):
        found.setdefault(int(inputs.row_sequences[row]), []).append(_row_logprobs(inputs, outputs, row))
    return tuple((sequence, tuple(entries)) for sequence, entries in found.items())


def _invalid_prompts(inputs: StepInputs, outputs: StepOutputs) -> tuple[int, ...]:
    """Planned rows that have a scored position whose logits were not finite."""
    rows = np.flatnonzero(outputs.invalid[inputs.drawn : inputs.rows]) + inputs.drawn
    return tuple(dict.fromkeys(inputs.row_sequences[rows].tolist()))


def _row_logprobs(inputs: StepInputs, outputs: StepOutputs, row: int) -> TokenLogprobs:
    """The drawn token's log-probability, then the likeliest tokens'."""
    token, rank = int(outputs.token_ids[row]), int(outputs.ranks[row])
    whole = outputs.whole.get(row)
    if whole is not None:
        order: NDArray[np.int64] = np.argsort(-whole, kind="stable")  # ties to the smaller id
        order = order[whole[order] > -np.inf]  # not those that the vocabulary is padded with
        ids, values = order.tolist(), whole[order].tolist()
    else:
        count = int(inputs.sampling["logprobs"][row])
        ids, values = outputs.top_ids[row, :count].tolist(), outputs.top_logprobs[row, :count].tolist()
    return TokenLogprobs((token, *ids), (float(outputs.logprobs[row]), *values), rank)
