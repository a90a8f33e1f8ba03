"""Which cached blocks host memory and each slower tier hold, within their bounds, and what goes first in each."""

from collections import Counter, OrderedDict
from collections.abc import Container
from dataclasses import dataclass, field

from octavo.cache.block import BlockHash
from octavo.cache.tier_cost import TransferCost

TierKey = bytes  # a block's hash and its lane: the same tokens give every lane other contents

HOST = "host"

_LANE_BYTES = 2
# After this many failures in a row a tier is left alone, for a time that doubles up to the most.
_MOST_FAILURES = 3
_LEAST_REST, _MOST_REST = 1.0, 60.0  # seconds


def tier_key(lane: int, key: BlockHash) -> TierKey:
    """Names a lane's block below the device."""
    return key + lane.to_bytes(_LANE_BYTES, "big")


def split_key(key: TierKey) -> tuple[int, BlockHash]:
    """The lane and hash of a key."""
    return int.from_bytes(key[-_LANE_BYTES:], "big"), key[:-_LANE_BYTES]


@dataclass(frozen=True, slots=True)
class TierReading:
    """A reading of one tier, counted in blocks and bytes; counters only grow.

    `misses` and `refusals` are by cause. `bypassed`: not used although there, since computing is quicker.
    """

    name: str
    blocks: int = 0
    capacity: int = 0
    hits: int = 0
    misses: tuple[tuple[str, int], ...] = ()
    refusals: tuple[tuple[str, int], ...] = ()  # blocks that it did not take
    read_bytes: int = 0
    written_bytes: int = 0
    bypassed: int = 0
    evictions: int = 0
    page_seconds: float = 0.0  # to read one block; 0: not measured yet
    active: bool = True  # false: left alone after failures


@dataclass(slots=True)
class TierCounters:
    """What a tier did so far. See TierReading."""

    hits: int = 0
    bypassed: int = 0
    evictions: int = 0
    read_pages: int = 0
    written_pages: int = 0
    misses: Counter[str] = field(default_factory=Counter[str])
    refusals: Counter[str] = field(default_factory=Counter[str])


@dataclass(slots=True)
class HostPage:
    """A page of host memory. It stays while something is on its way to it or from it.

    `users`: transfers under way from it. `origin` is where its contents came from last, until they are used: "host" for
    a spill, else the tier's name.
    """

    arriving: bool = True
    users: int = 0
    origin: str = HOST

    @property
    def ready(self) -> bool:
        """Its contents are there."""
        return not self.arriving


class HostLevel:
    """Host memory: where blocks go from the device, and through which they come back. Least recently used goes first.

    Args:
        pages: how many it holds.
        keeps: it is a tier of its own; else it is only the way to and from slower ones.
    """

    name = HOST

    def __init__(self, pages: int, keeps: bool = True) -> None:
        self.capacity = pages
        self.keeps = keeps
        self.cost = TransferCost()
        self.counters = TierCounters()
        self._pages: OrderedDict[TierKey, HostPage] = OrderedDict()

    def __len__(self) -> int:
        return len(self._pages)

    def find(self, key: TierKey) -> HostPage | None:
        """The page of a key, whether its contents are there already or not."""
        return self._pages.get(key)

    def holds(self, key: TierKey) -> bool:
        """The contents are there, or on their way."""
        return key in self._pages

    def touch(self, key: TierKey) -> None:
        """It was used just now."""
        self._pages.move_to_end(key)

    def room(self, keep: Container[TierKey] = ()) -> tuple[bool, TierKey | None]:
        """Make room for one more page, but not at the cost of `keep`. Returns whether there is, and what had to go."""
        if len(self._pages) < self.capacity:
            return True, None
        idle = (key for key, page in self._pages.items() if page.ready and not page.users and key not in keep)
        victim = next(idle, None)
        if victim is None:
            return False, None
        del self._pages[victim]
        self.counters.evictions += 1
        return True, victim

    def add(self, key: TierKey) -> HostPage:
        """A page whose contents are on their way; `room` was asked for first."""
        page = self._pages[key] = HostPage()
        return page

    def remove(self, key: TierKey) -> bool:
        """Forget a key; false when it is not known."""
        return self._pages.pop(key, None) is not None

    def idle(self) -> list[TierKey]:
        """What nothing is under way for."""
        return [key for key, page in self._pages.items() if page.ready and not page.users]

    def clear(self) -> None:
        """Forget everything."""
        self._pages.clear()

    def reading(self, page_bytes: int) -> TierReading:
        """A reading."""
        return _reading(self.name, len(self._pages), self.capacity, self.counters, self.cost, page_bytes, True)


