"""Which waiting sequences have cached prefixes in slower memory, and when these come back for them."""

from collections.abc import Iterable

from octavo.cache.manager import CacheManager
from octavo.cache.table import SequenceBlocks
from octavo.cache.tier_prefix import StagedPrefix
from octavo.cache.tiers import CacheTiers
from octavo.scheduling.roster import Roster
from octavo.scheduling.sequence import SequenceState

# How many waiting sequences are looked at: those whose turn comes soon.
_LOOK_AHEAD = 16


class Staging:
    """Brings prefixes back before their sequences start. Mutable; the Scheduler owns it.

    While a sequence waits for its turn, slower tiers bring its blocks to host memory. Once there is a slot and room for
    it, they go on to the device; meanwhile it is parked and others may start. Then it waits for its turn again, once,
    and starts with whatever has come.
    """

    def __init__(self, cache: CacheManager, tiers: CacheTiers, roster: Roster) -> None:
        self._cache = cache
        self._tiers = tiers
        self._roster = roster
        self._staged: dict[int, StagedPrefix] = {}  # by sequence
        self._looked_at: dict[int, int] = {}  # by sequence: its preemptions so far
        self._groups = len(cache.no_blocks)

    @property
    def waits(self) -> bool:
        """Some sequence is parked for its blocks."""
        return any(sequence.parked for sequence in self._members())

    def begin(self, now: float) -> None:
        """A step is planned: order what can be ordered for those who wait."""
        self._tiers.tick(now)
        for sequence in list(self._members()):
            self._advance(sequence)
        for sequence in list(self._roster.line.ahead(_LOOK_AHEAD)):
            if self._looked_at.get(sequence.id) != sequence.preemptions:
                self._look(sequence)

    def _members(self) -> Iterable[SequenceState]:
        """Those under way; whoever has ended or started meanwhile is none of them any more."""
        members = self._roster.members
        gone = [number for number in self._staged if number not in members or members[number].slot >= 0]
        for number in gone:
            del self._staged[number]
        return [members[number] for number in self._staged]

    def _look(self, sequence: SequenceState) -> None:
        if len(self._looked_at) > 2 * len(self._roster.members) + 64:
            self._looked_at = {number: self._looked_at[number] for number in self._looked_at if self._lives(number)}
        self._looked_at[sequence.id] = sequence.preemptions
        if sequence.donor is not None:  # it takes its blocks from one that runs
            return
        staged = self._cache.stage(sequence.blocks, sequence.token_ids, sequence.match_limit)
        if staged is not None:
            self._staged[sequence.id] = staged
            self._advance(sequence)

    def _lives(self, number: int) -> bool:
        return number in self._roster.members

    def _advance(self, sequence: SequenceState) -> None:
        roster = self._roster
        spare = 0
        if roster.free_slots:  # every running sequence may need a block of each group in this very step
            spare = self._cache.available - self._groups * len(roster.running)
        progress = self._tiers.advance(self._staged[sequence.id], spare)
        if progress == "done":
            del self._staged[sequence.id]
        if progress == "coming":
            roster.hold(sequence)
        else:
            roster.let_go(sequence)


class KeepBlocks:
    """Implements preemption.Spill: a victim's blocks stay cached, and go to a tier when others need the room."""

    def __init__(self, cache: CacheManager, tiers: CacheTiers) -> None:
        self._cache = cache
        self._tiers = tiers

    def offer(self, blocks: SequenceBlocks, tokens: int) -> bool:
        """Kept when a tier brings them back quicker than they are computed; see tier_cost.py."""
        return self._cache.prefix_caching and tokens >= self._cache.block_size and self._tiers.comes_back()
