"""Whose turn it is when tenants compete: the one who got least service so far, by virtual token counters.

Sheng et al., Fairness in Serving Large Language Models, OSDI 2024 (arXiv:2401.00588), algorithm 2, with weights.
"""

import heapq
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from octavo.errors import ConfigError
from octavo.scheduling.queue import WaitingQueue
from octavo.scheduling.sequence import SequenceState

# Service units of a token. A generated token costs about twice a prompt's (section 3.1 of the paper).
PROMPT_COST = 1.0
OUTPUT_COST = 2.0
_REMEMBERED = 2048  # tenants that are kept in mind although nothing of theirs waits, at least


@dataclass(slots=True, eq=False)
class Account:
    """One tenant. `served` only grows."""

    name: str
    weight: float
    served: float  # service so far, in units divided by the weight
    listed: bool = False  # the heap has an entry of it
    waiting: WaitingQueue = field(default_factory=WaitingQueue)


class FairQueue:
    """Waiting sequences by tenant: first of the tenant who was served least, then by rank. Mutable; the Roster owns it.

    A tenant that begins to wait is lifted to the least served of those who wait already: time away gives no credit.
    Background work waits behind all tenants, in a line of its own, and nobody is charged for it.
    Nothing is held back from anyone while others have nothing to do, so the machine is never idle for fairness' sake.

    Args:
        weights: share of a tenant in proportion to others; 1 for those that are not named.
    """

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = dict(weights)
        self._accounts: dict[str, Account] = {}
        self._heap: list[tuple[float, str]] = []  # tenants with waiting sequences; the counter may be out of date
        self._floor = 0.0  # what the least served of those who waited had
        self._last: Account | None = None  # who left when nobody else waited
        self._live = 0
        self._background = WaitingQueue()
        self._most = 4 * _REMEMBERED  # tenants known before some are forgotten
        self.tenants = 0  # that have something waiting

    def __len__(self) -> int:
        return self._live + len(self._background)

    def __iter__(self) -> Iterator[SequenceState]:
        """All, in no particular order."""
        for account in self._accounts.values():
            yield from account.waiting
        yield from self._background

    def begin(self, now: float) -> None:
        """A step is planned."""

    def push(self, sequence: SequenceState) -> None:
        """Add a sequence that is not in the queue."""
        if sequence.request.lag:
            self._background.push(sequence)
            return
        account = self._account(sequence.request.tenant)
        if sequence.request.tenant_weight:
            account.weight = sequence.request.tenant_weight
        if not len(account.waiting):
            least = self._least() or self._last
            account.served = max(account.served, self._floor if least is None else least.served)
            self.tenants += 1
            if not account.listed:
                account.listed = True
                heapq.heappush(self._heap, (account.served, account.name))
        account.waiting.push(sequence)
        self._live += 1

    def remove(self, sequence: SequenceState) -> None:
        """Take a sequence out that is in the queue."""
        if sequence.request.lag:
            self._background.remove(sequence)
            return
        account = self._accounts[sequence.request.tenant]
        account.waiting.remove(sequence)
        self.tenants -= not len(account.waiting)
        self._live -= 1
        if not self._live:
            self._last = account

    def first(self) -> SequenceState | None:
        """Whose turn it is."""
        account = self._least()
        return (self._background if account is None else account.waiting).first()

    def ahead(self, count: int) -> list[SequenceState]:
        """The first of each tenant, least served first; at most `count`."""
        heads: list[SequenceState] = []
        looked_at: list[tuple[float, str]] = []
        floor = self._floor
        while len(heads) < count and (account := self._least()) is not None:
            looked_at.append(heapq.heappop(self._heap))
            head = account.waiting.first()
            if head is not None:
                heads.append(head)
        for entry in looked_at:
            heapq.heappush(self._heap, entry)
        self._floor = floor
        return heads + self._background.ahead(count - len(heads))

    def in_order(self, prompts: Iterable[SequenceState]) -> list[SequenceState]:
        """Running prompts in the order in which they get their part of a step."""
        accounts = self._accounts
        served = {one.id: accounts[name].served if (name := one.request.tenant) in accounts else 0.0 for one in prompts}
        return sorted(prompts, key=lambda one: (one.request.lag, served[one.id], one.rank))

    def charge(self, sequence: SequenceState, service: float) -> None:
        """A sequence's tenant gets `service` units."""
        if sequence.request.lag:
            return
        account = self._account(sequence.request.tenant)
        account.served += service / account.weight

    def _account(self, name: str) -> Account:
        account = self._accounts.get(name)
        if account is None:
            if len(self._accounts) >= self._most:
                self._prune()
            account = self._accounts[name] = Account(name, self._weights.get(name, 1.0), self._floor)
        return account

    def _least(self) -> Account | None:
        """The least served tenant of those who wait."""
        heap = self._heap
        while heap:
            served, name = heap[0]
            account = self._accounts[name]
            if not len(account.waiting):
                heapq.heappop(heap)
                account.listed = False
            elif served != account.served:
                heapq.heapreplace(heap, (account.served, name))
            else:
                self._floor = max(self._floor, served)
                return account
        return None

    def _prune(self) -> None:
        """Forget tenants of whom nothing waits, first those that would be lifted anyway when they come back."""
        idle = sorted(
            (account for account in self._accounts.values() if not account.listed and not len(account.waiting)),
            key=lambda account: account.served,
        )
        for account in idle[: max(0, len(idle) - _REMEMBERED)]:
            del self._accounts[account.name]
        # Where most of them wait there is little to forget: this must not be done again for each new one.
        self._most = max(4 * _REMEMBERED, 2 * len(self._accounts))


def read_weights(entries: Iterable[str]) -> dict[str, float]:
    """Weights written as "tenant=2.5".

    Raises:
        ConfigError: an entry is not of that form, a weight is not a positive number, or a tenant is named twice.
    """
    weights: dict[str, float] = {}
    for entry in entries:
        name, _, text = entry.rpartition("=")
        try:
            weight = float(text)
        except ValueError:
            weight = 0.0
        if not name or not 1e-6 <= weight <= 1e6:
            raise ConfigError(f"tenant_weights: {entry!r} is not of the form TENANT=WEIGHT with a weight above 0")
        if name in weights:
            raise ConfigError(f"tenant_weights: {name!r} has two weights, {weights[name]:g} and {weight:g}; give one")
        weights[name] = weight
    return weights
