"""What the worker remembers of every running sequence: one permanent row each, from its arrival to its release."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from octavo.errors import InternalError
from octavo.flow.plan import PlannedRow, SlotArrival, StepPlan
from octavo.flow.request import Sampling
from octavo.kernels.cpu.allocate import mapped_bytes
from octavo.kernels.cpu.structs import SAMPLING_RECORD

Integers = NDArray[np.int32]
Records = NDArray[np.void]

_SEED_MASK = (1 << 64) - 1
_FEW = 4  # slots up to which one after the other is quicker than whole arrays


@dataclass(slots=True)
class SlotOccupant:
    """The sequence of a slot, and the arrays that its sampling record points into."""

    arrival: SlotArrival
    bias_ids: Integers  # the request's biases, then the stop ids
    bias_values: NDArray[np.float32]
    allowed_ids: Integers
    breakers: Integers
    words: Integers  # bad words of several tokens: the length of each, then its tokens

    @property
    def sampling(self) -> Sampling:
        """The sequence's sampling parameters."""
        return self.arrival.sampling


class SlotTable:
    """Block tables, token history and sampling records by slot. Mutable; the worker owns it.

    Args:
        slots: most sequences at a time.
        max_len: most tokens of a sequence, prompt and output.
        groups: cache groups.
        block_size: tokens a block holds.
        state_pages: for each group, the pages of a recurrent state; 0 where a group keeps keys and values.
    """

    def __init__(self, slots: int, max_len: int, groups: int, block_size: int, state_pages: Sequence[int] = ()) -> None:
        self.slots = slots
        self.max_len = max_len
        self.max_blocks = -(-max_len // block_size)
        self.tables: Integers = np.zeros((groups, slots, self.max_blocks), np.int32)
        self.table_lengths: Integers = np.zeros((groups, slots), np.int32)
        # Large and mostly never touched: pages take memory as tokens come.
        self.history: Integers = mapped_bytes(slots * max_len * 4).view(np.int32).reshape(slots, max_len)
        self.lengths: Integers = np.zeros(slots, np.int32)
        self.sampling: Records = np.zeros(slots, SAMPLING_RECORD)
        self.suppressed_bias_counts: Integers = np.zeros(slots, np.int32)  # biases with the stop ids banned
        self.permitted: NDArray[np.uint32] = np.zeros((0, 0), np.uint32)  # [slots, words], once there is a grammar
        self.ruled: NDArray[np.bool_] = np.zeros(slots, np.bool_)  # has rules of its own; see execution/rules.py
        self.wants_prompt: NDArray[np.bool_] = np.zeros(slots, np.bool_)  # log-probabilities of prompt tokens
        self.second_at: Integers = np.zeros(slots, np.int32)  # where the second text of a pair begins; 0: nowhere
        self._occupants: list[SlotOccupant | None] = [None] * slots
        self._states = {group: count for group, count in enumerate(state_pages) if count}
        # Where each slot's state was before its last step, and where it is since.
        self._state_reads: Integers = np.full((sum(state_pages), slots), -1, np.int32)
        self._state_writes: Integers = np.full((sum(state_pages), slots), -1, np.int32)

    def apply(self, plan: StepPlan) -> None:
        """Take over a plan's releases, arrivals and new blocks.

        Raises:
            InternalError: a slot is taken, free or out of range where the plan says otherwise.
        """
        for slot in plan.released:
            self._occupants[slot] = None
        for arrival in plan.arrivals:
            self._settle(arrival)
        if self._states:
            slots = [row.slot for row in plan.rows]
            self._state_reads[:, slots] = self._state_writes[:, slots]
        for row in plan.rows:
            if any(row.new_blocks):
                self._append_blocks(row)

    def occupant(self, slot: int) -> SlotOccupant:
        """Who holds `slot`.

        Raises:
            InternalError: nobody does.
        """
        occupant = self._occupants[slot]
        if occupant is None:
            raise InternalError(f"slot {slot} holds no sequence")
        return occupant

    def answer(self, slot: int) -> bytes:
        """What the sequence of a slot has generated so far, as 32-bit integers."""
        return self.history[slot, self.occupant(slot).arrival.prompt_len : self.lengths[slot]].tobytes()

    def sequences(self) -> frozenset[int]:
        """Everybody who holds a slot."""
        return frozenset(one.arrival.sequence for one in self._occupants if one is not None)

    def states_of(self, slots: Integers, starts: Integers) -> tuple[Integers, Integers]:
        """Pages [P, S] that the sequences of `slots` read their states from (-1: they start at 0), and write to."""
        return np.where(starts > 0, self._state_reads[:, slots], np.int32(-1)), self._state_writes[:, slots]

    def append_tokens(self, slots: Integers, tokens: Integers) -> None:
        """One new token for each slot. A full history keeps its tokens: that sequence ends by its length."""
        if len(slots) <= _FEW:
            for slot, token in zip(slots.tolist(), tokens.tolist(), strict=True):
                length = int(self.lengths[slot])
                if length < self.max_len:
                    self.history[slot, length] = token
                    self.lengths[slot] = length + 1
            return
        lengths = self.lengths[slots]
        fits = lengths < self.max_len
        if not fits.all():
            slots, tokens, lengths = slots[fits], tokens[fits], lengths[fits]
        self.history[slots, lengths] = tokens
        self.lengths[slots] = lengths + 1

    def keep_mirostat(self, slots: Integers, mu: NDArray[np.float32]) -> None:
        """What draws with mirostat left to the next ones."""
        self.sampling["mirostat_mu"][slots] = mu

    def _settle(self, arrival: SlotArrival) -> None:
        """Give a sequence its slot."""
        slot, count = arrival.slot, len(arrival.token_ids)
        if self._occupants[slot] is not None:
            raise InternalError(f"slot {slot} is given to sequence {arrival.sequence}, but it is taken")
        if count > self.max_len:
            raise InternalError(f"sequence {arrival.sequence} has {count} tokens; a slot holds {self.max_len}")
        self.history[slot, :count] = arrival.token_ids
        self.lengths[slot] = count
        self.table_lengths[:, slot] = 0
        self._state_reads[:, slot] = self._state_writes[:, slot] = -1
        self._occupants[slot] = occupant = _occupant(arrival)
        self.suppressed_bias_counts[slot] = len(occupant.bias_ids)
        self.ruled[slot] = bool(arrival.sampling.rules)
        self.second_at[slot] = 0 if arrival.pooling is None else arrival.pooling.second_at
        self.wants_prompt[slot] = arrival.sampling.prompt_logprobs is not None
        self.sampling[slot] = _record(occupant, self.history[slot].ctypes.data)

    def _append_blocks(self, row: PlannedRow) -> None:
        for group, blocks in enumerate(row.new_blocks):
            if not blocks:
                continue
            if group in self._states:
                self._move_state(group, row.slot, blocks)
                continue
            first = int(self.table_lengths[group, row.slot])
            last = first + len(blocks)
            if last > self.max_blocks:
                raise InternalError(f"sequence {row.sequence} has {last} blocks; a table holds {self.max_blocks}")
            self.tables[group, row.slot, first:last] = blocks
            self.table_lengths[group, row.slot] = last

    def _move_state(self, group: int, slot: int, pages: tuple[int, ...]) -> None:
        """A sequence's state is in other pages from now on."""
        count = self._states[group]
        first = sum(self._states[before] for before in self._states if before < group)
        own = slice(first, first + count)
        if len(pages) > count or self._state_reads[first, slot] < 0:
            self._state_reads[own, slot] = pages[:count]
        self._state_writes[own, slot] = pages[-count:]


def _occupant(arrival: SlotArrival) -> SlotOccupant:
    bias = arrival.sampling.logit_bias
    ids = [token for token, _ in bias] + list(arrival.stop_ids)
    values = [value for _, value in bias] + [-np.inf] * len(arrival.stop_ids)
    return SlotOccupant(
        arrival,
        np.array(ids, np.int32),
        np.array(values, np.float32),
        np.array(arrival.sampling.allowed_token_ids, np.int32),
        np.array(sorted(arrival.sampling.shaping.dry_breakers), np.int32),
        np.array([i for word in arrival.sampling.bad_words for i in (len(word), *word)], np.int32),
    )


def _shaping_fields(occupant: SlotOccupant) -> tuple[float | int, ...]:
    """The last fields of OctavoSampling."""
    shaping = occupant.sampling.shaping
    return (
        shaping.typical_p,
        shaping.top_n_sigma,
        shaping.xtc_probability,
        shaping.xtc_threshold,
        shaping.dynatemp_range,
        shaping.dynatemp_exponent,
        shaping.dry_multiplier,
        shaping.dry_base,
        shaping.dry_allowed_length,
        shaping.dry_window,
        occupant.breakers.ctypes.data,
        len(occupant.breakers),
        len(occupant.words),
        occupant.words.ctypes.data,
        *_mirostat_fields(occupant),
        occupant.sampling.known_tokens,
    )


def _mirostat_fields(occupant: SlotOccupant) -> tuple[float | int, ...]:
    """Mu is what the last draw left, 2 tau before the first (arXiv:2007.14966, algorithm 1)."""
    shaping, mu = occupant.sampling.shaping, occupant.arrival.mirostat_mu
    start = 2 * shaping.mirostat_tau if mu is None else mu
    return (shaping.sampler_order, shaping.mirostat, shaping.mirostat_tau, shaping.mirostat_eta, start)


def _record(occupant: SlotOccupant, history: int) -> tuple[float | int, ...]:
    """The slot's sampling record, in the order of OctavoSampling's fields; what changes by step is filled in later."""
    sampling, arrival = occupant.sampling, occupant.arrival
    logprobs = -1 if sampling.logprobs is None else max(sampling.logprobs, 0)
    return (
        sampling.temperature,
        sampling.top_p,
        sampling.min_p,
        sampling.repetition_penalty,
        sampling.presence_penalty,
        sampling.frequency_penalty,
        sampling.top_k,
        logprobs,
        sampling.seed & _SEED_MASK,
        0,  # output_index
        len(sampling.logit_bias),
        occupant.bias_ids.ctypes.data,
        occupant.bias_values.ctypes.data,
        occupant.allowed_ids.ctypes.data,
        len(occupant.allowed_ids),
        arrival.prompt_len,
        len(arrival.token_ids),
        0,  # scale_count: see execution/rules.py
        history,
        0,  # permitted: see execution/grammars.py
        *_shaping_fields(occupant),
    )
