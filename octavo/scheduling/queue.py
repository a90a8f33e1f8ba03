"""Waiting sequences, sorted by rank."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator

from octavo.scheduling.sequence import Rank, SequenceState

_MOST_SKIPPED = 1024  # tombstones near the front, before they are cleared away


class WaitingQueue:
    """Sequences by rank. Sorted lists with tombstones: arrivals are mostly last, departures mostly first."""

    def __init__(self) -> None:
        self.tenants = 0  # are not told apart
        self._ranks: list[Rank] = []
        self._sequences: list[SequenceState | None] = []
        self._head = 0
        self._live = 0

    def __len__(self) -> int:
        return self._live

    def __iter__(self) -> Iterator[SequenceState]:
        """In order; the queue must not change meanwhile."""
        for position in range(self._head, len(self._sequences)):
            sequence = self._sequences[position]
            if sequence is not None:
                yield sequence

    def begin(self, now: float) -> None:
        """A step is planned."""

    def push(self, sequence: SequenceState) -> None:
        """Add a sequence that is not in the queue."""
        rank = sequence.rank
        self._live += 1
        if not self._ranks or rank > self._ranks[-1]:
            self._ranks.append(rank)
            self._sequences.append(sequence)
            return
        position = bisect_left(self._ranks, rank, self._head)
        if position == self._head and self._head:  # back to the front, as after a preemption
            self._head = position = self._head - 1
            self._ranks[position], self._sequences[position] = rank, sequence
        elif self._ranks[position] == rank:  # its own tombstone
            self._sequences[position] = sequence
        else:
            self._ranks.insert(position, rank)
            self._sequences.insert(position, sequence)

    def first(self) -> SequenceState | None:
        """Whose turn it is."""
        return self._sequences[self._head] if self._live else None

    def ahead(self, count: int) -> list[SequenceState]:
        """The first ones; at most `count`."""
        found: list[SequenceState] = []
        position, size = self._head, len(self._sequences)
        while position < size and len(found) < count:
            sequence = self._sequences[position]
            if sequence is not None:
                found.append(sequence)
            position += 1
        if position - self._head > count + _MOST_SKIPPED:
            self._compact()
        return found

    def remove(self, sequence: SequenceState) -> None:
        """Take a sequence out that is in the queue."""
        position = bisect_left(self._ranks, sequence.rank, self._head)
        self._sequences[position] = None
        self._live -= 1
        size = len(self._sequences)
        if not self._live:
            self._head = size
        while self._head < size and self._sequences[self._head] is None:
            self._head += 1
        if size > 64 and self._live * 2 < size:
            self._compact()

    def in_order(self, prompts: Iterable[SequenceState]) -> list[SequenceState]:
        """Running prompts in the order in which they get their part of a step."""
        return sorted(prompts, key=lambda one: one.rank)

    def charge(self, sequence: SequenceState, service: float) -> None:
        """Nobody keeps account."""

    def _compact(self) -> None:
        kept = list(self)
        self._ranks = [sequence.rank for sequence in kept]
        self._sequences = [*kept]
        self._head = 0
