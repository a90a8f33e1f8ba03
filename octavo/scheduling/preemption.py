"""Who has to give slot and blocks back when there are too few, and for whom."""

from collections.abc import Iterable

from octavo.cache.manager import CacheManager
from octavo.scheduling.budget import StepDraft
from octavo.scheduling.roster import Roster
from octavo.scheduling.sequence import Rank, SequenceState
from octavo.scheduling.stats import SchedulerCounters


def choose_victim(running: Iterable[SequenceState]) -> SequenceState:
    """Of the worst level the one that has least to lose; of equal ones the one of the worst rank.

    Who has most to lose among those of the best level is never chosen while others run. It fits into the cache alone,
    so it always gets on: no choice of pool or load makes sequences take turns in losing their work for ever.
    """
    return max(running, key=_readiness)


def _readiness(sequence: SequenceState) -> tuple[int, int, Rank]:
    return (sequence.level, -sequence.lost, sequence.rank)


class Preemption:
    """Takes slots and blocks back. Mutable in what it is given; the Scheduler owns it.

    What a victim has computed stays cached. When its room is needed before the victim comes back, it is computed again,
    or comes back from a tier: the cache decides which, block by block.
    """

    def __init__(self, cache: CacheManager, roster: Roster, counters: SchedulerCounters) -> None:
        self._cache = cache
        self._roster = roster
        self._counters = counters

    def victim(self) -> SequenceState:
        """Who gives way next."""
        return choose_victim(self._roster.running.values())

    def preempt(self, draft: StepDraft, victim: SequenceState) -> None:
        """Take back a sequence's blocks and slot; it starts again when its turn comes."""
        row = draft.withdraw(victim.id)
        if row is not None:
            victim.retreat(row)
        self._counters.spilled += self._cache.comes_back(victim.computed)
        known = draft.arrivals.pop(victim.id, None) is None  # else it is new to the device, which never hears of it
        self._roster.unseat(victim, known)
        draft.preempted.append(victim.id)
        victim.preemptions += 1
        self._counters.preemptions += 1

    def make_way(self, draft: StepDraft, worse: Iterable[SequenceState], blocks: int) -> bool:
        """Preempt some of these running sequences until there is a slot and `blocks` are available.

        Returns:
            False when that is not possible; then nobody was preempted.
        """
        roster = self._roster
        worse = sorted(worse, key=_readiness, reverse=True)
        needed = self._cache.victims(blocks - self._cache.available, [one.blocks for one in worse])
        if needed is None:
            return False
        for victim in worse[: max(needed, 0 if roster.free_slots else 1)]:
            self.preempt(draft, victim)
            self._counters.overtaken += 1
        return bool(roster.free_slots)
