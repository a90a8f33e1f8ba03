"""Which tokens of which sequences the next step computes: decode first, then prompts in chunks."""

from octavo.cache.manager import CacheManager
from octavo.cache.table import NewBlocks
from octavo.errors import InternalError
from octavo.flow.plan import PlannedRow
from octavo.scheduling.budget import SchedulerLimits, StepDraft
from octavo.scheduling.fairness import OUTPUT_COST
from octavo.scheduling.intake import Intake
from octavo.scheduling.policy import POLICIES
from octavo.scheduling.preemption import Preemption, choose_victim
from octavo.scheduling.roster import Roster
from octavo.scheduling.sequence import SequenceState
from octavo.scheduling.step_time import StepLoad, StepTimeModel


class Planner:
    """Fills steps. What it plans counts as computed at once, so that the next step can be planned before this one ran.

    Mutable; the Scheduler owns it.

    Args:
        model: says how much of prompts fits into the target time; None: as much as the token budget allows.
    """

    def __init__(
        self,
        cache: CacheManager,
        limits: SchedulerLimits,
        roster: Roster,
        intake: Intake,
        preemption: Preemption,
        model: StepTimeModel | None,
    ) -> None:
        self.prompt_room = 0  # of the last step, under a target time
        self._cache = cache
        self._limits = limits
        self._roster = roster
        self._intake = intake
        self._preemption = preemption
        self._model = model
        policy = POLICIES[limits.policy]
        self._preempts = policy.preempts
        self._charges = policy.charges

    def fill(self, now: float, settled: bool) -> StepDraft:
        """The next step. It has no rows when nothing can be done.

        Args:
            settled: every step that was planned has been committed.
        """
        draft = StepDraft(self._limits.max_num_batched_tokens)
        roster, intake = self._roster, self._intake
        roster.line.begin(now)
        intake.begin(draft, settled)
        if not self._limits.enable_chunked_prefill:
            intake.start_whole(draft, now)
        prompts = self._decode(draft)
        if self._model is not None and draft.rows:
            draft.pace = self._model.pace(StepLoad.of(draft.rows.values()))
            self.prompt_room = draft.room()
        self._continue_prompts(draft, prompts, now)
        if self._preempts or roster.lagging or not draft.preempted:
            intake.start_in_turn(draft, now)
        if settled and not draft.rows:
            self._replace_idle(draft, now)
        if self._charges:
            self._charge(draft)
        return draft

    def _decode(self, draft: StepDraft) -> list[SequenceState]:
        """Give every sequence its next token, as far as the budget goes; return those with more to compute."""
        prompts: list[SequenceState] = []
        nothing = self._cache.no_blocks
        rows, left = draft.rows, draft.tokens_left
        for sequence in tuple(self._roster.running.values()):
            slot = sequence.slot
            if slot < 0 or sequence.id in rows:  # fell victim, or was started, in this plan
                continue
            start = sequence.computed
            end = sequence.length
            if end - start != 1:
                if end > start:  # else an idle beam
                    prompts.append(sequence)
                continue
            if end >= sequence.end_len:  # its last token is being drawn
                continue
            if not left:
                break
            new_blocks = nothing
            if start >= sequence.blocks.capacity:
                draft.tokens_left = left
                room = self._make_room(draft, sequence)
                left = draft.tokens_left
                if room is None:
                    continue
                new_blocks = room
            # As `sequence.advance(1, new_blocks)` does; most rows of most steps are made here.
            rows[sequence.id] = PlannedRow(
                sequence.id, slot, start, 1, new_blocks, True, end - sequence.prompt_len, end < sequence.stop_after
            )
            sequence.computed = end
            sequence.length = end + sequence.draws
            left -= 1
        draft.tokens_left = left
        return prompts

    def _make_room(self, draft: StepDraft, sequence: SequenceState) -> NewBlocks | None:
        """Reserve one more token, preempting others until there is room. None when the sequence itself had to go."""
        while True:
            room = self._cache.reserve(sequence.blocks, sequence.computed, 1)
            if room is not None:
                return room
            victim = self._preemption.victim()
            self._preemption.preempt(draft, victim)
            if victim is sequence:
                return None

    def _continue_prompts(self, draft: StepDraft, prompts: list[SequenceState], now: float) -> None:
        for sequence in self._roster.line.in_order(prompts):
            if self._preempts or sequence.request.lag:  # who waits and is more urgent goes before a prompt under way
                self._intake.start_in_turn(draft, now, before=sequence.rank)
            if sequence.slot >= 0 and draft.room(sequence.computed):
                self._continue(draft, sequence, now)

    def _continue(self, draft: StepDraft, sequence: SequenceState, now: float) -> None:
        """Compute another chunk of a prompt, as large as budget and blocks allow."""
        shorter = self._intake.shorter_than(draft, sequence, sequence.pending, sequence.computed)
        limit = draft.room(sequence.computed) - sum(member.pending for member in shorter)
        room = self._cache.room(sequence.blocks, sequence.computed)
        while room < 1:
            victim = self._preemption.victim()
            if victim is sequence:
                return  # the others go on; it keeps what it has until they need that
            self._preemption.preempt(draft, victim)
            room = self._cache.room(sequence.blocks, sequence.computed)
        count = min(sequence.pending, limit, room)
        if self._limits.enable_chunked_prefill:
            count = self._cache.until_state(sequence.blocks, sequence.computed, count)
        new_blocks = self._cache.reserve(sequence.blocks, sequence.computed, count)
        if new_blocks is None:
            raise InternalError(f"the cache has room for {room} tokens but not for {count}")
        draft.add(sequence.advance(count, new_blocks))
        if not draft.preempted:
            self._intake.start_all(draft, shorter, now)

    def _replace_idle(self, draft: StepDraft, now: float) -> None:
        """Nobody that runs has anything to compute: beams that wait for others of their search make way for these."""
        while not draft.rows and (head := self._intake.next()) is not None and head.id not in draft.preempted:
            idle = [sequence for sequence in self._roster.running.values() if not sequence.pending]
            if not idle:
                return
            self._preemption.preempt(draft, choose_victim(idle))
            self._intake.start_all(draft, (head,), now)

    def _charge(self, draft: StepDraft) -> None:
        line, running = self._roster.line, self._roster.running
        for row in draft.rows.values():
            if row.samples:
                line.charge(running[row.sequence], OUTPUT_COST)
