"""In which order waiting sequences start, and whose turn to give way comes first.

A rank is (time, id): a moment in seconds, the arrival moved by what the policy cares for, and the id to break ties. It
never changes while a request lives, so ageing needs no clock: who arrives late enough has the worse rank, whatever
its priority. Hence the bounds, in seconds of arrival time:

    fcfs, fair      nothing that arrives later has a better rank (of the same tenant)
    priority        a request is overtaken by one of a priority p levels more urgent only if that arrives less than
                    p * AGEING_SECONDS after it
    sjf             ... by one that is t tokens shorter (prompt and most tokens of answer) only if it arrives less than
                    t * SECONDS_PER_TOKEN after it
    lpm             ... by one with a longer cached prefix only until it has waited AGEING_SECONDS

Ranks fall into levels of AGEING_SECONDS. The worst level gives way first; within a level, who has least to lose. As
only finitely many requests ever reach a level as good as a given one's, and within a level who has most to lose never
gives way, every request ends.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import floor
from typing import Protocol

from octavo.flow.request import GenerationRequest
from octavo.scheduling.fairness import FairQueue
from octavo.scheduling.queue import WaitingQueue
from octavo.scheduling.sequence import Rank, SequenceState

AGEING_SECONDS = 30.0
SECONDS_PER_TOKEN = 0.01
_LARGEST_PRIORITY = 10**9
# Waiting sequences whose cached prefixes are compared.
_COMPARED = 32

RankOf = Callable[[GenerationRequest, int, float], Rank]
PrefixOf = Callable[[SequenceState], int]


class WaitingLine(Protocol):
    """Sequences that wait, in some order of turns. One owner: the Roster.

    `tenants`: how many have something that waits, as far as the line tells them apart.
    """

    tenants: int

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[SequenceState]:
        """All; the line must not change meanwhile."""
        ...

    def begin(self, now: float) -> None:
        """A step is planned; comes before `first`."""
        ...

    def push(self, sequence: SequenceState) -> None: ...

    def remove(self, sequence: SequenceState) -> None: ...

    def first(self) -> SequenceState | None:
        """Whose turn it is."""
        ...

    def ahead(self, count: int) -> list[SequenceState]:
        """Those whose turn comes soon; at most `count`."""
        ...

    def in_order(self, prompts: Iterable[SequenceState]) -> list[SequenceState]:
        """Running prompts in the order in which they get their part of a step."""
        ...

    def charge(self, sequence: SequenceState, service: float) -> None:
        """A sequence gets `service` units; see fairness.py."""
        ...


class PrefixQueue(WaitingQueue):
    """Longest cached prefix first, but not past those who have waited AGEING_SECONDS.

    Args:
        prefix_of: tokens of a sequence's prefix that the cache has now.
    """

    def __init__(self, prefix_of: PrefixOf) -> None:
        super().__init__()
        self._prefix_of = prefix_of
        self._now = 0.0
        self._order: list[SequenceState] = []  # of this step, last one first

    def begin(self, now: float) -> None:
        """A step is planned: what the cache holds has changed."""
        self._now = now
        self._order.clear()

    def first(self) -> SequenceState | None:
        """Whose turn it is."""
        while self._order and self._order[-1].slot >= 0:
            self._order.pop()
        if not self._order and len(self):
            self._order = self._compare()
        return self._order[-1] if self._order else None

    def remove(self, sequence: SequenceState) -> None:
        """Take a sequence out that is in the queue."""
        super().remove(sequence)
        if sequence in self._order:
            self._order.remove(sequence)

    def _compare(self) -> list[SequenceState]:
        members = self.ahead(_COMPARED)
        aged = [one for one in members if self._now - one.arrived - one.request.lag >= AGEING_SECONDS]
        found = {one.id: self._prefix_of(one) for one in members[len(aged) :]}
        fresh = sorted(members[len(aged) :], key=lambda one: (one.request.lag, -found[one.id], one.rank))
        return [*aged, *fresh][::-1]


@dataclass(frozen=True, slots=True)
class Policy:
    """`preempts`: who waits may take the place of one who runs and is of a worse level."""

    rank_of: RankOf
    line: Callable[[PrefixOf, Mapping[str, float]], WaitingLine]
    preempts: bool = False
    charges: bool = False  # the line keeps account of service


def level_of(rank: Rank) -> int:
    """Which ranks count as equal when someone has to give way."""
    return floor(rank[0] / AGEING_SECONDS)


def first_come(request: GenerationRequest, sequence: int, arrived: float) -> Rank:
    """In order of arrival."""
    del request
    return (arrived, sequence)


def by_priority(request: GenerationRequest, sequence: int, arrived: float) -> Rank:
    """A level of priority is worth AGEING_SECONDS of waiting; lower is sooner."""
    priority = max(-_LARGEST_PRIORITY, min(_LARGEST_PRIORITY, request.priority))
    return (arrived + priority * AGEING_SECONDS, sequence)


def shortest_job(request: GenerationRequest, sequence: int, arrived: float) -> Rank:
    """A token of prompt or answer is worth SECONDS_PER_TOKEN of waiting; the answer counts as long as it may become."""
    work = len(request.prompt_token_ids) + min(request.stopping.max_tokens, _LARGEST_PRIORITY) * request.n
    return (arrived + work * SECONDS_PER_TOKEN, sequence)


def _by_rank(prefix_of: PrefixOf, weights: Mapping[str, float]) -> WaitingLine:
    del prefix_of, weights
    return WaitingQueue()


POLICIES: dict[str, Policy] = {
    "fcfs": Policy(first_come, _by_rank),
    "priority": Policy(by_priority, _by_rank, preempts=True),
    "lpm": Policy(first_come, lambda prefix_of, _weights: PrefixQueue(prefix_of)),
    "sjf": Policy(shortest_job, _by_rank),
    "fair": Policy(first_come, lambda _prefix_of, weights: FairQueue(weights), charges=True),
}
