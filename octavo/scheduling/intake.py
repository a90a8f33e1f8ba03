"""Which waiting sequences start in a step, what they need not compute, and when others make way for them."""

from collections.abc import Iterable, Iterator

from octavo.cache.manager import CacheManager
from octavo.cache.table import PrefixMatch
from octavo.scheduling.budget import SchedulerLimits, StepDraft
from octavo.scheduling.fairness import PROMPT_COST
from octavo.scheduling.policy import POLICIES
from octavo.scheduling.preemption import Preemption
from octavo.scheduling.roster import Roster
from octavo.scheduling.sequence import Rank, SequenceState
from octavo.scheduling.stats import SchedulerCounters

# How many waiting sequences are looked at to find short prompts that fit beside a long one.
_LOOK_AHEAD = 16


class Intake:
    """Starts waiting sequences while budget, slots and blocks last. Mutable; the Scheduler owns it.

    Whoever starts needs room for all that is known of it, or it would soon be in the way of those that run. The first
    in line is not passed over for want of room; only short prompts may overtake one that a step cannot finish.
    """

    def __init__(
        self,
        cache: CacheManager,
        limits: SchedulerLimits,
        roster: Roster,
        preemption: Preemption,
        counters: SchedulerCounters,
    ) -> None:
        self.paused = False  # only what has been started goes on; set by the Scheduler
        self.reserved = 0  # blocks for sequences that will start once their prefixes are back; set by Staging
        self._last = self._under_way = StepDraft(0)
        self._cache = cache
        self._limits = limits
        self._roster = roster
        self._preemption = preemption
        self._counters = counters
        self._preempts = POLICIES[limits.policy].preempts
        # Free blocks that are left to running sequences, so that they need not be preempted at once.
        self._headroom = cache.num_blocks // 100

    def begin(self, draft: StepDraft, settled: bool) -> None:
        """`draft` is planned from now on.

        Args:
            settled: the step planned before has been committed.
        """
        self._under_way = StepDraft(0) if settled else self._last
        self._last = draft

    def next(self) -> SequenceState | None:
        """Whose turn it is."""
        return self._roster.first(begun=self.paused)

    def start_in_turn(self, draft: StepDraft, now: float, before: Rank | None = None) -> None:
        """Start sequences, first in line first.

        Args:
            before: only those of a better rank than this one.
        """
        roster = self._roster
        if not (self._preempts or roster.lagging or roster.free_slots):
            return  # whoever is next: do not even ask, for some lines have to compare many
        while draft.room() and (head := self.next()) is not None:
            if before is not None and head.rank > before:
                return
            # Who was preempted in this step waits for the next one; what was taken from it is for others.
            if draft.preempted and not self._outranks(head):
                return
            match = self.match(draft, head)
            shorter = self.shorter_than(draft, head, head.length - match.tokens, match.tokens)
            limit = draft.room(match.tokens) - sum(member.pending for member in shorter)
            if not self._start_head(draft, head, match, limit, now):
                return
            self.start_all(draft, shorter, now)
            if shorter:
                return

    def start_whole(self, draft: StepDraft, now: float) -> None:
        """Without chunks, a prompt that does not fit beside the running sequences takes the step before them."""
        roster, head = self._roster, self.next()
        if head is not None and roster.free_slots and head.length + len(roster.running) > draft.tokens_left:
            self._start(draft, head, self.match(draft, head), draft.tokens_left, now)

    def start_all(self, draft: StepDraft, sequences: Iterable[SequenceState], now: float) -> None:
        """Start these, as far as there is room."""
        for sequence in sequences:
            room = draft.room()
            if room and self._roster.free_slots:
                self._start(draft, sequence, self.match(draft, sequence), room, now)

    def shorter_than(self, draft: StepDraft, long: SequenceState, pending: int, start: int) -> list[SequenceState]:
        """What may overtake a prompt that this step cannot finish: short ones which half of the step suffices for."""
        room = draft.room(start)
        if pending <= room or self.paused or not self._limits.enable_chunked_prefill:
            return []
        found: list[SequenceState] = []
        slots, left = len(self._roster.free_slots) - (long.slot < 0), room // 2
        for sequence in self._roster.line.ahead(_LOOK_AHEAD):
            if len(found) >= slots:
                break
            if sequence is not long and sequence.pending <= left and sequence.request.lag <= long.request.lag:
                found.append(sequence)
                left -= sequence.pending
        return found

    def match(self, draft: StepDraft, sequence: SequenceState) -> PrefixMatch:
        """What it need not compute: from the prefix cache, or more from a stream of its request that runs."""
        match = self._cache.match_prefix(sequence.blocks, sequence.token_ids, sequence.match_limit)
        donor, common = self._donor(sequence)
        if donor is None or sequence.match_limit is not None:
            return match
        # Blocks are copied before a step computes anything, and what is under way may yet fail.
        planned = draft.rows.get(donor.id)
        row = self._under_way.rows.get(donor.id) or planned
        tokens = min(common, donor.computed if row is None else row.start)
        if tokens <= match.tokens:
            return match
        reached = donor.computed if planned is None else planned.start
        return self._cache.fork(sequence.blocks, donor.blocks, tokens, reached) or match

    def has_room(self, sequence: SequenceState) -> bool:
        """A waiting sequence could start now, as far as slots and blocks go."""
        if not self._roster.free_slots or not self._roster.running:
            return bool(self._roster.free_slots)
        return self.blocks_for(sequence) <= self._cache.available

    def blocks_for(self, sequence: SequenceState) -> int:
        """Blocks that must be available for a waiting sequence to start with as much as a step computes."""
        match = self._cache.match_prefix(sequence.blocks, sequence.token_ids, sequence.match_limit)
        return self._needed(sequence, min(sequence.length - match.tokens, self._limits.max_num_batched_tokens), match)

    def _donor(self, sequence: SequenceState) -> tuple[SequenceState | None, int]:
        """Whose blocks a waiting sequence may take over, and how many of its tokens these could be good for: of a beam
        the one it forked off, of a sample one that has computed the same prompt."""
        common, donor = len(sequence.token_ids) - 1, sequence.donor
        if donor is not None:
            return (donor if donor.slot >= 0 else None), common
        if sequence.request.n == 1:
            return None, common
        siblings, arriving = self._roster.streams[sequence.request.id], self._under_way.arrivals
        donor = next((one for one in siblings if one.slot >= 0 and one.id not in arriving), None)
        return donor, min(common, sequence.prompt_len)

    def _outranks(self, head: SequenceState) -> bool:
        """Others have to make way for it, also in a step that has preempted someone."""
        return bool(self._preempts or self._roster.lagging) and any(self._yielding(head))

    def _yielding(self, head: SequenceState) -> Iterator[SequenceState]:
        """Who runs and makes way for it: of worse levels, under a policy that preempts; background work under all."""
        for one in self._roster.running.values():
            if one.level > head.level and (self._preempts or one.request.lag > head.request.lag):
                yield one

    def _start_head(self, draft: StepDraft, head: SequenceState, match: PrefixMatch, limit: int, now: float) -> bool:
        """Start who is first in line; others make way if they have to."""
        if self._roster.free_slots and self._start(draft, head, match, limit, now):
            return True
        fits = limit > 0 and (self._limits.enable_chunked_prefill or limit >= head.length - match.tokens)
        if not fits or not self._outranks(head):
            return False
        needed = self._needed(head, min(head.length - match.tokens, limit), match)
        if not self._preemption.make_way(draft, self._yielding(head), needed):
            return False
        return self._start(draft, head, self.match(draft, head), limit, now)

    def _needed(self, sequence: SequenceState, count: int, match: PrefixMatch) -> int:
        """Blocks that must be available for a sequence to start with `count` tokens."""
        return self._cache.peak(sequence.length, count) - self._cache.shared(match) + self._headroom

    def _start(self, draft: StepDraft, sequence: SequenceState, match: PrefixMatch, limit: int, now: float) -> bool:
        """Start a waiting sequence with at most `limit` tokens; false when there is no room for it."""
        pending = sequence.length - match.tokens
        count = min(pending, limit)
        if count < pending and not self._limits.enable_chunked_prefill:
            return False
        if self._roster.running or self.reserved:
            if self._needed(sequence, count, match) + self.reserved > self._cache.available:
                return False
        else:
            count = min(count, self._cache.room(sequence.blocks, match.tokens, match))
        if count > 0 and self._limits.enable_chunked_prefill:
            count = self._cache.until_state(sequence.blocks, match.tokens, count)
        new_blocks = self._cache.reserve(sequence.blocks, match.tokens, count, match) if count > 0 else None
        if new_blocks is None:
            return False
        self._roster.seat(sequence)
        sequence.donor = None
        sequence.computed = sequence.taken = match.tokens
        if not sequence.started:
            self._note_start(sequence, match, now)
        draft.arrivals[sequence.id] = sequence.arrival()
        draft.add(sequence.advance(count, new_blocks))
        return True

    def _note_start(self, sequence: SequenceState, match: PrefixMatch, now: float) -> None:
        """Its first start."""
        sequence.started = True
        sequence.scheduled = now
        sequence.num_cached = match.tokens
        self._roster.line.charge(sequence, PROMPT_COST * (sequence.length - match.tokens))
        sequence.cache_report = self._cache.look_back(
            sequence.blocks, sequence.token_ids, match, sequence.match_limit, sequence.request.cache.explain
        )
        if self._cache.prefix_caching and sequence.match_limit is None:
            self._counters.prefix_queries += sequence.prompt_len
            self._counters.prefix_hits += match.tokens