class SlowLevel:
    """A tier behind host memory. Least recently used goes first; after failures in a row it is left alone for a while.

    Args:
        pages: how many it may hold.
        present: what it holds already, least recently used first.
    """

    def __init__(self, name: str, pages: int, present: list[TierKey] | None = None) -> None:
        self.name = name
        self.capacity = pages
        self.cost = TransferCost()
        self.counters = TierCounters()
        self._ready: OrderedDict[TierKey, bool] = OrderedDict.fromkeys(present or (), True)  # false: on its way there
        self._failures = 0
        self._rests_until = 0.0

    def __len__(self) -> int:
        return len(self._ready)

    def active(self, now: float) -> bool:
        """It is not left alone at the moment."""
        return now >= self._rests_until

    def holds(self, key: TierKey) -> bool:
        """The contents can be read."""
        return self._ready.get(key, False)

    def knows(self, key: TierKey) -> bool:
        """The contents can be read, or are on their way there."""
        return key in self._ready

    def touch(self, key: TierKey) -> None:
        """It was used just now."""
        self._ready.move_to_end(key)

    def room(self) -> tuple[bool, TierKey | None]:
        """Make room for one more. Returns whether there is, and what had to go for it."""
        if len(self._ready) < self.capacity:
            return True, None
        victim = next((key for key, ready in self._ready.items() if ready), None)
        if victim is None:
            return False, None
        del self._ready[victim]
        self.counters.evictions += 1
        return True, victim

    def surplus(self) -> list[TierKey]:
        """Forget what is beyond the bound, and say what that was."""
        count = max(0, len(self._ready) - self.capacity)
        return [self._ready.popitem(last=False)[0] for _ in range(count)]

    def add(self, key: TierKey) -> None:
        """Contents are on their way there; `room` was asked for first."""
        self._ready[key] = False

    def arrived(self, key: TierKey) -> None:
        """The contents are there."""
        if key in self._ready:
            self._ready[key] = True

    def remove(self, key: TierKey) -> None:
        """Forget a key, if it is known."""
        self._ready.pop(key, None)

    def clear(self) -> None:
        """Forget everything."""
        self._ready.clear()

    def succeeded(self) -> None:
        """It did what it was asked for."""
        self._failures = 0

    def failed(self, now: float) -> None:
        """It could not do what it was asked for."""
        self._failures += 1
        if self._failures >= _MOST_FAILURES:
            self._rests_until = now + min(_MOST_REST, _LEAST_REST * 2 ** min(self._failures - _MOST_FAILURES, 10))

    def reading(self, page_bytes: int, now: float) -> TierReading:
        """A reading."""
        active = self.active(now)
        return _reading(self.name, len(self._ready), self.capacity, self.counters, self.cost, page_bytes, active)


def _reading(
    name: str, blocks: int, capacity: int, counters: TierCounters, cost: TransferCost, page_bytes: int, active: bool
) -> TierReading:
    return TierReading(
        name,
        blocks,
        capacity,
        counters.hits,
        tuple(sorted(counters.misses.items())),
        tuple(sorted(counters.refusals.items())),
        counters.read_pages * page_bytes,
        counters.written_pages * page_bytes,
        counters.bypassed,
        counters.evictions,
        cost.page_seconds or 0.0,
        active,
    )
