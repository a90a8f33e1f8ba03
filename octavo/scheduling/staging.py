"""Which waiting sequences have cached prefixes in slower memory, and when these come back for them."""

from octavo.cache.manager import CacheManager
from octavo.cache.tiers import CacheTiers, StagedPrefix
from octavo.scheduling.intake import Intake
from octavo.scheduling.roster import Roster
from octavo.scheduling.sequence import SequenceState

# How many waiting sequences are looked at: those whose turn comes soon.
_LOOK_AHEAD = 16
# How many of these again, when the device has lost blocks since.
_LOOK_AGAIN = 2
_ENOUGH = -1  # it has waited for its blocks once


class Staging:
    """Brings prefixes back before their sequences start. Mutable; the Scheduler owns it.

    While a sequence waits for its turn, slower tiers bring its blocks to host memory. Once there is a slot and room for
    it, they go on to the device; meanwhile it is parked and others may start. Then it waits for its turn again, once,
    and starts with whatever has come.
    """

    def __init__(self, cache: CacheManager, tiers: CacheTiers, roster: Roster, intake: Intake) -> None:
        self._cache = cache
        self._tiers = tiers
        self._roster = roster
        self._intake = intake
        self._staged: dict[int, StagedPrefix] = {}  # by sequence
        self._looks: dict[int, tuple[int, int]] = {}  # by sequence: its preemptions, the device's evictions by then
        self._groups = len(cache.no_blocks)

    @property
    def waits(self) -> bool:
        """Some sequence is parked for its blocks."""
        return any(sequence.parked for sequence in self._members())

    def begin(self, now: float) -> None:
        """A step is planned: order what can be ordered for those who wait."""
        self._tiers.tick(now)
        for sequence in self._members():
            if sequence.parked:
                self._advance(sequence, True)
        turn = True  # nobody goes before the next one
        for position, sequence in enumerate(self._roster.line.ahead(_LOOK_AHEAD)):
            if sequence.id in self._staged or self._look(sequence, position):
                self._advance(sequence, turn)
            turn &= sequence.parked
        held = [sequence for sequence in self._members() if sequence.parked]
        self._intake.reserved = sum(map(self._intake.blocks_for, held))

    def _members(self) -> list[SequenceState]:
        """Those under way; whoever has ended or started meanwhile is none of them any more."""
        members = self._roster.members
        for number in [one for one in self._staged if one not in members or members[one].slot >= 0]:
            del self._staged[number]
        return [members[number] for number in self._staged]

    def _look(self, sequence: SequenceState, position: int) -> bool:
        """Whether tiers have something for it. It is looked at again when the device has lost blocks since."""
        preemptions, evictions = self._looks.get(sequence.id, (-1, 0))
        again = position < _LOOK_AGAIN and 0 <= evictions != self._tiers.evictions
        if preemptions == sequence.preemptions and not again:
            return False
        if len(self._looks) > 2 * len(self._roster.members) + 64:
            self._looks = {number: look for number, look in self._looks.items() if number in self._roster.members}
        self._looks[sequence.id] = (sequence.preemptions, self._tiers.evictions)
        if sequence.donor is not None:  # it takes its blocks from one that runs
            return False
        staged = self._cache.stage(sequence.blocks, sequence.token_ids, sequence.match_limit)
        if staged is not None:
            self._staged[sequence.id] = staged
        return staged is not None

    def _advance(self, sequence: SequenceState, turn: bool) -> None:
        """Order what can be ordered for one sequence.

        Args:
            turn: it starts before all others that wait for their turn, so its blocks may go on to the device.
        """
        roster = self._roster
        spare = 0
        if turn and self._intake.has_room(sequence):  # and what runs may need a block of each group in this very step
            spare = self._cache.available - self._groups * len(roster.running)
        progress = self._tiers.advance(self._staged[sequence.id], spare)
        if progress == "done":
            del self._staged[sequence.id]
            self._looks[sequence.id] = (sequence.preemptions, _ENOUGH)
        if progress == "coming":
            roster.hold(sequence)
        else:
            roster.let_go(sequence)
