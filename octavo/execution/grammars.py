"""Which tokens each constrained sequence may draw next: its place in its grammar, and the bitmask that follows of it.

A sequence that comes back after a preemption walks its grammar again along its tokens: nobody else needs to know.
"""

import numpy as np

from octavo.errors import UserError
from octavo.execution.slots import Integers, SlotTable
from octavo.execution.step_inputs import StepInputs
from octavo.flow.plan import SlotArrival, StepPlan
from octavo.kernels.cpu.allocate import mapped_bytes
from octavo.text.grammar import GrammarCompiler, Matcher

_WORD = 4  # bytes


class _Answer:
    """The grammar of one slot's sequence."""

    __slots__ = ("matcher", "stops")

    def __init__(self, matcher: Matcher, stops: frozenset[int]) -> None:
        self.matcher = matcher
        self.stops = stops


class GrammarTable:
    """Grammars by slot. Mutable; the worker owns it.

    Args:
        compiler: of the model's tokenizer.
        table: whose sampling records point to the bitmasks.
    """

    def __init__(self, compiler: GrammarCompiler, table: SlotTable) -> None:
        self._compiler = compiler
        self._table = table
        self._answers: dict[int, _Answer] = {}
        self._refused: dict[int, str] = {}  # slots whose grammar cannot be had, and why

    def prepare(self, grammar: str, seconds: float = 0.0) -> bool:
        """See `GrammarCompiler.prepare`."""
        return self._compiler.prepare(grammar, seconds)

    def apply(self, plan: StepPlan) -> None:
        """Take over a plan's releases and arrivals; the slot table has done so already."""
        if self._answers or self._refused:
            for slot in plan.released:
                self._answers.pop(slot, None)
                self._refused.pop(slot, None)
        for arrival in plan.arrivals:
            if arrival.sampling.grammar:
                self._settle(arrival)

    def fill(self, inputs: StepInputs) -> tuple[tuple[int, str], ...]:
        """Write the masks of a step's drawing rows; return the rows that cannot go on, and why."""
        if not self._answers and not self._refused:
            return ()
        faults: list[tuple[int, str]] = []
        slots: list[int] = inputs.slots[inputs.row_sequences[: inputs.drawn]].tolist()
        for row, slot in enumerate(slots):
            answer = self._answers.get(slot)
            if answer is None:
                if slot in self._refused:
                    faults.append((row, self._refused[slot]))
                continue
            answer.matcher.fill(self._address(slot))
            if answer.matcher.error:
                inputs.sampling["permitted"][row] = 0
                faults.append((row, answer.matcher.error))
                continue
            self._see_to_stops(inputs, row, slot, answer.stops)
        return tuple(faults)

    def advance(self, slots: Integers, tokens: Integers) -> None:
        """One new token for each slot."""
        if not self._answers:
            return
        for slot, token in zip(slots.tolist(), tokens.tolist(), strict=True):
            answer = self._answers.get(slot)
            if answer is not None:
                answer.matcher.advance(token, token in answer.stops)

    def _settle(self, arrival: SlotArrival) -> None:
        table = self._table
        if not len(table.permitted):
            words = self._compiler.words
            table.permitted = mapped_bytes(table.slots * words * _WORD).view(np.uint32).reshape(table.slots, words)
        try:
            matcher = self._compiler.open(arrival.sampling.grammar)
        except UserError as error:
            self._refused[arrival.slot] = str(error)
            return
        stops = frozenset(arrival.stop_ids)
        for token in arrival.token_ids[arrival.prompt_len :]:
            matcher.advance(token, token in stops)
        self._answers[arrival.slot] = _Answer(matcher, stops)
        table.sampling["permitted"][arrival.slot] = self._address(arrival.slot)

    def _address(self, slot: int) -> int:
        return int(self._table.permitted[slot].ctypes.data)

    def _see_to_stops(self, inputs: StepInputs, row: int, slot: int, stops: frozenset[int]) -> None:
        """Any stop token may come where the grammar lets the answer end. Before `min_tokens` none may, unless nothing
        else is left: then ends are drawn until there are enough."""
        words = self._table.permitted[slot]
        bits = [(stop // 32, np.uint32(1 << stop % 32)) for stop in stops]
        before = [bool(words[word] & bit) for word, bit in bits]
        if not any(before):
            return
        for word, bit in bits:
            words[word] |= bit
        if not inputs.planned[int(inputs.row_sequences[row])].suppress_stop:
            return
        rest = words.copy()
        for word, bit in bits:
            rest[word] &= ~bit
        if not rest.any():
            occupant = inputs.table.occupant(slot)
            inputs.sampling["bias_count"][row] = len(occupant.sampling.logit_bias)
